"""How fast is one message a call, beside other queues in SQLite, in an empty queue and behind a backlog?

Enqueue one, take one, end it, again and again; one process. Each peer takes turns with tenantq at the same
durability: what its documentation offers. "exchange" is tenantq's call that acks the last message and claims
the next, which no peer has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import tenantq
from bench._measure import in_turns, median, paired
from bench._options import Options
from bench._peers import PEERS, Peer, missing
from bench._plots import chart
from bench._report import Result, Row
from bench._workload import Jobs

QUEUE = "peers"


def run(options: Options) -> Result:
    backlogs = options.pick((0, options.rows), (0, 200))
    rows: list[Row] = []
    result = Result(rows=rows, parameters={"backlogs": backlogs})
    for name, kind in PEERS.items():
        if name in missing():
            result.notes.append(f"{name}: not installed: pip install {name}")
            continue
        for backlog in backlogs:
            with options.directory() as directory:
                ours, theirs, exchanged = measure(directory, kind, backlog, options)
            target = 10 if backlog else 2
            where = f"behind {backlog:,}" if backlog else "empty"
            ratio = paired(f"tenantq / {name}, {kind.durability.upper()}, {where}", ours, theirs, at_least=target)
            result.ratios.append(ratio)
            rows.append(
                {
                    "peer": name,
                    "durability": kind.durability.upper(),
                    "backlog": backlog,
                    "peer_cycles_per_s": round(median(theirs), 1),
                    "tenantq_cycles_per_s": round(median(ours), 1),
                    "ratio": ratio.median,
                    "exchange_cycles_per_s": round(median(exchanged), 1),
                    "exchange_ratio": paired("", exchanged, theirs).median,
                },
            )
        result.notes.append(f"{name}: {kind.note}")
    result.figure = chart(
        [{**row, "behind": f"{row['backlog']:,} waiting"} for row in rows],
        x="peer",
        y="ratio",
        by="behind",
        title="tenantq's rate divided by the peer's",
        y_label="times",
        is_line=False,
        is_log=True,
    )
    return result


def measure(directory: Path, kind: type[Peer], backlog: int, options: Options) -> list[list[float]]:
    """Return the cycles a second of tenantq, of a peer, and of tenantq with exchange, in turns."""
    texts = [payload.decode() for payload in Jobs(seed=1).encoded(backlog)]
    place = directory / "peer"
    place.mkdir()
    peer = kind(place)
    seconds = options.window / 2
    with tenantq.open(directory / "store", durability=kind.durability) as store:
        tenant = store.tenant("acme")
        for start in range(0, backlog, 1000):
            tenant.enqueue_many(QUEUE, texts[start : start + 1000])
        peer.fill(texts)

        def ours(text: str) -> None:
            tenant.enqueue(QUEUE, text)
            (message,) = tenant.claim(QUEUE)
            _ = message.payload
            message.ack()

        held: list[tenantq.Message[object]] = []

        def exchange(text: str) -> None:
            nonlocal held
            tenant.enqueue(QUEUE, text)
            held = tenant.exchange(held, QUEUE)
            _ = held[0].payload

        def exchange_turn() -> float:
            rate = cycles(exchange, seconds)
            tenant.ack(*held)
            held.clear()
            return rate

        def theirs(text: str) -> None:
            peer.put(text)
            peer.take()

        def their_turn() -> float:
            rate = cycles(theirs, seconds)
            peer.tidy()
            return rate

        found = in_turns(max(options.iterations, 1), lambda: cycles(ours, seconds), their_turn, exchange_turn)
    peer.close()
    return found


def cycles(cycle: Callable[[str], None], seconds: float) -> float:
    """Return the cycles a second, over so many seconds and one cycle at least."""
    texts = [payload.decode() for payload in Jobs().encoded(1000)]
    count, started = 0, time.perf_counter()
    while True:
        cycle(texts[count % len(texts)])
        count += 1
        took = time.perf_counter() - started
        if took >= seconds:
            return count / took
