"""The periodic messages of a tenant and of a store for coroutines: the core's, awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from tenantq import periodic
from tenantq.aio._verbs import awaitable

__all__ = ["PeriodicMessages"]

T = TypeVar("T")


class _Run(Protocol):
    def __call__(self, verb: Callable[[Any], T]) -> Awaitable[T]:
        """Run a verb of the core's periodic messages."""
        ...


class PeriodicMessages:
    """The periodic messages of a tenant, or of a store for all of its tenants. See `tenantq.Tenant.periodic`."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    add = awaitable(periodic.PeriodicMessages.add)
    list = awaitable(periodic.PeriodicMessages.list)
    remove = awaitable(periodic.PeriodicMessages.remove)

    async def _call(self, verb: Callable[[Any], T], *, merges: bool = False) -> T:  # noqa: ARG002
        return await self._run(verb)
