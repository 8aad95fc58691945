"""How much claims may give out: caps of what is claimed at once, rates, and a tenant's weight, all in its file.

A rate is a token bucket, kept as one number: the time at which it is full again (the generic cell rate algorithm).
It holds `rate` tokens, fills in `per`, and every message that a claim gives out takes one. Time is that since the
boot, the same in all processes and by no clock that jumps; after another boot the bucket is full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tenantq._sqlite import Database
from tenantq.errors import InvalidArgument
from tenantq.sqlfile import load_statements

__all__ = ["UNCHANGED", "Limit", "Limits", "Unchanged", "check_weight"]

WHOLE = ""
"""Stands for the whole tenant where a queue's name would; no queue has it."""

MOST_WEIGHT = 1000
"""A tenant of this weight gets everything anyway; one of its inverse next to nothing."""

_SQL = load_statements("tenantq", "limits.sql")

Depths = Mapping[str, Sequence[int]]
"""What the transaction adds to each queue: last_id, ready, scheduled, claimed, dead."""


class Limit(msgspec.Struct, kw_only=True):
    """What one queue, or the tenant as a whole, is held to."""

    max_claimed: int | None = None
    rate: int | None = None
    per: int | None = None
    """Nanoseconds."""
    full_at: int = 0
    weight: float | None = None

    @property
    def is_none(self) -> bool:
        """Whether there is nothing to be kept."""
        return self.max_claimed is None and self.rate is None and self.weight is None

    def tokens(self, boottime: int) -> int | None:
        """Return how many messages the rate lets go now; None without one."""
        if self.rate is None or self.per is None:
            return None
        # Where there is no time since the boot, the clock may have been set back: it is never emptier than empty.
        missing = min(self.per, max(0, self.full_at - boottime))
        return (self.per - missing) * self.rate // self.per

    def next_token(self, boottime: int) -> int:
        """Return the nanoseconds until the rate lets a message go."""
        if self.rate is None or self.per is None or self.tokens(boottime):
            return 0
        missing = min(self.per, self.full_at - boottime)
        return missing - self.per - (-self.per // self.rate)

    def spend(self, count: int, boottime: int) -> None:
        """Take tokens."""
        if self.rate is not None and self.per is not None:
            start = min(max(self.full_at, boottime), boottime + self.per)
            self.full_at = start + count * self.per // self.rate


class Unchanged(msgspec.Struct, frozen=True):
    """Stands for what a call does not change, where None removes it."""


UNCHANGED = Unchanged()


def check_weight(queue: str | None, weight: float | None) -> None:
    """Raise InvalidArgument for what is no weight of a tenant."""
    if queue is not None:
        raise InvalidArgument("a weight is of a tenant as a whole", hint="leave the queue out", queue=queue)
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if weight is not None and not (is_number and 1 / MOST_WEIGHT <= weight <= MOST_WEIGHT):
        raise InvalidArgument(f"weight must be a number from {1 / MOST_WEIGHT:g} to {MOST_WEIGHT}, not {weight!r}")


class Limits:
    """What claims of one open file obey. What it read is kept for as long as nobody else changes the file."""

    def __init__(self, database: Database) -> None:
        self.are_none = False
        """Whether it is known that there is no limit."""
        self.weight = 1.0
        """The tenant's share of a worker's time, as the last claim read it."""
        self._execute = database.execute
        self._run = database.run
        self._own: dict[str, Limit] | None = None
        self._paused: set[str] = set()

    @property
    def are_set(self) -> bool:
        """Whether it is known that there are limits."""
        return bool(self._own)

    def forget(self) -> None:
        """Forget what the file said."""
        self.are_none = False
        self._own = None

    def learn(self, are_in_file: int) -> None:
        """Take over whether the file has any limit."""
        if not are_in_file:
            self.are_none = True

    def own(self) -> dict[str, Limit]:
        """Return the limits in the file: those of its queues, and that of the whole tenant."""
        if self._own is None:
            self._own, self._paused = {}, set()
            for queue, is_paused, *values in self._execute(_SQL["read_rules"]):
                if is_paused:
                    self._paused.add(queue)
                    continue
                max_claimed, rate, per, full_at, weight = values
                self._own[queue] = Limit(
                    max_claimed=max_claimed, rate=rate, per=per, full_at=full_at, weight=weight
                )
            self.are_none = not self._own
            whole = self._own.get(WHOLE)
            self.weight = 1.0 if whole is None or whole.weight is None else whole.weight
        return self._own

    def of(self, queue: str | None) -> Limit:
        """Return what a queue is held to, or with None the tenant as a whole."""
        return self.own().get(WHOLE if queue is None else queue) or Limit()

    def queues(self) -> set[str]:
        """Return the queues that have limits of their own."""
        return self.own().keys() - {WHOLE}

    def is_paused(self, queue: str) -> bool:
        """Tell whether claims find nothing in a queue."""
        self.own()
        return queue in self._paused

    def set(
        self,
        queue: str | None,
        boottime: int,
        *,
        max_claimed: int | Unchanged | None,
        rate: tuple[int, int] | Unchanged | None,
        weight: float | Unchanged | None,
    ) -> None:
        """Change some of what a queue is held to, or with None the tenant as a whole; None removes it."""
        name = WHOLE if queue is None else queue
        limit = self.of(queue)
        if not isinstance(max_claimed, Unchanged):
            limit.max_claimed = max_claimed
        if not isinstance(rate, Unchanged):
            spent = 0 if limit.rate is None else limit.rate - (limit.tokens(boottime) or 0)
            limit.rate, limit.per = rate or (None, None)
            limit.full_at = 0
            if limit.rate is not None:
                limit.spend(min(spent, limit.rate), boottime)  # what was given out counts: it is no second bucket
        if not isinstance(weight, Unchanged):
            limit.weight = weight
        if limit.is_none:
            self._execute(_SQL["remove_limit"], (name,))
        else:
            row = (name, limit.max_claimed, limit.rate, limit.per, limit.full_at, limit.weight)
            self._execute(_SQL["set_limit"], row)
        self.forget()

    def allowed(self, queue: str, wanted: int, boottime: int, added: Depths) -> int:
        """Return how many messages of a queue a claim may give out, with what the transaction added."""
        own = self.own()
        if not own:
            return wanted
        for name in (queue, WHOLE):
            limit = own.get(name)
            if limit is None:
                continue
            if limit.max_claimed is not None:
                wanted = min(wanted, limit.max_claimed - self._claimed(name, added))
            tokens = limit.tokens(boottime)
            if tokens is not None:
                wanted = min(wanted, tokens)
        return max(0, wanted)

    def spend(self, queue: str, count: int, boottime: int) -> None:
        """Take the tokens of what a claim gives out, in its transaction."""
        own = self.own()
        for name in (queue, WHOLE) if own else ():
            limit = own.get(name)
            if limit is not None and limit.rate is not None:
                limit.spend(count, boottime)
                self._run(_SQL["spend"], (limit.full_at, name))

    def refill(self) -> None:
        """Fill the buckets: this is another boot."""
        self._run(_SQL["refill"])
        self.forget()

    def next_token(self, queue: str, boottime: int) -> int | None:
        """Return the nanoseconds until a rate lets a claim of the queue go on; None if no rate is in its way."""
        own = self.own()
        waits = [
            limit.next_token(boottime)
            for limit in (own.get(queue), own.get(WHOLE))
            if limit is not None and limit.rate is not None
        ]
        if not waits or queue in self._paused:
            return None
        rows = self._execute(_SQL["read_held"], (queue,))
        if not rows or not rows[0][0]:
            return None
        wait = max(waits)
        if wait == 0 and not self.allowed(queue, 1, boottime, {}):
            return None  # it is the cap that is in the way
        return max(1, wait)  # the token has come since a claim looked for it: at once, but not due

    def has_room_again(self, left: Mapping[str, int]) -> bool:
        """Tell whether a transaction, by so many claims less of each queue, came below a cap: others are to look.

        For when its depths are written.
        """
        if not any(count > 0 for count in left.values()):
            return False
        own = self.own()
        for name, count in (*left.items(), (WHOLE, sum(left.values()))) if own else ():
            limit = own.get(name)
            if limit is not None and limit.max_claimed is not None:
                now = self._claimed(name, {})
                if now < limit.max_claimed <= now + count:
                    return True
        return False

    def _claimed(self, name: str, added: Depths) -> int:
        """Return what is claimed of a queue, or of all."""
        if name == WHOLE:
            kept = int(self._execute(_SQL["read_claimed"])[0][0])
            return kept + sum(depths[3] for depths in added.values())
        rows = self._execute(_SQL["read_held"], (name,))
        return (rows[0][1] if rows else 0) + (added[name][3] if name in added else 0)
