"""Takes the events in tenants' outboxes to Postgres: each once by effect, whatever is killed, and in order.

A batch is one transaction in Postgres: it inserts the events of many tenants and moves each tenant's state
from the place where this forwarder found it. Then, and only then, the tenants' files are marked. So:

- killed between the two: the state says what is there; the next round marks the file and goes on behind it;
- a second forwarder, a replay, an overlap: the state has moved, so the slower one inserts nothing and looks
  again; no lease between forwarders is needed for that;
- the reply to COMMIT lost: nothing is assumed; the next round reads the state;
- Postgres lost what it had acknowledged: its state is behind the file's mark; the events, which the file keeps
  for a day, are sent again;
- another file under the tenant's id, or an older one: see tenantq_bridge.parcel;
- an event that Postgres refuses: see tenantq_bridge.refusals.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from msgspec import structs

from tenantq import Store, Watch, Work
from tenantq.arguments import check_seconds
from tenantq.clock import NANOSECONDS, nanoseconds
from tenantq.errors import TenantqError
from tenantq.service import Service
from tenantq_bridge.activity import ForwarderActivity, Lags
from tenantq_bridge.breaker import BreakerStatus, CircuitBreaker
from tenantq_bridge.errors import PostgresError, PostgresRefused, PostgresTimeout, PostgresUnavailable
from tenantq_bridge.flights import Flights
from tenantq_bridge.known import KnownTenants
from tenantq_bridge.line import TenantLine
from tenantq_bridge.packer import Packer
from tenantq_bridge.parcel import Parcel
from tenantq_bridge.parking import Parking
from tenantq_bridge.presence import Presence
from tenantq_bridge.refusals import ship_without_refused
from tenantq_bridge.shipment import Shipment, ship
from tenantq_bridge.states import ForwardingState, ForwardingStates
from tenantq_bridge.target import Target
from tenantq_bridge.troubles import Troubles

__all__ = ["Forwarder"]

logger = logging.getLogger("tenantq.bridge")

DEFAULT_BATCH_ROWS = 5_000
DEFAULT_BATCH_BYTES = 8 * 1024 * 1024
DEFAULT_TENANT_ROWS = 500
"""A tenant's share of a batch: one with a million events takes turns with those that have one."""

BATCH_TENANTS = 100
"""Reading and marking a file costs more than its events in Postgres do: the first tenants of a long line should
not wait until the files of the last are read."""

DEFAULT_KEEP = 86_400.0
"""Seconds that a file keeps forwarded events: what a failover of Postgres may lose can be sent again."""

PRUNE_SLACK = 1 / 24
"""The share of `keep` by which the oldest event is overdue before a file is pruned: many at once."""

SEEN_DAYS_INTERVAL = 3_600.0
HEARTBEAT = 10.0
"""Seconds of quiet before Postgres is asked for a sign of life: a failover while nothing is sent is noticed."""

Failpoint = Callable[[str], None]


