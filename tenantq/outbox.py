"""What the outbox of a tenant's file hands to a forwarder: events in the order of their commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tenantq import _undeliverable
from tenantq._file import STEP, TenantFile
from tenantq._operations import clean_text
from tenantq._sqlite import Row
from tenantq.arguments import check_limit, check_seconds
from tenantq.clock import Clock, nanoseconds

__all__ = ["Event", "Outbox", "OutboxPage", "OutboxPosition", "UndeliverableEvent"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the shared layer, as the tenant's file keeps it until Postgres has it."""

    seq: int
    """Its place in this file's outbox. One writer at a time: the order of seq is the order of commits."""
    event_id: str
    """A UUID that no other event has, in any file."""
    topic: str
    body: str | bytes
    """The payload: JSON text or bytes."""
    headers: str | None
    """A JSON object of strings, or None."""
    priority: int
    max_attempts: int
    visible_ns: int | None
    """Not claimable before (Unix nanoseconds); None: at once."""
    emitted_ns: int
    """When it was emitted (Unix nanoseconds)."""
    is_undeliverable: bool = False
    """Whether Postgres refused it: only its place is left here. See `Outbox.undeliverable`."""
    is_resent: bool = False
    """Whether it was undeliverable before, at another place: Postgres may have it after all."""


class UndeliverableEvent(Event, frozen=True, kw_only=True):
    """An event that Postgres refused."""

    refused_ns: int
    """When it was refused (Unix nanoseconds)."""
    error: str
    """What Postgres said."""


class OutboxPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far the events of one file have come."""

    file_id: str
    """A UUID made with the file: another file under the same tenant id has another one."""
    forwarded_seq: int
    """The last event that this file knows to be in Postgres; 0 before the first."""
    forwarded_event_id: str | None
    last_seq: int
    """The last event that was ever emitted in this file; 0 before the first."""
    pending: int
    """Events emitted and not known to be in Postgres."""
    undeliverable: int = 0
    """Events that Postgres refused."""


NO_FILE = OutboxPosition(file_id="", forwarded_seq=0, forwarded_event_id=None, last_seq=0, pending=0)
"""Of a tenant without a file."""


class OutboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events, and what the file says of itself at the same moment."""

    position: OutboxPosition = NO_FILE
    event_id_there: str | None = None
    """The id of the event at the place behind which was read; None where none is kept."""
    events: list[Event] = []
    size: int = 0
    """The bytes of the payloads."""
    oldest_ns: int | None = None
    """When the first event that is kept was emitted (Unix nanoseconds)."""


