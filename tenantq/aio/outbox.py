"""A tenant's outbox and inbox for coroutines: the core's, awaited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tenantq import inbox, outbox
from tenantq.aio._core import Core
from tenantq.aio._verbs import awaitable

__all__ = ["Inbox", "Outbox"]

T = TypeVar("T")


class _Run(Protocol):
    async def __call__(self, verb: Callable[[Core], T], *, merges: bool = False) -> T:
        """Run a verb of a tenant."""
        ...


class Outbox:
    """The outbox of one tenant, as a forwarder reads and marks it. See `tenantq.Outbox`."""

    def __init__(self, tenant_id: str, run: _Run) -> None:
        self.tenant_id = tenant_id
        self._run = run

    position = awaitable(outbox.Outbox.position)
    read = awaitable(outbox.Outbox.read)
    read_page = awaitable(outbox.Outbox.read_page)
    event_id_at = awaitable(outbox.Outbox.event_id_at)
    confirm = awaitable(outbox.Outbox.confirm, merges=True)
    mark_forwarded = awaitable(outbox.Outbox.mark_forwarded, merges=True)
    prune = awaitable(outbox.Outbox.prune)
    keep_undeliverable = awaitable(outbox.Outbox.keep_undeliverable, merges=True)
    undeliverable = awaitable(outbox.Outbox.undeliverable)
    redeliver = awaitable(outbox.Outbox.redeliver)
    discard = awaitable(outbox.Outbox.discard)

    async def _call(self, verb: Callable[[Any], T], *, merges: bool = False) -> T:
        return await self._run(lambda tenant: verb(tenant.outbox), merges=merges)


class Inbox:
    """The inbox of one tenant, as the shared layer's other direction fills it. See `tenantq.inbox.Inbox`."""

    def __init__(self, tenant_id: str, run: _Run) -> None:
        self.tenant_id = tenant_id
        self._run = run

    position = awaitable(inbox.Inbox.position)
    receive = awaitable(inbox.Inbox.receive, merges=True)

    async def _call(self, verb: Callable[[Any], T], *, merges: bool = False) -> T:
        return await self._run(lambda tenant: verb(tenant.inbox), merges=merges)