class Forwarder(Service):
    """Forwards the events of one store's tenants to one Postgres database.

    More than one may run on a store: one is enough, another is a spare. An event goes to every queue with a
    matching subscription at that moment; one that nobody has subscribed to is passed over, for good. One that
    Postgres refuses is kept in its tenant's file, and passed over: see `Outbox.undeliverable`.

    queue: a PostgresQueue, or a PgmqTarget for the queues of a pgmq.

    batch_rows, batch_bytes: what one transaction carries. tenant_rows: one tenant's part of it, where others
    wait for theirs.
    keep: seconds that files keep what was forwarded, and up to a 24th more.
    failpoint: called with "staged" (before the commit in Postgres), "committed", "parked" (a refused event is
    kept in its file) and "marked", for tests.
    """

    name = "forwarder"

    def __init__(
        self,
        store: Store,
        queue: Target,
        *,
        batch_rows: int = DEFAULT_BATCH_ROWS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        tenant_rows: int = DEFAULT_TENANT_ROWS,
        keep: float = DEFAULT_KEEP,
        interval: float = 0.25,
        failpoint: Failpoint | None = None,
    ) -> None:
        super().__init__(interval=interval)
        self.store = store
        self.queue = queue
        self.forwarded = 0
        """Events that this forwarder has committed."""
        self._keep = check_seconds(keep, "keep")
        self._failpoint = failpoint or _pass
        self._database = queue.database
        self._states = ForwardingStates(queue.database, queue.schema)
        self._sql = queue.database.statements("forwarding.sql")
        self._breaker = CircuitBreaker()
        self._presence: Presence | None = None
        self._watch: Watch | None = None
        self._is_running = False
        self._line = TenantLine()
        self._known = KnownTenants(store)
        self._troubles = Troubles(self._known, self._line, self._states)
        self._packer = Packer(
            self._known,
            self._line,
            self._states,
            self._troubles,
            done=self._mark,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
            tenant_rows=tenant_rows,
        )
        self._flights = Flights(self._commit)
        self._parking = Parking(queue, self._sql, self._known, self._failpoint)
        self._batches = 0
        self._lags = Lags()
        self._losses: int | None = None
        self._next_heartbeat = 0.0
        self._next_days = 0.0

    @property
    def breaker(self) -> BreakerStatus:
        """Whether Postgres answers, and when it is asked next if it does not."""
        return self._breaker.status

    @property
    def tenant_failures(self) -> dict[str, TenantqError]:
        """The last error of each tenant that could not be read or marked, until it can."""
        return self._line.failures

    @property
    def undeliverable(self) -> int:
        """Events that Postgres refused, and that this forwarder has kept in their tenants' files."""
        return self._parking.parked

    @property
    def quarantines(self) -> int:
        """Tenants that this forwarder has put into quarantine."""
        return self._troubles.quarantines

    def activity(self) -> ForwarderActivity:
        """Return what this forwarder has done, and how it stands; any thread may ask, and no file is opened."""
        lag_counts, lag_seconds = self._lags.read()
        return ForwarderActivity(
            forwarded=self.forwarded,
            batches=self._batches,
            undeliverable=self.undeliverable,
            quarantines=self.quarantines,
            failures=self.failures,
            waiting_tenants=len(self._line),
            failed_tenants=len(self.tenant_failures),
            lag_counts=lag_counts,
            lag_seconds=lag_seconds,
            breaker=self.breaker,
        )

    def run_once(self) -> int:
        """Forward one batch of what waits, and return how many events it committed; 0: nothing waits.

        Raises PostgresUnavailable, PostgresError; whatever was not committed waits as before. A tenant whose
        file fails is left for later and does not hold up the others: see `tenant_failures`.
        """
        self._notice(0)
        if not self._line and not self._is_running:
            # Called by hand: a ring may be a moment late, and 0 is to mean that nothing waits.
            self._line.add(tenant for tenant in self.store.tenants() if not self._line.is_left(tenant))
        try:
            self._keep_in_touch()
            count = 0
            while (self._line or self._flights) and not count:
                count = self._forward_batch()
        except BaseException as exc:
            self._give_up_flights(exc)
            if isinstance(exc, PostgresError):
                # Away, or it refuses all that is sent, as without rights: neither is asked for in a hot loop.
                self._breaker.fail(exc.message)
                self._say()
            if isinstance(exc, PostgresUnavailable):
                self._known.clear()
            raise
        self._answered()
        return count

    def run(self) -> None:
        """Forward what comes in this thread until `stop` is called from elsewhere; an outage is waited out."""
        self._is_running = True
        with contextlib.suppress(OSError):  # a full disk: to tell others of it is not what it is there for
            self._presence = Presence(self.store.root)
        self._say()
        try:
            super().run()
        finally:
            self._is_running = False
            self._land_flights()
            if self._presence is not None:
                self._presence.close()
                self._presence = None

    def pause(self) -> None:
        """Wait until a tenant has something; after an outage for longer each time, and not all at once."""
        if not self._breaker.is_closed:
            self.wait(self._breaker.pause())
        elif not self.is_stopping:
            self._notice(self.interval)

    def stop(self) -> None:
        """End the role and wait for its batch; may be called more than once."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.close()
        super().stop()
        self._watch = None
        self._losses = None
        self._known.clear()

    def states(self) -> list[ForwardingState]:
        """Return what Postgres knows of every tenant that was ever forwarded to it."""
        return self._states.all()

    def readmit(self, tenant_id: str, *, resend: bool) -> bool:
        """End a tenant's quarantine; False if it is in none.

        resend: whether the events that its file does not know to be forwarded are sent, which may repeat
        some that are too old to compare; otherwise they are passed over.
        """
        outbox = self.store.tenant(tenant_id, create=False).outbox
        position = outbox.position()
        last_event_id = outbox.event_id_at(position.last_seq)
        was_held = self._states.readmit(tenant_id, position, last_event_id, resend=resend)
        self._known.forget(tenant_id)
        self._line.add([tenant_id])
        return was_held

    # Who has something, and whether Postgres answers

    def _notice(self, timeout: float) -> None:
        if self._watch is None:
            self._watch = self.store.watch(only=Work.EVENTS)
        self._line.add(sorted(self._watch.wait(timeout)))
        self._line.add_due()

    def _keep_in_touch(self) -> None:
        """Ask Postgres for a sign of life where none was seen lately: before any tenant's file is touched."""
        self._breaker.probe()
        self.queue.schema.check()
        now = time.monotonic()
        if now >= self._next_days:
            self._database.run(self._sql["open_seen_days"], repeatable=True)
            self._next_days = now + SEEN_DAYS_INTERVAL
        elif now >= self._next_heartbeat or not self._breaker.is_closed:
            self._states.window_ns()
        self._next_heartbeat = now + HEARTBEAT
        if self._losses != self._database.losses:
            # It may have been a failover, or there was one while no forwarder ran: what the files think is in
            # Postgres is compared, tenant by tenant. The watch does not tell of a file in which nothing waits.
            self._losses = self._database.losses
            self._database.run(self._sql["open_seen_days"], repeatable=True)  # those that it had not got
            self._known.clear()
            self._line.add(self.store.tenants())

    def _answered(self) -> None:
        if self._breaker.succeed():
            logger.info("Postgres is back")
            self._say()

    def _say(self) -> None:
        if self._presence is not None:
            with contextlib.suppress(OSError):
                self._presence.say(self._breaker.status)

    # One batch

    def _forward_batch(self) -> int:
        """Send what there is, in a few batches at once where there is much, and finish the first of them."""
        while self._flights.has_room:
            tenants = self._line.take(BATCH_TENANTS, but=self._flights.tenants())
            if not tenants:
                break
            try:
                parcels = self._packer.pack(tenants)
                # By hand, a round is one batch and leaves nothing on its way.
                if parcels and not self._flights and not (self._is_running and self._line):
                    return self._ship(parcels)
            except BaseException as exc:
                self._queue_again(tenants, exc)
                raise
            if parcels:
                self._flights.send(parcels)
        return self._finish_flight() if self._flights else 0

    def _finish_flight(self) -> int:
        """Wait for the batch that was sent first; return how many events it committed."""
        parcels, shipment = self._flights.land()
        if shipment is None:
            return self._ship(parcels)
        self._settle(parcels, shipment)
        return shipment.forwarded

    def _land_flights(self) -> None:
        """Finish what is on its way, and end the threads; what fails is found by the next look."""
        with contextlib.suppress(TenantqError):
            while self._flights:
                self._finish_flight()
        self._give_up_flights()
        self._flights.close()

    def _give_up_flights(self, exc: BaseException | None = None) -> None:
        """Wait for what is on its way, and look again at its tenants: the states tell whether it arrived."""
        tenants = self._flights.give_up()
        for tenant in tenants:
            self._known.forget(tenant)
        self._queue_again(tenants, exc)

    def _queue_again(self, tenants: Sequence[str], exc: BaseException | None) -> None:
        """Have tenants looked at again. Whatever was done is found done: one too many in line costs a look."""
        if isinstance(exc, PostgresTimeout):
            # Perhaps it is the batch that is too large. Behind the others, as it may be one tenant's events.
            self._packer.narrow()
            self._line.add(tenants)
        else:
            self._line.put_back(tenants)

    def _ship(self, parcels: Sequence[Parcel]) -> int:
        try:
            shipment = self._commit(parcels)
        except PostgresRefused as exc:
            if len(parcels) > 1:
                # One tenant's event is refused: halve until it is alone, so that the others go on.
                middle = len(parcels) // 2
                return self._ship(parcels[:middle]) + self._ship(parcels[middle:])
            before = self.forwarded
            with self._troubles.sparing_others(parcels[0].state.tenant):
                self._ship_without_refused(parcels[0], exc)
            return self.forwarded - before
        self._settle(parcels, shipment)
        return shipment.forwarded

    def _commit(self, parcels: Sequence[Parcel]) -> Shipment:
        return ship(self.queue, self._sql, parcels, before_commit=lambda _moved: self._failpoint("staged"))

    def _settle(self, parcels: Sequence[Parcel], shipment: Shipment) -> None:
        """Tell everyone of a batch that is in Postgres: first who waits for it, then the tenants' files."""
        self._answered()
        self._packer.widen()
        self._batches += 1
        self._failpoint("committed")
        for queue in shipment.queues:
            self.queue.ring(queue)
        now_ns = self.store.clock.now_ns()
        for parcel in parcels:
            tenant = parcel.state.tenant
            if tenant not in shipment.moved:
                self._known.forget(tenant)
                self._line.add([tenant])
                continue
            if parcel.events:
                self._lags.add((now_ns - parcel.events[0].emitted_ns) / NANOSECONDS)
            self._known.remember(parcel.arrived())
            with self._troubles.sparing_others(tenant):
                self._mark(parcel)
            if parcel.has_more:
                self._line.add([tenant])
        self.forwarded += shipment.forwarded
        self._failpoint("marked")

    def _mark(self, parcel: Parcel) -> None:
        """Tell a tenant's file how far it has come; never back, since what it knows to be forwarded was."""
        tenant, seq, known = parcel.state.tenant, parcel.last_seq, parcel.position.forwarded_seq
        outbox = self._known.outbox(tenant)
        if seq > known and parcel.last_event_id is not None and outbox.confirm(seq, parcel.last_event_id):
            known = seq
        if seq == known == parcel.position.last_seq:
            self._known[tenant].settled = structs.replace(
                parcel.position, forwarded_seq=seq, forwarded_event_id=parcel.last_event_id, pending=0
            )
        overdue_ns = self.store.clock.now_ns() - nanoseconds(self._keep * (1 + PRUNE_SLACK))
        if parcel.moves and seq == known and parcel.oldest_ns is not None and parcel.oldest_ns <= overdue_ns:
            outbox.prune(older_than=self._keep)

    def _ship_without_refused(self, parcel: Parcel, error: PostgresRefused) -> None:
        tenant = parcel.state.tenant

        def commit(piece: Parcel) -> bool:
            shipment = self._commit([piece])
            self._settle([piece], shipment)
            return tenant in shipment.moved

        def park(piece: Parcel, exc: PostgresRefused) -> bool:
            shipment = self._parking.park(piece, exc)
            if shipment is None:
                return False
            self._settle([piece.emptied()], shipment)
            return True

        def is_taken(piece: Parcel) -> bool:
            taken = self._parking.is_taken(piece)
            if not taken:
                self._next_days = 0.0  # today's partition may be missing: the clock has been set
            return taken

        ship_without_refused(parcel, error, commit=commit, park=park, is_taken=is_taken)
        self._line.add([tenant])  # it may have more, or another file by now


def _pass(_step: str) -> None:
    """What a failpoint does when no test asks for more."""
