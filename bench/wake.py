"""How long after a commit in one process does another one's handler begin, where the tenant is open in neither?

Cold: each tenant is used once, by a process that opens it to enqueue and a worker that opens it to claim. Warm:
the same tenant again, now open in both. The wait is from the return of the enqueue to the begin of a handler that
does nothing, and, as `call`, from before the enqueue. Beside it, the ideal: copies of such files, opened by raw
apsw on both sides, a claim in one statement, and a FIFO for the word between them.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw

import tenantq
from bench._children import Crew, Log, Seat
from bench._measure import Ratio, median, paired, percentiles_ms
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._stores import counts_of, stocked, tenant_name
from bench._tenant_roles import PRAGMAS, come_to_rest

QUEUE = "wake"

GAP = (0.01, 0.03)
"""Seconds between two messages: the first is handled by then."""

ENOUGH = 50
"""Tenants that a trial uses, where it lasts long enough; stores of fewer have more trials."""

MOST = 10_000

TARGETS = {"p50": 3.0, "p99": 20.0}
"""Milliseconds, of cold tenants among 100,000."""

BEHIND = 5.0
"""Seconds that a worker waits for the last messages."""

INSERT = "INSERT INTO queue (queue, visible_at, enqueued_at, payload) VALUES ('wake', 1, 1, '{}')"

CLAIM = """
UPDATE queue
   SET claimed_by = 'raw', leased_until = 1
 WHERE id = (SELECT id
               FROM queue
              WHERE queue = 'wake' AND claimed_by IS NULL AND due_at IS NULL
              ORDER BY priority DESC, visible_at
              LIMIT 1)
RETURNING id
"""

Waits = dict[str, list[int]]
"""Nanoseconds by what was waited for."""

Send = Callable[[int], None]


def run(options: Options) -> Result:
    counts = counts_of(options)
    found: dict[tuple[int, str], list[Row]] = {}
    for count in counts:
        with stocked(count, options) as stock:
            for _ in range(options.iterations):
                ours = trials(count, options, partial(tenantq_trial, stock.path, count))
                theirs = trials(count, options, partial(raw_trial, stock.path, count))
                for name, waits in (("cold", ours), ("warm", ours), ("raw apsw, cold", theirs)):
                    found.setdefault((count, name), []).append(figures(name.split()[-1], waits))
    rows: list[Row] = [
        {"tenants": count, "trial": name}
        | {figure: round(median([one[figure] for one in some]), 3) for figure in some[0]}
        for (count, name), some in found.items()
    ]
    return Result(
        rows=rows,
        parameters={"durability": "normal", "gap_ms": [1000 * seconds for seconds in GAP]},
        ratios=[
            *(targets(found[counts[-1], "cold"], counts[-1])),
            *(ideal(found[count, "cold"], found[count, "raw apsw, cold"], count) for count in counts),
        ],
        figure=chart(
            [{"tenants": str(row["tenants"]), "trial": row["trial"], "ms": row["p50"]} for row in rows],
            x="tenants",
            y="ms",
            by="trial",
            title="From a commit to the handler in another process, p50",
            y_label="milliseconds",
            is_line=False,
            lower_is_better=True,
        ),
    )


def targets(cold: list[Row], count: int) -> Iterator[Ratio]:
    """Compare the waits with what they may be at most."""
    for figure, target in TARGETS.items():
        name = f"cold, {count} tenants: {figure} / {target:g} ms"
        yield paired(name, [row[figure] for row in cold], [target] * len(cold), at_most=1)


def ideal(cold: list[Row], raw: list[Row], count: int) -> Ratio:
    """Compare the waits with those of raw apsw and a FIFO."""
    name = f"cold / raw apsw, {count} tenants: p50"
    return paired(name, [row["p50"] for row in cold], [row["p50"] for row in raw])


def trials(count: int, options: Options, trial: Callable[[Options], Waits]) -> Waits:
    """Run as many trials as a small store needs, each with new processes; return their waits."""
    waits: Waits = {}
    for _ in range(options.pick(max(1, ENOUGH // count), 1)):
        for name, some in trial(options).items():
            waits.setdefault(name, []).extend(some)
    return waits


def figures(name: str, waits: Waits) -> Row:
    """Return what a table has of some waits."""
    calls = percentiles_ms(waits[f"{name} call"])
    return {
        **percentiles_ms(waits[name]),
        "call_p50": calls["p50"],
        "call_p99": calls["p99"],
        "sent": len(waits[name]),
    }


def tenantq_trial(place: Path, count: int, options: Options) -> Waits:
    """Enqueue for one tenant after the other, twice each, while a worker serves them all."""
    with options.directory() as directory, Crew(2, directory) as crew:
        crew.add(send, str(place), count)
        crew.add(work, str(place))
        return waits_of(crew, options)


def raw_trial(place: Path, count: int, options: Options) -> Waits:
    """Do the same on copies of the tenants' files, without any of ours."""
    with options.directory() as directory, Crew(2, directory) as crew:
        some = random.sample(range(count), min(count, int(options.window / GAP[0]) + 1))
        with tenantq.open(place) as store:
            for number, tenant in enumerate(some):
                shutil.copy(store.tenant(tenant_name(tenant)).path, directory / f"{number}.db")
        os.mkfifo(directory / "bell")
        crew.add(raw_send, str(directory), len(some))
        crew.add(raw_work, str(directory))
        return waits_of(crew, options)


