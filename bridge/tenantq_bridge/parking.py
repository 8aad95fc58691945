"""Keeps an event that Postgres refuses in its tenant's file, and moves the tenant's state over it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tenantq_bridge.errors import PostgresRefused
from tenantq_bridge.known import KnownTenants
from tenantq_bridge.parcel import Parcel
from tenantq_bridge.shipment import Shipment, ship
from tenantq_bridge.target import Target

__all__ = ["Parking"]

logger = logging.getLogger("tenantq.bridge")


class Parking:
    """Takes refused events out of the way, one at a time.

    failpoint: called with "parked" when a file has kept an event and Postgres has not committed yet.
    """

    def __init__(
        self,
        target: Target,
        statements: dict[str, bytes],
        known: KnownTenants,
        failpoint: Callable[[str], None],
    ) -> None:
        self._target = target
        self._statements = statements
        self._known = known
        self._failpoint = failpoint
        self.parked = 0
        """Events that were kept in their tenants' files."""

    def park(self, piece: Parcel, error: PostgresRefused) -> Shipment | None:
        """Keep a piece's one event with what Postgres said of it; None, and nothing is done, where the tenant's
        state or file is another by now.

        A transaction in Postgres locks the state, finds it where it was believed to be, and moves it over the
        event; the file is written before it commits. So another forwarder has either delivered the event before,
        and then it is not kept, or passes over its place. Raises PostgresUnavailable: it may be kept or not.
        """
        tenant, event = piece.state.tenant, piece.events[0]

        def keep(moved: Sequence[str]) -> None:
            if tenant not in moved or not self._known.outbox(tenant).keep_undeliverable(event, error.message):
                raise _Undone
            self.parked += 1
            logger.error(
                "tenant %r: Postgres refuses event %d (%s, %s), which is kept in the tenant's file: %s",
                tenant,
                event.seq,
                event.topic,
                event.event_id,
                error.message,
            )
            self._failpoint("parked")

        try:
            return ship(self._target, self._statements, [piece.emptied()], before_commit=keep)
        except _Undone:
            return None

    def is_taken(self, parcel: Parcel) -> bool:
        """Tell whether Postgres takes a parcel, without leaving it there."""

        def undo(_moved: Sequence[str]) -> None:
            raise _Undone

        try:
            ship(self._target, self._statements, [parcel], before_commit=undo)
        except _Undone:
            return True
        except PostgresRefused:
            return False
        raise AssertionError("it was undone")


class _Undone(Exception):
    """Ends a transaction whose effect is not wanted."""
