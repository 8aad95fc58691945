"""How many messages a second do 1 to 100 workers claim from Postgres, and what do they wait for?

The documents' table and claim, as they printed them, take turns with PostgresQueue, one message a call and in
batches of 100. Their claim brings nothing back and ends nothing, as in their load; ours brings the payload,
and acks. Every trial begins with a fresh copy of the same full, vacuumed database. synchronous_commit is on,
and off beside it.

Left out: the network (a socket of this host), the work (a real job does some), and the decay (see pg_decay).
Workers are processes in Python where theirs were pgbench's threads, which costs both the same, and a call
more than a message.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench._children import Crew, reason_of
from bench._claimers import BATCH, DOCUMENTS, Plan, claim, prepare
from bench._measure import median, paired, percentiles_ms
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._servers import Server, server
from bench._waits import Waits

WORKERS = (1, 2, 4, 8, 16, 32, 100)

NAMES = (DOCUMENTS[0], "tenantq", f"tenantq, batches of {BATCH}")

RATES = {DOCUMENTS[0]: 20_000, "tenantq": 20_000, NAMES[2]: 100_000}
"""What none of them is expected to exceed, so that no trial runs dry."""


class Trial(msgspec.Struct, kw_only=True):
    """What one trial found."""

    rate: float
    claims_ns: list[int]
    wal: float
    row_locks: float
    waits: str
    dry: bool


def run(options: Options) -> Result:
    workers = options.pick(WORKERS, (2,))
    found: dict[tuple[int, str, str], list[Trial]] = {}
    result = Result(rows=[], parameters={})
    with server(options) as postgres:
        result.parameters = {"postgres": postgres.version, "batch": BATCH}
        for number, name in enumerate(NAMES):
            postgres.query(f"CREATE DATABASE full_{number}")
            prepare(postgres, f"full_{number}", name, rows_of(name, options))
        for count in workers:
            for _ in range(options.iterations):
                for setting in ("on", "off"):
                    for name in NAMES:
                        try:
                            trial = measure(postgres, name, count, setting, options)
                        except Exception as exc:
                            result.notes.append(f"{name}, {count} workers, {setting}: {reason_of(exc)}")
                        else:
                            found.setdefault((count, name, setting), []).append(trial)
    result.rows = [row_of(name, count, found) for count in workers for name in NAMES]
    result.notes += [
        f"{name}, {count} workers, synchronous_commit {setting}: ran dry, so its rate is more than what is shown"
        for (count, name, setting), trials in found.items()
        if any(trial.dry for trial in trials)
    ]
    add_ratios(result, workers, found)
    result.figure = chart(
        result.rows,
        x="workers",
        y="messages_per_s",
        by="contender",
        title="Claims in Postgres, synchronous_commit on",
        y_label="messages/s",
        is_log=True,
    )
    return result


def rows_of(name: str, options: Options) -> int:
    """Return how many messages a trial begins with."""
    return int(RATES[name] * (options.window + 2 * options.warm_up + 0.2))


def measure(postgres: Server, name: str, workers: int, setting: str, options: Options) -> Trial:
    """Run one trial on a copy of the contender's database."""
    template = f"full_{NAMES.index(name)}"
    with (
        postgres.database("trial", template=template, synchronous_commit=setting) as dsn,
        options.directory() as directory,
        Crew(workers, Path(directory) / "logs") as crew,
        Waits(postgres.dsn(), "trial") as waits,
    ):
        for _ in range(workers):
            crew.add(claim, Plan(claimer=name, dsn=dsn))
        crew.go(options.warm_up)
        waits.counts.clear()
        window = crew.measure(options.window)
        logs = crew.stop()
    return Trial(
        rate=sum(window.counts) / window.seconds,
        claims_ns=[took for log in logs for took in log.latencies["claim"]],
        wal=waits.wal,
        row_locks=waits.row_locks,
        waits=waits.top(),
        dry=any(log.numbers["dry"] for log in logs),
    )


def row_of(name: str, count: int, found: dict[tuple[int, str, str], list[Trial]]) -> Row:
    """Return one line of the table; None for what could not be measured."""
    trials = found.get((count, name, "on"), [])
    unsynced = found.get((count, name, "off"), [])
    latencies = percentiles_ms([took for trial in trials for took in trial.claims_ns])
    return {
        "workers": count,
        "contender": name,
        "messages_per_s": round(median([trial.rate for trial in trials])) if trials else None,
        "claim_p50_ms": latencies["p50"] if trials else None,
        "claim_p99_ms": latencies["p99"] if trials else None,
        "without_sync_per_s": round(median([trial.rate for trial in unsynced])) if unsynced else None,
        "wal_percent": median([trial.wal for trial in trials]) if trials else None,
        "row_lock_percent": median([trial.row_locks for trial in trials]) if trials else None,
        "waits": trials[-1].waits if trials else "-",
    }


def add_ratios(result: Result, workers: tuple[int, ...], found: dict[tuple[int, str, str], list[Trial]]) -> None:
    """Compare each with the documents' one-row claim, at the number of workers that is best for it."""
    for setting in ("on", "off"):
        rates = {
            name: max(
                ([trial.rate for trial in found.get((count, name, setting), [])] for count in workers),
                key=median,
            )
            for name in NAMES
        }
        if not rates[NAMES[0]]:
            continue
        for name in NAMES[1:]:
            length = min(len(rates[name]), len(rates[NAMES[0]]))
            if not length:
                continue
            result.ratios.append(
                paired(
                    f"{name}, claim and ack / documents' claim, each at its best, synchronous_commit {setting}",
                    rates[name][:length],
                    rates[NAMES[0]][:length],
                    at_least=5 if name == NAMES[2] and setting == "on" else None,
                )
            )
