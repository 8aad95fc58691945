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

from tenantq.errors import LeaseLost
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

AHEAD = 0.05
"""Seconds of its threads' work that a source claims ahead: many messages of fast handlers, few of slow ones."""

MOST_AHEAD = 64
"""Messages that it claims ahead for each thread, however fast its handlers are."""

PACE_WEIGHT = 0.1
"""What the last message weighs in how long a message takes."""

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

    def finish(self, message: Message[Any]) -> bool:
        """Take over the ack of a message whose handler is done; False: it is the caller's, and so is `done`."""
        ...

    def worked(self, seconds: float) -> None:
        """Say how long a handler took."""
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

    def finish(self, message: Message[Any]) -> bool:  # noqa: ARG002 - the protocol's
        """Leave the ack to the thread: it costs next to nothing."""
        return False

    def worked(self, seconds: float) -> None:
        """Nothing is claimed ahead here."""

    def done(self) -> None:
        """Nothing is bounded here: a thread claims when it is free."""


class ClaimingSource:
    """A source with a thread that claims ahead for so many others: two messages for each of them at first, then
    by how long the handlers take.
    """

    layer: Layer

    def __init__(self, name: str, *, threads: int, lease: float, worker: str, ring: Callable[[], None]) -> None:
        self._name = name
        self._threads = threads
        self._bound = 2 * threads
        self._pace = AHEAD / 2
        self._lease = lease
        self._worker = worker
        self._ring = ring
        self._buffer: deque[Message[Any]] = deque()
        self._room = self._bound
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def take(self) -> Message[Any] | None:
        """Return the message that was claimed first."""
        try:
            return self._buffer.popleft()
        except IndexError:
            return None

    def finish(self, message: Message[Any]) -> bool:  # noqa: ARG002 - for those that can
        """Take over the ack of a message whose handler is done; False: its thread acks it, then says `done`."""
        return False

    def done(self) -> None:
        """Make room for another message."""
        self._free(1)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"tenantq-{self._name}", daemon=True)
        self._thread.start()

    def stop(self) -> list[Message[Any]]:
        """Claim no more, wait for the thread, and return what nobody took."""
        with self._changed:
            self._is_stopped = True
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

    def worked(self, seconds: float) -> None:
        """Learn from how long a handler took how far to claim ahead."""
        self._pace += (seconds - self._pace) * PACE_WEIGHT
        each = max(2, min(MOST_AHEAD, int(AHEAD / max(self._pace, 1e-6))))
        wanted = each * self._threads
        if not self._bound / 2 <= wanted <= self._bound * 1.5:
            with self._changed:
                self._room += wanted - self._bound
                self._bound = wanted
                self._changed.notify()

    def _free(self, count: int) -> None:
        with self._changed:
            self._room += count
            self._changed.notify()

    def _has_work(self) -> bool:
        """Tell whether there is something to do though there is no room."""
        return False

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
                if self._room <= 0 and not self._has_work():
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
        threads: int,
        lease: float,
        worker: str,
        ring: Callable[[], None],
    ) -> None:
        super().__init__(f"shared-{queue}", threads=threads, lease=lease, worker=worker, ring=ring)
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
    """The tenants of a store, in turns: each gets a share of the room, then goes to the end of the line.

    What was handled meanwhile is acked in the transaction that claims the next: the faster the handlers, the
    more messages go into one.
    """

    layer = Layer.TENANT

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        *,
        threads: int,
        lease: float,
        worker: str,
        ring: Callable[[], None],
        tell: Callable[[Message[Any], LeaseLost | None], None],
    ) -> None:
        super().__init__("tenants", threads=threads, lease=lease, worker=worker, ring=ring)
        self._store = store
        self._tell = tell
        self._finished: list[Message[Any]] = []
        self._acking: list[Message[Any]] = []
        self._stragglers: list[threading.Thread] = []
        self._queues = list(queues)
        self._watch = store.watch()
        self._line: deque[str] = deque()
        self._in_line: set[str] = set()
        self._schedule: list[tuple[float, str]] = []
        self._scheduled_at: dict[str, float] = {}

    def finish(self, message: Message[Any]) -> bool:
        """Ack a message with the next claim; its lease is kept until then."""
        with self._changed:
            if self._is_stopped:
                return False
            self._finished.append(message)
            self._changed.notify()
        self._watch.wake()
        return True

    def stop(self) -> list[Message[Any]]:
        """Claim no more, ack what is finished, and end the watch."""
        left = super().stop()
        self._exchange_finished()
        for straggler in self._stragglers:
            straggler.join()
        self._watch.close()
        return left

    def buffered(self) -> list[Message[Any]]:
        """Return what is claimed and not taken yet, and what waits for its ack."""
        return [*super().buffered(), *self._finished, *self._acking]

    def _wake(self) -> None:
        self._watch.wake()

    def _has_work(self) -> bool:
        return bool(self._finished)

    def _exchange_finished(self) -> None:
        with self._changed:
            self._acking, self._finished = self._finished, []
        groups: dict[tuple[str, str], list[Message[Any]]] = {}
        for message in self._acking:
            groups.setdefault((message.tenant or "", message.queue), []).append(message)
        for (tenant_id, queue), messages in groups.items():
            self._exchange(tenant_id, queue, messages)
        self._acking = []

    def _exchange(self, tenant_id: str, queue: str, messages: list[Message[Any]]) -> None:
        """Ack messages of one queue, and claim the next in the same transaction, as far as no others wait."""
        share = 0 if self._is_stopped else len(messages) // (1 + len(self._line))
        lost: LeaseLost | None = None
        try:
            tenant = self._store.tenant(tenant_id)
            if share:
                self._put(tenant.exchange(messages, queue, share, lease=self._lease, worker=self._worker))
            else:
                tenant.ack(*messages)
        except LeaseLost as exc:
            lost = exc
        except Exception:
            logger.warning("acks could not be written yet", exc_info=True, extra={"tenant": tenant_id})
            # Elsewhere, since each is tried for some seconds: no other tenant is to wait for this one's file.
            straggler = threading.Thread(target=self._ack_each, args=(messages,), name="tenantq-acks", daemon=True)
            straggler.start()
            self._stragglers = [*(one for one in self._stragglers if one.is_alive()), straggler]
            return
        for message in messages:
            self._tell(message, lost)
        self._free(len(messages))
        self._queue_up(tenant_id)  # there may be more, in this queue or another

    def _ack_each(self, messages: list[Message[Any]]) -> None:
        for message in messages:
            self._tell(message, None)
            self._free(1)

    def _claim(self, room: int) -> int:
        if self._finished:
            self._exchange_finished()
            with self._changed:
                room = self._room
        for tenant_id in self._watch.wait(0 if self._line or self._finished else self._until_due()):
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
