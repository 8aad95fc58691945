"""Calls of coroutines on a tenant: how a thread runs them, many in one transaction, and who may take one back."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from tenantq._file import TenantFile
from tenantq._handle import MERGE, Handle
from tenantq._line import Waiting
from tenantq.aio._core import Again, Core, Inside
from tenantq.message import Message

__all__ = ["Call", "Lane", "run_calls"]

T = TypeVar("T")


class Call(Generic[T]):
    """A verb to be run on a tenant by a thread, and the future of the coroutine that awaits it."""

    def __init__(
        self,
        core: Core,
        verb: Callable[[Core], T],
        future: asyncio.Future[T],
        *,
        merges: bool = False,
        looks_at: str | None = None,
        undo: Callable[[Core, T], object] | None = None,
        holder: object | None = None,
        frees: bool = False,
    ) -> None:
        self.core = core
        self.verb = verb
        self.future = future
        self.merges = merges
        """Whether it may run in one transaction with others. It is a single write then."""
        self.looks_at = looks_at
        """The queue of a claim: where nothing is claimable, no transaction is needed."""
        self.undo = undo
        """Takes back what the verb did, where nobody awaits it any more."""
        self.holder = holder
        """The task that holds the tenant from its success on; None: nobody."""
        self.frees = frees
        """Whether the tenant is held by nobody from its end on."""
        self.result: T | None = None
        self.error: BaseException | None = None
        self.is_ended = False
        """Whether its coroutine was told."""
        self.settled: list[Message[Any]] = []
        """The messages that it settles with its commit."""
        self._has_begun = False
        self._right = [None]

    def begin(self) -> bool:
        """Take the right to run it, for a thread; False if it was withdrawn."""
        if not self._has_begun:
            self._has_begun = self._take()
        return self._has_begun

    def withdraw(self) -> bool:
        """Keep it from being run, for the event loop; False if it has begun."""
        return self._take()

    def end(self) -> None:
        """Tell the coroutine, in the event loop's thread."""
        self.is_ended = True
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]

    def unsettle(self) -> None:
        """Take back that messages are settled: the commit failed."""
        for message in self.settled:
            message.settled = False

    def _take(self) -> bool:
        try:
            self._right.pop()  # of two threads one gets it
        except IndexError:
            return False
        return True


class Lane:
    """The calls on one tenant in their order; at most one thread is busy with them."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.calls: deque[Call[Any]] = deque()
        self.steps: deque[Call[Any]] = deque()
        """Of the transaction that holds the tenant."""
        self.holder: object | None = None
        """The task whose transaction is open."""
        self.is_busy = False
        """Whether a thread has calls of it, or it waits for one."""

    @property
    def has_work(self) -> bool:
        """Whether a thread could do something."""
        return bool(self.steps or (self.calls and self.holder is None))

    def take(self) -> list[Call[Any]]:
        """Return the next calls for a thread: one, or many for one transaction."""
        if self.steps:
            return [self.steps.popleft()]
        batch: list[Call[Any]] = []
        while self.calls and self.holder is None and len(batch) < MERGE:
            call = self.calls[0]
            if call.future.cancelled():
                self.calls.popleft()
                continue
            if batch and not call.merges:
                break
            batch.append(self.calls.popleft())
            if not call.merges:
                break
        return batch


class _Done(Generic[T]):
    """What a verb brought, if it is committed."""

    __slots__ = ("error", "result")

    def __init__(self, result: T | None, error: BaseException | None = None) -> None:
        self.result = result
        self.error = error


def run_calls(calls: Sequence[Call[Any]]) -> None:
    """Run calls of one tenant; each has its result or its error then. Never raises."""
    left = deque(calls)
    try:
        while len(left) > 1 and left[0].core._open(create=False) is None:
            _run_alone(left.popleft())  # maybe it makes the file: the others go together then
        if len(left) > 1 and not _find_nothing(left):
            _run_together(left)
            return
        while left:
            _run_alone(left.popleft())
    except BaseException as exc:  # the file's fault, or an interrupt
        for call in left:
            if call.begin():
                call.error = copy.copy(exc)


def _find_nothing(calls: Sequence[Call[Any]]) -> bool:
    """Tell whether all are claims from queues where nothing is claimable: they need no write lock."""
    queues = {call.looks_at for call in calls}
    core = calls[0].core
    return None not in queues and not any(queue and core._has_claimable(queue) for queue in queues)


def _run_alone(call: Call[Any]) -> None:
    if not call.begin():
        return
    try:
        call.result = call.verb(call.core)
    except BaseException as exc:
        call.error = exc


def _run_together(calls: Sequence[Call[Any]]) -> None:
    batch: list[Waiting[Any]] = [Waiting(partial(_run_inside, call)) for call in calls]
    if calls[0].core._use(False, Handle.write_all, batch, _NO_FILE) is _NO_FILE:
        for call in calls:  # deleted in this moment
            _run_alone(call)
        return
    for call, waiting in zip(calls, batch, strict=True):
        done = waiting.result
        if waiting.error is not None:
            call.unsettle()
            call.error = waiting.error
        elif done is None:
            continue  # withdrawn
        elif isinstance(done.error, Again):
            _run_alone(call)
        else:
            call.result, call.error = done.result, done.error


def _run_inside(call: Call[T], file: TenantFile) -> _Done[T] | None:
    if not call.begin():
        return None
    call.unsettle()  # what it did before was undone with the others'
    inside = Inside(call.core, file)
    call.settled = inside.settled
    try:
        return _Done(call.verb(inside))
    except BaseException as exc:
        if exc is inside.failure:
            raise
        return _Done(None, exc)


_NO_FILE: Any = object()
