"""What the contract runs on: one factory a layer, each giving the verbs and a way to let time pass.

A layer is added by a context manager and a line in LAYERS.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, cast

import psycopg
import pytest

import tenantq
import tenantq.aio
from tenantq.backoff import Backoff
from tenantq.memory import MemoryQueue
from tenantq.message import Message
from tenantq.testing import ManualClock
from tenantq_bridge import PostgresQueue

BACKOFF = Backoff(base=0.05, factor=2, cap=0.2, jitter=0)
"""What every layer is made with: 0.1 s after the first attempt, 0.2 s after the others."""

SHIFT_TIMES = """
WITH step AS (SELECT make_interval(secs => %(seconds)s) AS step),
delayed AS (
    UPDATE tenantq.delayed SET visible_at = visible_at - step, enqueued_at = enqueued_at - step FROM step
),
waiting AS (
    UPDATE tenantq.waiting SET visible_at = visible_at - step, enqueued_at = enqueued_at - step FROM step
)
UPDATE tenantq.ready
SET leased_until = leased_until - step, visible_at = visible_at - step, enqueued_at = enqueued_at - step
FROM step
"""


class Counts(Protocol):
    """What `stats` counts, whatever else it knows."""

    @property
    def ready(self) -> int: ...
    @property
    def scheduled(self) -> int: ...
    @property
    def claimed(self) -> int: ...
    @property
    def dead(self) -> int: ...


class Verbs(Protocol):
    """The verbs that all layers have."""

    def enqueue(
        self,
        queue: str,
        payload: Any,
        *,
        delay: float = ...,
        at: datetime | None = ...,
        priority: int = ...,
        key: str | None = ...,
        max_attempts: int = ...,
    ) -> int: ...

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        delay: float = ...,
        at: datetime | None = ...,
        priority: int = ...,
        max_attempts: int = ...,
    ) -> list[int]: ...

    def claim(
        self,
        queue: str,
        limit: int = ...,
        *,
        lease: float = ...,
        worker: str | None = ...,
        wait: float = ...,
    ) -> list[Message[Any]]: ...

    def ack(self, *messages: Message[Any]) -> None: ...
    def nack(self, message: Message[Any], *, delay: float | None = ..., error: str | None = ...) -> None: ...
    def release(self, *messages: Message[Any], delay: float = ...) -> None: ...
    def extend(self, message: Message[Any], seconds: float) -> None: ...
    def dead_letter(self, message: Message[Any], *, error: str | None = ...) -> None: ...
    def stats(self) -> Counts: ...
    def peek(self, queue: str, limit: int = ...) -> Sequence[Message[Any]]: ...
    def dead_letters(self, queue: str | None = ..., limit: int = ...) -> Sequence[Message[Any]]: ...
    def redrive(self, *ids: int, queue: str | None = ...) -> int: ...
    def purge(self, queue: str) -> int: ...
    def pause(self, queue: str) -> None: ...
    def resume(self, queue: str) -> None: ...
    def reap(self) -> int: ...


class BoundedVerbs(Verbs, Protocol):
    """The verbs of a layer whose enqueues wait for room."""

    def enqueue(
        self,
        queue: str,
        payload: Any,
        *,
        delay: float = ...,
        at: datetime | None = ...,
        priority: int = ...,
        key: str | None = ...,
        max_attempts: int = ...,
        wait: float = ...,
    ) -> int: ...

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        delay: float = ...,
        at: datetime | None = ...,
        priority: int = ...,
        max_attempts: int = ...,
        wait: float = ...,
    ) -> list[int]: ...


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer under test, empty."""

    queue: Verbs
    advance: Callable[[float], None]
    """Let this many seconds pass, or a little more."""
    ordered: bool = True
    """Whether messages of one priority are claimed by visible_at, then by id."""
    bounded: Callable[[int], BoundedVerbs] | None = None
    """Give a queue that holds so many messages at most; None for a layer without bounds."""
    lacks: frozenset[str] = frozenset()
    """The verbs that it does not have."""


@contextmanager
def memory(_request: pytest.FixtureRequest) -> Iterator[Layer]:
    clock = ManualClock()

    def bounded(max_depth: int) -> BoundedVerbs:
        return MemoryQueue(max_depth=max_depth, clock=clock, backoff=BACKOFF)

    queue = MemoryQueue(clock=clock, backoff=BACKOFF)
    yield Layer(queue=queue, advance=clock.advance, ordered=False, bounded=bounded)


