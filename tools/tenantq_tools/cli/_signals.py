"""SIGTERM and SIGINT as a request to end well: the first one is heeded at the next safe point."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["on_signals"]


@contextlib.contextmanager
def on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or SIGINT, and raise KeyboardInterrupt at the second."""
    was_asked = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if was_asked.is_set():
            raise KeyboardInterrupt
        was_asked.set()
        stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
