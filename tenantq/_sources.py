"""Where a worker's messages come from: each layer fills a small buffer, and the threads take in turns.

Every source has its own buffer and its own bound, so that a flood in one layer keeps none of the others waiting.
"""

from __future__ import annotations

import heapq
import logging
import random
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tenantq.memory import MemoryQueue
from tenantq.message import Message
from tenantq.router import Layer
from tenantq.store import Store

__all__ = ["ClaimingSource", "MemorySource", "SharedQueue", "SharedSource", "Source", "TenantSource"]

logger = logging.getLogger("tenantq.worker")

MAX_PAUSE = 30.0
"""Seconds between tries of a source that fails, at the most."""

TENANT_PAUSE = 5.0
"""Seconds until a tenant whose file failed is tried again."""

IDLE_WAIT = 1.0
"""Seconds that a source waits for news before it looks whether it should stop."""


class SharedQueue(Protocol):
    """What a worker asks of the shared layer; `tenantq_bridge.PostgresQueue` is one."""

    def claim(
        self,
        queue: str,
        limit: int = 1,
        *,
        lease: float = 60.0,
        worker: str | None = None,
        wait: float = 0.0,
    ) -> list[Message[Any]]:
        """Claim messages of one queue."""
        ...

    def subscribe(self, queue: str, pattern: str) -> object:
        """Have events whose topic matches put into a queue."""
        ...


class Source(Protocol):
    """Messages of one layer."""

    layer: Layer

    def take(self) -> Message[Any] | None:
        """Return a claimed message, or None; never blocks for long."""
        ...

    def start(self) -> None:
        """Begin to claim."""
        ...

    def stop(self) -> list[Message[Any]]:
        """Claim no more; return what was claimed and not taken."""
        ...

    def done(self) -> None:
        """Say that a message that was taken is finished."""
        ...


class MemorySource:
    """The memory layer: a thread claims for itself, from its own deque first, then by stealing."""

    layer = Layer.MEMORY

    def __init__(
        self, memory: MemoryQueue, queues: Sequence[str], *, lease: float, ring: Callable[[], None]
    ) -> None:
        self._memory = memory
        self._queues = queues
        self._lease = lease
        self._ring = ring
        self._unsubscribe: Callable[[], None] = lambda: None
        self._is_stopped = True

    def take(self) -> Message[Any] | None:
        """Claim one message."""
        if self._is_stopped:
            return None
        messages = self._memory.claim_any(self._queues, 1, lease=self._lease)
        return messages[0] if messages else None

    def next_due(self) -> float | None:
        """Return the seconds until a delayed message or an expired lease is claimable."""
        return self._memory.next_due(*self._queues)

    def start(self) -> None:
        """Listen for what becomes claimable."""
        self._is_stopped = False
        self._unsubscribe = self._memory.subscribe(self._ring)

    def stop(self) -> list[Message[Any]]:
        """Claim no more."""
        self._is_stopped = True
        self._unsubscribe()
        return []

    def done(self) -> None:
        """Nothing is bounded here: a thread claims when it is free."""


class ClaimingSource:
    """A source with a thread that claims ahead, at most `bound` messages that are not finished."""

    layer: Layer

    def __init__(self, name: str, *, bound: int, lease: float, worker: str, ring: Callable[[], None]) -> None:
        self._name = name
        self._lease = lease
        self._worker = worker
        self._ring = ring
        self._buffer: deque[Message[Any]] = deque()
        self._room = bound
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def take(self) -> Message[Any] | None:
        """Return the message that was claimed first."""
        try:
            return self._buffer.popleft()
        except IndexError:
            return None

    def done(self) -> None:
        """Make room for another message."""
        with self._changed:
            self._room += 1
            self._changed.notify()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"tenantq-{self._name}", daemon=True)
        self._thread.start()

    def stop(self) -> list[Message[Any]]:
        """Claim no more, wait for the thread, and return what nobody took."""
        self._is_stopped = True
        with self._changed:
            self._changed.notify()
        self._wake()
        if self._thread is not None:
            self._thread.join()
        left = []
        while (message := self.take()) is not None:
            left.append(message)
        return left

    def buffered(self) -> list[Message[Any]]:
        """Return what is claimed and not taken yet."""
        return list(self._buffer)

    def drop(self, message: Message[Any]) -> bool:
        """Forget a message that is another claim's by now; False if a thread took it meanwhile."""
        try:
            self._buffer.remove(message)
        except ValueError:
            return False
        self.done()
        return True

    @abstractmethod
    def _claim(self, room: int) -> int:
        """Claim up to so many messages into the buffer, wait for news where there are none; return how many."""

    def _wake(self) -> None:
        """End a wait of `_claim`."""

    def _put(self, messages: list[Message[Any]]) -> None:
        if messages:
            with self._changed:
                self._room -= len(messages)
            self._buffer.extend(messages)
            self._ring()

    def _run(self) -> None:
        failures = 0
        while not self._is_stopped:
            with self._changed:
                if self._room <= 0:
                    self._changed.wait(IDLE_WAIT)
                    continue
                room = self._room
            try:
                self._claim(room)
                failures = 0
            except Exception:  # whatever it is: a worker that claims no more looks like one without work
                failures += 1
                logger.warning("%s: nothing could be claimed", self._name, exc_info=True)
                pause = min(MAX_PAUSE, 0.25 * 2 ** min(failures, 10)) * random.uniform(0.5, 1)
                with self._changed:
                    if not self._is_stopped:
                        self._changed.wait(pause)


