"""What the outbox of a tenant's file hands to a forwarder: events in the order of their commits."""

from __future__ import annotations

import msgspec

__all__ = ["Event", "OutboxPosition"]


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
