"""An unbroken load in Postgres: a producer and workers at a fixed rate, and what they did in each slice."""

from __future__ import annotations

import importlib
import time

import msgspec

from bench import _retained  # noqa: F401 - registers its claimer in each process
from bench._children import Crew, Log, Seat
from bench._claimers import CLAIMERS, Claimer, open_queue
from bench._measure import percentile

__all__ = ["Load", "Slices", "size_of", "slices_of", "start"]

PUT_INTERVAL = 0.05
"""Seconds between two calls that enqueue."""

NAP = 0.002
"""Seconds that a worker waits when it finds nothing."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of a load do."""

    claimer: str
    dsn: str
    rate: float
    """Messages a second that come in and that all workers together take out; 0: none, and what they can."""
    slice_seconds: float
    workers: int
    batch: int = 1
    """Messages of a claim of ours."""
    is_maintained: bool = False
    """Whether the bridge's maintenance runs beside."""

    def open(self) -> Claimer:
        """Open the queue in this process."""
        claimer = CLAIMERS[self.claimer](self.dsn)
        claimer.batch = self.batch
        return claimer


class Slices(msgspec.Struct, kw_only=True):
    """What the workers did, by slice."""

    claims_ns: list[list[int]]
    """In ascending order."""
    taken: list[int]

    def percentile_ms(self, number: int, percent: float) -> float:
        """Return how long a claim of a slice took."""
        return percentile(self.claims_ns[number], percent) / 1e6

    def between_ms(self, first: int, last: int, percent: float) -> float:
        """Return how long a claim took in the slices from first to before last."""
        return percentile(sorted(took for one in self.claims_ns[first:last] for took in one), percent) / 1e6


class Clock:
    """Tells which slice it is, from when the measured window began; None before."""

    def __init__(self, seat: Seat, seconds: float) -> None:
        self._seat = seat
        self._seconds = seconds
        self._began = 0.0

    def slice(self) -> int | None:
        if not self._seat.is_measured:
            return None
        now = time.monotonic()
        if not self._began:
            self._began = now
        return int((now - self._began) / self._seconds)


def start(crew: Crew, load: Load) -> None:
    """Start the processes of a load: the workers, and then what feeds and maintains."""
    for number in range(load.workers):
        crew.add(work, load, number)
    if load.rate:
        crew.add(produce, load)
    if load.is_maintained:
        crew.add(maintain, load)


def size_of(load: Load) -> int:
    """Return how many processes a load has."""
    return load.workers + bool(load.rate) + load.is_maintained


def produce(seat: Seat, load: Load) -> Log:
    """Enqueue at the rate; when it is late, more at once."""
    queue = load.open()
    seat.ready()
    started, put = time.monotonic(), 0
    while not seat.is_stopped:
        time.sleep(PUT_INTERVAL)
        due = int((time.monotonic() - started) * load.rate) - put
        if due > 0:
            queue.put(due)
            seat.count(due)
            put += due
    queue.close()
    return Log()


def work(seat: Seat, load: Load, number: int) -> Log:
    """Claim and ack at this worker's share of the rate; when it is late, as fast as it goes."""
    queue = load.open()
    clock = Clock(seat, load.slice_seconds)
    share = load.rate / load.workers
    claims: dict[str, list[int]] = {}
    taken: dict[str, float] = {}
    seat.ready()
    started, done = time.monotonic() + (number / load.rate if load.rate else 0), 0
    while not seat.is_stopped:
        # As many as a claim brings are waited for: or it would come back with one message.
        if load.rate and (done + load.batch) / share > time.monotonic() - started:
            time.sleep(min(0.05, max(0.0005, (done + load.batch) / share - (time.monotonic() - started))))
            continue
        before = time.perf_counter_ns()
        count = queue.take()
        took = time.perf_counter_ns() - before
        now = clock.slice()
        if count:
            queue.done()
            seat.count(count)
            done += count
        else:
            time.sleep(NAP)
            continue
        if now is not None:
            claims.setdefault(str(now), []).append(took)
            taken[str(now)] = taken.get(str(now), 0) + count
    queue.close()
    return Log(latencies=claims, numbers=taken)


def maintain(seat: Seat, load: Load) -> Log:
    """Be the bridge's maintenance."""
    queue = open_queue(load.dsn)
    maintenance = importlib.import_module("tenantq_bridge").Maintenance(queue)
    seat.ready()
    with maintenance:
        while not seat.is_stopped:
            time.sleep(0.05)
    queue.close()
    return Log()


def slices_of(logs: list[Log], count: int) -> Slices:
    """Put together what the workers have to say."""
    claims: list[list[int]] = []
    taken: list[int] = []
    for number in range(count):
        claims.append(sorted(took for log in logs for took in log.latencies.get(str(number), [])))
        taken.append(int(sum(log.numbers.get(str(number), 0) for log in logs)))
    return Slices(claims_ns=claims, taken=taken)
