"""Callbacks that are told of a change, in the thread that made it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["Subscribers"]

logger = logging.getLogger("tenantq.memory")


class Subscribers:
    """Who is to be called, in the order in which they came."""

    __slots__ = ("_callbacks", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: tuple[Callable[[], object], ...] = ()

    def add(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Add a callback; return what removes it."""

        def notify() -> object:  # has an identity of its own: one callback may be added twice
            return callback()

        def remove() -> None:
            with self._lock:
                self._callbacks = tuple(other for other in self._callbacks if other is not notify)

        with self._lock:
            self._callbacks = (*self._callbacks, notify)
        return remove

    def call(self) -> None:
        """Call everyone. An error is logged: the change was made, so it is no error of whoever made it."""
        for callback in self._callbacks:
            try:
                callback()
            except Exception:
                logger.exception("a subscriber failed")
