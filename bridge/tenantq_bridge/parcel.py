"""What one tenant sends in one batch: events behind what Postgres has, and from where to where they lead."""

from __future__ import annotations

from uuid import UUID

import msgspec

from tenantq.clock import NANOSECONDS, to_unix_ns
from tenantq.errors import CorruptFile, TenantqError
from tenantq.outbox import Event, Outbox, OutboxPosition
from tenantq_bridge.errors import TenantQuarantined
from tenantq_bridge.states import ForwardingState, Verdict, judge

__all__ = ["OtherHistory", "Parcel", "pack"]

SKEW_NS = 3600 * NANOSECONDS
"""How far apart this host's clock (when an event was emitted) and the database's (when an epoch began, which
days are still known) may be."""


class OtherHistory(TenantqError):
    """The tenant's file is not the one whose events Postgres has."""


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's share of a batch."""

    state: ForwardingState
    position: OutboxPosition
    events: list[Event]
    event_ids: list[UUID]
    """To insert; fewer than were read where some are known to be in Postgres."""
    last_seq: int
    """Where the state is when the batch has committed."""
    last_event_id: str | None
    is_deduped: bool
    """Whether events are from before the epoch, so that Postgres must look each up."""
    size: int

    @property
    def moves(self) -> bool:
        """Whether there is something to commit."""
        return self.last_seq > self.state.last_seq

    @property
    def has_more(self) -> bool:
        """Whether events are left behind this parcel."""
        return self.position.last_seq > self.last_seq


def pack(
    outbox: Outbox,
    state: ForwardingState,
    position: OutboxPosition,
    *,
    limit: int,
    max_bytes: int,
    window_ns: int | None,
) -> Parcel:
    """Read a tenant's next events and check that they continue what Postgres has.

    Raises OtherHistory for a new epoch, TenantQuarantined where nobody can tell what was forwarded.
    """
    read = outbox.read(state.last_seq, limit=limit, max_bytes=max_bytes)
    # After the read: a file that is replaced before it is noticed here, one replaced later was read before.
    there = outbox.event_id_at(state.last_seq) if state.last_seq else None
    match judge(state, position, there):
        case Verdict.OTHER_HISTORY:
            raise OtherHistory(tenant=state.tenant)
        case Verdict.UNKNOWN:
            raise TenantQuarantined(
                f"Postgres has tenant {state.tenant!r} up to event {state.last_seq}, "
                "which its file no longer keeps",
                tenant=state.tenant,
            )
        case Verdict.CONTINUE:
            pass
    events: list[Event] = []
    is_deduped = False
    epoch_ns = to_unix_ns(state.epoch_at) + SKEW_NS
    for event in read:
        if state.epoch > 1 and event.emitted_ns < epoch_ns:
            if window_ns is not None and event.emitted_ns < window_ns + SKEW_NS:
                if event.seq <= position.forwarded_seq:
                    continue  # too old to compare, but the file itself knows that Postgres has it
                if event.seq > state.accepted_through:
                    raise TenantQuarantined(
                        f"tenant {state.tenant!r} was restored, and its event {event.seq} is older than what "
                        "Postgres still knows of forwarded events",
                        tenant=state.tenant,
                    )
            is_deduped = True
        events.append(event)
    return Parcel(
        state=state,
        position=position,
        events=events,
        event_ids=_uuids(events, state.tenant),
        last_seq=read[-1].seq if read else state.last_seq,
        last_event_id=read[-1].event_id if read else state.last_event_id,
        is_deduped=is_deduped,
        size=sum(len(event.body) for event in read),
    )


def _uuids(events: list[Event], tenant: str) -> list[UUID]:
    try:
        return [UUID(event.event_id) for event in events]
    except ValueError as exc:
        raise CorruptFile(f"tenant {tenant!r} has an event whose id is not a UUID", tenant=tenant) from exc
