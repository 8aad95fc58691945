"""Whose turn it is: the tenants that have something, in the order in which it was noticed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable

from tenantq.errors import TenantqError

__all__ = ["TenantLine"]

PAUSE = 1.0
PAUSE_MAX = 60.0
"""Seconds that a tenant is left for after a failure of its own, doubled each time."""


class TenantLine:
    """Tenants that wait for their turn, and those that are left for later. Not for two threads."""

    def __init__(self) -> None:
        self.failures: dict[str, TenantqError] = {}
        """The last error of each tenant that is left for later."""
        self._line: deque[str] = deque()
        self._in_line: set[str] = set()
        self._retries: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._in_line)

    def add(self, tenants: Iterable[str]) -> None:
        """Put tenants at the end, once each."""
        for tenant in tenants:
            if tenant not in self._in_line:
                self._in_line.add(tenant)
                self._line.append(tenant)

    def add_due(self) -> None:
        """Put at the end the tenants that were left for later, and whose time has come."""
        if self._retries:
            now = time.monotonic()
            self.add([tenant for tenant, (when, _pause) in self._retries.items() if when <= now])

    def take(self, most: int, *, but: Collection[str] = ()) -> list[str]:
        """Remove and return the first ones. Those in `but` keep their place."""
        taken: list[str] = []
        passed: list[str] = []
        while self._line and len(taken) < most:
            tenant = self._line.popleft()
            (passed if tenant in but else taken).append(tenant)
        self._line.extendleft(reversed(passed))
        self._in_line.difference_update(taken)
        return taken

    def put_back(self, tenants: Iterable[str]) -> None:
        """To the front: they were first in line and got nothing."""
        back = [tenant for tenant in tenants if tenant not in self._in_line]
        self._in_line.update(back)
        self._line.extendleft(reversed(back))

    def leave(self, tenant: str, error: TenantqError) -> float:
        """Leave a tenant for later, each time for longer; return the seconds."""
        _when, pause = self._retries.get(tenant, (0.0, PAUSE / 2))
        pause = min(PAUSE_MAX, 2 * pause)
        self._retries[tenant] = (time.monotonic() + pause, pause)
        self.failures[tenant] = error
        return pause

    def is_left(self, tenant: str) -> bool:
        """Whether a tenant is left for later."""
        return tenant in self._retries

    def forget(self, tenant: str) -> None:
        """Forget a tenant's failures."""
        if self._retries.pop(tenant, None) is not None:
            del self.failures[tenant]
