"""How long after a crash is the first message claimed?

A producer and a consumer at 5,000 messages a second are killed with SIGKILL, which leaves a WAL behind; then a
new process opens the queue and claims. The time is from its `open` to its first message. The documents
measured a median of 38 ms and a p99 of 92 ms.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from bench._children import Crew, Log, Seat
from bench._load import Plan, start
from bench._measure import median, paired, percentile
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

RATE = 5_000

CONTENDERS = ("documents' loop", "tenantq")

TRIALS = 10
"""Kills for each iteration."""

PUBLISHED = {"p50": 38.0, "p99": 92.0}


def run(options: Options) -> Result:
    kills = options.pick(TRIALS * options.iterations, 2)
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    logs: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(kills):
        for name in CONTENDERS:
            with options.directory() as directory:
                plan = Plan(
                    contender=name,
                    place=str(directory),
                    producers=1,
                    consumers=1,
                    depth=options.depth(),
                    rate=RATE,
                    durability=options.durability,
                )
                kill(plan, directory, options)
                logs[name].append(sum(path.stat().st_size for path in directory.rglob("*-wal")) / 2**20)
                found[name].append(recover(plan, directory))
    rows: list[Row] = []
    for name in CONTENDERS:
        ordered = sorted(found[name])
        row: Row = {"contender": name, "kills": kills, "wal_mib": median(logs[name])}
        row |= {f"p{percent}_ms": percentile(ordered, percent) for percent in (50, 95, 99)}
        rows.append(row | {"max_ms": ordered[-1], "published_p50": 38.0, "published_p99": 92.0})
    return Result(
        rows=rows,
        parameters={"rate": RATE, "depth": options.depth(), "durability": options.durability},
        ratios=[
            paired(
                "time to the first message, tenantq / documents' queue",
                found["tenantq"],
                found[CONTENDERS[0]],
            ),
        ],
        figure=chart(
            [
                {"contender": row["contender"], "at": name, "ms": row[f"{name}_ms"]}
                for row in [*rows, {"contender": "published", **{f"{k}_ms": v for k, v in PUBLISHED.items()}}]
                for name in PUBLISHED
            ],
            x="at",
            y="ms",
            by="contender",
            title="From open to the first message after SIGKILL",
            y_label="milliseconds",
            is_line=False,
            lower_is_better=True,
        ),
    )


def kill(plan: Plan, directory: Path, options: Options) -> None:
    """Run the load for a while and kill its processes at a random moment."""
    with Crew(2, directory / "logs") as crew:
        start(crew, plan)
        crew.go(options.warm_up * random.uniform(1, 2))
        producer, consumer = crew.pids
        os.kill(consumer, signal.SIGKILL)
        time.sleep(0.02)  # for some messages that nobody has claimed
        os.kill(producer, signal.SIGKILL)


def recover(plan: Plan, directory: Path) -> float:
    """Return the milliseconds that a new process takes to its first message."""
    with Crew(1, directory / "recovery") as crew:
        crew.add(first_message, plan)
        crew.go(0)
        (log,) = crew.stop()
    return log.numbers["seconds"] * 1000


def first_message(seat: Seat, plan: Plan) -> Log:
    """Open the queue and claim."""
    seat.ready()
    started = time.perf_counter()
    queue = plan.open()
    jobs = queue.take()
    seconds = time.perf_counter() - started
    assert jobs
    queue.done()
    queue.close()
    return Log(numbers={"seconds": seconds})
