"""How busy a tenant's file is: the share of recent time in which some process held its write turn.

A file has one writer at a time, so that this share is the utilisation of the one thing that is scarce, and what is
left of it is the headroom. Each process adds the time of its transactions, from BEGIN to COMMIT, to averages that
decay exponentially. They lie on the store's board, where all processes of the host add to the same ones and each
of them reads the whole, the command too. They are written under the file's own write lock, a few times a second.

A tenant whose slot is another busy tenant's (one pair in four thousand) takes it over, and begins anew.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import msgspec

from tenantq._board import new_slot

__all__ = ["Load", "LoadStats", "name_of"]

WINDOWS = (10.0, 60.0)
"""Seconds after which a second of work counts for 1/e of what it did."""

WRITE_INTERVAL = 0.1
"""Seconds between two additions to what the other processes see."""

MIN_SPAN = 1.0
"""Seconds that the averages are taken over at least: a first call is no full load."""

MOST = 1e12
"""No sum comes near it: what is higher, or no number, is none of ours."""

_OWNER, _UPDATED, _SINCE, _BUSY, _BUSY_MINUTE, _OPERATIONS = range(6)
_FIRST_WORD = 3


class LoadStats(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a file is. See `TenantStats` for the meaning of each."""

    utilisation: float = 0.0
    utilisation_minute: float = 0.0
    operations_per_second: float = 0.0
    capacity: float | None = None


class Load:
    """What one connection adds to a file's load, and what all together come to. For one thread at a time."""

    def __init__(self, slot: memoryview, name: float, monotonic: Callable[[], float]) -> None:
        self._cells = slot.cast("d")[_FIRST_WORD:]
        self._name = name
        self._monotonic = monotonic
        self._began = 0.0
        self._first = self._last = self._write_at = 0.0
        self._busy = 0.0
        self._operations = 0

    def begin(self) -> None:
        """Say that this connection has the write turn."""
        now = self._began = self._monotonic()
        if now >= self._write_at:
            self.write()
            self._first, self._write_at = now, now + WRITE_INTERVAL

    def end(self, operations: int) -> float:
        """Say that its transaction has ended, and how many calls it carried; return the time."""
        now = self._last = self._monotonic()
        self._busy += now - self._began
        self._operations += operations
        return now

    def write(self) -> None:
        """Let the other processes see what was added. Inside of a transaction, so that none does so meanwhile."""
        if not self._busy and not self._operations:
            return
        cells = self._cells
        sums = self._sums(self._last)
        cells[_UPDATED], cells[_SINCE], cells[_BUSY], cells[_BUSY_MINUTE], cells[_OPERATIONS] = sums
        cells[_OWNER] = self._name
        self._busy = 0.0
        self._operations = 0

    def leave(self) -> None:
        """Add the rest, and give the slot up."""
        self.write()
        self._cells = new_slot().cast("d")[_FIRST_WORD:]

    def read(self) -> LoadStats:
        """Return how busy the file is."""
        now, since, busy, busy_minute, operations = self._sums(self._monotonic())
        span = max(MIN_SPAN, now - since)
        weight, weight_minute = (_weight(span, window) for window in WINDOWS)
        return LoadStats(
            utilisation=min(1.0, busy / weight),
            utilisation_minute=min(1.0, busy_minute / weight_minute),
            operations_per_second=operations / weight,
            capacity=operations / busy if busy and operations else None,
        )

    def _sums(self, now: float) -> tuple[float, float, float, float, float]:
        """Return the time, since when the file is watched, and what counts of its work until then."""
        cells = self._cells
        updated, since = cells[_UPDATED], cells[_SINCE]
        kept = [cells[_BUSY], cells[_BUSY_MINUTE], cells[_OPERATIONS]]
        is_ours = cells[_OWNER] == self._name and 0 <= updated <= self._monotonic()
        if not is_ours or not all(0 <= value < MOST for value in kept):  # another tenant's, or another boot's
            updated, since, kept = now, self._first if self._last else now, [0.0, 0.0, 0.0]
        now = max(now, updated)
        ages = (now - updated, now - self._last)
        for index, (work, window) in enumerate(
            ((self._busy, WINDOWS[0]), (self._busy, WINDOWS[1]), (self._operations, WINDOWS[0]))
        ):
            kept[index] *= math.exp(-ages[0] / window)
            if work:
                span = self._last - self._first
                evenly = _weight(span, window) / span if span else 1.0
                kept[index] += work * evenly * math.exp(-ages[1] / window)
        return now, since, kept[0], kept[1], kept[2]


def name_of(tenant_id: str) -> float:
    """Return what tells a tenant from the others of its slot."""
    return float(1 + int.from_bytes(hashlib.sha256(tenant_id.encode()).digest()[2:8], "big"))


def _weight(span: float, window: float) -> float:
    """Return what a span of full load that ends now counts for."""
    return -window * math.expm1(-span / window)
