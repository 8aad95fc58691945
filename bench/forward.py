"""How fast do tenants' events reach Postgres, and how long after they were emitted?

The outboxes of 1, 100 and 10,000 tenants are emptied in full batches; beside it, in turns, the same rows go by
one raw COPY into a table without an index, and some of them by one INSERT each. Then another process emits 1,000
events a second over the tenants, and Postgres's own commit times say how late each arrived.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tenantq
from bench._measure import median, paired, percentiles_ms
from bench._options import Options
from bench._plots import chart
from bench._postgres import postgres_server, why_not
from bench._report import Result, Row
from bench._servers import MISSING
from bench._workload import Jobs

TENANTS = (1, 100, 1_000, 10_000)
"""The last only with `--rows 1000000`: its files alone take minutes."""

EVENTS_A_TENANT = 100

EVENTS = 50_000
"""Of all tenants together, emptied at once."""

INSERTS = 2_000
"""A few are enough to know what one costs."""

RATE = 1_000
"""Events a second that are emitted while the lag is measured."""

QUEUE = "forwarded"

PLAIN = """
CREATE TABLE plain (
    tenant text, seq bigint, event_id uuid, topic text, emitted_at timestamptz, headers text, body text
)
"""

COPY = "COPY plain (tenant, seq, event_id, topic, emitted_at, headers, body) FROM STDIN"

INSERT = """
INSERT INTO plain (tenant, seq, event_id, topic, emitted_at, headers, body) VALUES (%s, %s, %s, %s, %s, %s, %s)
"""

LAGS = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - enqueued_at) * 1e9
FROM tenantq.ready
WHERE enqueued_at >= (SELECT min(enqueued_at) FROM tenantq.ready) + make_interval(secs => %s)
"""

Event = tuple[Any, ...]


def run(options: Options) -> Result:
    missing = why_not("postgres, PostgresQueue")
    counts = options.pick(tuple(count for count in TENANTS if count * EVENTS_A_TENANT <= options.rows), (1, 20))
    if missing:
        empty: Row = {"tenants": 0, "events/s": None, "COPY/s": None, "INSERT/s": None, "p50": None, "p99": None}
        return Result(rows=[empty], parameters={}, notes=[MISSING])
    found: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    with postgres_server(track_commit_timestamp="on") as (dsn, _pid):
        for _ in range(options.iterations):
            for count in counts:
                with options.directory() as directory, database(dsn) as own:
                    figures = measure(count, own, directory, options)
                for name, figure in figures.items():
                    found[count].setdefault(name, []).append(figure)
    rows: list[Row] = [
        {"tenants": count} | {name: median(figures) for name, figures in found[count].items()} for count in counts
    ]
    result = Result(
        rows=rows,
        parameters={"events": options.pick(EVENTS, 500), "rate": options.pick(RATE, 100)},
        figure=chart(
            [
                {"tenants": str(row["tenants"]), "way": way, "rate": row[way]}
                for row in rows
                for way in ("events/s", "COPY/s", "INSERT/s")
            ],
            x="tenants",
            y="rate",
            by="way",
            title="Events a second into Postgres",
            y_label="events/s",
            is_line=False,
        ),
    )
    judged = 1_000 if 1_000 in counts else counts[-1]
    for count in counts:
        targets = (0.25, 15.0) if count == judged else (None, None)
        for way, at_least in zip(("COPY/s", "INSERT/s"), targets, strict=True):
            name = f"forwarded / {way.removesuffix('/s')}, {count} tenants"
            ours, theirs = found[count]["events/s"], found[count][way]
            result.ratios.append(paired(name, ours, theirs, at_least=at_least))
    result.notes.append("to reach at 1,000 tenants and 1,000 events/s: p50 20 ms, p99 150 ms")
    return result


