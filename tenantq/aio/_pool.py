"""The few threads that serve all tenants of a store, and the order in which tenants get them.

Everything here but `_work` runs in the event loop's thread and takes no lock. Calls of one turn of the loop
collect in the lanes of their tenants; then each lane gives a thread what it has, as one batch, and gets no
second thread meanwhile. Lanes get the threads in turns.

A locked file may keep a thread for seconds. A batch that has taken longer than PATIENCE no longer counts among
the `threads`: another takes its place. Tenants that were so slow the last time start in those extra threads
only, so that as long as a tenant's slowness is known it takes nothing from the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tenantq.aio._calls import Call, Lane, run_calls
from tenantq.aio._core import Core
from tenantq.errors import LeaseLost, TransactionError

__all__ = ["MOST_SLOW", "PATIENCE", "Pool", "to_the_end"]

logger = logging.getLogger("tenantq.aio")

T = TypeVar("T")

PATIENCE = 0.05
"""Seconds after which a batch is slow."""

MOST_SLOW = 32
"""Threads beside the others for what is slow: started when needed, and kept then."""

APART = 4
"""Threads for what goes beside the tenants' calls: backups, listings."""


class _Run:
    """A batch of one lane, in a thread."""

    def __init__(self, lane: Lane, calls: list[Call[Any]], started: float, *, is_slow: bool) -> None:
        self.lane = lane
        self.calls = calls
        self.started = self.ended = started
        self.is_slow = is_slow


