"""What does a claim in Postgres cost behind millions of rows that are done, by the index that there is?

The documents' table with nine tenths of its rows done: their partial index, a plain one on created_at, none;
four workers claim. And PostgresQueue, one message a claim: in an empty queue, and behind as many messages
that were handled, with a tenth as many delayed and as many dead letters beside; the two take turns.

Left out: a large backlog that is not done, and what is dead and not yet vacuumed (see pg_decay).
"""

from __future__ import annotations

import time
from typing import Any

from bench._children import Crew, Log, Seat, reason_of
from bench._claimers import LEASE, QUEUE, DocumentsClaim, open_queue
from bench._jobs_table import FILL, PARTIAL_INDEX, PLAIN_INDEX, TABLE
from bench._measure import in_turns, paired, percentile, percentiles_ms
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._servers import Server, connect, server

WORKERS = 4

INDEXES = {"partial index": PARTIAL_INDEX, "plain index": PLAIN_INDEX, "no index": None}

PUBLISHED = {"partial index": "13,499/s", "plain index": "28.5/s", "no index": "-"}

DONE = 0.9
"""Of the rows: 1.8 of their 2 million."""

MARK_DONE = "UPDATE jobs SET status = 'done' WHERE id <= %s"

REMOVED = "Rows Removed by Filter"

EXPLAIN = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT id FROM jobs WHERE status='queued' ORDER BY created_at FOR UPDATE SKIP LOCKED LIMIT 1
"""

SIDE = 0.1
"""Of the history: as many messages are delayed, and as many dead."""

READY = 500
"""Messages that wait while claims are measured."""

CHUNK = 5_000

SHORT_LEASE = 0.01

SMALL = 1_000


def run(options: Options) -> Result:
    rows = options.pick(options.history, SMALL)
    result = Result(rows=[], parameters={"rows": rows, "done": DONE, "workers": WORKERS})
    with server(options) as postgres:
        result.parameters["postgres"] = postgres.version
        rates: dict[str, float] = {}
        fill_jobs(postgres, rows)
        for index, statement in INDEXES.items():
            rates[index] = add_documents(result, postgres, index, statement, options)
        add_ours(result, postgres, rows, options)
    for index in ("plain index", "no index"):
        if rates[index] and rates["partial index"]:
            result.ratios.append(
                paired(f"claims/s, partial index / {index}", [rates["partial index"]], [rates[index]])
            )
    result.figure = chart(
        [{"at": "", **row} for row in result.rows],
        x="at",
        y="claim_p50_ms",
        by="contender",
        title=f"A claim behind {rows:,} rows",
        y_label="milliseconds",
        is_line=False,
        is_log=True,
        lower_is_better=True,
    )
    return result


def fill_jobs(postgres: Server, rows: int) -> None:
    """Make the documents' table, with its oldest rows done, vacuumed and without an index for claims."""
    postgres.query("CREATE DATABASE documents")
    with connect(postgres.dsn("documents")) as connection:
        connection.execute(TABLE)
        connection.execute(FILL, (1, rows))
        connection.execute(MARK_DONE, (int(rows * DONE),))
        connection.execute("VACUUM (FULL, ANALYZE) jobs")


def add_documents(result: Result, postgres: Server, index: str, statement: str | None, options: Options) -> float:
    """Measure the documents' claim with one index; return the claims a second."""
    with postgres.database("trial", template="documents") as dsn, options.directory() as directory:
        with connect(dsn) as connection:
            connection.execute("SET statement_timeout = 0")
            if statement is not None:
                connection.execute(statement)
            connection.execute("VACUUM (ANALYZE) jobs")
            plan = connection.execute(EXPLAIN).fetchone()[0][0]["Plan"]
        try:
            with Crew(WORKERS, directory / "logs") as crew:
                for _ in range(WORKERS):
                    crew.add(claim_for, dsn, options.window, options.pick(3, 1))
                crew.go(options.window)
                logs = crew.stop()  # which waits for them
        except Exception as exc:
            result.notes.append(f"{index}: {reason_of(exc)}")
            logs = []
    # One that got no turn in a very short trial claimed nothing, in no time.
    rate = sum(log.numbers["claims"] / log.numbers["seconds"] for log in logs if log.numbers["seconds"])
    result.rows.append(
        row_of(
            f"documents' claim, {index}",
            rate,
            [took for log in logs for took in log.latencies["claim"]],
            pages=plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
            filtered=removed(plan),
            published=PUBLISHED[index],
        )
    )
    return rate


