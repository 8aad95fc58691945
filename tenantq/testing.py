"""What an application's tests need: time that only they move."""

from __future__ import annotations

from datetime import UTC, datetime

from tenantq.arguments import check_seconds
from tenantq.clock import NANOSECONDS, nanoseconds, to_unix_ns

__all__ = ["ManualClock"]


class ManualClock:
    """A clock that stands still until it is advanced. A call that waits does so in real time all the same.

    >>> clock = ManualClock()
    >>> before = clock.monotonic()
    >>> clock.advance(1.5)
    >>> clock.monotonic() - before
    1.5
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._wall_ns = to_unix_ns(start)
        self._monotonic_ns = 0

    def now_ns(self) -> int:
        """Return the wall time in Unix nanoseconds."""
        return self._wall_ns

    def monotonic(self) -> float:
        """Return the seconds it was advanced by."""
        return self._monotonic_ns / NANOSECONDS

    def advance(self, seconds: float) -> None:
        """Move both times forward."""
        step = nanoseconds(check_seconds(seconds, "seconds"))
        self._wall_ns += step
        self._monotonic_ns += step
