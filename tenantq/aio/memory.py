"""The memory layer for coroutines: its verbs touch no disk and run at once; only waiting is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from tenantq import memory
from tenantq._sleepers import Sleeper, Sleepers
from tenantq.aio._verbs import awaitable
from tenantq.aio.message import Message
from tenantq.arguments import DEFAULT_MAX_ATTEMPTS, check_seconds
from tenantq.clock import nanoseconds
from tenantq.errors import InvalidArgument, QueueFull

__all__ = ["MemoryQueue"]

T = TypeVar("T")


class MemoryQueue:
    """Named queues in this process, for the coroutines of one event loop and for threads.

    See `tenantq.MemoryQueue`: the verbs are the same, and `core` is the same queue for threads.
    """

    def __init__(self, core: memory.MemoryQueue) -> None:
        self.core = core
        self.max_depth = core.max_depth

    async def enqueue(
        self,
        queue: str,
        payload: object,
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int = 0,
        key: str | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        tenant: str | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> int:
        """Add a message and return its id, or the id of the one that has its key.

        Raises QueueFull if there is no room within `wait` seconds.
        """
        return await self._admit(
            lambda: self.core.enqueue(
                queue,
                payload,
                delay=delay,
                at=at,
                priority=priority,
                key=key,
                max_attempts=max_attempts,
                tenant=tenant,
                headers=headers,
            ),
            1,
            wait,
        )

    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[object],
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int = 0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        tenant: str | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> list[int]:
        """Add a message for each payload, all or none, and return their ids.

        Raises QueueFull if there is no room for all of them within `wait` seconds.
        """
        listed = list(payloads)
        return await self._admit(
            lambda: self.core.enqueue_many(
                queue,
                listed,
                delay=delay,
                at=at,
                priority=priority,
                max_attempts=max_attempts,
                tenant=tenant,
                headers=headers,
            ),
            len(listed),
            wait,
        )

    async def claim(
        self,
        queue: str,
        limit: int = 1,
        *,
        lease: float = 60.0,
        worker: str | None = None,
        wait: float = 0.0,
    ) -> list[Message[Any]]:
        """Take up to `limit` messages, each for `lease` seconds; wait up to `wait` seconds for the first."""
        return await self.claim_any((queue,), limit, lease=lease, worker=worker, wait=wait)

    async def claim_any(
        self,
        queues: Sequence[str],
        limit: int = 1,
        *,
        lease: float = 60.0,
        worker: str | None = None,
        wait: float = 0.0,
    ) -> list[Message[Any]]:
        """Take up to `limit` messages from several queues, as `claim` does from one."""
        check_seconds(wait, "wait")

        def take() -> list[Message[Any]]:
            deliveries = self.core.claim_any(queues, limit, lease=lease, worker=worker)
            return [Message(delivery, self) for delivery in deliveries]

        return take() or await self._repeat(
            take,
            wait,
            watch=lambda: [self.core._lanes.lane(queue).sleepers for queue in queues],
            due=lambda: self.core.next_due(*queues),
        )

    async def ack(self, *messages: Message[Any]) -> None:
        """Remove the messages: they are done. Raises LeaseLost."""
        self.core.ack(*(message.delivery for message in messages))

    async def nack(self, message: Message[Any], *, delay: float | None = None, error: str | None = None) -> None:
        """End the attempt as failed: wait `delay` seconds (backoff by default), or die. Raises LeaseLost."""
        self.core.nack(message.delivery, delay=delay, error=error)

    async def release(self, *messages: Message[Any], delay: float = 0) -> None:
        """Give the messages back, in their order, as if they had not been claimed. Raises LeaseLost."""
        self.core.release(*(message.delivery for message in messages), delay=delay)

    async def dead_letter(self, message: Message[Any], *, error: str | None = None) -> None:
        """Move the message to the dead letters, whatever attempts are left. Raises LeaseLost."""
        self.core.dead_letter(message.delivery, error=error)

    async def extend(self, message: Message[Any], seconds: float) -> None:
        """Make the lease end `seconds` from now. Raises LeaseLost."""
        self.core.extend(message.delivery, seconds)

    async def peek(self, queue: str, limit: int = 10) -> list[Message[Any]]:
        """Return what waits, without a lease."""
        return [Message(delivery, self) for delivery in self.core.peek(queue, limit)]

    async def dead_letters(self, queue: str | None = None, limit: int = 100) -> list[Message[Any]]:
        """Return dead messages without a lease, those of each queue in the order of their deaths."""
        return [Message(delivery, self) for delivery in self.core.dead_letters(queue, limit)]

    stats = awaitable(memory.MemoryQueue.stats)
    redrive = awaitable(memory.MemoryQueue.redrive)
    purge = awaitable(memory.MemoryQueue.purge)
    pause = awaitable(memory.MemoryQueue.pause)
    resume = awaitable(memory.MemoryQueue.resume)
    reap = awaitable(memory.MemoryQueue.reap)
    next_due = awaitable(memory.MemoryQueue.next_due)

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back whenever a message becomes claimable or is scheduled, in whatever thread that is."""
        return self.core.subscribe(callback)

    def __len__(self) -> int:
        """Return how many messages wait or are claimed."""
        return len(self.core)

    def __bool__(self) -> bool:
        return True  # an empty queue is still a queue

    async def _call(self, verb: Callable[[Any], T], *, merges: bool = False) -> T:  # noqa: ARG002
        return verb(self.core)

    async def _admit(self, enqueue: Callable[[], T], count: int, wait: float) -> T:
        """Enqueue so many messages, within `wait` seconds. Raises QueueFull."""
        check_seconds(wait, "wait")
        full: list[QueueFull] = []

        def attempt() -> list[T]:
            try:
                return [enqueue()]
            except QueueFull as exc:
                full[:] = [exc]
                return []

        if wait and count <= self.max_depth:
            admitted = await self._repeat(attempt, wait, watch=lambda: [self.core._lanes.producers], need=count)
        else:
            admitted = attempt()
        if not admitted:
            raise full[0]
        return admitted[0]

    async def _repeat(
        self,
        attempt: Callable[[], list[T]],
        wait: float,
        *,
        watch: Callable[[], list[Sleepers]],
        due: Callable[[], float | None] = lambda: None,
        need: int = 1,
    ) -> list[T]:
        """Repeat an attempt until it gives something or `wait` seconds have passed; see `_sleepers.wait_for`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        while (left := end - loop.time()) > 0:
            sleeper = _Sleeper(loop, until=self.core._lanes.now() + nanoseconds(left), need=need)
            with self._watching(sleeper, watch):  # before the attempt: no change behind it is missed
                result = attempt()
                if result:
                    return result
                next_due = due()
                await sleeper.nap(left if next_due is None else min(left, next_due))
        return attempt()

    @contextmanager
    def _watching(self, sleeper: _Sleeper, watch: Callable[[], list[Sleepers]]) -> Iterator[None]:
        with self.core._lock:
            watched = watch()
            for sleepers in watched:
                sleepers.join(sleeper)
        try:
            yield
        except BaseException:
            with self.core._lock:
                for sleepers in watched:  # another may have to take what this one was rung for
                    sleepers.leave(sleeper)
                    sleepers.rouse_all()
            raise
        finally:
            with self.core._lock:
                for sleepers in watched:
                    sleepers.leave(sleeper)


class _Sleeper(Sleeper):
    """A coroutine among the threads that wait."""

    __slots__ = ("_loop", "_nap")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, until: int, need: int) -> None:
        super().__init__(until=until, need=need)
        self._loop = loop
        self._nap: asyncio.Future[None] = loop.create_future()

    def sleep(self, seconds: float) -> None:
        """Refuse: a coroutine naps."""
        raise InvalidArgument(f"a coroutine cannot block for {seconds} s")

    async def nap(self, seconds: float) -> None:
        """Sleep until it is rung, or for `seconds`."""
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._nap
        finally:
            timer.cancel()

    def ring(self) -> None:
        """End its nap, from any thread; a second call changes nothing."""
        if not self._rung:
            self._rung = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._nap.done():
            self._nap.set_result(None)
