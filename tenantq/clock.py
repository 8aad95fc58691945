"""Time, injected: the wall's for what people read, and two that do not jump for leases and deadlines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
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

    def boottime_ns(self) -> int:
        """Return nanoseconds that never jump, the same in all processes of a host until it boots anew."""
        ...

    def boot_id(self) -> str:
        """Return what names this boot of this host: boottime_ns of another one means nothing."""
        ...


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    def boottime_ns(self) -> int:
        """Return the time since the boot, suspended or not; where there is no such clock, the wall time."""
        return _boottime_ns()

    def boot_id(self) -> str:
        """Return the kernel's id of this boot; where it has none, the wall time is of every boot."""
        return _BOOT_ID


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


_BOOT_ID = _read_boot_id()

_boottime_ns: Callable[[], int] = time.time_ns
if _BOOT_ID and sys.platform == "linux":
    _boottime_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


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