class Outbox:
    """The outbox of one tenant, as a forwarder reads and marks it.

    Forwarded events stay until they are pruned, so that a Postgres that lost acknowledged rows in a
    failover can be given them again.
    """

    def __init__(
        self,
        tenant_id: str,
        clock: Clock,
        *,
        read: Callable[..., Any],
        write: Callable[..., Any],
    ) -> None:
        self.tenant_id = tenant_id
        self._clock = clock
        self._read = read
        self._write = write

    def position(self) -> OutboxPosition:
        """Return how far the events have come; nothing of a tenant without a file."""
        position: OutboxPosition = self._read(_position_of, default=NO_FILE)
        return position

    def read(self, after: int, *, limit: int, max_bytes: int) -> list[Event]:
        """Return the events behind a place, in order: `limit` at most, and no more payload than `max_bytes`
        (bytes of UTF-8; one event is returned however large).
        """
        check_limit(limit)
        events, _size = _events_of(self._read(lambda file: file.read_events(after, limit), default=[]), max_bytes)
        return events

    def read_page(
        self,
        after: int | None,
        *,
        limit: int,
        max_bytes: int,
        unless: OutboxPosition | None = None,
    ) -> OutboxPage:
        """Return the events behind a place, and what the file says of itself, all at the same moment.

        after: None for behind what this file knows to be in Postgres. unless: return the position alone
        where it is this one.
        """
        check_limit(limit)

        def operation(file: TenantFile) -> tuple[OutboxPosition, str | None, list[Row], int | None]:
            position = _position_of(file)
            if position == unless:
                return position, None, [], None
            place = position.forwarded_seq if after is None else after
            there = file.event_id_at(place) if place else None
            return position, there, file.read_events(place, limit), file.oldest_event()

        position, there, rows, oldest_ns = self._read(operation, default=(NO_FILE, None, [], None))
        events, size = _events_of(rows, max_bytes)
        return OutboxPage(
            position=position,
            event_id_there=there,
            events=events,
            size=size,
            oldest_ns=oldest_ns,
        )

    def event_id_at(self, seq: int) -> str | None:
        """Return the id of the event at a place; None where none is kept."""
        event_id: str | None = self._read(lambda file: file.event_id_at(seq), default=None)
        return event_id

    def confirm(self, seq: int, event_id: str) -> bool:
        """Keep that the events up to this one are in Postgres; durable on return.

        False, and nothing is changed, where the file knows it already, or has no such event at this place.
        """
        confirmed: bool = self._write(
            lambda file: file.confirm_forwarded(seq, event_id), create=False, default=False
        )
        return confirmed

    def mark_forwarded(self, seq: int, event_id: str | None) -> None:
        """Keep that the events up to `seq` are in Postgres; durable on return. May go back, for a rewind."""
        self._write(lambda file: file.mark_forwarded(seq, event_id), create=False)

    def prune(self, *, older_than: float) -> int:
        """Remove forwarded events emitted more than `older_than` seconds ago; return how many.

        The last forwarded one stays: a forwarder knows the file by it.
        """
        before = self._clock.now_ns() - nanoseconds(check_seconds(older_than, "older_than"))
        total = 0
        while True:
            count: int = self._write(lambda file: file.prune_events(before), create=False, default=0)
            total += count
            if count < STEP:
                return total

    # What Postgres refused

    def keep_undeliverable(self, event: Event, error: str) -> bool:
        """Take an event that Postgres refused out of the way, and keep it with the error; durable on return.

        Its place and id stay behind in the outbox. False if the event is not there any more.
        """
        now, said = self._clock.now_ns(), clean_text(error) or ""
        kept: bool = self._write(
            lambda file: _undeliverable.keep_undeliverable(file, event.seq, event.event_id, now=now, error=said),
            create=False,
            default=False,
        )
        return kept

    def undeliverable(self, limit: int = 100) -> list[UndeliverableEvent]:
        """Return the events that Postgres refused, with its words, in their order."""
        check_limit(limit)
        rows = self._read(lambda file: _undeliverable.list_undeliverable(file, limit), default=[])
        return [
            UndeliverableEvent(**dict(zip(_FIELDS, row[:9], strict=True)), refused_ns=row[9], error=row[10])
            for row in rows
        ]

    def redeliver(self, *seqs: int) -> int:
        """Emit events that Postgres refused once more, those at the given places or all; return how many.

        Each keeps its event id: one that Postgres has after all is not repeated. They get new places, behind
        what was emitted since.
        """
        now = self._clock.now_ns()
        return self._settle(seqs, lambda file, rows: _undeliverable.resend(file, rows, now=now))

    def discard(self, *seqs: int) -> int:
        """Remove events that Postgres refused, those at the given places or all; return how many."""
        return self._settle(seqs, _undeliverable.discard)

    def _settle(self, seqs: Sequence[int], settle: Callable[[TenantFile, Sequence[Row]], int]) -> int:
        if seqs:
            chosen: int = self._write(
                lambda file: settle(file, _undeliverable.find_undeliverable(file, seqs)), create=False, default=0
            )
            return chosen

        through = self.position().last_seq  # not those that are refused again meanwhile

        def step(file: TenantFile) -> int:
            return settle(file, _undeliverable.list_undeliverable(file, STEP, through=through))

        total = 0
        while True:
            count: int = self._write(step, create=False, default=0)
            total += count
            if count < STEP:
                return total


_FIELDS = (
    "seq",
    "event_id",
    "topic",
    "body",
    "headers",
    "priority",
    "max_attempts",
    "visible_ns",
    "emitted_ns",
)
"""Of an event, in the order of the statements' columns."""


def _position_of(file: TenantFile) -> OutboxPosition:
    seq, event_id, last_seq, pending, undeliverable = file.outbox_position()
    return OutboxPosition(
        file_id=file.file_id,
        forwarded_seq=seq,
        forwarded_event_id=event_id,
        last_seq=last_seq,
        pending=pending,
        undeliverable=undeliverable,
    )


def _events_of(rows: Sequence[Row], max_bytes: int) -> tuple[list[Event], int]:
    """Return events, and the bytes of their payloads: no more than `max_bytes`, but for the first."""
    events: list[Event] = []
    total = 0
    for row in rows:
        (
            seq,
            event_id,
            topic,
            body,
            headers,
            priority,
            max_attempts,
            visible_ns,
            emitted_ns,
            is_undeliverable,
            is_resent,
        ) = row
        size = len(body) if isinstance(body, bytes) else len(body.encode())
        if events and total + size > max_bytes:
            break
        total += size
        events.append(
            Event(
                seq=seq,
                event_id=event_id,
                topic=topic,
                body=body,
                headers=headers,
                priority=priority,
                max_attempts=max_attempts,
                visible_ns=visible_ns,
                emitted_ns=emitted_ns,
                is_undeliverable=bool(is_undeliverable),
                is_resent=bool(is_resent),
            ),
        )
    return events, total
