"""What does one call on one message cost, beside the documents' statement run by hand?

One caller, one message a call: enqueue, claim and ack, each a transaction, in blocks that take turns. `bytes`
gives both the same bytes; `typed` sends a declared Struct and reads it back, which raw SQLite does not do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import tenantq
from bench._documents import DocumentsQueue
from bench._measure import in_turns, median, paired, percentile
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._workload import QUEUE, Jobs, encode

BYTES_QUEUE = "bench.bytes"

STEPS = ("enqueue", "claim", "ack")

Block = dict[str, list[int]]
"""The nanoseconds of each call, by step."""


def documents_block(queue: DocumentsQueue, jobs: Jobs, size: int) -> Block:
    clock = time.perf_counter_ns
    block: Block = {step: [] for step in STEPS}
    for payload in jobs.encoded(size):
        started = clock()
        queue.enqueue(payload)
        block["enqueue"].append(clock() - started)
    for _ in range(size):
        started = clock()
        claimed = queue.claim()
        block["claim"].append(clock() - started)
        assert claimed is not None
        started = clock()
        queue.ack(claimed[0])
        block["ack"].append(clock() - started)
    return block


def tenant_block(tenant: tenantq.Tenant, queue: str, payloads: list[object]) -> Block:
    clock = time.perf_counter_ns
    block: Block = {step: [] for step in STEPS}
    for payload in payloads:
        started = clock()
        tenant.enqueue(queue, payload)
        block["enqueue"].append(clock() - started)
    for _ in payloads:
        started = clock()
        (message,) = tenant.claim(queue)
        _ = message.payload
        block["claim"].append(clock() - started)
        started = clock()
        message.ack()
        block["ack"].append(clock() - started)
    return block


def run(options: Options) -> Result:
    rows: list[Row] = []
    result = Result(rows=rows, parameters={"depth": options.depth()})
    for durability in ("normal", "full"):
        with options.directory() as directory:
            measure(directory, durability, options, result)
    result.figure = chart(
        rows,
        x="step",
        y="p50_us",
        by="contender",
        title="One call, p50",
        y_label="microseconds",
        is_line=False,
        lower_is_better=True,
    )
    return result


def measure(directory: Path, durability: str, options: Options, result: Result) -> None:
    size = options.pick(500, 50)
    rounds = options.pick((5 if durability == "normal" else 2) * options.iterations, 1)
    jobs = Jobs()
    raw = DocumentsQueue(directory / "queue.db", durability=durability)
    with tenantq.open(directory / "store", durability=durability) as store:
        tenant = store.tenant("acme")
        for chunk in jobs.chunks(options.depth()):
            encoded = [encode(job) for job in chunk]
            raw.enqueue_many(encoded)
            tenant.enqueue_many(QUEUE, chunk)
            tenant.enqueue_many(BYTES_QUEUE, encoded)
        contenders: dict[str, Callable[[], Block]] = {
            "raw apsw": lambda: documents_block(raw, jobs, size),
            "tenantq, bytes": lambda: tenant_block(tenant, BYTES_QUEUE, list(jobs.encoded(size))),
            "tenantq, typed": lambda: tenant_block(tenant, QUEUE, list(jobs.take(size))),
        }
        blocks = dict(zip(contenders, in_turns(rounds, *contenders.values()), strict=True))
    raw.close()
    for name, found in blocks.items():
        for step in STEPS:
            calls = sorted(call for block in found for call in block[step])
            rate = median([size / (sum(block[step]) / 1e9) for block in found])
            result.rows.append(
                {
                    "contender": f"{name}, {durability.upper()}",
                    "step": step,
                    "calls_per_s": round(rate),
                    "p50_us": percentile(calls, 50) / 1000,
                    "p99_us": percentile(calls, 99) / 1000,
                },
            )
        if name == "raw apsw":
            continue
        ours, theirs = [cycle(block) for block in found], [cycle(block) for block in blocks["raw apsw"]]
        target = 0.6 if name == "tenantq, bytes" else None
        result.ratios.append(
            paired(f"cycles/s, {name} / raw apsw, {durability.upper()}", theirs, ours, at_least=target),
        )
        for step in STEPS:
            ours = [percentile(sorted(block[step]), 50) for block in found]
            theirs = [percentile(sorted(block[step]), 50) for block in blocks["raw apsw"]]
            target = 1.5 if name == "tenantq, bytes" and step == "enqueue" else None
            result.ratios.append(
                paired(f"{step} p50, {name} / raw apsw, {durability.upper()}", ours, theirs, at_most=target),
            )


def cycle(block: Block) -> float:
    """Return the nanoseconds of all its steps."""
    return sum(sum(calls) for calls in block.values())