class SharedSource(ClaimingSource):
    """One queue of the shared layer."""

    layer = Layer.SHARED

    def __init__(
        self,
        bridge: SharedQueue,
        queue: str,
        *,
        topics: Sequence[str],
        bound: int,
        lease: float,
        worker: str,
        ring: Callable[[], None],
    ) -> None:
        super().__init__(f"shared-{queue}", bound=bound, lease=lease, worker=worker, ring=ring)
        self._bridge = bridge
        self._queue = queue
        self._topics = list(topics)

    def _claim(self, room: int) -> int:
        while self._topics:
            self._bridge.subscribe(self._queue, self._topics[-1])
            self._topics.pop()
        messages = self._bridge.claim(
            self._queue,
            room,
            lease=self._lease,
            worker=self._worker,
            wait=IDLE_WAIT,
        )
        self._put(messages)
        return len(messages)


class TenantSource(ClaimingSource):
    """The tenants of a store, in turns: each gets a share of the room, then goes to the end of the line."""

    layer = Layer.TENANT

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        *,
        bound: int,
        lease: float,
        worker: str,
        ring: Callable[[], None],
    ) -> None:
        super().__init__("tenants", bound=bound, lease=lease, worker=worker, ring=ring)
        self._store = store
        self._queues = list(queues)
        self._watch = store.watch()
        self._line: deque[str] = deque()
        self._in_line: set[str] = set()
        self._schedule: list[tuple[float, str]] = []
        self._scheduled_at: dict[str, float] = {}

    def stop(self) -> list[Message[Any]]:
        """Claim no more, and end the watch."""
        left = super().stop()
        self._watch.close()
        return left

    def _wake(self) -> None:
        self._watch.wake()

    def _claim(self, room: int) -> int:
        for tenant_id in self._watch.wait(0 if self._line else self._until_due()):
            self._queue_up(tenant_id)
        self._queue_up_due()
        claimed = 0
        for _turn in range(len(self._line)):
            if claimed >= room or self._is_stopped:
                break
            tenant_id = self._line.popleft()
            self._in_line.discard(tenant_id)
            share = max(1, (room - claimed) // (len(self._line) + 1))
            claimed += self._claim_of(tenant_id, share)
        return claimed

    def _claim_of(self, tenant_id: str, share: int) -> int:
        claimed = 0
        try:
            tenant = self._store.tenant(tenant_id)
            self._queues.append(self._queues.pop(0))  # another queue has the first turn next time
            for queue in self._queues:
                messages = tenant.claim(queue, share - claimed, lease=self._lease, worker=self._worker)
                self._put(messages)
                claimed += len(messages)
                if claimed >= share:
                    self._queue_up(tenant_id)  # there may be more
                    return claimed
            due = tenant.next_due()
            if due == 0:
                tenant.reap()  # in a queue that no handler claims from
                due = tenant.next_due()
            if due is not None:
                self._put_on_schedule(tenant_id, due)
        except Exception:
            logger.warning("a tenant could not be served", exc_info=True, extra={"tenant": tenant_id})
            self._put_on_schedule(tenant_id, TENANT_PAUSE)
        return claimed

    def _queue_up(self, tenant_id: str) -> None:
        if tenant_id not in self._in_line:
            self._in_line.add(tenant_id)
            self._line.append(tenant_id)

    def _put_on_schedule(self, tenant_id: str, seconds: float) -> None:
        moment = time.monotonic() + seconds
        if moment < self._scheduled_at.get(tenant_id, float("inf")):
            self._scheduled_at[tenant_id] = moment
            heapq.heappush(self._schedule, (moment, tenant_id))

    def _queue_up_due(self) -> None:
        now = time.monotonic()
        while self._schedule and self._schedule[0][0] <= now:
            moment, tenant_id = heapq.heappop(self._schedule)
            if self._scheduled_at.get(tenant_id) == moment:
                del self._scheduled_at[tenant_id]
            self._queue_up(tenant_id)

    def _until_due(self) -> float:
        if not self._schedule:
            return IDLE_WAIT
        return min(IDLE_WAIT, max(0.0, self._schedule[0][0] - time.monotonic()))
