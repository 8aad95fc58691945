"""The shape of every background role: start, stop, and run_once, which tests call."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tenantq.errors import TenantqError

__all__ = ["Service"]

SIGNAL_INTERVAL = 0.25
"""Seconds within which a request made by a signal handler is seen."""

logger = logging.getLogger("tenantq.service")


class Service(ABC):
    """A role that repeats `run_once` in a thread of its own until it is stopped.

    A TenantqError ends one round, is logged and is counted in `failures`; the role goes on after a pause.
    """

    name = "service"

    def __init__(self, *, interval: float) -> None:
        self.interval = interval
        """Seconds between two rounds that found nothing to do."""
        self.failures = 0
        self._stopping = threading.Event()
        self._is_asked_to_stop = False
        self._thread: threading.Thread | None = None

    @abstractmethod
    def run_once(self) -> int:
        """Do one round; return how much was done, 0 to wait for the interval."""

    def run(self) -> None:
        """Repeat rounds in this thread until the role is to stop."""
        while not self.is_stopping:
            try:
                done = self.run_once()
            except TenantqError:
                self.failures += 1
                logger.exception("a round failed", extra={"service": self.name})
                done = 0
            if not done:
                self.pause()

    def pause(self) -> None:
        """Wait until there may be something to do."""
        self.wait(self.interval)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until the role is to stop."""
        deadline = time.monotonic() + seconds
        while not self.is_stopping and (left := deadline - time.monotonic()) > 0:
            self._stopping.wait(min(left, SIGNAL_INTERVAL))

    @property
    def is_stopping(self) -> bool:
        """Whether the role is to stop."""
        return self._is_asked_to_stop or self._stopping.is_set()

    def start(self) -> Self:
        """Start the thread; a second call changes nothing."""
        if self._thread is None:
            self._stopping.clear()
            self._is_asked_to_stop = False
            self._thread = threading.Thread(target=self.run, name=f"tenantq-{self.name}", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End the role and wait for its round; may be called more than once."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def request_stop(self) -> None:
        """Let the role end after its round; returns at once. It takes no lock: a signal handler may call it."""
        self._is_asked_to_stop = True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
