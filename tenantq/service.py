"""The shape of every background role: start, stop, and run_once, which tests call."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tenantq.errors import TenantqError

__all__ = ["Service"]

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
        self._thread: threading.Thread | None = None

    @abstractmethod
    def run_once(self) -> int:
        """Do one round; return how much was done, 0 to wait for the interval."""

    def run(self) -> None:
        """Repeat rounds in this thread until `stop` is called from elsewhere."""
        while not self._stopping.is_set():
            try:
                done = self.run_once()
            except TenantqError:
                self.failures += 1
                logger.exception("a round failed", extra={"service": self.name})
                done = 0
            if not done:
                self.pause()

    def pause(self) -> None:
        """Wait for the interval, or until the role is stopped."""
        self._stopping.wait(self.interval)

    def start(self) -> Self:
        """Start the thread; a second call changes nothing."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self.run, name=f"tenantq-{self.name}", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End the role and wait for its round; may be called more than once, and from a signal handler."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
