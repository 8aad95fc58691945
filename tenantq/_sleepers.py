"""Threads that wait for a change, and are woken one by one in the order in which they came."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tenantq.clock import NANOSECONDS, nanoseconds

__all__ = ["Sleeper", "Sleepers", "wait_for"]

T = TypeVar("T")


class Sleeper:
    """One thread that waits once. Whoever rings it holds the lock that guards what it waits for."""

    __slots__ = ("_bell", "_rung", "need", "until")

    def __init__(self, *, until: int, need: int = 1) -> None:
        self._bell = threading.Lock()
        self._bell.acquire()
        self._rung = False
        self.until = until
        """When it wakes by itself, in monotonic nanoseconds."""
        self.need = need
        """How much of what it waits for it has use for."""

    def sleep(self, seconds: float) -> None:
        """Block until it is rung, or for `seconds`."""
        self._bell.acquire(timeout=seconds)

    def ring(self) -> None:
        """End its sleep; a second call changes nothing."""
        if not self._rung:
            self._rung = True
            self._bell.release()


class Sleepers:
    """Those who wait for one thing. Guarded by the lock of the thing.

    Waking one is enough only because everyone who was woken passes the word on when something is left: a
    sleeper may have been rung for two things at once, or its time may have been over in the same moment.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Sleeper, None] = {}

    def join(self, sleeper: Sleeper) -> None:
        """Add one at the end."""
        self._waiting[sleeper] = None

    def leave(self, sleeper: Sleeper) -> None:
        """Remove one, if it is still here."""
        self._waiting.pop(sleeper, None)

    def rouse(self, amount: int) -> None:
        """Ring the first, as many as `amount` is enough for."""
        while self._waiting:
            sleeper = next(iter(self._waiting))
            amount -= sleeper.need
            if amount < 0:
                return
            del self._waiting[sleeper]
            sleeper.ring()

    def rouse_late(self, time: int) -> None:
        """Ring all that would sleep beyond `time`."""
        for sleeper in [sleeper for sleeper in self._waiting if sleeper.until > time]:
            del self._waiting[sleeper]
            sleeper.ring()

    def rouse_all(self) -> None:
        """Ring everyone."""
        for sleeper in self._waiting:
            sleeper.ring()
        self._waiting.clear()

    def __bool__(self) -> bool:
        return bool(self._waiting)


def wait_for(
    attempt: Callable[[], list[T]],
    seconds: float,
    *,
    lock: threading.Lock,
    watch: Callable[[], list[Sleepers]],
    now: Callable[[], int],
    due: Callable[[], int | None] = lambda: None,
    need: int = 1,
) -> list[T]:
    """Repeat an attempt until it gives something or `seconds` have passed; return what the last one gave.

    It is repeated after every change of what is watched, and when something is `due`; all of these are
    called under the lock. Blocking takes real time, whatever clock `now` reads.
    """
    end = time.monotonic() + seconds
    sleeper = Sleeper(until=0)
    watched: list[Sleepers] = []
    try:
        while True:
            with lock:
                for sleepers in watched:
                    sleepers.leave(sleeper)
                result = attempt()
                left = end - time.monotonic()
                if result or left <= 0:
                    return result
                next_due = due()
                if next_due is not None:
                    left = min(left, max(0, next_due - now()) / NANOSECONDS)
                sleeper = Sleeper(until=now() + nanoseconds(left), need=need)
                watched = watch()
                for sleepers in watched:
                    sleepers.join(sleeper)
            sleeper.sleep(left)
    except BaseException:  # a KeyboardInterrupt: another may have to take what this one was rung for
        with lock:
            for sleepers in watched:
                sleepers.leave(sleeper)
                sleepers.rouse_all()
        raise
