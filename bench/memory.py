"""How fast is the memory layer, in one thread, and from one thread to another?

Nothing is written: this is the way of a message that need not survive a restart. Beside it Python's own
queue.SimpleQueue, which has no leases, no priorities, no delays and no dead letters.
"""

from __future__ import annotations

import queue as standard
import threading
import time
from collections.abc import Callable

from bench._measure import in_turns, median, percentile
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from tenantq import MemoryQueue

QUEUE = "bench"

BATCH = 50


def run(options: Options) -> Result:
    count = options.pick(int(20_000 * options.seconds), 1_000)
    turns = options.pick(max(3, options.iterations), 1)
    contenders: dict[str, Callable[[], float]] = {
        "MemoryQueue": lambda: singles(count),
        f"MemoryQueue, batches of {BATCH}": lambda: batches(count),
        "queue.SimpleQueue": lambda: standard_singles(count),
    }
    rates = in_turns(turns, *contenders.values())
    latencies = latencies_ns(count // 10)
    rows: list[Row] = []
    for name, found in zip(contenders, rates, strict=True):
        is_ours = name == "MemoryQueue"
        rows.append(
            {
                "contender": name,
                "messages_per_s": round(median(found)),
                "handover_p50_us": percentile(latencies, 50) / 1000 if is_ours else None,
                "handover_p99_us": percentile(latencies, 99) / 1000 if is_ours else None,
            },
        )
    return Result(
        rows=rows,
        parameters={"messages": count, "batch": BATCH},
        figure=chart(
            [{"at": "", **row} for row in rows],
            x="at",
            y="messages_per_s",
            by="contender",
            title="The memory layer, one thread",
            y_label="messages/s",
            is_line=False,
        ),
    )


def singles(count: int) -> float:
    """Return how many messages a second one thread enqueues, claims and acks, one by one."""
    queue = MemoryQueue()
    started = time.perf_counter()
    for number in range(count):
        queue.enqueue(QUEUE, number)
        queue.ack(*queue.claim(QUEUE))
    return count / (time.perf_counter() - started)


def batches(count: int) -> float:
    """Return the same for batches."""
    queue = MemoryQueue()
    rounds, payloads = count // BATCH, list(range(BATCH))
    started = time.perf_counter()
    for _ in range(rounds):
        queue.enqueue_many(QUEUE, payloads)
        queue.ack(*queue.claim(QUEUE, BATCH))
    return rounds * BATCH / (time.perf_counter() - started)


def standard_singles(count: int) -> float:
    """Return how many messages a second pass through Python's own queue."""
    queue: standard.SimpleQueue[int] = standard.SimpleQueue()
    started = time.perf_counter()
    for number in range(count):
        queue.put(number)
        queue.get()
    return count / (time.perf_counter() - started)


def latencies_ns(count: int) -> list[int]:
    """Return the sorted times from an enqueue to the end of the claim that waits for it in another thread."""
    queue = MemoryQueue()
    claimed = threading.Semaphore(0)
    times: list[int] = []

    def consume() -> None:
        for _ in range(count):
            (message,) = queue.claim(QUEUE, wait=60)
            times.append(time.perf_counter_ns() - message.payload)
            message.ack()
            claimed.release()

    consumer = threading.Thread(target=consume)
    consumer.start()
    for _ in range(count):
        queue.enqueue(QUEUE, time.perf_counter_ns())
        claimed.acquire()
    consumer.join()
    return sorted(times)
