"""One batch of many tenants' events, committed in Postgres together with the states that it moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tenantq_bridge.errors import PostgresRefused
from tenantq_bridge.parcel import Parcel
from tenantq_bridge.staging import HEADER, TRAILER, NotARow
from tenantq_bridge.target import Target

__all__ = ["Shipment", "ship"]


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
    before_commit: Callable[[Sequence[str]], None],
) -> Shipment:
    """Insert the parcels' events and move their tenants' states, in one transaction.

    before_commit: called with the tenants whose states moved, which nobody else can move until it returns.
    Durable on return. Raises PostgresRefused, after which nothing was done; PostgresUnavailable, after which
    the states tell whether it was committed.
    """
    parcels = sorted(parcels, key=lambda parcel: parcel.state.tenant)
    data = _data(parcels)
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
        session.copy(statements["copy_staging"], data)
        moved, forwarded, queues = target.forward(session, params)
        before_commit(moved)
    return Shipment(moved=frozenset(moved), forwarded=forwarded, queues=queues)


def _data(parcels: Sequence[Parcel]) -> bytes:
    try:
        rows = [parcel.written() for parcel in parcels]
    except NotARow as exc:
        raise PostgresRefused(f"an event cannot be sent: {exc}") from exc
    return b"".join([HEADER, *rows, TRAILER])