def measure(count: int, dsn: str, directory: Path, options: Options) -> dict[str, float]:
    """Empty the outboxes of so many tenants, send the same rows otherwise, then measure the lag."""
    bridge = importlib.import_module("tenantq_bridge")
    with tenantq.open(directory / "store", max_open_tenants=4_000) as store, bridge.PostgresQueue(dsn) as queue:
        queue.migrate()
        queue.subscribe(QUEUE, "*")
        events = fill(store, count, options.pick(EVENTS, 500))
        forwarder = bridge.Forwarder(store, queue)
        seconds = drained(forwarder, len(events))
        figures = {"events/s": len(events) / seconds}
        figures |= plain_rates(dsn, events, options)
        clear(dsn)
        figures |= lag(store.root, count, dsn, forwarder, options)
        return figures


def fill(store: tenantq.Store, count: int, events: int) -> list[Event]:
    """Emit events evenly over tenants, and return them as rows."""
    each = max(1, events // count)
    rows: list[Event] = []
    jobs = iter(Jobs(seed=1).chunks(each * count, each))
    for number in range(count):
        tenant = store.tenant(f"tenant-{number}")
        with tenant.transaction() as tx:
            for job in next(jobs):
                tx.emit("order.placed", job)
        rows += [
            (tenant.id, event.seq, event.event_id, event.topic, stamp(event.emitted_ns), event.headers, event.body)
            for event in tenant.outbox.read(0, limit=each, max_bytes=2**40)
        ]
    return rows


def stamp(unix_ns: int) -> str:
    """Return a time as Postgres reads it."""
    return time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(unix_ns // 1_000_000_000))


def drained(forwarder: Any, events: int) -> float:
    """Forward all that waits, so many events; return the seconds."""
    started = time.perf_counter()
    with forwarder:
        while forwarder.forwarded < events:
            time.sleep(0.001)
        return time.perf_counter() - started


def plain_rates(dsn: str, events: list[Event], options: Options) -> dict[str, float]:
    """Return rows a second by COPY, and by one INSERT each."""
    few = events[: options.pick(INSERTS, 100)]
    with connect(dsn) as connection:
        connection.execute(PLAIN)
        started = time.perf_counter()
        with connection.cursor().copy(COPY) as copy:
            for event in events:
                copy.write_row(event)
        copied = time.perf_counter()
        for event in few:
            connection.execute(INSERT, event)
        ended = time.perf_counter()
        connection.execute("DROP TABLE plain")
    return {"COPY/s": len(events) / (copied - started), "INSERT/s": len(few) / (ended - copied)}


def lag(root: Path, count: int, dsn: str, forwarder: Any, options: Options) -> dict[str, float]:
    """Forward what another process emits, and return how late it arrived."""
    rate, seconds = options.pick(RATE, 100), options.warm_up + options.window
    command = [sys.executable, "-m", "bench._emitter", str(root), str(count), str(rate), str(seconds)]
    with forwarder, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as emitter:
        said, _ = emitter.communicate()
        expected = int(said)
        deadline = time.monotonic() + 60
        with connect(dsn) as connection:
            while arrived(connection) < expected and time.monotonic() < deadline:
                time.sleep(0.05)
            found = arrived(connection)
            lags = [int(row[0]) for row in connection.execute(LAGS, (options.warm_up,)).fetchall()]
    figures = percentiles_ms(lags)
    return {"lag_p50": figures["p50"], "lag_p99": figures["p99"], "arrived": found / max(1, expected)}


def arrived(connection: Any) -> int:
    """Return how many events are in the queue."""
    return int(connection.execute("SELECT count(*) FROM tenantq.ready").fetchone()[0])


def clear(dsn: str) -> None:
    """Empty the queue."""
    with connect(dsn) as connection:
        connection.execute("TRUNCATE tenantq.ready")
        connection.execute("CHECKPOINT")


@contextlib.contextmanager
def database(dsn: str) -> Iterator[str]:
    """Yield the address of a new database, and drop it at the end."""
    psycopg = importlib.import_module("psycopg")
    name = f"forward_{time.monotonic_ns()}"
    with connect(dsn) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield psycopg.conninfo.make_conninfo(dsn, dbname=name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def connect(dsn: str) -> Any:
    """Connect, each statement a transaction of its own."""
    return importlib.import_module("psycopg").connect(dsn, autocommit=True)
