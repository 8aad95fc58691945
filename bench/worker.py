"""How fast does a Worker with handlers that do nothing drain a queue, beside the documents' loop?

One process each. The Worker decodes typed payloads and keeps its leases alive; the loop is the documents'
one consumer, which decodes nothing. Both begin with the same backlog and nobody enqueues meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import tenantq
from bench._documents import DocumentsQueue
from bench._measure import in_turns, median, paired
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._workload import QUEUE, Job, Jobs, encode

CONCURRENCY = (1, 4)

RATE = 10_000
"""Messages for each second of a trial: about what the loop drains."""


def run(options: Options) -> Result:
    count = options.pick(int(RATE * options.seconds), 500)
    turns = options.pick(max(3, options.iterations), 1)
    with options.directory() as directory:
        raw = DocumentsQueue(directory / "queue.db")
        with tenantq.open(directory / "store") as store:
            tenant = store.tenant("acme")
            contenders: dict[str, Callable[[], float]] = {"documents' loop": lambda: drain_raw(raw, count)}
            for concurrency in CONCURRENCY:
                contenders[name_of(concurrency)] = lambda concurrency=concurrency: drain(  # type: ignore[misc]
                    tenant, concurrency, count
                )
            contenders["tenantq, claim and ack"] = lambda: drain_by_hand(tenant, count)
            rates = dict(zip(contenders, in_turns(turns, *contenders.values()), strict=True))
        raw.close()
    rows: list[Row] = [{"contender": name, "messages_per_s": round(median(rate))} for name, rate in rates.items()]
    best = max((name_of(number) for number in CONCURRENCY), key=lambda name: median(rates[name]))
    return Result(
        rows=rows,
        parameters={"messages": count, "durability": "normal", "turns": turns},
        ratios=[
            paired(
                f"{name} / documents' loop, one consumer",
                rates[name],
                rates["documents' loop"],
                at_least=2 if name == best else None,
            )
            for name in list(rates)[1:]
        ],
        figure=chart(
            [{"at": "", **row} for row in rows],
            x="at",
            y="messages_per_s",
            by="contender",
            title="One process drains a queue",
            y_label="messages/s",
            is_line=False,
        ),
    )


def name_of(concurrency: int) -> str:
    """Return a row's name."""
    return f"Worker, concurrency {concurrency}"


def drain_raw(raw: DocumentsQueue, count: int) -> float:
    """Return the messages a second of the documents' loop."""
    for chunk in Jobs().chunks(count):
        raw.enqueue_many([encode(job) for job in chunk])
    started = time.perf_counter()
    while (claimed := raw.claim()) is not None:
        raw.ack(claimed[0])
    return count / (time.perf_counter() - started)


def drain_by_hand(tenant: tenantq.Tenant, count: int) -> float:
    """Return the messages a second of a loop that claims one and acks it."""
    for chunk in Jobs().chunks(count):
        tenant.enqueue_many(QUEUE, chunk)
    started = time.perf_counter()
    while messages := tenant.claim(QUEUE):
        _ = messages[0].payload
        messages[0].ack()
    return count / (time.perf_counter() - started)


def drain(tenant: tenantq.Tenant, concurrency: int, count: int) -> float:
    """Return the messages a second of a Worker, from its start to its last ack."""
    for chunk in Jobs().chunks(count):
        tenant.enqueue_many(QUEUE, chunk)
    worker = tenantq.Worker(tenant.store, concurrency=concurrency)
    lock, handled, is_done = threading.Lock(), [0], threading.Event()

    @worker.on(Job)
    def handle(message: tenantq.Message[Job]) -> None:  # noqa: ARG001
        with lock:
            handled[0] += 1
            if handled[0] == count:
                is_done.set()

    started = time.perf_counter()
    with worker:
        is_done.wait()
    seconds = time.perf_counter() - started
    left = tenant.stats()
    assert (left.ready, left.claimed) == (0, 0), left
    return count / seconds
