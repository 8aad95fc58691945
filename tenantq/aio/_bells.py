"""Coroutines that wait for a tenant's bell: they cost no thread, and are woken in the order in which they came.

A ring wakes the first of those who wait for the same thing. Whoever leaves wakes two more, since there may be
more: so many are awake as find something, and their calls merge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from tenantq._doorbell import Doorbell, slot_of

__all__ = ["Bells", "Line", "Waiter"]

T = TypeVar("T")

Key = tuple[str, str]
"""A tenant and a queue."""


class Line:
    """The coroutines that wait for the same thing."""

    def __init__(self) -> None:
        self.waiters: dict[Waiter, None] = {}
        """All of them, in the order in which they came."""
        self.quiet: dict[Waiter, None] = {}
        """Those that nobody has rung since they looked."""

    def ring(self, count: int) -> None:
        """Wake the first, which looks for all, and so many of those who were not woken yet."""
        for waiter in (*islice(self.waiters, 1), *islice(self.quiet, count)):
            waiter.ring()


class Waiter:
    """One coroutine in a line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._sleep: asyncio.Future[bool] | None = None
        self._is_rung = False

    @property
    def is_first(self) -> bool:
        """Whether all others wait behind it: only this one looks by itself."""
        return next(iter(self._line.waiters)) is self

    def clear(self) -> None:
        """Forget the rings so far, before a look."""
        self._is_rung = False
        self._line.quiet[self] = None

    def ring(self) -> None:
        """Wake it, now or when it is about to sleep."""
        self._is_rung = True
        self._line.quiet.pop(self, None)
        if self._sleep is not None:
            _wake(self._sleep, True)

    async def sleep(self, seconds: float) -> bool:
        """Sleep until it is rung, True, or for so long, False."""
        if self._is_rung:
            return True
        loop = asyncio.get_running_loop()
        sleep: asyncio.Future[bool] = loop.create_future()
        self._sleep = sleep
        timer = loop.call_later(seconds, _wake, sleep, False)
        try:
            return await sleep
        finally:
            timer.cancel()
            self._sleep = None


class Bells:
    """Those who wait for one of a store's bells, in lines by tenant and queue."""

    def __init__(self, doorbell: Doorbell, loop: asyncio.AbstractEventLoop) -> None:
        self._doorbell = doorbell
        self._loop = loop
        self._slots: dict[int, dict[Key, Line]] = {}
        self._unsubscribe: Callable[[], None] | None = None

    @contextlib.contextmanager
    def waiting(self, tenant_id: str, queue: str) -> Iterator[Waiter]:
        """Stand in the line for a queue; from here on no ring is missed."""
        if self._unsubscribe is None:
            self._unsubscribe = self._doorbell.subscribe(self._on_ring)
        slot, key = slot_of(tenant_id), (tenant_id, queue)
        lines = self._slots.setdefault(slot, {})
        line = lines.setdefault(key, Line())
        waiter = Waiter(line)
        line.waiters[waiter] = line.quiet[waiter] = None
        try:
            yield waiter
        finally:
            del line.waiters[waiter]
            line.quiet.pop(waiter, None)
            line.ring(2)
            if not line.waiters:
                del lines[key]
                if not lines:
                    del self._slots[slot]

    def ring_all(self) -> None:
        """Wake everybody."""
        for lines in self._slots.values():
            for line in lines.values():
                line.ring(len(line.quiet))

    def close(self) -> None:
        """Listen no more."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _on_ring(self, slots: frozenset[int]) -> None:
        # In whatever thread rang.
        if any(slot in self._slots for slot in slots):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._ring, slots)

    def _ring(self, slots: frozenset[int]) -> None:
        for slot in slots:
            for line in self._slots.get(slot, {}).values():
                line.ring(1)


def _wake(sleep: asyncio.Future[bool], is_rung: bool) -> None:
    if not sleep.done():
        sleep.set_result(is_rung)