class Pool:
    """The threads of one store in one event loop."""

    def __init__(self, threads: int, loop: asyncio.AbstractEventLoop) -> None:
        self._threads = threads
        self._loop = loop
        self._executor = ThreadPoolExecutor(threads + MOST_SLOW, thread_name_prefix="tenantq-aio")
        self._apart = ThreadPoolExecutor(APART, thread_name_prefix="tenantq-aio-apart")
        self._lanes: dict[str, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._ready_slow: deque[Lane] = deque()
        self._running: set[_Run] = set()
        self._running_slow: set[_Run] = set()
        self._known_slow: set[str] = set()
        self._is_start_due = False
        self._watching: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None

    async def run(
        self,
        key: str,
        core: Core,
        verb: Callable[[Core], T],
        *,
        merges: bool = False,
        looks_at: str | None = None,
        undo: Callable[[Core, T], object] | None = None,
        holder: object | None = None,
    ) -> T:
        """Run a verb behind the other calls with this key, and return what it returns.

        A call that is cancelled before it has begun does nothing. One that has begun takes effect, except that
        what has an `undo` is undone before the CancelledError is raised.
        """
        lane = self._lanes.get(key)
        if lane is not None and lane.holder is not None and lane.holder is asyncio.current_task():
            raise TransactionError(
                "this task has a transaction open on the tenant",
                hint="use the transaction's own methods until it ends",
                tenant=core.id,
            )
        call: Call[T] = Call(
            core,
            verb,
            self._loop.create_future(),
            merges=merges,
            looks_at=looks_at,
            undo=undo,
            holder=holder,
        )
        self.submit(key, call)
        try:
            return await call.future
        except asyncio.CancelledError:
            if not call.withdraw():
                await self._undo(key, call)
            raise

    def submit(self, key: str, call: Call[Any], *, is_step: bool = False) -> None:
        """Put a call in its lane; a step goes before all others, and only with the lane held."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        (lane.steps if is_step else lane.calls).append(call)
        if not lane.is_busy:
            self._queue(lane)

    async def drain(self) -> None:
        """Wait until no call waits or runs."""
        while self._lanes:
            self._idle = self._loop.create_future()
            await to_the_end(self._idle)

    def run_apart(self, action: Callable[[], T]) -> asyncio.Future[T]:
        """Run what no tenant waits behind, in a thread of others. One that has begun runs to its end."""
        return self._loop.run_in_executor(self._apart, action)

    def shut_down(self) -> None:
        """End the threads; what they run ends first."""
        if self._watching is not None:
            self._watching.cancel()
        self._executor.shutdown(wait=False)
        self._apart.shutdown(wait=False)

    # Who gets a thread

    def _queue(self, lane: Lane) -> None:
        lane.is_busy = True
        (self._ready_slow if lane.key in self._known_slow else self._ready).append(lane)
        self._start_soon()

    def _start_soon(self) -> None:
        if not self._is_start_due:
            self._is_start_due = True
            self._loop.call_soon(self._start)  # behind all that run in this turn of the loop

    def _start(self) -> None:
        self._is_start_due = False
        while self._ready and len(self._running) < self._threads:
            self._start_lane(self._ready.popleft(), self._running, is_slow=False)
        while self._ready_slow and len(self._running_slow) < MOST_SLOW:
            self._start_lane(self._ready_slow.popleft(), self._running_slow, is_slow=True)
        if self._ready and self._watching is None:
            self._watching = self._loop.call_later(PATIENCE, self._move_slow)

    def _start_lane(self, lane: Lane, running: set[_Run], *, is_slow: bool) -> None:
        calls = lane.take()
        if not calls:  # all of them withdrawn
            self._rest(lane)
            return
        run = _Run(lane, calls, self._loop.time(), is_slow=is_slow)
        running.add(run)
        try:
            self._executor.submit(self._work, run)
        except RuntimeError as exc:  # the system has no thread left
            for call in calls:
                call.error = exc
            self._loop.call_soon(self._ended, run)

    def _move_slow(self) -> None:
        """Let what has taken long make room for others."""
        self._watching = None
        latest = self._loop.time() - PATIENCE
        for run in sorted(self._running, key=lambda run: run.started):
            if run.started > latest or len(self._running_slow) >= MOST_SLOW:
                break
            self._known_slow.add(run.lane.key)
            self._running.discard(run)
            self._running_slow.add(run)
            run.is_slow = True
        self._start()

    def _work(self, run: _Run) -> None:
        run_calls(run.calls)
        run.ended = self._loop.time()
        try:
            self._loop.call_soon_threadsafe(self._ended, run)
        except RuntimeError:  # the loop was closed over its calls: nobody has what they brought
            for call in run.calls:
                if call.undo is not None and call.error is None and call.result is not None:
                    _undo_here(call)

    def _ended(self, run: _Run) -> None:
        lane = run.lane
        (self._running_slow if run.is_slow else self._running).discard(run)
        if run.ended - run.started > PATIENCE:
            self._known_slow.add(lane.key)
        else:
            self._known_slow.discard(lane.key)
        for call in run.calls:
            if call.frees:
                lane.holder = None
            elif call.holder is not None and call.result is not None:  # else it failed, or was withdrawn
                lane.holder = call.holder
            call.end()
        self._rest(lane)
        if self._ready or self._ready_slow:
            self._start_soon()

    def _rest(self, lane: Lane) -> None:
        lane.is_busy = False
        if lane.has_work:
            self._queue(lane)
        elif lane.holder is None:
            del self._lanes[lane.key]
            if not self._lanes and self._idle is not None:
                self._idle.set_result(None)
                self._idle = None

    async def _undo(self, key: str, call: Call[T]) -> None:
        """Take back what a call did whose coroutine was cancelled, as soon as it has done it."""
        undo = call.undo
        if undo is None:
            return
        if not call.is_ended:
            call.future = self._loop.create_future()
            await to_the_end(call.future)
            call.future.exception()  # seen: it did nothing then
        if call.error is not None or not call.result:
            return
        result = call.result
        undoing: Call[object] = Call(
            call.core,
            lambda core: undo(core, result),
            self._loop.create_future(),
            frees=call.holder is not None,
        )
        self.submit(key, undoing, is_step=undoing.frees)
        await to_the_end(undoing.future)
        error = undoing.future.exception()
        if error is not None and not isinstance(error, LeaseLost):
            logger.warning("a cancelled claim could not be given back; its lease runs out", exc_info=error)


async def to_the_end(future: asyncio.Future[Any]) -> bool:
    """Wait for a future without passing on a cancellation; return whether there was one."""
    is_cancelled = False
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            is_cancelled = True
    return is_cancelled


def _undo_here(call: Call[Any]) -> None:
    assert call.undo is not None
    try:
        call.undo(call.core, call.result)
    except Exception:
        logger.warning("a claim of a closed event loop could not be given back", exc_info=True)
