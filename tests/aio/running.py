"""How the tests of tenantq.aio run: bounded in time, and stopped at points that they name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tenantq.clock import SystemClock

T = TypeVar("T")

PATIENCE = 30
"""Seconds that something may take that should come at once."""

WithStore = Callable[..., None]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as an application does, for so long."""

    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE):
            return await coroutine

    return asyncio.run(bounded())


async def turn(times: int = 5) -> None:
    """Let all that can run in the event loop run."""
    for _ in range(times):
        await asyncio.sleep(0)


class StoppingClock(SystemClock):
    """A clock that stops the next thread of the pool that asks for the time, inside of a verb."""

    def __init__(self) -> None:
        super().__init__()
        self.is_armed = False
        self.is_reached = threading.Event()
        self.may_go_on = threading.Event()

    def now_ns(self) -> int:
        if self.is_armed and threading.current_thread().name.startswith("tenantq-aio"):
            self.is_armed = False
            self.is_reached.set()
            assert self.may_go_on.wait(PATIENCE)
        return super().now_ns()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.is_reached.wait, PATIENCE)


class Occupied:
    """A verb that says when a thread has begun it, and ends when it may."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, _tenant: object) -> None:
        self.has_begun.set()
        assert self.may_end.wait(PATIENCE)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.has_begun.wait, PATIENCE)
