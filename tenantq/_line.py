"""Whose turn it is: threads stand in line for one thing, and each is woken once, when its wait is over.

Whoever has the turn may do the work of those behind it, and wakes them when it is done; then it hands the turn
to the first that still waits. A turn is never set free while somebody waits for it, so that nobody who comes
later goes first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

__all__ = ["Line", "Waiting"]

T = TypeVar("T")


class Waiting(Generic[T]):
    """A thread in the line, and the work that it would let another do for it; None: it wants the turn itself."""

    __slots__ = ("error", "has_turn", "is_done", "is_leaving", "operation", "result", "wake")

    def __init__(self, operation: Callable[[Any], T] | None) -> None:
        self.operation = operation
        self.is_done = False
        self.has_turn = False
        self.is_leaving = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self.wake = threading.Lock()
        self.wake.acquire()

    def outcome(self) -> T:
        """Return what the work brought, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class Line:
    """The threads that want the same thing. The first comes first; work that others do comes along."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self.waiting: deque[Waiting[Any]] = deque()
        """Those in line. To look at; only the methods change it."""

    def try_take(self) -> bool:
        """Take the turn if nobody has it."""
        with self._lock:
            if self._is_taken:
                return False
            self._is_taken = True
            return True

    def wait(self, waiting: Waiting[Any], timeout: float) -> bool:
        """Stand in line until the turn has come or the work is done; False after so many seconds in vain.

        An interrupt leaves the line: nobody does later what nobody waits for.
        """
        with self._lock:
            if not self._is_taken:
                self._is_taken = waiting.has_turn = True
                return True
            self.waiting.append(waiting)
        try:
            if waiting.wake.acquire(timeout=timeout) or not self._leave(waiting):
                return True
        except BaseException:
            if not self._leave(waiting) and waiting.has_turn:
                self.hand_over()
            raise
        return False

    def take_along(self, most: int) -> list[Waiting[Any]]:
        """Take out of the line those at its front whose work another may do. For whoever has the turn."""
        along: list[Waiting[Any]] = []
        with self._lock:
            while self.waiting and len(along) < most and self.waiting[0].operation is not None:
                along.append(self.waiting.popleft())
        return along

    def bring_back(self, along: Sequence[Waiting[Any]]) -> None:
        """Wake those whose work is done or whose time is over, and put the others back where they were."""
        with self._lock:
            for waiting in reversed(along):
                if waiting.is_done or waiting.is_leaving:
                    waiting.wake.release()
                else:
                    self.waiting.appendleft(waiting)

    def hand_over(self) -> None:
        """Give the turn to the first in line; set it free if there is none."""
        with self._lock:
            if self.waiting:
                first = self.waiting.popleft()
                first.has_turn = True
                first.wake.release()
            else:
                self._is_taken = False

    def _leave(self, waiting: Waiting[Any]) -> bool:
        """Leave the line; False for one that is in it no more: its turn has come, or is about to end."""
        with self._lock:
            if waiting in self.waiting:
                self.waiting.remove(waiting)
                return True
            if waiting.has_turn:
                return False
            waiting.is_leaving = True
        waiting.wake.acquire()  # another thread is doing its work: what comes of it counts
        return not waiting.is_done
