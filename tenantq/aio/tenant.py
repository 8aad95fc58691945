"""A tenant for coroutines: the core's verbs, awaited; those of one turn of the event loop go in one commit."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from tenantq import tenant as core
from tenantq._leases import LOOK_INTERVAL, PAUSED_INTERVAL
from tenantq._producers import LOOK_INTERVAL as ROOM_INTERVAL
from tenantq.aio._core import Core, NoRoom
from tenantq.aio._verbs import Verb, awaitable
from tenantq.aio.message import Message
from tenantq.aio.outbox import Inbox, Outbox
from tenantq.aio.periodic import PeriodicMessages
from tenantq.aio.transaction import Transaction
from tenantq.arguments import DEFAULT_MAX_ATTEMPTS, check_seconds
from tenantq.errors import QueueFull
from tenantq.message import Message as Delivery
from tenantq.naming import check_name
from tenantq.router import Layer, declaration_of

if TYPE_CHECKING:
    from tenantq.aio._pool import Pool
    from tenantq.aio.store import Store

__all__ = ["Tenant"]

P = ParamSpec("P")
T = TypeVar("T")


def _producing(method: Callable[Concatenate[core.Tenant, P], T]) -> Verb[P, T]:
    """Return a verb that may wait for room in a queue, without a thread."""

    @functools.wraps(method)
    async def call(self: Tenant, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._call(lambda tenant: method(tenant, *args, **kwargs), merges=True)
        except NoRoom as full:
            queue, wait = full.queue, full.wait
        kwargs["wait"] = 0.0
        return await self._wait_for_room(queue, wait, lambda tenant: method(tenant, *args, **kwargs))

    return call


_enqueue_many = _producing(core.Tenant.enqueue_many)
_send = _producing(core.Tenant.send)


class Tenant:
    """One tenant of a store, for the coroutines of one event loop. See `tenantq.Tenant`: the verbs are the same.

    Calls that are made in one turn of the event loop are committed together, in their order, and each returns
    or raises after the commit. A call that is cancelled before it has begun does nothing; one that has begun
    takes effect, but for a claim, whose messages are given back before the CancelledError is raised.
    """

    def __init__(self, store: Store, tenant: Core) -> None:
        self.id = tenant.id
        self.store = store
        self.clock = tenant.clock
        self.path: Path = tenant.path
        """The tenant's file. While it is open, touch it only through tenantq."""
        self._core = tenant

    # Enqueue and send

    enqueue = _producing(core.Tenant.enqueue)
    emit = awaitable(core.Tenant.emit, merges=True)

    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[object],
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int = 0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> list[int]:
        """Commit messages in one transaction, all or none, and return their ids in the same order.

        Raises QueueFull if there is no room for all of them within `wait` seconds.
        """
        return await _enqueue_many(
            self,
            queue,
            list(payloads),  # an iterator gives them once, and the thread may try more than once
            delay=delay,
            at=at,
            priority=priority,
            max_attempts=max_attempts,
            headers=headers,
            wait=wait,
        )

    async def send(
        self,
        message: object,
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int | None = None,
        key: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> int:
        """Send a declared message to the layer that its type needs, and return its id there.

        See `tenantq.Tenant.send`.
        """
        options: dict[str, Any] = {
            "delay": delay,
            "at": at,
            "priority": priority,
            "key": key,
            "max_attempts": max_attempts,
            "headers": headers,
        }
        if declaration_of(message).layer is not Layer.MEMORY:
            return await _send(self, message, wait=wait, **options)
        self.store._check()
        return await self.store.memory._admit(partial(self._core.send, message, **options), 1, wait)

    # Claims, and the ways to end a delivery

    async def claim(
        self,
        queue: str,
        limit: int = 1,
        *,
        lease: float = 60.0,
        worker: str | None = None,
        wait: float = 0.0,
    ) -> list[Message[Any]]:
        """Claim up to `limit` messages for `lease` seconds; each goes to one claimer.

        With `wait`, waits for up to so many seconds until there is one, and holds no thread meanwhile. What was
        claimed for a call that is cancelled is given back, its attempt not counted. See `tenantq.Tenant.claim`.
        """
        check_name(queue)
        check_seconds(wait, "wait")

        def verb(tenant: Core) -> list[Delivery[Any]]:
            return tenant.claim(queue, limit, lease=lease, worker=worker)

        if wait:
            deliveries = await self._claim_when_rung(queue, verb, wait)
        else:
            deliveries = await self._claim(queue, verb)
        return self._messages(deliveries)

    async def exchange(
        self,
        acks: Iterable[Message[Any]],
        queue: str,
        limit: int = 1,
        *,
        lease: float = 60.0,
        worker: str | None = None,
    ) -> list[Message[Any]]:
        """Ack messages and claim the next in one transaction. See `tenantq.Tenant.exchange`.

        Of a call that is cancelled the acks stand, if it has begun; what it claimed is given back.
        """
        acked = [message.delivery for message in acks]
        deliveries = await self._claim(
            None if acked else check_name(queue),
            lambda tenant: tenant.exchange(acked, queue, limit, lease=lease, worker=worker),
        )
        return self._messages(deliveries)

    async def ack(self, *messages: Message[Any]) -> None:
        """Remove messages: they are done. Raises LeaseLost for those not held; the others are removed."""
        deliveries = [message.delivery for message in messages]
        await self._call(lambda tenant: tenant.ack(*deliveries), merges=True)

    async def nack(self, message: Message[Any], *, delay: float | None = None, error: str | None = None) -> None:
        """Count the attempt as failed: the message waits `delay` seconds (None: the backoff), or is dead
        when its attempts are used up. Raises LeaseLost.
        """
        await self._call(lambda tenant: tenant.nack(message.delivery, delay=delay, error=error), merges=True)

    async def dead_letter(self, message: Message[Any], *, error: str | None = None) -> None:
        """Move a message to the dead letters, whatever attempts are left. Raises LeaseLost."""
        await self._call(lambda tenant: tenant.dead_letter(message.delivery, error=error), merges=True)

    async def release(self, *messages: Message[Any], delay: float = 0) -> None:
        """Give messages back, the attempt not counted; with `delay` they are claimable after so many seconds.

        Without it they keep their place. Raises LeaseLost for those not held; the others are given back.
        """
        deliveries = [message.delivery for message in messages]
        await self._call(lambda tenant: tenant.release(*deliveries, delay=delay), merges=True)

    async def extend(self, message: Message[Any], seconds: float) -> None:
        """Make a lease end `seconds` from now. Raises LeaseLost."""
        await self._call(lambda tenant: tenant.extend(message.delivery, seconds), merges=True)

    next_due = awaitable(core.Tenant.next_due)

    def transaction(self) -> Transaction:
        """Return a transaction on the tenant's file, for `async with`; see Transaction."""
        return Transaction(self)

    # What an operator needs

    stats = awaitable(core.Tenant.stats)
    redrive = awaitable(core.Tenant.redrive)
    purge = awaitable(core.Tenant.purge)
    purge_dead = awaitable(core.Tenant.purge_dead)
    pause = awaitable(core.Tenant.pause, merges=True)
    resume = awaitable(core.Tenant.resume, merges=True)
    limit = awaitable(core.Tenant.limit, merges=True)
    reap = awaitable(core.Tenant.reap)

    async def peek(self, queue: str, limit: int = 10) -> list[Message[Any]]:
        """Return what waits in a queue without claiming it, in the order of the claims, then of the delays."""
        return self._messages(await self._call(lambda tenant: tenant.peek(queue, limit)))

    async def dead_letters(self, queue: str | None = None, limit: int = 100) -> list[Message[Any]]:
        """Return dead letters with their last errors, by id."""
        return self._messages(await self._call(lambda tenant: tenant.dead_letters(queue, limit)))

    async def notify(self) -> None:
        """Tell the workers and forwarders of all processes that something was committed without tenantq.

        See `tenantq.Tenant.notify`.
        """
        self._core.notify()

    async def backup(self, dest: str | os.PathLike[str]) -> Path:
        """Write a complete, checked and synced copy of the tenant's file to `dest`, while all write on.

        No other call waits for it. See `tenantq.Tenant.backup`.
        """
        return await self._pool.run_apart(lambda: self._core.backup(dest))

    @property
    def outbox(self) -> Outbox:
        """The events that are on their way to the shared layer, for a forwarder."""
        return Outbox(self.id, self._call)

    @property
    def inbox(self) -> Inbox:
        """What the shared layer sent to the tenant, for a deliverer."""
        return Inbox(self.id, self._call)

    @property
    def periodic(self) -> PeriodicMessages:
        """The tenant's periodic messages: `add`, `list` and `remove`. They lie in its file."""
        return PeriodicMessages(lambda verb: self._call(lambda tenant: verb(tenant.periodic)))

    def __repr__(self) -> str:
        return f"Tenant({self.id!r})"

    # For the other modules of this package

    @property
    def _pool(self) -> Pool:
        return self.store._pool_of_loop()

    async def _call(self, verb: Callable[[Core], T], *, merges: bool = False) -> T:
        return await self._pool.run(self.id, self._core, verb, merges=merges)

    async def _claim(self, queue: str | None, verb: Callable[[Core], list[Delivery[Any]]]) -> list[Delivery[Any]]:
        return await self._pool.run(self.id, self._core, verb, merges=True, looks_at=queue, undo=_give_back)

    async def _claim_when_rung(
        self, queue: str, verb: Callable[[Core], list[Delivery[Any]]], wait: float
    ) -> list[Delivery[Any]]:
        bells = self.store._bells_of_loop()
        deadline = self.store._now() + wait
        with bells.waiting(self.id, queue) as waiter:
            while True:
                waiter.clear()  # before the look: what is committed behind it rings
                seen = _stamp(self.path)
                deliveries = await self._claim(queue, verb)
                if deliveries or self.store._now() >= deadline:
                    return deliveries
                due = await self.next_due() if waiter.is_first else None
                while not await waiter.sleep(self._pause(deadline, due, is_first=waiter.is_first)):
                    # Not rung. The first of those who wait looks for what nobody rang for, and is on time.
                    is_over = self.store._now() >= deadline
                    if is_over or due is not None or (waiter.is_first and _stamp(self.path) != seen):
                        break

    def _pause(self, deadline: float, due: float | None, *, is_first: bool) -> float:
        left = max(0.0, deadline - self.store._now())
        if not is_first:
            return left
        return min(left, LOOK_INTERVAL if due is None else min(LOOK_INTERVAL, max(due, PAUSED_INTERVAL)))

    async def _wait_for_room(self, queue: str, wait: float, verb: Callable[[Core], T]) -> T:
        """Repeat a verb that raises QueueFull, in the order in which the calls came."""
        deadline = self.store._now() + wait
        # That somebody has this line says to the threads of this process that room is waited for.
        line = self.store.core.rooms.room(self.id, queue)
        with self.store._room_bells_of_loop().waiting(self.id, queue) as waiter:
            while True:
                waiter.clear()  # before the look: what leaves behind it rings
                left = deadline - self.store._now()
                if waiter.is_first or left <= 0:
                    try:
                        return await self._call(verb, merges=True)
                    except QueueFull:
                        if left <= 0:
                            raise
                await waiter.sleep(min(left, ROOM_INTERVAL) if waiter.is_first else left)
                assert line is not None

    def _messages(self, deliveries: list[Delivery[Any]]) -> list[Message[Any]]:
        return [Message(delivery, self) for delivery in deliveries]


def _give_back(tenant: Core, deliveries: list[Delivery[Any]]) -> None:
    tenant.release(*deliveries)


def _stamp(path: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what a commit by anybody changes of a tenant's file and its -wal."""
    return tuple(_signature(name) for name in (str(path), f"{path}-wal"))


def _signature(name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(name)  # noqa: PTH116 - a Path made for each look costs more than the look
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
