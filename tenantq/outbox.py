"""What the outbox of a tenant's file hands to a forwarder: events in the order of their commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tenantq._file import STEP, TenantFile
from tenantq.arguments import check_limit, check_seconds
from tenantq.clock import Clock, nanoseconds

__all__ = ["Event", "Outbox", "OutboxPosition"]


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

        def operation(file: TenantFile) -> OutboxPosition:
            seq, event_id, last_seq, pending = file.outbox_position()
            return OutboxPosition(
                file_id=file.file_id,
                forwarded_seq=seq,
                forwarded_event_id=event_id,
                last_seq=last_seq,
                pending=pending,
            )

        nothing = OutboxPosition(file_id="", forwarded_seq=0, forwarded_event_id=None, last_seq=0, pending=0)
        position: OutboxPosition = self._read(operation, default=nothing)
        return position

    def read(self, after: int, *, limit: int, max_bytes: int) -> list[Event]:
        """Return the events behind a place, in order: `limit` at most, and no more payload than `max_bytes`
        (bytes of UTF-8; one event is returned however large).
        """
        check_limit(limit)
        events: list[Event] = []
        size = 0
        for seq, event_id, topic, body, headers, priority, max_attempts, visible_at, emitted_at in self._read(
            lambda file: file.read_events(after, limit),
            default=[],
        ):
            size += len(body) if isinstance(body, bytes) else len(body.encode())
            if events and size > max_bytes:
                break
            events.append(
                Event(
                    seq=seq,
                    event_id=event_id,
                    topic=topic,
                    body=body,
                    headers=headers,
                    priority=priority,
                    max_attempts=max_attempts,
                    visible_ns=visible_at,
                    emitted_ns=emitted_at,
                ),
            )
        return events

    def event_id_at(self, seq: int) -> str | None:
        """Return the id of the event at a place; None where none is kept."""
        event_id: str | None = self._read(lambda file: file.event_id_at(seq), default=None)
        return event_id

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
