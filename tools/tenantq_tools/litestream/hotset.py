"""Who is in the hot set: which tenants wait for a place, which are to be confirmed, and which have to go."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from tenantq.backoff import Backoff

__all__ = ["CONFIRM_SECONDS", "HotSet", "Step", "Verb"]

CONFIRM_SECONDS = 2.0
"""Between two confirmations of a tenant that goes on changing; Litestream sends its changes each second."""

PRESSURE = 8
"""Tenants that are let go at once when others wait for their places."""

RETRY = Backoff(base=1.0, factor=2.0, cap=60.0, jitter=0.2)
"""Seconds until a tenant is tried again that could not be replicated."""


class Verb(StrEnum):
    """What is to be done with a tenant."""

    ADMIT = "admit"
    CONFIRM = "confirm"
    RELEASE = "release"


class Step(msgspec.Struct, frozen=True):
    """One thing to do with one tenant."""

    verb: Verb
    tenant: str


class _Hot(msgspec.Struct):
    active_at: float
    is_changed: bool = False
    next_confirm: float = 0.0


class HotSet:
    """The tenants that Litestream has, at most `capacity`, and those that wait. Times are monotonic seconds.

    Each has at most one step under way; `begin` gives those that are due, and `succeed`, `fail` or `drop` end one.
    """

    def __init__(self, capacity: int, idle: float) -> None:
        self.capacity = capacity
        self.idle = idle
        self._hot: dict[str, _Hot] = {}
        self._waiting: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._busy: set[str] = set()

    def __len__(self) -> int:
        return len(self._hot)

    def __contains__(self, tenant: object) -> bool:
        return tenant in self._hot

    @property
    def waiting(self) -> int:
        """How many wait for a place, or for their next try."""
        return len(self._waiting)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way, and nothing waits or has changed."""
        return not self._busy and not self._waiting and not any(hot.is_changed for hot in self._hot.values())

    def change(self, tenant: str) -> None:
        """Say that a tenant has changes that are not known to be in the replica."""
        hot = self._hot.get(tenant)
        if hot is not None:
            hot.is_changed = True
        else:
            self._waiting.setdefault(tenant, 0.0)

    def begin(self, now: float) -> Iterator[Step]:
        """Yield the steps that are due; each is under way from then on."""
        for tenant, hot in list(self._hot.items()):
            if tenant in self._busy:
                continue
            if hot.is_changed and hot.next_confirm <= now:
                hot.is_changed = False
                yield self._step(Verb.CONFIRM, tenant)
            elif not hot.is_changed and now - hot.active_at >= self.idle:
                yield self._step(Verb.RELEASE, tenant)
        ready = [tenant for tenant, at in self._waiting.items() if at <= now]
        free = max(0, self.capacity - len(self._hot))
        for tenant in ready[:free]:
            del self._waiting[tenant]
            self._hot[tenant] = _Hot(now)
            yield self._step(Verb.ADMIT, tenant)
        yield from self._make_room(min(PRESSURE, len(ready) - free))

    def _make_room(self, wanted: int) -> Iterator[Step]:
        if wanted <= 0:
            return
        resting = [(hot.active_at, tenant) for tenant, hot in self._hot.items() if tenant not in self._busy]
        for _active_at, tenant in sorted(resting)[:wanted]:
            yield self._step(Verb.RELEASE, tenant)

    def succeed(self, step: Step, now: float, *, has_news: bool) -> None:
        """Say that a step was done, and whether there was anything to send."""
        self._busy.discard(step.tenant)
        self._failures.pop(step.tenant, None)
        if step.verb == Verb.RELEASE:
            del self._hot[step.tenant]
            return
        hot = self._hot[step.tenant]
        hot.next_confirm = now + CONFIRM_SECONDS
        if has_news:  # Litestream's own marks are a change of the file too, and no reason to keep it
            hot.active_at = now

    def fail(self, step: Step, now: float) -> None:
        """Say that a step failed: the tenant is tried again, later each time, and has no place until then."""
        self._busy.discard(step.tenant)
        self._failures[step.tenant] = self._failures.get(step.tenant, 0) + 1
        later = now + RETRY.delay(self._failures[step.tenant] - 1)
        if step.verb == Verb.RELEASE:
            self._hot.pop(step.tenant, None)
            self._waiting[step.tenant] = later
        elif step.tenant in self._hot:
            hot = self._hot[step.tenant]
            hot.is_changed, hot.next_confirm = True, later

    def drop(self, step: Step, *, is_changed: bool) -> None:
        """Say that Litestream has a tenant no more; it is to be registered anew if it `is_changed`."""
        self._busy.discard(step.tenant)
        self._hot.pop(step.tenant, None)
        if is_changed:
            self._waiting.setdefault(step.tenant, 0.0)

    def clear(self) -> None:
        """Say that Litestream has ended: all that it had is to be registered anew."""
        for tenant in self._hot:
            self._waiting.setdefault(tenant, 0.0)
        self._hot.clear()
        self._busy.clear()

    def begin_to_end(self) -> Iterator[Step]:
        """Yield the steps that let all go that nothing is under way with."""
        for tenant in [tenant for tenant in self._hot if tenant not in self._busy]:
            yield self._step(Verb.RELEASE, tenant)

    def _step(self, verb: Verb, tenant: str) -> Step:
        self._busy.add(tenant)
        return Step(verb, tenant)