def removed(plan: dict[str, object]) -> int:
    """Return how many rows a plan's nodes read and threw away."""
    below = plan.get("Plans", [])
    assert isinstance(below, list)
    own = plan.get(REMOVED, 0)
    assert isinstance(own, int | float)
    return int(own) + sum(removed(one) for one in below)


def claim_for(seat: Seat, dsn: str, seconds: float, least: int) -> Log:
    """Be a worker that claims for so long, and so many at least: without an index one may take a second."""
    claimer = DocumentsClaim(dsn)
    log = Log(latencies={"claim": []})
    seat.ready()
    claimer.take()  # warm
    started = now = time.perf_counter_ns()
    while now - started < seconds * 1e9 or len(log.latencies["claim"]) < least:
        if not claimer.take():
            break
        before, now = now, time.perf_counter_ns()
        log.latencies["claim"].append(now - before)
    log.numbers = {"claims": len(log.latencies["claim"]), "seconds": (now - started) / 1e9}
    claimer.close()
    return log


def row_of(
    name: str,
    rate: float,
    latencies: list[int],
    *,
    pages: int | None = None,
    filtered: int | None = None,
    published: str = "-",
) -> Row:
    """Return one line of the table."""
    found = percentiles_ms(latencies)
    return {
        "contender": name,
        "claims_per_s": rate or None,
        "claim_p50_ms": found["p50"] if latencies else None,
        "claim_p99_ms": found["p99"] if latencies else None,
        "pages_first_claim": pages,
        "rows_removed_by_filter": filtered,
        "published": published,
    }


def add_ours(result: Result, postgres: Server, rows: int, options: Options) -> None:
    """Measure our claim in an empty queue and behind all that, in turns."""
    names = ("tenantq, empty", f"tenantq, behind {rows:,} handled, {int(rows * SIDE):,} delayed, as many dead")
    with (
        postgres.database("empty", synchronous_commit="off") as empty,
        postgres.database("behind", synchronous_commit="off") as behind,
    ):
        fill_ours(behind, rows)
        fill_ours(empty, 0)
        for database in ("empty", "behind"):
            postgres.query("VACUUM (ANALYZE)", database)
            postgres.query(f"ALTER DATABASE {database} SET synchronous_commit = on")
        queues = [open_queue(dsn) for dsn in (empty, behind)]
        seconds = max(options.window / 4, 0.1)
        turns = options.pick(4 * options.iterations, 1)
        found = in_turns(turns, *(lambda queue=queue: claims(queue, seconds) for queue in queues))
        for queue in queues:
            queue.close()
    for name, trials in zip(names, found, strict=True):
        latencies = [took for trial in trials for took in trial]
        result.rows.append(row_of(name, len(latencies) / (sum(latencies) / 1e9), latencies))
    result.ratios.append(
        paired(
            "claim p50, tenantq behind history, delayed and dead messages / empty",
            *([float(percentile(sorted(trial), 50)) for trial in trials] for trials in reversed(found)),
            at_most=1.3,
        )
    )


def fill_ours(dsn: str, rows: int) -> None:
    """Let a queue have handled so many messages, as a bridge maintains it, and others be delayed and dead."""
    from tenantq_bridge import Maintenance  # noqa: PLC0415 - an extra

    queue = open_queue(dsn)
    queue.migrate()
    maintenance = Maintenance(queue)
    side = int(rows * SIDE)
    for start in range(0, rows, CHUNK):
        queue.enqueue_many(QUEUE, [{"n": n} for n in range(start, min(start + CHUNK, rows))])
        while messages := queue.claim(QUEUE, CHUNK, lease=LEASE):
            queue.ack(*messages)
        maintenance.run_once()
    for start in range(0, side, CHUNK):
        bodies = [{"n": n} for n in range(start, min(start + CHUNK, side))]
        queue.enqueue_many(QUEUE, bodies, delay=86_400)
        queue.enqueue_many(QUEUE, bodies, max_attempts=1)
        queue.claim(QUEUE, CHUNK, lease=SHORT_LEASE)
        time.sleep(2 * SHORT_LEASE)
        queue.reap()  # their only attempt is over
    for _ in range(3):  # a floor is moved in two steps
        maintenance.advance_floors()
    queue.close()


def claims(queue: Any, seconds: float) -> list[int]:
    """Claim and ack one message after the other for so long; return the nanoseconds of each claim."""
    taken: list[int] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or not taken:
        started = time.perf_counter_ns()
        messages = queue.claim(QUEUE, lease=LEASE)
        took = time.perf_counter_ns() - started
        if messages:
            taken.append(took)
            queue.ack(*messages)
        else:
            queue.enqueue_many(QUEUE, [{"n": n} for n in range(READY)])
    return taken
