"""Where a worker's messages come from: each layer fills a small buffer, and the threads take in turns.

Every source has its own buffer and its own bound, so that a flood in one layer keeps none of the others waiting.
"""

from __future__ import annotations

import logging
import random
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tenantq.memory import MemoryQueue
from tenantq.message import Message
from tenantq.router import Layer

__all__ = ["ClaimingSource", "MemorySource", "SharedQueue", "SharedSource", "Source"]

logger = logging.getLogger("tenantq.worker")

MAX_PAUSE = 30.0
"""Seconds between tries of a source that fails, at the most."""

AHEAD = 0.05
"""Seconds of its threads' work that a source claims ahead: many messages of fast handlers, few of slow ones."""

MOST_AHEAD = 256
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

    def worked(self, seconds: float, message: Message[Any]) -> None:
        """Say how long a message's handler took: once for each that was taken, and before `done`."""
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

    def worked(self, seconds: float, message: Message[Any]) -> None:
        """Nothing is claimed ahead here."""

    def done(self) -> None:
        """Nothing is bounded here: a thread claims when it is free."""


class ClaimingSource:
    """A source with a thread that claims ahead for so many others: two messages for each of them at first, then
    by how long the handlers take.
    """

    layer: Layer

    _waits_itself = False
    """Whether `_claim` waits where there is no room: it has other things to do."""

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
        return self._drain()

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

    def worked(self, seconds: float, message: Message[Any]) -> None:  # noqa: ARG002 - for those that are fair
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

    @abstractmethod
    def _claim(self, room: int) -> int:
        """Claim up to so many messages into the buffer, wait for news where there are none; return how many."""

    def _wake(self) -> None:
        """End a wait of `_claim`."""

    def _put(self, messages: list[Message[Any]]) -> None:
        if messages:
            with self._changed:
                self._room -= len(messages)
            self._add(messages)
            self._ring()

    def _add(self, messages: list[Message[Any]]) -> None:
        self._buffer.extend(messages)

    def _drain(self) -> list[Message[Any]]:
        left, self._buffer = list(self._buffer), deque()
        return left

    def _run(self) -> None:
        failures = 0
        while not self._is_stopped:
            with self._changed:
                if self._room <= 0 and not self._waits_itself:
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
