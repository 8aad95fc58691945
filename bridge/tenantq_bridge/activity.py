"""What a forwarder has done since it was made and how far behind it is, for metrics."""

from __future__ import annotations

import bisect
import threading

import msgspec

from tenantq_bridge.breaker import BreakerStatus

__all__ = ["LAG_BOUNDS", "ForwarderActivity", "Lags"]

LAG_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3_600.0)
"""Seconds: the upper bounds by which lags are counted."""


class ForwarderActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of one forwarder, and how it stands."""

    forwarded: int
    """Events that it has committed in Postgres."""
    batches: int
    """The transactions that carried them."""
    undeliverable: int
    """Events that Postgres refused, and that it has kept in their tenants' files."""
    quarantines: int
    """Tenants that it has put into quarantine."""
    failures: int
    """Rounds that ended with an error."""
    waiting_tenants: int
    """Tenants that stand in line: they have something, or are to be looked at."""
    failed_tenants: int
    """Tenants whose files failed, and that are tried again after a pause."""
    lag_counts: tuple[int, ...]
    """Parts of batches by how long their first event had waited in its tenant's file when they were committed: one
    count for each of LAG_BOUNDS, and the last for what took longer.
    """
    lag_seconds: float
    """All of these lags together."""
    breaker: BreakerStatus
    """Whether Postgres answers, and takes what it is given."""


class Lags:
    """Counts how long events waited. Threads may read it while one adds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(LAG_BOUNDS) + 1)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one lag; a clock that was set back makes none negative."""
        seconds = max(0.0, seconds)
        with self._lock:
            self._counts[bisect.bisect_left(LAG_BOUNDS, seconds)] += 1
            self._seconds += seconds

    def read(self) -> tuple[tuple[int, ...], float]:
        """Return the counts and the sum."""
        with self._lock:
            return tuple(self._counts), self._seconds
