"""What the contract runs on: one factory a layer, each giving the verbs and a way to let time pass.

A layer is added by a context manager and a line in LAYERS. One whose time is real sleeps in `advance`; the
suite keeps every duration that has to pass at 0.2 seconds or less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pytest

import tenantq
from tenantq.backoff import Backoff
from tenantq.memory import MemoryQueue
from tenantq.message import Message
from tenantq.testing import ManualClock

BACKOFF = Backoff(base=0.05, factor=2, cap=0.2, jitter=0)
"""What every layer is made with: 0.1 s after the first attempt, 0.2 s after the others."""


class Counts(Protocol):
    """What `stats` counts, whatever else it knows."""

    @property
    def ready(self) -> int: ...
    @property
    def scheduled(self) -> int: ...
    @property
    def claimed(self) -> int: ...
    @property
    def dead(self) -> int: ...


class Verbs(Protocol):
    """The verbs that all layers have."""

    def enqueue(
        self,
        queue: str,
        payload: Any,
        *,
        delay: float = ...,
        at: datetime | None = ...,
        priority: int = ...,
        key: str | None = ...,
        max_attempts: int = ...,
    ) -> int: ...

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        delay: float = ...,
        at: datetime | None = ...,
        priority: int = ...,
        max_attempts: int = ...,
    ) -> list[int]: ...

    def claim(
        self,
        queue: str,
        limit: int = ...,
        *,
        lease: float = ...,
        worker: str | None = ...,
        wait: float = ...,
    ) -> list[Message[Any]]: ...

    def ack(self, *messages: Message[Any]) -> None: ...
    def nack(self, message: Message[Any], *, delay: float | None = ..., error: str | None = ...) -> None: ...
    def release(self, *messages: Message[Any], delay: float = ...) -> None: ...
    def extend(self, message: Message[Any], seconds: float) -> None: ...
    def dead_letter(self, message: Message[Any], *, error: str | None = ...) -> None: ...
    def stats(self) -> Counts: ...
    def peek(self, queue: str, limit: int = ...) -> Sequence[Message[Any]]: ...
    def dead_letters(self, queue: str | None = ..., limit: int = ...) -> Sequence[Message[Any]]: ...
    def redrive(self, *ids: int, queue: str | None = ...) -> int: ...
    def purge(self, queue: str) -> int: ...
    def pause(self, queue: str) -> None: ...
    def resume(self, queue: str) -> None: ...
    def reap(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer under test, empty."""

    queue: Verbs
    advance: Callable[[float], None]
    """Let this many seconds pass, or a little more."""
    ordered: bool = True
    """Whether messages of one priority are claimed by visible_at, then by id."""
    lacks: frozenset[str] = frozenset()
    """The verbs that it does not have."""


@contextmanager
def memory(_directory: Path) -> Iterator[Layer]:
    clock = ManualClock()
    yield Layer(queue=MemoryQueue(clock=clock, backoff=BACKOFF), advance=clock.advance, ordered=False)


@contextmanager
def tenant(directory: Path) -> Iterator[Layer]:
    clock = ManualClock()
    with tenantq.open(directory / "store", clock=clock, backoff=BACKOFF) as store:
        yield Layer(queue=store.tenant("acme"), advance=clock.advance)


Factory = Callable[[Path], AbstractContextManager[Layer]]

LAYERS = [pytest.param(memory, id="memory"), pytest.param(tenant, id="tenant")]