def waits_of(crew: Crew, options: Options) -> Waits:
    """Run a trial of a sender and a worker, and return the waits of each kind."""
    crew.go(options.warm_up)
    crew.measure(options.window)
    sent, begun = (log.latencies for log in crew.stop())
    began_at = dict(zip(begun["message"], begun["began"], strict=True))
    waits: Waits = {}
    for name in ("cold", "warm"):
        pairs = zip(sent.get(name, []), sent.get(f"{name} done", []), strict=True)
        arrived = [(before, after, began_at[before]) for before, after in pairs if before in began_at]
        waits[name] = [began - after for _before, after, began in arrived]
        waits[f"{name} call"] = [began - before for before, _after, began in arrived]
    return waits


def send(seat: Seat, place: str, count: int) -> Log:
    """Be the process that enqueues: each payload says when."""
    numbers = random.sample(range(count), min(count, MOST))
    with tenantq.open(place) as store:

        def enqueue(number: int, before: int) -> None:
            store.tenant(tenant_name(number)).enqueue(QUEUE, before)

        return send_all(seat, numbers, enqueue, kinds=("cold", "warm"))


def raw_send(seat: Seat, place: str, count: int) -> Log:
    """Be the process that inserts by raw apsw, and writes to a FIFO."""
    bell = os.open(f"{place}/bell", os.O_WRONLY)
    opened: list[apsw.Connection] = []  # and left open, as a store leaves them

    def insert(number: int, before: int) -> None:
        connection = apsw.Connection(f"{place}/{number}.db")
        opened.append(connection)
        connection.execute(PRAGMAS)
        connection.execute(INSERT)
        os.write(bell, word(number, before))

    log = send_all(seat, list(range(count)), insert, kinds=("cold",))
    os.close(bell)
    return log


def send_all(seat: Seat, numbers: list[int], call: Callable[[int, int], None], kinds: tuple[str, ...]) -> Log:
    """Call for tenants in turn until the trial ends; log when each call began and returned."""
    log = Log(latencies={name: [] for kind in kinds for name in (kind, f"{kind} done")})
    seat.ready()
    left = [(number, kind) for number in reversed(numbers) for kind in reversed(kinds)]
    while not seat.is_stopped:
        if left and seat.is_measured:
            number, kind = left.pop()
            seat.count(1)
            before = time.monotonic_ns()
            call(number, before)
            log.latencies[f"{kind} done"].append(time.monotonic_ns())
            log.latencies[kind].append(before)
        time.sleep(random.uniform(*GAP))
    return log


def work(seat: Seat, place: str) -> Log:
    """Be the process with the worker."""
    log = Log(latencies={"message": [], "began": []})
    with tenantq.open(place) as store:
        worker = tenantq.Worker(store)

        @worker.on(QUEUE)
        def handle(message: tenantq.Message[Any]) -> None:
            began = time.monotonic_ns()
            log.latencies["message"].append(message.payload)
            log.latencies["began"].append(began)
            seat.count(1)

        with worker:
            come_to_rest()
            seat.ready()
            wait_for_all(seat)
    return log


def wait_for_all(seat: Seat) -> None:
    """Wait until the trial is over, and all that was sent has arrived."""
    while not seat.is_stopped:
        time.sleep(0.01)
    ends = time.monotonic() + BEHIND
    while len(set(seat.counted())) > 1 and time.monotonic() < ends:
        time.sleep(0.01)


def raw_work(seat: Seat, place: str) -> Log:
    """Be the process that is woken by a FIFO, and claims by raw apsw."""
    log = Log(latencies={"message": [], "began": []})
    bell = os.open(f"{place}/bell", os.O_RDONLY)
    opened: list[apsw.Connection] = []
    seat.ready()
    while message := os.read(bell, WORD_BYTES):  # nothing: the sender has closed it
        number, before = words(message)
        connection = apsw.Connection(f"{place}/{number}.db")
        opened.append(connection)
        connection.execute(PRAGMAS)
        assert connection.execute(CLAIM).fetchall()
        log.latencies["began"].append(time.monotonic_ns())
        log.latencies["message"].append(before)
    os.close(bell)
    return log


WORD_BYTES = 16


def word(number: int, before: int) -> bytes:
    """Return what the FIFO is told of a message."""
    return number.to_bytes(8) + before.to_bytes(8)


def words(message: bytes) -> tuple[int, int]:
    """Return what the FIFO was told."""
    return int.from_bytes(message[:8]), int.from_bytes(message[8:])
