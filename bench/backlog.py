"""Does a claim cost the same behind any backlog?

Claim and ack in a file with a backlog, and in an empty one, in turns; messages are enqueued before each block,
untimed. Kinds: ready, delayed, claimed by others, dead, in another queue, and of higher priority but in the
future. The documents' table knows the first three.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import tenantq
from bench._documents import DocumentsQueue
from bench._measure import in_turns, median, paired
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._workload import QUEUE, Jobs, encode

CHUNK = 1000

BLOCK = 200

FAR = 3600.0
"""Seconds: later than any trial ends."""

Step = tuple[float, float]
"""Claims with their acks a second, and claims a second that find nothing."""


def run(options: Options) -> Result:
    sizes = options.pick(sorted({100_000, options.rows}), [2_000])
    rows: list[Row] = []
    result = Result(rows=rows, parameters={"block": BLOCK, "durability": "normal"})
    for size in sizes:
        for contender, kinds in (("tenantq", FILLS), ("documents' SQL", DOCUMENTS_FILLS)):
            for kind in kinds:
                with options.directory() as directory:
                    with_backlog, empty = measure(directory, contender, kind, size, options)
                add(result, contender, kind, size, with_backlog, empty)
    result.figure = chart(
        [{**row, "who": f"{row['contender']}, {row['rows']:,}"} for row in rows],
        x="kind",
        y="ratio",
        by="who",
        title="Claim and ack behind a backlog",
        x_label="backlog",
        y_label="share of the rate in an empty file",
        is_line=False,
    )
    return result


def add(  # noqa: PLR0917 - one call, one row
    result: Result, contender: str, kind: str, size: int, with_backlog: list[Step], empty: list[Step]
) -> None:
    """Add a row and its ratio."""
    ratio = paired(
        f"claim and ack behind {size:,} {kind} / empty, {contender}",
        [step[0] for step in with_backlog],
        [step[0] for step in empty],
        at_least=0.8 if contender == "tenantq" else None,
    )
    result.ratios.append(ratio)
    result.rows.append(
        {
            "contender": contender,
            "kind": kind,
            "rows": size,
            "empty_file_per_s": round(median([step[0] for step in empty])),
            "backlog_per_s": round(median([step[0] for step in with_backlog])),
            "ratio": ratio.median,
            "claims_of_nothing_per_s": (
                None if kind == "ready" else round(median([step[1] for step in with_backlog]))
            ),
        },
    )


def measure(
    directory: Path, contender: str, kind: str, size: int, options: Options
) -> tuple[list[Step], list[Step]]:
    """Return what each block did in a file with the backlog, and in an empty one."""
    turns = options.pick(10 * options.iterations, 2)
    if contender != "tenantq":
        queues = [DocumentsQueue(directory / name) for name in ("backlog.db", "empty.db")]
        DOCUMENTS_FILLS[kind](queues[0], size)
        found = in_turns(turns, *(raw_block(queue, has_ready=kind == "ready") for queue in queues))
        for queue in queues:
            queue.close()
        return found[0], found[1]
    with tenantq.open(directory / "store") as store:
        backlog, empty = store.tenant("backlog"), store.tenant("empty")
        FILLS[kind](backlog, size)
        found = in_turns(turns, tenant_block(backlog, has_ready=kind == "ready"), tenant_block(empty))
    return found[0], found[1]


def tenant_block(tenant: tenantq.Tenant, *, has_ready: bool = False) -> Callable[[], Step]:
    """Return one block on a tenant."""
    jobs = Jobs()

    def block() -> Step:
        tenant.enqueue_many(QUEUE, jobs.take(BLOCK))
        started = time.perf_counter()
        for _ in range(BLOCK):
            tenant.claim(QUEUE)[0].ack()
        took = time.perf_counter() - started
        if has_ready:
            return BLOCK / took, 0.0
        started = time.perf_counter()
        for _ in range(BLOCK):
            assert not tenant.claim(QUEUE)
        return BLOCK / took, BLOCK / (time.perf_counter() - started)

    return block


def raw_block(queue: DocumentsQueue, *, has_ready: bool = False) -> Callable[[], Step]:
    """Return one block on the documents' queue."""
    jobs = Jobs()

    def block() -> Step:
        queue.enqueue_many(jobs.encoded(BLOCK))
        started = time.perf_counter()
        for _ in range(BLOCK):
            claimed = queue.claim()
            assert claimed is not None
            queue.ack(claimed[0])
        took = time.perf_counter() - started
        if has_ready:
            return BLOCK / took, 0.0
        started = time.perf_counter()
        for _ in range(BLOCK):
            assert queue.claim() is None
        return BLOCK / took, BLOCK / (time.perf_counter() - started)

    return block


def fill_ready(tenant: tenantq.Tenant, size: int) -> None:
    for chunk in Jobs(seed=1).chunks(size, CHUNK):
        tenant.enqueue_many(QUEUE, chunk)


def fill_delayed(tenant: tenantq.Tenant, size: int) -> None:
    for chunk in Jobs(seed=1).chunks(size, CHUNK):
        tenant.enqueue_many(QUEUE, chunk, delay=FAR)


def fill_claimed(tenant: tenantq.Tenant, size: int) -> None:
    for chunk in Jobs(seed=1).chunks(size, CHUNK):
        tenant.enqueue_many(QUEUE, chunk)
        tenant.claim(QUEUE, len(chunk), lease=FAR, worker="another")


def fill_dead(tenant: tenantq.Tenant, size: int) -> None:
    # A message whose lease ends at its last attempt is dead: the quickest way to many.
    for chunk in Jobs(seed=1).chunks(size, CHUNK):
        tenant.enqueue_many(QUEUE, chunk, max_attempts=1)
        tenant.claim(QUEUE, len(chunk), lease=1e-6)
        tenant.reap()
    assert tenant.stats().dead == size


def fill_other_queue(tenant: tenantq.Tenant, size: int) -> None:
    for chunk in Jobs(seed=1).chunks(size, CHUNK):
        tenant.enqueue_many("another.queue", chunk)


def fill_future_priority(tenant: tenantq.Tenant, size: int) -> None:
    for chunk in Jobs(seed=1).chunks(size, CHUNK):
        tenant.enqueue_many(QUEUE, chunk, delay=FAR, priority=9)


def fill_raw(queue: DocumentsQueue, size: int, *, delay: float = 0, is_claimed: bool = False) -> None:
    for chunk in Jobs(seed=1).chunks(size, CHUNK):
        queue.enqueue_many([encode(job) for job in chunk], delay=delay)
        if is_claimed:
            queue.claim_batch(len(chunk))


FILLS: dict[str, Callable[[tenantq.Tenant, int], None]] = {
    "ready": fill_ready,
    "delayed": fill_delayed,
    "claimed by others": fill_claimed,
    "dead": fill_dead,
    "in another queue": fill_other_queue,
    "of higher priority, in the future": fill_future_priority,
}

DOCUMENTS_FILLS: dict[str, Callable[[DocumentsQueue, int], None]] = {
    "ready": fill_raw,
    "delayed": lambda queue, size: fill_raw(queue, size, delay=FAR),
    "claimed by others": lambda queue, size: fill_raw(queue, size, is_claimed=True),
}
