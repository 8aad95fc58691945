"""The memory layer: a queue in this process, for work that a restart may forget."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from threading import get_ident
from typing import Any, Literal
from weakref import WeakSet

from tenantq._lane import Entry, Lane
from tenantq._lanes import Lanes, MemoryStats
from tenantq._sleepers import wait_for
from tenantq._subscribers import Subscribers
from tenantq.arguments import (
    DEFAULT_MAX_ATTEMPTS,
    check_headers,
    check_lease,
    check_limit,
    check_max_attempts,
    check_priority,
    check_seconds,
    visible_ns,
)
from tenantq.backoff import Backoff
from tenantq.clock import NANOSECONDS, Clock, SystemClock, nanoseconds
from tenantq.errors import InvalidArgument, LeaseLost, QueueFull
from tenantq.message import Message, MessageSource
from tenantq.naming import check_name, check_tenant_id

__all__ = ["MemoryQueue", "MemoryStats"]

DEFAULT_MAX_DEPTH = 10_000
"""Messages that wait or are claimed: some 5 MB beside their payloads."""


class MemoryQueue:
    """Named queues in this process, shared by its threads. Nothing survives a restart.

    Every thread has a deque of its own for each queue and priority. What it enqueues goes there, and it
    claims from its own end: the newest first (`order="lifo"`, what is still in the caches) or the oldest
    first ("fifo"). A thread whose deque is empty steals from the other end of another's, so what a thread
    put in before it died is found too. A higher priority always goes first, stolen or not; within one
    priority the own deque goes before the others, and there is no order by time between threads.

    Payloads are kept as the objects they are, neither copied nor encoded (a message's `body` is empty): do
    not change one after it was enqueued. A key is one tenant's: another tenant's messages never answer to it.

    At most `max_depth` messages wait or are claimed; beyond them `enqueue` raises QueueFull. Of the dead
    letters each queue keeps the last `max_depth`. A forked child starts with the queue empty.

    Every delivery is fenced: after its message was given to another claim, reaped, dead-lettered or purged,
    it changes nothing and raises LeaseLost. That the lease's time is over does not end it alone. A call with
    several messages takes effect for the held ones, and its error lists the lost.
    """

    def __init__(
        self,
        *,
        max_depth: int = DEFAULT_MAX_DEPTH,
        order: Literal["lifo", "fifo"] = "lifo",
        backoff: Backoff | None = None,
        clock: Clock | None = None,
    ) -> None:
        if order not in ("lifo", "fifo"):
            raise InvalidArgument(f"order {order!r} is neither 'lifo' nor 'fifo'")
        self.max_depth = check_limit(max_depth, "max_depth")
        self._lifo = order == "lifo"
        self._backoff = backoff or Backoff()
        self._clock = clock or SystemClock()
        self._start_empty()
        _all_queues.add(self)

    def enqueue(
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
        return self._admit(
            [payload],
            wait,
            queue=queue,
            delay=delay,
            at=at,
            priority=priority,
            key=key,
            max_attempts=max_attempts,
            tenant=tenant,
            headers=headers,
        )[0]

    def enqueue_many(
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
        return self._admit(
            payloads,
            wait,
            queue=queue,
            delay=delay,
            at=at,
            priority=priority,
            key=None,
            max_attempts=max_attempts,
            tenant=tenant,
            headers=headers,
        )

    def claim(
        self,
        queue: str,
        limit: int = 1,
        *,
        lease: float = 60.0,
        worker: str | None = None,
        wait: float = 0.0,
    ) -> list[Message[Any]]:
        """Take up to `limit` messages, each for `lease` seconds; block up to `wait` seconds for the first.

        Messages whose lease has expired are taken too; exhausted ones go to the dead letters.
        """
        return self.claim_any((queue,), limit, lease=lease, worker=worker, wait=wait)

    def claim_any(
        self,
        queues: Sequence[str],
        limit: int = 1,
        *,
        lease: float = 60.0,
        worker: str | None = None,
        wait: float = 0.0,
    ) -> list[Message[Any]]:
        """Take up to `limit` messages from several queues, as `claim` does from one.

        The highest priority of all the queues goes first; of one priority, what is in this thread's own
        deques, then what can be stolen, each in the order in which the queues are given.
        """
        if isinstance(queues, str) or not queues:
            raise InvalidArgument("claim_any takes at least one queue name, in a sequence")
        for queue in queues:
            self._check_queue(queue)
        check_limit(limit)
        lease_ns = nanoseconds(check_lease(lease))
        if worker is not None:
            check_name(worker, "worker name")  # kept nowhere: deliveries are told apart by their tokens

        def take() -> list[Message[Any]]:
            expires_ns = self._clock.now_ns() + lease_ns
            taken = self._lanes.take(queues, limit, lease_ns)
            return [_message(entry, self, expires_ns) for entry in taken]

        if wait:
            messages = wait_for(
                take,
                check_seconds(wait, "wait"),
                lock=self._lock,
                watch=lambda: [self._lanes.lane(queue).sleepers for queue in queues],
                now=self._lanes.now,
                due=lambda: self._lanes.next_due(queues),
            )
        else:
            with self._lock:
                messages = take()
        self._announce()
        return messages

    def ack(self, *messages: Message[Any]) -> None:
        """Remove the messages: they are done. Raises LeaseLost."""
        self._settle(messages, self._lanes.remove)

    def nack(self, message: Message[Any], *, delay: float | None = None, error: str | None = None) -> None:
        """End the attempt as failed: wait `delay` seconds (backoff by default), or die. Raises LeaseLost."""
        if delay is None:
            delay = self._backoff.delay(message.attempts)
        visible, due = self._when(self._clock.now_ns(), delay)

        def fail(lane: Lane, entry: Entry) -> None:
            entry.error = error
            if entry.exhausted:
                self._lanes.bury(lane, entry)
            else:
                entry.visible_ns, entry.due = visible, due
                self._lanes.wait(lane, entry)

        self._settle((message,), fail)

    def release(self, *messages: Message[Any], delay: float = 0) -> None:
        """Give the messages back, in their order, as if they had not been claimed. Raises LeaseLost.

        With `delay` they are claimable after so many seconds.
        """
        visible, due = self._when(self._clock.now_ns(), delay)

        def give_back(lane: Lane, entry: Entry) -> None:
            entry.attempts -= 1
            if delay:
                entry.visible_ns, entry.due = visible, due
                self._lanes.wait(lane, entry)
            else:
                self._lanes.give_back(lane, entry, get_ident())

        self._settle(messages[::-1], give_back)

    def dead_letter(self, message: Message[Any], *, error: str | None = None) -> None:
        """Move the message to the dead letters, whatever attempts are left. Raises LeaseLost."""

        def bury(lane: Lane, entry: Entry) -> None:
            entry.error = error
            self._lanes.bury(lane, entry)

        self._settle((message,), bury)

    def extend(self, message: Message[Any], seconds: float) -> None:
        """Make the lease end `seconds` from now. Raises LeaseLost."""
        lease_ns = nanoseconds(check_lease(seconds, "seconds"))
        with self._lock:
            held = self._lanes.held(message.queue, message.id, message.lease_token)
            if held is None:
                raise _lease_lost([message])
            self._lanes.extend(*held, lease_ns)
            message.lease_expires_ns = self._clock.now_ns() + lease_ns

    def stats(self, queue: str | None = None) -> MemoryStats:
        """Count the messages of one queue, or of all."""
        queues = self._names(queue)
        with self._lock:
            stats = self._lanes.stats(queues)
        self._announce()
        return stats

    def peek(self, queue: str, limit: int = 10) -> list[Message[Any]]:
        """Return what waits, without a lease: as this thread would claim it, then what is scheduled."""
        check_limit(limit)
        self._check_queue(queue)
        with self._lock:
            messages = [_message(entry) for entry in self._lanes.waiting(queue, limit)]
        self._announce()
        return messages

    def dead_letters(self, queue: str | None = None, limit: int = 100) -> list[Message[Any]]:
        """Return dead messages without a lease, those of each queue in the order of their deaths."""
        check_limit(limit)
        queues = self._names(queue)
        with self._lock:
            return [_message(entry) for entry in self._lanes.dead(queues, limit)]

    def redrive(self, *ids: int, queue: str | None = None) -> int:
        """Let dead messages wait again with all their attempts; return how many do.

        Those with the given ids, or all of a queue, or all. One whose key is taken by now stays dead, and so
        do those for which there is no room; QueueFull is raised if that leaves none.
        """
        queues = self._names(queue)
        with self._lock:
            moved, refused = self._lanes.redrive(ids, queues)
        self._announce()
        if refused and not moved:
            raise self._full(queue)
        return moved

    def purge(self, queue: str) -> int:
        """Remove what waits and is claimed in a queue; return how many that were. Dead letters stay."""
        self._check_queue(queue)
        with self._lock:
            return self._lanes.purge(queue)

    def pause(self, queue: str) -> None:
        """Let no claim find a message of a queue; what is claimed by now may still be ended."""
        self._check_queue(queue)
        with self._lock:
            self._lanes.lane(queue).paused = True

    def resume(self, queue: str) -> None:
        """Undo `pause`."""
        self._check_queue(queue)
        with self._lock:
            self._lanes.resume(queue)
        self._announce()

    def reap(self) -> int:
        """End all leases that have run out and return how many; no claim depends on it."""
        with self._lock:
            count = self._lanes.reap()
        self._announce()
        return count

    def next_due(self, *queues: str) -> float | None:
        """Return the seconds until the next scheduled message is due or the next lease runs out.

        Of these queues, or of all; None where there is neither. What is ready does not count. A worker
        that found nothing to claim sleeps so long, or until its `subscribe` callback is called.
        """
        for queue in queues:
            self._check_queue(queue)
        with self._lock:
            due = self._lanes.next_due(queues or None)
            now = self._lanes.now()
        self._announce()
        return None if due is None else max(0, due - now) / NANOSECONDS

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back whenever a message becomes claimable or is scheduled; return what ends that.

        The callback runs in the thread that made the change, after it and outside of locks: let it set an
        event. That a message's time has come is told by the first call that notices: see `next_due`.
        """
        return self._subscribers.add(callback)

    def __len__(self) -> int:
        """Return how many messages wait or are claimed."""
        return self._lanes.depth

    def __bool__(self) -> bool:
        return True  # an empty queue is still a queue

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._lanes = Lanes(max_depth=self.max_depth, lifo=self._lifo, clock=self._clock)
        self._subscribers = Subscribers()

    def _check_queue(self, queue: str) -> None:
        if not isinstance(queue, str) or queue not in self._lanes:  # a known name was checked before
            check_name(queue)

    def _names(self, queue: str | None) -> tuple[str, ...] | None:
        if queue is None:
            return None
        self._check_queue(queue)
        return (queue,)

    def _admit(
        self,
        payloads: Iterable[object],
        wait: float,
        *,
        queue: str,
        delay: float,
        at: datetime | None,
        priority: int,
        key: str | None,
        max_attempts: int,
        tenant: str | None,
        headers: Mapping[str, str] | None,
    ) -> list[int]:
        self._check_queue(queue)
        check_priority(priority)
        check_max_attempts(max_attempts)
        if key is not None:
            check_name(key, "key")
        if tenant is not None:
            check_tenant_id(tenant)
        kept_headers = check_headers(headers)
        now_ns = self._clock.now_ns()
        visible, due = self._when(now_ns, delay, at)
        entries = [
            Entry(
                payload,
                queue=queue,
                tenant=tenant,
                priority=priority,
                key=key,
                max_attempts=max_attempts,
                headers=kept_headers,
                enqueued_ns=now_ns,
                visible_ns=visible,
                due=due,
            )
            for payload in payloads
        ]
        if not entries:
            return []
        if len(entries) > self.max_depth:
            raise self._full(queue)

        def admit() -> list[int]:
            return self._lanes.admit(queue, entries)

        if wait:
            ids = wait_for(
                admit,
                check_seconds(wait, "wait"),
                lock=self._lock,
                watch=lambda: [self._lanes.producers],
                now=self._lanes.now,
                need=len(entries),
            )
        else:
            with self._lock:
                ids = admit()
        if not ids:
            with self._lock:
                self._lanes.rouse_producers()  # those behind this one may need less room
            raise self._full(queue)
        self._announce()
        return ids

    def _when(self, now_ns: int, delay: float, at: datetime | None = None) -> tuple[int, int | None]:
        # Fixed at the call: after this, no jump of the wall clock moves the message.
        visible = visible_ns(now_ns, delay, at)
        return visible, self._lanes.now() + visible - now_ns if visible > now_ns else None

    def _settle(self, messages: Sequence[Message[Any]], end: Callable[[Lane, Entry], None]) -> None:
        lost = []
        with self._lock:
            for message in messages:
                held = self._lanes.held(message.queue, message.id, message.lease_token)
                if held is None:
                    lost.append(message)
                    continue
                lane, entry = held
                lane.end_lease(entry)
                end(lane, entry)
                message.settled = True
        self._announce()
        if lost:
            raise _lease_lost(lost)

    def _announce(self) -> None:
        if self._lanes.changed:
            # Cleared before the calls: a change that comes now is told by them, or sets it again.
            self._lanes.changed = False
            self._subscribers.call()

    def _full(self, queue: str | None) -> QueueFull:
        return QueueFull(
            f"the memory queue has no room: it holds {self._lanes.depth} of {self.max_depth} messages",
            depth=self._lanes.depth,
            max_depth=self.max_depth,
            queue=queue,
        )


_all_queues: WeakSet[MemoryQueue] = WeakSet()


def _message(
    entry: Entry, source: MessageSource | None = None, lease_expires_ns: int | None = None
) -> Message[Any]:
    return Message(
        source,
        id=entry.id,
        tenant=entry.tenant,
        queue=entry.queue,
        body=b"",
        attempts=entry.attempts,
        max_attempts=entry.max_attempts,
        priority=entry.priority,
        key=entry.key,
        headers=entry.headers,
        enqueued_ns=entry.enqueued_ns,
        visible_ns=entry.visible_ns,
        lease_expires_ns=lease_expires_ns,
        lease_token=entry.token,
        payload=entry.payload,
        error=entry.error,
    )


def _lease_lost(messages: Sequence[Message[Any]]) -> LeaseLost:
    ids = [message.id for message in messages]
    return LeaseLost(f"no longer held: {', '.join(map(str, ids))}", lost=ids, queue=messages[0].queue)


def _forget_in_child() -> None:
    # The child has the parent's messages, which the parent will handle, and maybe a lock that nobody holds.
    for queue in list(_all_queues):
        queue._start_empty()


os.register_at_fork(after_in_child=_forget_in_child)
