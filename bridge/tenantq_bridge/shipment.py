"""One batch of many tenants' events, committed in Postgres together with the states that it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tenantq.clock import to_datetime
from tenantq_bridge.parcel import Parcel
from tenantq_bridge.target import Target

__all__ = ["Shipment", "ship"]

_TYPES = (
    "text",
    "int8",
    "uuid",
    "text",
    "int2",
    "int4",
    "timestamptz",
    "timestamptz",
    "text",
    "text",
    "bytea",
)
"""Of the staging table's columns, as binary COPY needs them told."""


class Shipment(msgspec.Struct, frozen=True, kw_only=True):
    """What a committed batch did."""

    moved: frozenset[str]
    """The tenants whose events are in Postgres now. The others' states were not where they were believed to
    be: nothing of theirs was inserted.
    """
    forwarded: int
    """The events that Postgres had not got before."""
    queues: list[str]
    """The queues that may have got something."""


def ship(
    target: Target,
    statements: dict[str, bytes],
    parcels: Sequence[Parcel],
    *,
    before_commit: Callable[[], None],
) -> Shipment:
    """Insert the parcels' events and move their tenants' states, in one transaction.

    Durable on return. Raises PostgresUnavailable, after which the states tell whether it was committed.
    """
    parcels = sorted(parcels, key=lambda parcel: parcel.state.tenant)
    params: dict[str, Any] = {
        "tenants": [parcel.state.tenant for parcel in parcels],
        "file_ids": [parcel.state.file_id for parcel in parcels],
        "epochs": [parcel.state.epoch for parcel in parcels],
        "prev_seqs": [parcel.state.last_seq for parcel in parcels],
        "prev_event_ids": [parcel.state.last_event_id for parcel in parcels],
        "last_seqs": [parcel.last_seq for parcel in parcels],
        "last_event_ids": [parcel.last_event_id for parcel in parcels],
        "deduped": [parcel.state.tenant for parcel in parcels if parcel.is_deduped],
    }
    with target.database.transaction() as session:
        session.run(statements["create_staging"])
        session.copy(statements["copy_staging"], _TYPES, _rows(parcels))
        moved, forwarded, queues = target.forward(session, params)
        before_commit()
    return Shipment(moved=frozenset(moved), forwarded=forwarded, queues=queues)


def _rows(parcels: Sequence[Parcel]) -> Iterator[tuple[Any, ...]]:
    for parcel in parcels:
        for event, event_id in zip(parcel.events, parcel.event_ids, strict=True):
            is_text = isinstance(event.body, str)
            yield (
                parcel.state.tenant,
                event.seq,
                event_id,
                event.topic,
                -event.priority,
                event.max_attempts,
                None if event.visible_ns is None else to_datetime(event.visible_ns),
                to_datetime(event.emitted_ns),
                event.headers,
                event.body if is_text else None,
                None if is_text else event.body,
            )
