"""What a forwarder believes of the tenants that it forwarded last."""

from __future__ import annotations

import msgspec

from tenantq import Store
from tenantq.outbox import Outbox, OutboxPosition
from tenantq_bridge.states import ForwardingState

__all__ = ["Known", "KnownTenants"]

KNOWN_TENANTS = 10_000
"""Of how many tenants it is remembered how far they have come; the others' states are read again."""


class Known(msgspec.Struct):
    """What this forwarder believes of a tenant. Wrong belief moves nothing: it is compared at every commit."""

    state: ForwardingState
    outbox: Outbox
    settled: OutboxPosition | None = None
    """The file as it was left, if its last event is known to be in Postgres."""


class KnownTenants:
    """The tenants of one store whose states need not be read: those that were remembered last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Known] = {}

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._known

    def __getitem__(self, tenant: str) -> Known:
        return self._known[tenant]

    def get(self, tenant: str) -> Known | None:
        """Return what is believed of a tenant; None where its state is to be read."""
        return self._known.get(tenant)

    def remember(self, state: ForwardingState) -> None:
        """Believe a state, and forget the tenant that was remembered longest ago where they are too many."""
        outbox = self.outbox(state.tenant)
        self._known.pop(state.tenant, None)
        self._known[state.tenant] = Known(state, outbox)
        if len(self._known) > KNOWN_TENANTS:
            del self._known[next(iter(self._known))]

    def forget(self, tenant: str) -> None:
        """Have a tenant's state read, and its file found, at its next turn."""
        self._known.pop(tenant, None)

    def clear(self) -> None:
        """Have every tenant's state read at its next turn."""
        self._known.clear()

    def outbox(self, tenant: str) -> Outbox:
        """Return a tenant's outbox. Raises UnknownTenant."""
        known = self._known.get(tenant)
        return self._store.tenant(tenant, create=False).outbox if known is None else known.outbox
