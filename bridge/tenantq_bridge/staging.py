"""Events as rows of the staging table, in the bytes of Postgres's binary COPY.

Written here and not by the driver: most of a row is the same for all events of a tenant, and the driver's way,
a value at a time, takes longer than all the rest of an event's way through this process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tenantq.outbox import Event

__all__ = ["HEADER", "TRAILER", "NotARow", "rows_of"]

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The signature, no flags, no extension."""

TRAILER = b"\xff\xff"

COLUMNS = 11

_LENGTH = struct.Struct("!i")
_SEQ = struct.Struct("!iqi")
_NUMBERS = struct.Struct("!ihii")
_TIME = struct.Struct("!iq")
_NULL = _LENGTH.pack(-1)

_EPOCH_US = 946_684_800_000_000
"""Postgres counts microseconds from the year 2000."""


class NotARow(Exception):
    """An event cannot be written as a row, so that Postgres cannot be asked."""


def rows_of(tenant: str, events: Iterable[Event]) -> bytes:
    """Return the rows of a tenant's events, in the order of the staging table's columns. Raises NotARow."""
    head = struct.pack("!h", COLUMNS) + _text(tenant)
    topics: dict[str, bytes] = {}
    parts: list[bytes] = []
    for event in events:
        topic = topics.get(event.topic)
        if topic is None:
            topic = topics[event.topic] = _text(event.topic)
        try:
            event_id = bytes.fromhex(event.event_id.replace("-", ""))
            if len(event_id) != 16:
                raise NotARow("its id is not a UUID")
            parts += (
                head,
                _SEQ.pack(8, event.seq, 16),
                event_id,
                topic,
                _NUMBERS.pack(2, -event.priority, 4, event.max_attempts),
                _NULL if event.visible_ns is None else _time(event.visible_ns),
                _time(event.emitted_ns),
                _NULL if event.headers is None else _text(event.headers),
            )
            if isinstance(event.body, str):
                parts += (_text(event.body), _NULL)
            else:
                parts += (_NULL, _LENGTH.pack(len(event.body)), event.body)
        except (ValueError, struct.error) as exc:
            raise NotARow(f"it has a value that Postgres does not keep: {exc}") from exc
    return b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _time(unix_ns: int) -> bytes:
    return _TIME.pack(8, unix_ns // 1000 - _EPOCH_US)
