"""Time, injected: `now_ns` for what is stored, `monotonic` for deadlines inside a process."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

NANOSECONDS = 1_000_000_000
"""In a second. The tenant file keeps Unix nanoseconds, as the documents' schema does."""


class Clock(Protocol):
    """What tenantq asks of a clock."""

    def now_ns(self) -> int:
        """Return the wall time in Unix nanoseconds; it may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)


def nanoseconds(seconds: float) -> int:
    """Convert seconds to whole nanoseconds."""
    return round(seconds * NANOSECONDS)


def to_datetime(unix_ns: int) -> datetime:
    """Convert Unix nanoseconds to an aware datetime in UTC, to the microsecond."""
    seconds, rest = divmod(unix_ns, NANOSECONDS)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)


def to_unix_ns(moment: datetime) -> int:
    """Convert an aware datetime to Unix nanoseconds."""
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1000
