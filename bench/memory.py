"""How fast is the memory layer: enqueue, claim and ack in one thread, and the way from one thread to another?

    python -m bench.memory --iterations 200000

prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import threading
import time

from tenantq.memory import MemoryQueue

QUEUE = "bench"


def per_second(iterations: int, batch: int) -> float:
    """Return how many messages a second one thread enqueues, claims and acks, `batch` at a time."""
    queue = MemoryQueue()
    rounds = max(1, iterations // batch)
    payloads = list(range(batch))
    start = time.perf_counter()
    for _ in range(rounds):
        queue.enqueue_many(QUEUE, payloads)
        queue.ack(*queue.claim(QUEUE, batch))
    return rounds * batch / (time.perf_counter() - start)


def singles_per_second(iterations: int) -> float:
    """Return how many messages a second one thread enqueues, claims and acks, one by one."""
    queue = MemoryQueue()
    start = time.perf_counter()
    for number in range(iterations):
        queue.enqueue(QUEUE, number)
        queue.ack(*queue.claim(QUEUE))
    return iterations / (time.perf_counter() - start)


def latencies_us(iterations: int) -> list[float]:
    """Return the sorted times in microseconds from an enqueue to the end of the claim that waits for it."""
    queue = MemoryQueue()
    claimed = threading.Semaphore(0)
    times: list[float] = []

    def consume() -> None:
        for _ in range(iterations):
            (message,) = queue.claim(QUEUE, wait=60)
            times.append((time.perf_counter_ns() - message.payload) / 1000)
            message.ack()
            claimed.release()

    consumer = threading.Thread(target=consume)
    consumer.start()
    for _ in range(iterations):
        queue.enqueue(QUEUE, time.perf_counter_ns())
        claimed.acquire()
    consumer.join()
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=100_000)
    iterations = parser.parse_args().iterations
    latencies = latencies_us(max(1, iterations // 10))
    result = {
        "bench": "memory",
        "iterations": iterations,
        "per_second": round(singles_per_second(iterations)),
        "per_second_batch_50": round(per_second(iterations, 50)),
        "latency_p50_us": round(latencies[len(latencies) // 2], 1),
        "latency_p99_us": round(latencies[len(latencies) * 99 // 100], 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
