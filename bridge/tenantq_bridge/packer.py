"""What the tenants in line send next: read from their files, compared with Postgres, bounded in rows and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenantq.arguments import check_limit
from tenantq.outbox import OutboxPage
from tenantq_bridge.known import KnownTenants
from tenantq_bridge.line import TenantLine
from tenantq_bridge.parcel import Parcel, pack
from tenantq_bridge.states import ForwardingState, ForwardingStates
from tenantq_bridge.troubles import Troubles

__all__ = ["Packer"]


class Packer:
    """Packs batches of up to so many events and bytes, each tenant's part bounded while others wait."""

    def __init__(
        self,
        known: KnownTenants,
        line: TenantLine,
        states: ForwardingStates,
        troubles: Troubles,
        *,
        done: Callable[[Parcel], None],
        batch_rows: int,
        batch_bytes: int,
        tenant_rows: int,
    ) -> None:
        self._known = known
        self._line = line
        self._states = states
        self._troubles = troubles
        self._done = done
        self._most_rows = self._rows = check_limit(batch_rows, "batch_rows")
        self._bytes = check_limit(batch_bytes, "batch_bytes")
        self._tenant_rows = check_limit(tenant_rows, "tenant_rows")

    def narrow(self) -> None:
        """Let the next batches be half as large: one took longer than Postgres lets a statement run."""
        self._rows = max(1, self._rows // 2)

    def widen(self) -> None:
        """Let the next batch be twice as large again, up to what it may be."""
        self._rows = min(self._most_rows, 2 * self._rows)

    def pack(self, tenants: Sequence[str]) -> list[Parcel]:
        """Read the tenants' next events, as many as a batch takes; what has none to send is done with."""
        pages = self._read(tenants)
        states = self._states_of(pages)
        is_restored = any(state.epoch > 1 for state in states.values())
        window_ns = self._states.window_ns() if is_restored else None
        parcels: list[Parcel] = []
        for tenant, page in pages.items():
            state = states[tenant]
            if state.quarantined_at is not None:
                continue
            with self._troubles.sparing_others(tenant, state, page.position):
                if tenant not in self._known:
                    self._known.remember(state)
                    if state.last_seq != page.position.forwarded_seq:
                        # After a kill, a failover, a restore: it was read behind another place.
                        self._line.put_back([tenant])
                        continue
                parcel = pack(state, page, window_ns=window_ns)
                if parcel.moves:
                    parcels.append(parcel)
                else:
                    self._done(parcel)
        return parcels

    def _read(self, tenants: Sequence[str]) -> dict[str, OutboxPage]:
        rows, size = self._rows, self._bytes
        share = max(self._tenant_rows, rows // max(1, len(tenants)))
        pages: dict[str, OutboxPage] = {}
        for number, tenant in enumerate(tenants):
            if rows <= 0 or size <= 0:
                self._line.put_back(tenants[number:])
                break
            with self._troubles.sparing_others(tenant):
                known = self._known.get(tenant)
                page = self._known.outbox(tenant).read_page(
                    known.state.last_seq if known else None,
                    limit=min(share, rows),
                    max_bytes=size,
                    # Its own mark is a change of the file too: what was left complete is not compared again.
                    unless=known.settled if known else None,
                )
                if page.position.file_id and not (known and page.position == known.settled):
                    pages[tenant] = page
                    rows -= len(page.events)
                    size -= page.size
        return pages

    def _states_of(self, pages: dict[str, OutboxPage]) -> dict[str, ForwardingState]:
        states = {tenant: self._known[tenant].state for tenant in pages if tenant in self._known}
        unknown = {tenant: page.position.file_id for tenant, page in pages.items() if tenant not in states}
        return states | self._states.load(unknown) if unknown else states
