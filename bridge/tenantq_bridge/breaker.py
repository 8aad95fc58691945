"""One circuit breaker for a Postgres: while it is away, one question at a time asks for it, and nothing else."""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

__all__ = ["BreakerState", "BreakerStatus", "CircuitBreaker"]

PAUSE = 0.5
PAUSE_MAX = 30.0
"""Seconds from the end of one try to the next: doubled with each that fails, and then a random share of it."""

JITTER = 0.5
"""The share of a pause that is random, so that the forwarders of many hosts do not all come back at once."""


class BreakerState(StrEnum):
    """Whether Postgres is spoken to."""

    CLOSED = "closed"
    """It answers, and takes what it is given."""
    OPEN = "open"
    """It is away, or refuses whatever it is: nothing is tried before the pause is over."""
    HALF_OPEN = "half-open"
    """The pause is over: it is asked whether it is back."""


class BreakerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a breaker stands."""

    state: BreakerState = BreakerState.CLOSED
    since: datetime | None = None
    """Since when it is not closed; None while it is."""
    next_try_at: datetime | None = None
    """When Postgres is asked next; None while it is closed, and while it is asked."""
    failures: int = 0
    """The tries that have failed since it was closed."""
    error: str | None = None
    """What the last try said."""


class CircuitBreaker:
    """Counts one target's failures, and says when the next try may be. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_try = 0.0
        self._status = BreakerStatus()

    @property
    def status(self) -> BreakerStatus:
        """How it stands."""
        with self._lock:
            return self._status

    @property
    def is_closed(self) -> bool:
        """Whether the target answered when it was last asked."""
        return self.status.state is BreakerState.CLOSED

    def pause(self) -> float:
        """Return the seconds until the next try."""
        with self._lock:
            if self._status.state is BreakerState.CLOSED:
                return 0.0
            return max(0.0, self._next_try - time.monotonic())

    def probe(self) -> None:
        """Say that the target is asked now."""
        with self._lock:
            if self._status.state is BreakerState.OPEN:
                self._status = msgspec.structs.replace(
                    self._status, state=BreakerState.HALF_OPEN, next_try_at=None
                )

    def fail(self, error: str) -> None:
        """Say that the target did not answer: opens the breaker, for longer each time."""
        with self._lock:
            now, failures = datetime.now(UTC), self._status.failures + 1
            pause = min(PAUSE_MAX, PAUSE * 2 ** min(failures - 1, 10))
            pause *= 1 - JITTER * random.random()
            self._next_try = time.monotonic() + pause
            self._status = BreakerStatus(
                state=BreakerState.OPEN,
                since=self._status.since or now,
                next_try_at=now + timedelta(seconds=pause),
                failures=failures,
                error=error,
            )

    def succeed(self) -> bool:
        """Say that the target answered; True if that closed the breaker."""
        with self._lock:
            was_closed = self._status.state is BreakerState.CLOSED
            self._status = BreakerStatus()
            return not was_closed
