"""How long does a small tenant's first message wait behind a tenant with a million of them?

Workers have four handlers at once, of 5 ms each: four threads of one process, or four processes. The wait is from
the call that enqueues, in a process of its own, to the begin of the handler. Beside it are the ideal, workers with
nothing else to do, and what no fairness gives: a message behind the whole backlog, by its length. In one trial the
noisy tenant's handlers hang.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import tenantq
from bench._children import Crew, Log, Seat
from bench._measure import Ratio, median, paired, percentiles_ms
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

QUEUE = "fairness"

HANDLER = 0.005
"""Seconds of a handler."""

AT_ONCE = 4

SMALL = 20
"""Tenants whose first messages are sent in turns: each has nothing else when its next one comes."""

GAP = (0.01, 0.03)
"""Seconds between two of those messages."""

CHUNK = 10_000

TARGET_MS = 50.0

HANG = 600.0
"""Seconds after which a handler that hangs would end by itself."""


def run(options: Options) -> Result:
    rows = options.pick(options.rows, 2_000)
    trials = {
        "nothing else, 4 threads": (1, False, False),
        "a noisy tenant, 4 threads": (1, True, False),
        "a noisy tenant, 4 processes": (AT_ONCE, True, False),
        "a tenant whose handlers hang, 4 threads": (1, True, True),
    }
    found: dict[str, list[Row]] = {name: [] for name in trials}
    with options.directory() as directory:
        fill(directory / "noisy", rows)
        fill(directory / "quiet", 0)
        for turn in range(options.iterations):
            for name, (processes, is_noisy, hangs) in trials.items():
                place = directory / ("noisy" if is_noisy else "quiet")
                found[name].append(trial(place, directory / f"logs-{turn}-{name}", processes, hangs, options))
    result = Result(
        rows=[
            {"trial": name, **{figure: round(median([row[figure] for row in some]), 2) for figure in some[0]}}
            for name, some in found.items()
        ],
        parameters={"rows": rows, "handler_ms": HANDLER * 1000, "small_tenants": SMALL},
        ratios=[target(name, some) for name, some in found.items() if "noisy" in name],
    )
    behind_all = rows * HANDLER / AT_ONCE * 1000
    result.rows.append(
        {
            **dict.fromkeys(result.rows[0], behind_all),
            "trial": "first in, first out (computed)",
            "per_s": 0,
            "sent": 0,
        }
    )
    result.figure = chart(
        [{"at": "", **row} for row in result.rows],
        x="at",
        y="p99",
        by="trial",
        title="A small tenant's first message",
        y_label="ms until its handler begins, p99",
        is_line=False,
        is_log=True,
        lower_is_better=True,
    )
    return result


def target(name: str, found: list[Row]) -> Ratio:
    """Compare the waits with what they may be at most."""
    waits = [row["p99"] for row in found]
    return paired(f"{name}: p99 / {TARGET_MS:g} ms", waits, [TARGET_MS] * len(waits), at_most=1)


def fill(place: Path, rows: int) -> None:
    """Make a store with a backlog of one tenant."""
    with tenantq.open(place) as store:
        for number in range(SMALL):
            store.tenant(f"small-{number}").enqueue("other", None)
        for first in range(0, rows, CHUNK):
            store.tenant("noisy").enqueue_many(QUEUE, range(min(CHUNK, rows - first)))


def trial(place: Path, logs: Path, processes: int, hangs: bool, options: Options) -> Row:
    """Send small tenants' messages for a while; return how long they waited."""
    with Crew(1 + processes, logs) as crew:
        crew.add(send, str(place))
        for _ in range(processes):
            crew.add(work, str(place), AT_ONCE // processes, hangs)
        crew.go(options.warm_up)
        window = crew.measure(options.window)
        _sender, *workers = crew.stop()
    waits = [wait for log in workers for wait in log.latencies["wait"]]
    if not waits:  # a short trial on a busy machine
        return trial(place, logs.with_name(f"{logs.name}-again"), processes, hangs, options)
    return {
        **percentiles_ms(waits),
        "per_s": sum(window.counts[1:]) / window.seconds,
        "sent": len(waits),
    }


def send(seat: Seat, place: str) -> Log:
    """Be the process that enqueues for small tenants: each payload says when."""
    with tenantq.open(place) as store:
        tenants = [store.tenant(f"small-{number}") for number in range(SMALL)]
        seat.ready()
        sent = 0
        while not seat.is_stopped:
            if seat.is_measured:
                tenants[sent % SMALL].enqueue(QUEUE, time.monotonic_ns())
                sent += 1
            time.sleep(random.uniform(*GAP))
    return Log()


def work(seat: Seat, place: str, concurrency: int, hangs: bool) -> Log:
    """Be a process with a worker."""
    waits: list[int] = []
    is_over = threading.Event()
    with tenantq.open(place) as store:
        worker = tenantq.Worker(store, concurrency=concurrency)

        @worker.on(QUEUE)
        def handle(message: tenantq.Message[Any]) -> None:
            if message.tenant == "noisy":
                if hangs:
                    is_over.wait(HANG)
                    return
            else:
                waits.append(time.monotonic_ns() - message.payload)
            time.sleep(HANDLER)
            seat.count(1)

        with worker:
            seat.ready()
            while not seat.is_stopped:
                time.sleep(0.01)
            is_over.set()
    return Log(latencies={"wait": waits})
