"""The tenants that cannot be served: since when, why, and when each is tried again."""

from __future__ import annotations

import threading
from datetime import datetime

import msgspec

from tenantq.clock import Clock, to_datetime

__all__ = ["FailingTenant", "FailingTenants"]

FIRST_PAUSE = 1.0
"""Seconds until a tenant that failed is tried again; twice as long after each further failure."""

LONGEST_PAUSE = 60.0

MOST_KEPT = 10_000
"""Tenants that are remembered; what fails beside so many is tried again after the longest pause."""


class FailingTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that this process could not serve when it last tried."""

    tenant: str
    error: str
    """The type of the last error: "CorruptFile"."""
    message: str
    since: datetime
    """When it failed first, of the times in a row."""
    failures: int
    """How often in a row."""
    retry_in: float
    """Seconds until a worker tries it again; 0 when it is about to."""


class _Failure(msgspec.Struct):
    error: str
    message: str
    since_ns: int
    failures: int
    retry_at: float
    pause: float


class FailingTenants:
    """The failing tenants of one store in this process. Threads may share it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[str, _Failure] = {}

    def note(self, tenant_id: str, error: BaseException) -> float:
        """Remember that a tenant failed; return the seconds after which to try it again.

        What fails before they are over, because somebody else tries too, does not make them longer.
        """
        name, message = type(error).__name__, str(error)
        now = self._clock.monotonic()
        with self._lock:
            known = self._failures.get(tenant_id)
            if known is not None:
                known.error, known.message = name, message
                if now >= known.retry_at:
                    known.failures += 1
                    known.pause = min(LONGEST_PAUSE, 2 * known.pause)
                    known.retry_at = now + known.pause
                return known.retry_at - now
            if len(self._failures) >= MOST_KEPT:
                return LONGEST_PAUSE
            self._failures[tenant_id] = _Failure(
                name, message, self._clock.now_ns(), 1, now + FIRST_PAUSE, FIRST_PAUSE
            )
            return FIRST_PAUSE

    def clear(self, tenant_id: str) -> None:
        """Forget a tenant: it works, or it is gone. Costs nothing where none fails."""
        if self._failures:
            with self._lock:
                self._failures.pop(tenant_id, None)

    def __len__(self) -> int:
        return len(self._failures)

    def listed(self) -> list[FailingTenant]:
        """Return them, the one that has failed for longest first."""
        now = self._clock.monotonic()
        with self._lock:
            return [
                FailingTenant(
                    tenant=tenant_id,
                    error=failure.error,
                    message=failure.message,
                    since=to_datetime(failure.since_ns),
                    failures=failure.failures,
                    retry_in=max(0.0, failure.retry_at - now),
                )
                for tenant_id, failure in self._failures.items()
            ]
