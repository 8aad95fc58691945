"""What becomes of a tenant whose events Postgres refuses: all but the refused ones go through, in their order.

The parcel is halved until the event is alone. It is then kept in the tenant's file with what Postgres said, in
one transaction that empties its place in the outbox; from there on every forwarder passes over that place. So
nothing is lost or repeated by a kill anywhere in between: before that transaction the event is tried again, and
behind it there is nothing left to try. Meanwhile a transaction in Postgres holds the tenant's state, and moves
it over the event: another forwarder has either delivered it before, and then it is not kept, or finds it gone.

An outage, a missing partition, a lock are not an event's fault: only what is refused while a harmless event in
its place is taken is kept from Postgres.
"""

from __future__ import annotations

from collections.abc import Callable

from tenantq_bridge.errors import PostgresRefused
from tenantq_bridge.parcel import Parcel

__all__ = ["ship_without_refused"]

REFUSALS = 20
"""Events that one turn of a tenant takes out of the way: finding each takes some tries, and others wait."""


def ship_without_refused(
    parcel: Parcel,
    error: PostgresRefused,
    *,
    commit: Callable[[Parcel], bool],
    park: Callable[[Parcel, PostgresRefused], bool],
    is_taken: Callable[[Parcel], bool],
) -> None:
    """Commit a parcel that was refused, piece by piece, but for the events that are to blame.

    commit: False where the tenant's state is another by now; then, and after REFUSALS events, what is left
    waits for the tenant's next turn. park: keeps a parcel's one event, and moves the state over it; False where
    the state or the file is another by now. is_taken: whether Postgres would take the parcel. Raises
    PostgresRefused where nothing is taken, whatever it is.
    """
    pieces = [parcel]
    refused: PostgresRefused | None = error
    kept = 0
    while pieces:
        piece = pieces.pop()
        try:
            if refused is not None:
                raise refused
            if not commit(piece):
                return
        except PostgresRefused as exc:
            refused = None
            if len(piece.events) > 1:
                first, second = piece.split()
                pieces += [second, first]
                continue
            if not piece.events or (not kept and not is_taken(piece.probe())):
                raise
            kept += 1
            if not park(piece, exc) or kept == REFUSALS:
                return
