"""What does group commit give: 8 threads, one enqueue a call, every commit synced?

tenantq merges the calls of all threads into one transaction. Raw apsw syncs for each: one at a time from one
thread, and from 8 threads with a connection each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import tenantq
from bench._documents import DocumentsQueue
from bench._measure import in_turns, median, paired
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._workload import Jobs

THREADS = 8

TOGETHER = f"tenantq, {THREADS} threads"


def run(options: Options) -> Result:
    turns = options.pick(max(3, options.iterations), 1)
    seconds = options.window / 2
    rows: list[Row] = []
    result = Result(rows=rows, parameters={"threads": THREADS, "turns": turns})
    for durability in ("full", "normal"):
        with options.directory() as directory:
            rates, merged = measure(directory, durability, turns, seconds)
        rows += [
            {
                "durability": durability,
                "contender": name,
                "enqueues_per_s": round(median(rate)),
                "calls_a_commit": merged if name == TOGETHER else 1.0,
            }
            for name, rate in rates.items()
        ]
        ours, theirs = rates[TOGETHER], rates["raw apsw, one at a time"]
        result.ratios.append(
            paired(
                f"tenantq, {THREADS} threads / raw apsw one at a time, {durability.upper()}",
                ours,
                theirs,
                at_least=5 if durability == "full" else None,
            ),
        )
    result.figure = chart(
        rows,
        x="durability",
        y="enqueues_per_s",
        by="contender",
        title="One enqueue a call",
        y_label="messages/s",
        is_line=False,
    )
    return result


def measure(directory: Path, durability: str, turns: int, seconds: float) -> tuple[dict[str, list[float]], float]:
    """Return the enqueues a second of each contender, and how many calls one commit carried for 8 threads."""
    queues = [DocumentsQueue(directory / "queue.db", durability=durability) for _ in range(THREADS)]
    with tenantq.open(directory / "store", durability=durability) as store:
        tenant = store.tenant("acme")

        def send(jobs: Jobs) -> None:
            tenant.send(jobs.take(1)[0])

        def raw(queue: DocumentsQueue) -> Callable[[Jobs], None]:
            return lambda jobs: queue.enqueue(jobs.encoded(1)[0])

        merged: list[float] = []

        def together() -> float:
            before = tenant.stats()
            rate = rate_of([send] * THREADS, seconds)
            after = tenant.stats()
            merged.append((after.operations - before.operations) / (after.commits - before.commits))
            return rate

        contenders: dict[str, Callable[[], float]] = {
            TOGETHER: together,
            "raw apsw, one at a time": lambda: rate_of([raw(queues[0])], seconds),
            "tenantq, one at a time": lambda: rate_of([send], seconds),
            f"raw apsw, {THREADS} threads": lambda: rate_of([raw(queue) for queue in queues], seconds),
        }
        rates = dict(zip(contenders, in_turns(turns, *contenders.values()), strict=True))
        assert tenant.stats().ready > 0
    for queue in queues:
        queue.close()
    return rates, median(merged)


def rate_of(callers: list[Callable[[Jobs], None]], seconds: float) -> float:
    """Run each caller in a thread of its own for so long; return the calls a second of all."""
    counts = [0] * len(callers)
    begin = threading.Barrier(len(callers) + 1)
    stop = threading.Event()

    def work(number: int) -> None:
        jobs, call = Jobs(seed=number), callers[number]
        begin.wait()
        while not stop.is_set():
            call(jobs)
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(callers))]
    for thread in threads:
        thread.start()
    begin.wait()
    started = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)
