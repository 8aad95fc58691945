"""What one tenant sends in one batch: events behind what Postgres has, and from where to where they lead."""

from __future__ import annotations

import uuid

import msgspec
from msgspec import structs

from tenantq.clock import NANOSECONDS, to_unix_ns
from tenantq.errors import TenantqError
from tenantq.outbox import Event, OutboxPage, OutboxPosition
from tenantq_bridge.errors import TenantQuarantined
from tenantq_bridge.staging import NotARow, rows_of
from tenantq_bridge.states import ForwardingState, Verdict, judge

__all__ = ["OtherHistory", "Parcel", "pack"]

SKEW_NS = 3600 * NANOSECONDS
"""How far apart this host's clock (when an event was emitted) and the database's (when an epoch began, which
days are still known) may be."""

PROBE_TOPIC = "tenantq.probe"


class OtherHistory(TenantqError):
    """The tenant's file is not the one whose events Postgres has."""


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's share of a batch."""

    state: ForwardingState
    position: OutboxPosition
    events: list[Event]
    """To insert; fewer than were read where some are known to be in Postgres, or are undeliverable."""
    rows: bytes | None
    """The events as Postgres takes them; None where one of them cannot be written so."""
    last_seq: int
    """Where the state is when the batch has committed."""
    last_event_id: str | None
    is_deduped: bool
    """Whether Postgres may have some of the events, so that it must look each up."""
    oldest_ns: int | None
    """When the first event that the file keeps was emitted."""

    @property
    def moves(self) -> bool:
        """Whether there is something to commit."""
        return self.last_seq > self.state.last_seq

    @property
    def has_more(self) -> bool:
        """Whether events are left behind this parcel."""
        return self.position.last_seq > self.last_seq

    def arrived(self) -> ForwardingState:
        """Return the tenant's state as it is when this parcel has committed."""
        return structs.replace(self.state, last_seq=self.last_seq, last_event_id=self.last_event_id)

    def split(self) -> tuple[Parcel, Parcel]:
        """Return the first half of the events, and the second half as it is behind the first."""
        middle = len(self.events) // 2
        end = self.events[middle - 1]
        first = structs.replace(self._with(self.events[:middle]), last_seq=end.seq, last_event_id=end.event_id)
        return first, structs.replace(self._with(self.events[middle:]), state=first.arrived())

    def emptied(self) -> Parcel:
        """Return the parcel without its events: it moves the state over them."""
        return self._with([])

    def probe(self) -> Parcel:
        """Return the parcel with one harmless event in the place of its first."""
        harmless = Event(
            seq=self.events[0].seq,
            event_id=str(uuid.uuid4()),
            topic=PROBE_TOPIC,
            body="null",
            headers=None,
            priority=0,
            max_attempts=1,
            visible_ns=None,
            emitted_ns=to_unix_ns(self.state.epoch_at),
        )
        return self._with([harmless])

    def written(self) -> bytes:
        """Return the events as rows of the staging table. Raises NotARow."""
        return rows_of(self.state.tenant, self.events) if self.rows is None else self.rows

    def _with(self, events: list[Event]) -> Parcel:
        return structs.replace(self, events=events, rows=_rows(self.state.tenant, events))


def pack(state: ForwardingState, page: OutboxPage, *, window_ns: int | None) -> Parcel:
    """Check that a page of a tenant's events, read behind the state, continues what Postgres has.

    Raises OtherHistory for a new epoch, TenantQuarantined where nobody can tell what was forwarded.
    """
    position = page.position
    match judge(state, position, page.event_id_there):
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
    epoch_ns = to_unix_ns(state.epoch_at) + SKEW_NS if state.epoch > 1 else 0
    for event in page.events:
        if event.is_undeliverable:
            continue
        if event.emitted_ns < epoch_ns:
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
        elif event.is_resent:
            is_deduped = True
        events.append(event)
    last = page.events[-1] if page.events else None
    return Parcel(
        state=state,
        position=position,
        events=events,
        rows=_rows(state.tenant, events),
        last_seq=last.seq if last else state.last_seq,
        last_event_id=last.event_id if last else state.last_event_id,
        is_deduped=is_deduped,
        oldest_ns=page.oldest_ns,
    )


def _rows(tenant: str, events: list[Event]) -> bytes | None:
    try:
        return rows_of(tenant, events)
    except NotARow:
        return None