@contextmanager
def tenant(request: pytest.FixtureRequest) -> Iterator[Layer]:
    clock = ManualClock()
    with tenantq.open(request.getfixturevalue("tmp_path") / "store", clock=clock, backoff=BACKOFF) as store:
        acme = store.tenant("acme")

        def bounded(max_depth: int) -> BoundedVerbs:
            acme.limit(max_depth=max_depth)
            return acme

        yield Layer(queue=acme, advance=clock.advance, bounded=bounded)


class Awaiting:
    """The verbs of an asynchronous object for synchronous tests, run in the event loop of another thread."""

    def __init__(self, one: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.one = one
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.one, name)
        return self._awaiting(found) if callable(found) else found

    def _awaiting(self, verb: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            plain = [argument.one if isinstance(argument, Awaiting) else argument for argument in arguments]
            return self._wrapped(asyncio.run_coroutine_threadsafe(verb(*plain, **options), self._loop).result())

        return call

    def _wrapped(self, result: Any) -> Any:
        if isinstance(result, list):
            return [self._wrapped(one) for one in result]
        return Awaiting(result, self._loop) if isinstance(result, tenantq.aio.Message) else result


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def aio_memory(_request: pytest.FixtureRequest) -> Iterator[Layer]:
    clock = ManualClock()
    with running_loop() as loop:

        def bounded(max_depth: int) -> BoundedVerbs:
            core = MemoryQueue(max_depth=max_depth, clock=clock, backoff=BACKOFF)
            return cast("BoundedVerbs", Awaiting(tenantq.aio.MemoryQueue(core), loop))

        yield Layer(queue=bounded(10_000), advance=clock.advance, ordered=False, bounded=bounded)


@contextmanager
def aio_tenant(request: pytest.FixtureRequest) -> Iterator[Layer]:
    clock = ManualClock()
    path = request.getfixturevalue("tmp_path") / "store"
    store = tenantq.aio.open(path, clock=clock, backoff=BACKOFF)

    async def acme() -> tenantq.aio.Tenant:
        return store.tenant("acme")

    with running_loop() as loop:
        tenant = Awaiting(asyncio.run_coroutine_threadsafe(acme(), loop).result(), loop)

        def bounded(max_depth: int) -> BoundedVerbs:
            tenant.limit(max_depth=max_depth)
            return cast("BoundedVerbs", tenant)

        yield Layer(queue=cast("Verbs", tenant), advance=clock.advance, bounded=bounded)
        asyncio.run_coroutine_threadsafe(store.close(), loop).result()


class SharingQueue(PostgresQueue):
    """A Postgres queue that shares each of its queues before it puts the first message there."""

    def enqueue(self, queue: str, *arguments: Any, **options: Any) -> int:
        self._share(queue)
        return super().enqueue(queue, *arguments, **options)

    def enqueue_many(self, queue: str, *arguments: Any, **options: Any) -> list[int]:
        self._share(queue)
        return super().enqueue_many(queue, *arguments, **options)

    def _share(self, queue: str) -> None:
        if all(share.queue != queue for share in self.shares()):
            self.share(queue, max_claimed=100_000, max_claimed_per_tenant=100_000)


@contextmanager
def postgres(request: pytest.FixtureRequest, kind: type[PostgresQueue] = PostgresQueue) -> Iterator[Layer]:
    dsn = request.getfixturevalue("migrated_dsn")
    with kind(dsn, backoff=BACKOFF) as queue, psycopg.connect(dsn, autocommit=True) as connection:

        def advance(seconds: float) -> None:
            # The database's clock is nobody's to move: all that is compared with it moves the other way.
            connection.execute(SHIFT_TIMES, {"seconds": seconds})

        yield Layer(queue=queue, advance=advance)


@contextmanager
def postgres_shared(request: pytest.FixtureRequest) -> Iterator[Layer]:
    with postgres(request, SharingQueue) as layer:
        yield layer


Factory = Callable[[pytest.FixtureRequest], AbstractContextManager[Layer]]

LAYERS = [
    pytest.param(memory, id="memory"),
    pytest.param(tenant, id="tenant"),
    pytest.param(aio_memory, id="aio-memory"),
    pytest.param(aio_tenant, id="aio-tenant"),
    pytest.param(postgres, id="postgres", marks=pytest.mark.postgres),
    pytest.param(postgres_shared, id="postgres-shared", marks=pytest.mark.postgres),
]
