"""How fast is one enqueue a call from many coroutines, beside a thread per call and apsw's async connections?

So many coroutines each enqueue again and again, spread over so many tenants. tenantq.aio commits the calls of one
turn of the event loop together; `asyncio.to_thread(tenant.enqueue, ...)` takes a thread for each call; apsw.aio
has a connection, and with it a thread, for each tenant, and commits each call.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import apsw.aio

import tenantq
import tenantq.aio
from bench._measure import median, paired
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._workload import Jobs

QUEUE = "aio"

OURS = "tenantq.aio"
THREADED = "tenantq, a thread per call"
APSW = "apsw.aio, a connection per tenant"

Call = Callable[[int], Awaitable[object]]
"""Enqueue one message for the tenant of this number."""

SCHEMA = """
CREATE TABLE queue (id INTEGER PRIMARY KEY, payload, visible_at INTEGER, claimed_by, claimed_at INTEGER,
                    attempts INTEGER NOT NULL DEFAULT 0, enqueued_at INTEGER);
CREATE INDEX queue_visible ON queue (visible_at) WHERE claimed_by IS NULL;
"""

INSERT = "INSERT INTO queue (payload, visible_at, enqueued_at) VALUES (?, ?, ?)"


def run(options: Options) -> Result:
    rows: list[Row] = []
    result = Result(rows=rows, parameters={"durability": options.durability})
    for callers, tenants in options.pick(GRID, ((1, 1), (20, 2))):
        with options.directory() as directory:
            rates, threads, merged = measure(directory, callers, tenants, options)
        rows += [
            {
                "callers": callers,
                "tenants": tenants,
                "contender": name,
                "enqueues_per_s": round(median(rate)),
                "threads": threads[name],
                "calls_a_commit": merged if name == OURS else None,
            }
            for name, rate in rates.items()
        ]
        where = f"{callers:,} callers, {tenants:,} tenants"
        result.ratios += [
            paired(f"{OURS} / {name}, {where}", rates[OURS], rates[name]) for name in (THREADED, APSW)
        ]
    result.figure = chart(
        [{**row, "load": f"{row['callers']:,} on {row['tenants']:,}"} for row in rows],
        x="load",
        y="enqueues_per_s",
        by="contender",
        title="One enqueue a call, by callers and tenants",
        y_label="messages/s",
        is_line=False,
        is_log=True,
    )
    return result


GRID = tuple(
    (callers, tenants) for callers in (1, 10, 100, 1000) for tenants in (1, 10, 100) if tenants <= callers
)


def measure(
    directory: Path, callers: int, tenants: int, options: Options
) -> tuple[dict[str, list[float]], dict[str, int], float]:
    """Return each contender's enqueues a second, its threads, and how many calls one commit of ours carried."""
    contenders = {OURS: ours, THREADED: threaded, APSW: apsw_connections}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    threads: dict[str, int] = {}
    merged: list[float] = []
    for turn in range(options.pick(max(3, options.iterations), 1)):
        for number, (name, contender) in enumerate(contenders.items()):
            place = directory / f"{turn}-{number}"
            place.mkdir()
            rate, threads[name], calls_a_commit = asyncio.run(contender(place, callers, tenants, options))
            rates[name].append(rate)
            if name == OURS:
                merged.append(calls_a_commit)
    return rates, threads, round(median(merged), 1)


Found = tuple[float, int, float]
"""Calls a second, threads at the end, calls a commit."""


async def ours(directory: Path, callers: int, tenants: int, options: Options) -> Found:
    """Measure tenantq.aio."""
    async with tenantq.aio.open(directory / "store", durability=options.durability) as store:
        opened = [store.tenant(f"tenant{number}") for number in range(tenants)]
        payload = Jobs(seed=1).encoded(1)[0].decode()

        def call(number: int) -> Coroutine[Any, Any, int]:
            return opened[number].enqueue(QUEUE, payload)

        await asyncio.gather(*(call(number) for number in range(tenants)))  # the files are made
        before = store.activity()
        rate, threads = await rate_of(call, callers, tenants, options)
        after = store.activity()
        return rate, threads, (after.operations - before.operations) / (after.commits - before.commits)


async def threaded(directory: Path, callers: int, tenants: int, options: Options) -> Found:
    """Measure the blocking calls of tenantq in asyncio's default pool of threads."""
    with tenantq.open(directory / "store", durability=options.durability) as store:
        opened = [store.tenant(f"tenant{number}") for number in range(tenants)]
        payload = Jobs(seed=1).encoded(1)[0].decode()

        def call(number: int) -> Coroutine[Any, Any, int]:
            return asyncio.to_thread(opened[number].enqueue, QUEUE, payload)

        await asyncio.gather(*(call(number) for number in range(tenants)))  # the files are made
        return *await rate_of(call, callers, tenants, options), 1.0


async def apsw_connections(directory: Path, callers: int, tenants: int, options: Options) -> Found:
    """Measure the documents' insert through apsw's async connections: one statement is one commit."""
    apsw.async_controller.set(apsw.aio.AsyncIO)  # type: ignore[arg-type]  # apsw's own class and stub differ
    payload = Jobs(seed=1).encoded(1)[0].decode()
    connections = [await apsw.Connection.as_async(str(directory / f"{n}.db")) for n in range(tenants)]
    try:
        for connection in connections:
            await connection.execute("PRAGMA journal_mode = WAL")
            await connection.execute(f"PRAGMA synchronous = {options.durability}")
            await connection.execute("PRAGMA busy_timeout = 5000")
            await connection.execute(SCHEMA)

        def call(number: int) -> Awaitable[object]:
            now = time.time_ns()
            return connections[number].execute(INSERT, (payload, now, now))

        return *await rate_of(call, callers, tenants, options), 1.0
    finally:
        for connection in connections:
            await connection.aclose()


async def rate_of(call: Call, callers: int, tenants: int, options: Options) -> tuple[float, int]:
    """Let so many coroutines call for so long; return the calls a second of all, and the threads."""
    count, is_over = 0, False

    async def caller(number: int) -> None:
        nonlocal count
        while not is_over:
            await call(number % tenants)
            count += 1

    async with asyncio.TaskGroup() as group:
        for number in range(callers):
            group.create_task(caller(number))
        await asyncio.sleep(options.warm_up)
        before, started = count, time.perf_counter()
        await asyncio.sleep(options.window / 2)
        rate = (count - before) / (time.perf_counter() - started)
        threads, is_over = threading.active_count(), True
    return rate, threads
