"""How soon does a worker serve a store in which one tenant of a hundred has work?

The time is that from `Worker.start` to the begin of the first handler, and to that of the last: handlers do
nothing, and each tenant that has work has one message. Beside it is the same from the start of the interpreter,
and what raw apsw takes to open, claim from, delete from and close copies of as many files, one after the other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import apsw
import msgspec

import tenantq
from bench._measure import median, paired, timed
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._starter import QUEUE, Started
from bench._stores import counts_of, stocked, tenant_name
from bench._tenant_roles import PRAGMAS

ONE_IN = 100

TARGETS = {"first_s": 0.5, "all_s": 10.0}
"""Seconds from the start of the worker, on 100,000 tenants."""

RAW = (
    "INSERT INTO queue (queue, visible_at, enqueued_at, payload) VALUES ('startup', 1, 1, '{}')",
    "UPDATE queue SET claimed_by = 'raw', leased_until = 1 WHERE queue = 'startup' AND claimed_by IS NULL",
    "DELETE FROM queue WHERE queue = 'startup'",
)


def run(options: Options) -> Result:
    counts = counts_of(options)
    found: dict[int, list[Row]] = {count: [] for count in counts}
    for count in counts:
        with stocked(count, options) as stock:
            for _ in range(options.iterations):
                found[count].append(
                    measure(stock.path, count) | {"raw_s": raw_seconds(stock.path, count, options)}
                )
    rows: list[Row] = [
        {"tenants": count, "with_work": len(due(count))}
        | {figure: median([one[figure] for one in some]) for figure in some[0]}
        for count, some in found.items()
    ]
    most = found[counts[-1]]
    return Result(
        rows=rows,
        parameters={"durability": "normal", "one_in": ONE_IN, "concurrency": 4},
        ratios=[
            *(
                paired(
                    f"{counts[-1]} tenants: {figure} / {target:g} s",
                    [one[figure] for one in most],
                    [target] * len(most),
                    at_most=1,
                )
                for figure, target in TARGETS.items()
            ),
            paired(
                f"{counts[-1]} tenants: all_s / raw apsw",
                [one["all_s"] for one in most],
                [one["raw_s"] for one in most],
            ),
        ],
        figure=chart(
            [
                {"tenants": str(row["tenants"]), "what": what, "seconds": row[figure]}
                for row in rows
                for what, figure in (("first claim", "first_s"), ("all served", "all_s"), ("raw apsw", "raw_s"))
            ],
            x="tenants",
            y="seconds",
            by="what",
            title="From the start of a worker, one tenant of a hundred with work",
            y_label="seconds",
            is_line=False,
            is_log=True,
            lower_is_better=True,
        ),
    )


def due(count: int) -> list[str]:
    """Return the tenants that have work: they lie all over the store."""
    return [tenant_name(number) for number in range(0, count, ONE_IN)]


def measure(place: Path, count: int) -> Row:
    """Give tenants work, and start a worker in a process of its own, which serves them all."""
    with tenantq.open(place) as store:
        for tenant in due(count):
            store.tenant(tenant).enqueue(QUEUE, None)
    began = time.monotonic()
    command = [sys.executable, "-m", "bench._starter", str(place), str(len(due(count)))]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = msgspec.json.decode(done.stdout, type=Started)
    return {
        "first_s": found.first - found.opened,
        "all_s": found.last - found.opened,
        "start_s": found.started - found.opened,
        "import_s": found.imported - began,
        "open_s": found.opened - found.imported,
        "first_from_exec_s": found.first - began,
        "all_from_exec_s": found.last - began,
        "again": found.handled - len(due(count)),
    }


def raw_seconds(place: Path, count: int, options: Options) -> float:
    """Return how long raw apsw takes to claim and delete a row of as many files."""
    with options.directory() as directory:
        paths = [directory / f"{number}.db" for number in range(len(due(count)))]
        with tenantq.open(place) as store:
            for tenant, path in zip(due(count), paths, strict=True):
                shutil.copy(store.tenant(tenant).path, path)
        for path in paths:
            write(path, RAW[:1])

        def serve() -> None:
            for path in paths:
                write(path, RAW[1:])

        return timed(serve)


def write(path: Path, statements: tuple[str, ...]) -> None:
    """Open a file, write to it in a transaction a statement, and close it."""
    connection = apsw.Connection(str(path))
    connection.execute(PRAGMAS)
    for statement in statements:
        connection.execute(statement)
    connection.close()
