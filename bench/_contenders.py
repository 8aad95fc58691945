"""The queues that take part in trials of many processes, each behind the same few verbs."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import tenantq
from bench._documents import IDLE_SLEEP, DocumentsQueue
from bench._workload import QUEUE, Job, Jobs, encode

__all__ = ["Contender", "Got", "contender", "register"]

decode = msgspec.json.Decoder(Job).decode

Got = Callable[[Sequence[Job], int], None]
"""Told of the jobs that a consumer received, and of the nanoseconds that the claim took (0: not known)."""

IDLE_WAIT = 0.1
"""Seconds that a claim of ours waits; it is woken before."""


ROOM_WAIT = 30.0
"""Seconds that a producer waits for room in a bounded queue: longer than any trial should make it."""


class Contender(ABC):
    """One process's way to a queue: a producer calls `put`, a consumer `serve`."""

    batch = 1
    """Messages that a call carries."""

    def __init__(self, place: str, durability: str, **options: Any) -> None:
        self.place = place
        self.durability = durability
        self.batch = int(options.pop("batch", self.batch))
        self.options = options
        self.waits = 0
        """How often this process waited for the lock, known at `close` where the contender counts it."""
        self.waited = 0.0
        """Seconds that it waited."""
        self.wait_ns: list[int] = []
        """How long each wait was, where the contender knows it."""

    @abstractmethod
    def fill(self, count: int) -> None:
        """Make the queue, with so many messages in it."""

    @abstractmethod
    def put(self, jobs: Sequence[Job]) -> None:
        """Enqueue; committed on return."""

    @abstractmethod
    def take(self) -> Sequence[Job]:
        """Claim what is there, at once."""

    def rest(self) -> Sequence[Job]:
        """Do what a consumer does that found nothing."""
        time.sleep(IDLE_SLEEP)
        return ()

    def done(self) -> None:
        """Acknowledge what was taken."""

    def recover(self) -> None:
        """Clean up after an error."""

    def serve(self, got: Got, is_over: Callable[[], bool], failed: Callable[[Exception], None]) -> None:
        """Consume until it is over."""
        while not is_over():
            try:
                started = time.perf_counter_ns()
                jobs = self.take()
                took = time.perf_counter_ns() - started
                if not jobs:
                    took = 0
                    jobs = self.rest()
                if jobs:
                    got(jobs, took)
                    self.done()
            except Exception as exc:
                failed(exc)
                self.recover()
                time.sleep(0.05)  # as the documents' loop does

    def close(self) -> None:
        """Close it."""


class DocumentsLoop(Contender):
    """The documents' queue: one message a statement, or their batched claim."""

    def __init__(self, place: str, durability: str, **options: Any) -> None:
        super().__init__(place, durability, **options)
        self._queue = DocumentsQueue(
            Path(place) / "queue.db",
            durability=durability,
            worker=f"worker-{time.monotonic_ns()}",
        )
        self._taken: list[int] = []
        if self.options.get("count_waits"):
            self._queue.count_waits()

    def fill(self, count: int) -> None:
        for chunk in Jobs(seed=1).chunks(count):
            self._queue.enqueue_many([encode(job) for job in chunk])

    def put(self, jobs: Sequence[Job]) -> None:
        if len(jobs) == 1:
            self._queue.enqueue(encode(jobs[0]))
        else:
            self._queue.enqueue_many([encode(job) for job in jobs])

    def take(self) -> Sequence[Job]:
        if self.batch > 1:
            rows = self._queue.exchange(self._taken, self.batch)
            self._taken = [row[0] for row in rows]
            return [decode(row[1]) for row in rows]
        claimed = self._queue.claim()
        if claimed is None:
            return ()
        self._taken = [claimed[0]]
        return (decode(claimed[1]),)

    def done(self) -> None:
        if self.batch == 1:
            self._queue.ack(self._taken[0])

    def recover(self) -> None:
        self._queue.rollback()

    def close(self) -> None:
        self.waits, self.waited = len(self._queue.waits), sum(self._queue.waits)
        self.wait_ns = [int(seconds * 1e9) for seconds in self._queue.waits]
        self._queue.close()


class TenantqLoop(Contender):
    """tenantq, one message a call: send, claim, ack."""

    def __init__(self, place: str, durability: str, **options: Any) -> None:
        super().__init__(place, durability, **options)
        self.store = tenantq.open(Path(place) / "store", durability=durability)
        self.tenant = self.store.tenant("acme")
        self._taken: list[tenantq.Message[Job]] = []

    def fill(self, count: int) -> None:
        for chunk in Jobs(seed=1).chunks(count):
            self.tenant.enqueue_many(QUEUE, chunk)
        self.tenant.stats()

    def put(self, jobs: Sequence[Job]) -> None:
        self.tenant.send(jobs[0])

    def take(self) -> Sequence[Job]:
        self._taken = self.tenant.claim(QUEUE)
        return [message.payload for message in self._taken]

    def rest(self) -> Sequence[Job]:
        self._taken = self.tenant.claim(QUEUE, self.batch, wait=IDLE_WAIT)
        return [message.payload for message in self._taken]

    def done(self) -> None:
        self._taken[0].ack()

    def close(self) -> None:
        stats = self.tenant.stats()
        self.waits, self.waited = stats.busy_waits, stats.busy_seconds
        self.store.close()


class TenantqBounded(TenantqLoop):
    """tenantq, one message a call, in a queue that holds so much at most: a producer waits for room."""

    def fill(self, count: int) -> None:
        super().fill(count)
        self.tenant.limit(QUEUE, max_depth=self.options.get("max_depth"))

    def put(self, jobs: Sequence[Job]) -> None:
        self.tenant.send(jobs[0], wait=ROOM_WAIT)


class TenantqBatched(TenantqLoop):
    """tenantq, batches: enqueue_many, and exchange, which acks the last batch and claims the next."""

    batch = 50

    def put(self, jobs: Sequence[Job]) -> None:
        self.tenant.enqueue_many(QUEUE, jobs)

    def take(self) -> Sequence[Job]:
        taken, self._taken = self._taken, []
        self._taken = self.tenant.exchange(taken, QUEUE, self.batch)
        return [message.payload for message in self._taken]

    def done(self) -> None:
        pass  # the next exchange does it

    def close(self) -> None:
        if self._taken:
            self.tenant.ack(*self._taken)
        super().close()


class TenantqWorker(TenantqLoop):
    """tenantq's Worker with a typed handler that does nothing."""

    def serve(self, got: Got, is_over: Callable[[], bool], failed: Callable[[Exception], None]) -> None:  # noqa: ARG002
        worker = tenantq.Worker(self.store, concurrency=int(self.options.get("concurrency", 1)))
        lock = threading.Lock()

        @worker.on(Job)
        def handle(message: tenantq.Message[Job]) -> None:
            with lock:
                got((message.payload,), 0)

        with worker:
            while not is_over():
                time.sleep(0.01)


CONTENDERS: dict[str, type[Contender]] = {
    "documents' loop": DocumentsLoop,
    "tenantq": TenantqLoop,
    "tenantq, bounded": TenantqBounded,
    "tenantq batched": TenantqBatched,
    "tenantq worker": TenantqWorker,
}


def register(name: str, kind: type[Contender]) -> None:
    """Let another module's contender take part."""
    CONTENDERS[name] = kind


def contender(name: str, place: str, durability: str, **options: Any) -> Contender:
    """Open a contender in this process."""
    return CONTENDERS[name](place, durability, **options)
