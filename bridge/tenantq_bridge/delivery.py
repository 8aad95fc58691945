"""A message of the shared layer: a delivery that also knows its place in the hot table."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from tenantq.clock import to_unix_ns
from tenantq.message import Message, MessageSource
from tenantq.router import declared_type

__all__ = ["SharedMessage", "message_of_row"]

T = TypeVar("T")

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class SharedMessage(Message[T]):
    """A message that Postgres keeps; claimed, peeked at, or dead."""

    __slots__ = ("rank", "seq")

    rank: int
    """The negated priority, as the hot table sorts by it."""
    seq: int
    """Its place in the hot table, which changes whenever the message comes back; the id never does."""


def message_of_row(source: MessageSource | None, row: tuple[Any, ...]) -> SharedMessage[Any]:
    """Build a message from the columns that every statement of messages.sql lists."""
    (
        message_id,
        queue,
        rank,
        seq,
        tenant,
        topic,
        event_id,
        key,
        attempts,
        max_attempts,
        enqueued_at,
        visible_at,
        leased_until,
        lease_token,
        headers,
        body,
        data,
        error,
    ) = row
    message: SharedMessage[Any] = SharedMessage(
        source,
        id=message_id,
        tenant=tenant,
        queue=queue,
        body=data if body is None else body,
        attempts=attempts,
        max_attempts=max_attempts,
        priority=-rank,
        key=key,
        headers=_decode_headers(headers) if headers else None,
        enqueued_ns=to_unix_ns(enqueued_at),
        visible_ns=to_unix_ns(visible_at),
        lease_expires_ns=_lease_end(leased_until),
        lease_token=lease_token,
        payload_type=declared_type(topic or queue),
        topic=topic,
        event_id=None if event_id is None else str(event_id),
        error=error,
    )
    message.rank = rank
    message.seq = seq
    return message


def _lease_end(leased_until: datetime | None) -> int | None:
    return None if leased_until is None else to_unix_ns(leased_until)
