"""How much a tenant's queues may hold: the bounds in its file, and the depths they are compared with."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tenantq._sqlite import Database
from tenantq.errors import QueueFull
from tenantq.sqlfile import load_statements

__all__ = ["Admitted", "Bounds", "Full", "ids_of"]

WHOLE = ""
"""Stands for the whole tenant where a queue's name would; no queue has it."""

RING_INTERVAL = 0.05
"""Seconds in which a process tells of room once, as long as there is little of it."""

RING_SHARE = 16
"""One in so many of what a bound allows is no longer little: it is told of at once."""

_SQL = load_statements("tenantq", "bounds.sql")


class Full(NamedTuple):
    """Why an enqueue was not made. A value, so that it can be one of many in a transaction and undo none."""

    queue: str
    asked: int
    depth: int
    max_depth: int
    is_of_tenant: bool

    @property
    def is_for_good(self) -> bool:
        """Whether no room will ever be enough."""
        return self.asked > self.max_depth

    def error(self, tenant_id: str) -> QueueFull:
        """Return it as what the caller is told."""
        what = f"tenant {tenant_id!r}" if self.is_of_tenant else f"queue {self.queue!r} of tenant {tenant_id!r}"
        if self.is_for_good:
            text = f"{what} holds at most {self.max_depth} messages, not {self.asked} at once"
            hint = "enqueue fewer at once, or raise the bound"
        else:
            text, hint = f"{what} is full: it holds {self.depth} of {self.max_depth} messages", ""
        return QueueFull(
            text, depth=self.depth, max_depth=self.max_depth, hint=hint, tenant=tenant_id, queue=self.queue
        )


Admitted = list[int] | Full
"""The ids of what was enqueued, or why nothing was."""


def ids_of(admitted: Admitted, tenant_id: str) -> list[int]:
    """Return the ids of what was enqueued. Raises QueueFull."""
    if isinstance(admitted, Full):
        raise admitted.error(tenant_id)
    return admitted


class Bounds:
    """The bounds of one open file. What it read is kept for as long as nobody else changes the file."""

    def __init__(self, database: Database, default: int | None) -> None:
        self.default = default
        """The bound of each queue that has none of its own."""
        self.are_set = default is not None
        """Whether anything may be refused: all that an enqueue without bounds asks."""
        self.are_none = False
        """Whether it is known that nothing is."""
        self._execute = database.execute
        self._own: dict[str, int] | None = None
        self._depths: dict[str, int] = {}
        self._whole_depth: int | None = None
        self._removed = 0
        self._rung_at = 0.0

    def forget(self) -> None:
        """Forget what the file said."""
        self.are_none = False
        self._own = None
        self._whole_depth = None
        self._depths.clear()

    def learn(self, are_in_file: int) -> None:
        """Take over whether the file has any bound."""
        self.are_set = bool(are_in_file) or self.default is not None
        self.are_none = not self.are_set
        if not are_in_file:
            self._own = {}

    def own(self) -> dict[str, int]:
        """Return the bounds that are in the file."""
        if self._own is None:
            self._own = dict(self._execute(_SQL["read_bounds"]))
        return self._own

    def of(self, queue: str) -> int | None:
        """Return what a queue may hold."""
        return self.own().get(queue, self.default)

    def queues(self) -> set[str]:
        """Return the queues that have a bound of their own."""
        return self.own().keys() - {WHOLE}

    @property
    def of_tenant(self) -> int | None:
        """What all queues together may hold."""
        return self.own().get(WHOLE)

    def set(self, queue: str | None, max_depth: int | None) -> None:
        """Change the bound of a queue, or of all together; None removes it."""
        name = WHOLE if queue is None else queue
        if max_depth is None:
            self._execute(_SQL["remove_bound"], (name,))
        else:
            self._execute(_SQL["set_bound"], (name, max_depth))
        self.forget()
        self.learn(bool(self.own()))

    def refuse(self, queue: str, count: int, added: Mapping[str, Sequence[int]]) -> Full | None:
        """Tell why so many messages do not go into a queue, with what the transaction added; None if they do."""
        bound = self.of(queue)
        if bound is not None:
            depth = self._depth(queue) + _change(added.get(queue, ()))
            if depth + count > bound:
                return Full(queue, count, depth, bound, False)
        bound = self.of_tenant
        if bound is not None:
            depth = self._depth_of_tenant() + sum(map(_change, added.values()))
            if depth + count > bound:
                return Full(queue, count, depth, bound, True)
        return None

    def move(self, queue: str, depth: int, added: Sequence[int]) -> bool:
        """Take over a queue's depth at a commit; tell whether those who wait for room are to look.

        Not for every message that leaves: each would wake the producers of all processes for a single place.
        They are told of a share of the bound at once, and of less now and then.
        """
        change = _change(added)
        self._depths[queue] = depth
        if self._whole_depth is not None:
            self._whole_depth += change
        if change >= 0:
            return False
        bounds = [bound for bound in (self.of(queue), self.of_tenant) if bound is not None]
        if not bounds:
            return False
        self._removed -= change
        now = time.monotonic()
        is_little = self._removed < min(bounds) // RING_SHARE and depth > 0
        if is_little and now - self._rung_at < RING_INTERVAL:
            return False
        self._removed = 0
        self._rung_at = now
        return True

    def _depth(self, queue: str) -> int:
        depth = self._depths.get(queue)
        if depth is None:
            rows = self._execute(_SQL["read_depth"], (queue,))
            depth = self._depths[queue] = rows[0][0] if rows else 0
        return depth

    def _depth_of_tenant(self) -> int:
        if self._whole_depth is None:
            self._whole_depth = int(self._execute(_SQL["read_whole_depth"])[0][0])
        return self._whole_depth


def _change(added: Sequence[int]) -> int:
    """Return what a transaction adds to a depth: of its counts, what is ready, scheduled and claimed."""
    return sum(added[1:4])
