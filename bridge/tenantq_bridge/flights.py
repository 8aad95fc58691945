"""Batches on their way at once, of different tenants: while Postgres writes one, the next one is read and sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tenantq_bridge.errors import PostgresRefused
from tenantq_bridge.parcel import Parcel
from tenantq_bridge.shipment import Shipment

__all__ = ["Flights"]

IN_FLIGHT = 2


class Flights:
    """Up to IN_FLIGHT batches, each committed in a thread of its own; they land in the order they were sent."""

    def __init__(self, commit: Callable[[Sequence[Parcel]], Shipment]) -> None:
        self._commit = commit
        self._senders: ThreadPoolExecutor | None = None
        self._flights: deque[tuple[list[Parcel], Future[Shipment]]] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def has_room(self) -> bool:
        """Whether one more may be sent."""
        return len(self._flights) < IN_FLIGHT

    def tenants(self) -> set[str]:
        """Return the tenants that are on their way: no other batch may have events of theirs."""
        return {parcel.state.tenant for parcels, _future in self._flights for parcel in parcels}

    def send(self, parcels: list[Parcel]) -> None:
        """Begin to commit a batch."""
        if self._senders is None:
            self._senders = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="tenantq-forwarder")
        self._flights.append((parcels, self._senders.submit(self._commit, parcels)))

    def land(self) -> tuple[list[Parcel], Shipment | None]:
        """Wait for the batch that was sent first; without a shipment where Postgres refuses something of it.

        Raises PostgresError where it failed as a whole; it counts as on its way until all are given up.
        """
        parcels, future = self._flights[0]
        try:
            shipment: Shipment | None = future.result()
        except PostgresRefused:
            shipment = None
        self._flights.popleft()
        return parcels, shipment

    def give_up(self) -> list[str]:
        """Wait for all, however they end, and return their tenants: the states tell what has arrived."""
        tenants: list[str] = []
        while self._flights:
            parcels, future = self._flights.popleft()
            wait([future])
            tenants += [parcel.state.tenant for parcel in parcels]
        return tenants

    def close(self) -> None:
        """End the threads; nothing may be on its way."""
        if self._senders is not None:
            self._senders.shutdown()
            self._senders = None
