"""How fast is one file in batches, beside raw SQLite in the same batches and beside the documents' own loop?

One process: enqueue_many and exchange of 50, typed payloads encoded and decoded. Raw apsw does the same two
transactions on the documents' schema with bytes. The loop is 4 producers and 4 consumers, one message a
transaction. All three take turns.
"""

from __future__ import annotations

from collections.abc import Callable

import tenantq
from bench._documents import DocumentsQueue
from bench._load import Plan, run_trial
from bench._measure import in_turns, median, paired, timed
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._workload import QUEUE, Jobs, encode

BATCH = 50


def run(options: Options) -> Result:
    turns = options.pick(max(3, options.iterations), 1)
    rows: list[Row] = []
    with options.directory() as directory:
        loops = iter(range(1000))

        def loop() -> float:
            place = directory / f"loop-{next(loops)}"
            place.mkdir()
            plan = Plan(contender="documents' loop", place=str(place), depth=options.depth())
            return run_trial(plan, options, place / "logs").rate

        raw = DocumentsQueue(directory / "queue.db")
        store = tenantq.open(directory / "store")
        tenant = store.tenant("acme")
        fill(raw, tenant, options.depth())
        contenders: dict[str, Callable[[], float]] = {
            "tenantq": tenant_rounds(tenant, options),
            "raw apsw": raw_rounds(raw, options),
            "documents' loop, 4 + 4": loop,
        }
        rates = dict(zip(contenders, in_turns(turns, *contenders.values()), strict=True))
        store.close()
        raw.close()
    rows += [{"contender": name, "messages_per_s": round(median(rate))} for name, rate in rates.items()]
    ours = rates["tenantq"]
    return Result(
        rows=rows,
        parameters={"batch": BATCH, "depth": options.depth(), "durability": "normal", "turns": turns},
        ratios=[
            paired("tenantq batched / raw apsw batched", ours, rates["raw apsw"], at_least=0.6),
            paired("tenantq batched / documents' loop, 4 + 4", ours, rates["documents' loop, 4 + 4"], at_least=3),
        ],
        figure=chart(
            [{"at": "", **row} for row in rows],
            x="at",
            y="messages_per_s",
            by="contender",
            title="One file",
            y_label="messages/s",
            is_line=False,
        ),
    )


def fill(raw: DocumentsQueue, tenant: tenantq.Tenant, depth: int) -> None:
    """Put the same messages into both."""
    for chunk in Jobs(seed=1).chunks(depth):
        raw.enqueue_many([encode(job) for job in chunk])
        tenant.enqueue_many(QUEUE, chunk)


def tenant_rounds(tenant: tenantq.Tenant, options: Options) -> Callable[[], float]:
    """Return what runs full life cycles for a while and gives the messages a second."""
    jobs, rounds = Jobs(), rounds_of(options)

    def cycles() -> None:
        held: list[tenantq.Message[object]] = []
        for _ in range(rounds):
            tenant.enqueue_many(QUEUE, jobs.take(BATCH))
            held = tenant.exchange(held, QUEUE, BATCH)
            for message in held:
                _ = message.payload
        tenant.ack(*held)

    return lambda: rounds * BATCH / timed(cycles)


def raw_rounds(raw: DocumentsQueue, options: Options) -> Callable[[], float]:
    """Return the same for raw apsw."""
    jobs, rounds = Jobs(), rounds_of(options)
    payloads = jobs.encoded(rounds * BATCH)

    def cycles() -> None:
        held: list[tuple[int, bytes]] = []
        for number in range(rounds):
            raw.enqueue_many(payloads[number * BATCH : (number + 1) * BATCH])
            held = raw.exchange([row[0] for row in held], BATCH)
        raw.exchange([row[0] for row in held], 0)

    return lambda: rounds * BATCH / timed(cycles)


def rounds_of(options: Options) -> int:
    """Return how many batches one block is: near the length of a trial."""
    return options.pick(max(50, int(options.seconds * 500)), 20)
