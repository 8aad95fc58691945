"""Waking claims that wait: NOTIFY after commits, few and merged; LISTEN on one connection of its own.

Both are only hints. A NOTIFY inside of each insert would cap the whole cluster at some 5,000 commits a second,
so it is sent after the commit, by a thread, at most every RING_INTERVAL for a queue. A claim that waits looks
again every POLL_MAX anyway: a lost notification, a pooler that swallows LISTEN and a message whose delay ends
cost that much and no more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

from tenantq.errors import TenantqError
from tenantq_bridge._postgres import Database, Notifications
from tenantq_bridge.errors import PoolerBetween

__all__ = ["POLL_MAX", "POLL_MIN", "Bell"]

logger = logging.getLogger("tenantq.bridge")

CHANNEL = "tenantq_ready"
"""One for all queues, whose names are the payload: they may be longer than an identifier, in any case."""

RING_INTERVAL = 0.05
POLL_MIN = 0.005
POLL_MAX = 0.25

SLICE = 0.5
"""Seconds that the listener waits at a time, so that it ends soon after `close`."""

PROBE_SLICES = 30
"""Quiet slices before the listener asks for a sign of life: a half-open connection looks just as quiet."""

RECONNECT_MAX = 10.0


class Bell:
    """Rings queues for the claims of this process and of others; its threads start when first needed."""

    def __init__(self, database: Database, *, listen: bool) -> None:
        self._database = database
        self._ring_sql = database.statements("messages.sql")["ring_queue"]
        self._listen = listen
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: dict[str, set[threading.Event]] = {}
        self._pending: set[str] = set()
        self._has_pending = threading.Event()
        self._stopping = threading.Event()
        self._ringer: threading.Thread | None = None
        self._listener: threading.Thread | None = None
        self.is_listening = False
        """Whether notifications arrive, as far as is known."""

    def ring(self, queue: str) -> None:
        """Say, after its commit, that a queue has something."""
        self._renew()
        with self._lock:
            self._wake(queue)
            self._pending.add(queue)
            if self._ringer is None and not self._stopping.is_set():
                self._ringer = self._start(self._send, "ringer")
        self._has_pending.set()

    @contextlib.contextmanager
    def waiter(self, queue: str) -> Iterator[threading.Event]:
        """Give an Event that is set when the queue is rung."""
        self._renew()
        rung = threading.Event()
        with self._lock:
            self._waiting.setdefault(queue, set()).add(rung)
            if self._listen and self._listener is None and not self._stopping.is_set():
                self._listener = self._start(self._receive, "listener")
        try:
            yield rung
        finally:
            with self._lock:
                waiters = self._waiting[queue]
                waiters.discard(rung)
                if not waiters:
                    del self._waiting[queue]

    def close(self) -> None:
        """Send what is pending, and end both threads."""
        self._renew()
        self._stopping.set()
        self._has_pending.set()
        for thread in (self._ringer, self._listener):
            if thread is not None:
                thread.join()

    def _renew(self) -> None:
        # Neither threads nor the state of a lock survive a fork.
        if self._pid != os.getpid():
            self._begin()

    def _start(self, target: object, name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"tenantq-{name}", daemon=True)  # type: ignore[arg-type]
        thread.start()
        return thread

    def _wake(self, queue: str) -> None:
        for rung in self._waiting.get(queue, ()):
            rung.set()

    def _wake_all(self) -> None:
        with self._lock:
            for queue in self._waiting:
                self._wake(queue)

    def _send(self) -> None:
        while True:
            self._has_pending.wait()
            self._has_pending.clear()
            with self._lock:
                queues, self._pending = self._pending, set()
            try:
                for queue in sorted(queues):
                    params = {"channel": CHANNEL, "queue": queue}
                    self._database.run(self._ring_sql, params, repeatable=True)
            except TenantqError as exc:
                # The messages are committed; who waits for them looks again by itself.
                logger.warning("no notification was sent: %s", exc)
            if self._stopping.wait(RING_INTERVAL):
                return

    def _receive(self) -> None:
        pause = SLICE
        while not self._stopping.is_set():
            try:
                notifications = self._database.notifications(CHANNEL)
            except PoolerBetween as exc:
                logger.warning("claims that wait poll: %s", exc)
                return
            except TenantqError as exc:
                logger.warning("cannot listen for notifications: %s", exc)
                self._stopping.wait(pause)
                pause = min(2 * pause, RECONNECT_MAX)
                continue
            try:
                self.is_listening = True
                self._wake_all()  # what was rung before the session listened was missed
                pause = SLICE
                self._follow(notifications)
            except TenantqError as exc:
                logger.warning("the listening session was lost: %s", exc)
            finally:
                self.is_listening = False
                notifications.close()

    def _follow(self, notifications: Notifications) -> None:
        quiet = 0
        while not self._stopping.is_set():
            queues = notifications.wait(SLICE)
            with self._lock:
                for queue in set(queues):
                    self._wake(queue)
            quiet = 0 if queues else quiet + 1
            if quiet >= PROBE_SLICES:
                notifications.probe()
                quiet = 0
