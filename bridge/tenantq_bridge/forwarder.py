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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import msgspec
from msgspec import structs

from tenantq import Store, Waiting, Watch
from tenantq.arguments import check_limit, check_seconds
from tenantq.clock import nanoseconds
from tenantq.errors import FileReplaced, TenantqError, UnknownTenant
from tenantq.outbox import Event, Outbox, OutboxPage, OutboxPosition
from tenantq.service import Service
from tenantq_bridge.breaker import BreakerStatus, CircuitBreaker
from tenantq_bridge.errors import PostgresRefused, PostgresUnavailable, TenantQuarantined
from tenantq_bridge.line import TenantLine
from tenantq_bridge.parcel import OtherHistory, Parcel, pack
from tenantq_bridge.presence import Presence
from tenantq_bridge.refusals import ship_without_refused
from tenantq_bridge.shipment import Shipment, ship
from tenantq_bridge.states import ForwardingState, ForwardingStates
from tenantq_bridge.target import Target

__all__ = ["Forwarder"]

logger = logging.getLogger("tenantq.bridge")

DEFAULT_BATCH_ROWS = 5_000
DEFAULT_BATCH_BYTES = 8 * 1024 * 1024
DEFAULT_TENANT_ROWS = 500
"""A tenant's share of a batch: one with a million events takes turns with those that have one."""

BATCH_TENANTS = 100
"""Reading and marking a file costs more than its events in Postgres do: the first tenants of a long line should
not wait until the files of the last are read."""

IN_FLIGHT = 2
"""Batches on their way at once, of different tenants: while Postgres writes and syncs one, the next one is read
and sent.
"""

DEFAULT_KEEP = 86_400.0
"""Seconds that a file keeps forwarded events: what a failover of Postgres may lose can be sent again."""

PRUNE_SLACK = 1 / 24
"""The share of `keep` by which the oldest event is overdue before a file is pruned: many at once."""

SEEN_DAYS_INTERVAL = 3_600.0
HEARTBEAT = 10.0
"""Seconds of quiet before Postgres is asked for a sign of life: a failover while nothing is sent is noticed."""

KNOWN_TENANTS = 10_000
"""Of how many tenants it is remembered how far they have come; the others' states are read again."""

Failpoint = Callable[[str], None]


class Known(msgspec.Struct):
    """What this forwarder believes of a tenant. Wrong belief moves nothing: it is compared at every commit."""

    state: ForwardingState
    outbox: Outbox
    settled: OutboxPosition | None = None
    """The file as it was left, if its last event is known to be in Postgres."""


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
        self.undeliverable = 0
        """Events that Postgres refused, and that this forwarder has kept in their tenants' files."""
        self.quarantines = 0
        """Tenants that this forwarder has put into quarantine."""
        self._batch_rows = check_limit(batch_rows, "batch_rows")
        self._batch_bytes = check_limit(batch_bytes, "batch_bytes")
        self._tenant_rows = check_limit(tenant_rows, "tenant_rows")
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
        self._known: dict[str, Known] = {}
        self._senders: ThreadPoolExecutor | None = None
        self._flights: deque[tuple[list[Parcel], Future[Shipment]]] = deque()
        self._losses = 0
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
            self._give_up_flights()
            if isinstance(exc, PostgresUnavailable):
                self._breaker.fail(exc.message)
                self._say()
                self._known.clear()
            raise
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
        self._known.pop(tenant_id, None)
        self._line.add([tenant_id])
        return was_held

    # Who has something, and whether Postgres answers

    def _notice(self, timeout: float) -> None:
        if self._watch is None:
            self._watch = self.store.watch(only=Waiting.EVENTS)
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
        if self._breaker.succeed():
            logger.info("Postgres is back")
            self._say()
        if self._losses != self._database.losses:
            # It may have been a failover: what the files think is in Postgres is compared, tenant by tenant.
            self._losses = self._database.losses
            self._database.run(self._sql["open_seen_days"], repeatable=True)  # those that it had not got
            self._known.clear()
            self._line.add(self.store.tenants())

    def _say(self) -> None:
        if self._presence is not None:
            with contextlib.suppress(OSError):
                self._presence.say(self._breaker.status)

    # One batch

    def _forward_batch(self) -> int:
        """Send what there is, in a few batches at once where there is much, and finish the first of them."""
        while len(self._flights) < IN_FLIGHT:
            tenants = self._line.take(BATCH_TENANTS, but=self._in_flight())
            if not tenants:
                break
            try:
                parcels = self._pack(tenants)
                # By hand, a round is one batch and leaves nothing on its way.
                if parcels and not self._flights and not (self._is_running and self._line):
                    return self._ship(parcels)
            except BaseException:
                # Whatever was done is found done: a tenant too many in line costs a look.
                self._line.put_back(tenants)
                raise
            if parcels:
                self._send(parcels)
        return self._finish_flight() if self._flights else 0

    def _in_flight(self) -> set[str]:
        return {parcel.state.tenant for parcels, _future in self._flights for parcel in parcels}

    def _send(self, parcels: list[Parcel]) -> None:
        if self._senders is None:
            self._senders = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="tenantq-forwarder")
        self._flights.append((parcels, self._senders.submit(self._commit, parcels)))

    def _finish_flight(self) -> int:
        """Wait for the batch that was sent first; return how many events it committed."""
        parcels, future = self._flights[0]
        try:
            shipment = future.result()
        except PostgresRefused:
            self._flights.popleft()
            return self._ship(parcels)
        self._flights.popleft()
        self._settle(parcels, shipment)
        return shipment.forwarded

    def _land_flights(self) -> None:
        """Finish what is on its way, and end the threads; what fails is found by the next look."""
        with contextlib.suppress(TenantqError):
            while self._flights:
                self._finish_flight()
        self._give_up_flights()
        if self._senders is not None:
            self._senders.shutdown()
            self._senders = None

    def _give_up_flights(self) -> None:
        """Wait for what is on its way, and look again at its tenants: the states tell whether it arrived."""
        while self._flights:
            parcels, future = self._flights.popleft()
            wait([future])
            for parcel in parcels:
                self._known.pop(parcel.state.tenant, None)
            self._line.put_back([parcel.state.tenant for parcel in parcels])

    def _pack(self, tenants: Sequence[str]) -> list[Parcel]:
        """Read the tenants' next events, as many as a batch takes; what has none to send is done with."""
        pages = self._read(tenants)
        states = self._states_of(pages)
        is_restored = any(state.epoch > 1 for state in states.values())
        window_ns = self._states.window_ns() if is_restored else None
        parcels: list[Parcel] = []
        for tenant, page in pages.items():
            state = states[tenant]
            if state.quarantined_at is not None:
                continue
            with self._sparing_others(tenant, state, page.position):
                if tenant not in self._known:
                    self._remember(state)
                    if state.last_seq != page.position.forwarded_seq:
                        # After a kill, a failover, a restore: it was read behind another place.
                        self._line.put_back([tenant])
                        continue
                parcel = pack(state, page, window_ns=window_ns)
                if parcel.moves:
                    parcels.append(parcel)
                else:
                    self._mark(parcel)
        return parcels

    def _read(self, tenants: Sequence[str]) -> dict[str, OutboxPage]:
        rows, size = self._batch_rows, self._batch_bytes
        share = max(self._tenant_rows, rows // max(1, len(tenants)))
        pages: dict[str, OutboxPage] = {}
        for number, tenant in enumerate(tenants):
            if rows <= 0 or size <= 0:
                self._line.put_back(tenants[number:])
                break
            with self._sparing_others(tenant):
                known = self._known.get(tenant)
                page = self._outbox(tenant).read_page(
                    known.state.last_seq if known else None,
                    limit=min(share, rows),
                    max_bytes=size,
                    # Its own mark is a change of the file too: what was left complete is not compared again.
                    unless=known.settled if known else None,
                )
                if page.position.file_id and not (known and page.position == known.settled):
                    pages[tenant] = page
                    rows -= len(page.events)
                    size -= page.size
        return pages

    def _states_of(self, pages: dict[str, OutboxPage]) -> dict[str, ForwardingState]:
        states = {tenant: self._known[tenant].state for tenant in pages if tenant in self._known}
        unknown = {tenant: page.position.file_id for tenant, page in pages.items() if tenant not in states}
        return states | self._states.load(unknown) if unknown else states

    def _ship(self, parcels: Sequence[Parcel]) -> int:
        try:
            shipment = self._commit(parcels)
        except PostgresRefused as exc:
            if len(parcels) > 1:
                # One tenant's event is refused: halve until it is alone, so that the others go on.
                middle = len(parcels) // 2
                return self._ship(parcels[:middle]) + self._ship(parcels[middle:])
            before = self.forwarded
            with self._sparing_others(parcels[0].state.tenant):
                self._ship_without_refused(parcels[0], exc)
            return self.forwarded - before
        self._settle(parcels, shipment)
        return shipment.forwarded

    def _commit(self, parcels: Sequence[Parcel]) -> Shipment:
        return ship(self.queue, self._sql, parcels, before_commit=lambda: self._failpoint("staged"))

    def _settle(self, parcels: Sequence[Parcel], shipment: Shipment) -> None:
        """Tell everyone of a batch that is in Postgres: first who waits for it, then the tenants' files."""
        self._failpoint("committed")
        for queue in shipment.queues:
            self.queue.ring(queue)
        for parcel in parcels:
            tenant = parcel.state.tenant
            if tenant not in shipment.moved:
                self._known.pop(tenant, None)
                self._line.add([tenant])
                continue
            self._remember(parcel.arrived())
            with self._sparing_others(tenant):
                self._mark(parcel)
            if parcel.has_more:
                self._line.add([tenant])
        self.forwarded += shipment.forwarded
        self._failpoint("marked")

    def _mark(self, parcel: Parcel) -> None:
        """Tell a tenant's file how far it has come; never back, since what it knows to be forwarded was."""
        tenant, seq, known = parcel.state.tenant, parcel.last_seq, parcel.position.forwarded_seq
        outbox = self._outbox(tenant)
        if seq > known and parcel.last_event_id is not None and outbox.confirm(seq, parcel.last_event_id):
            known = seq
        if seq == known == parcel.position.last_seq:
            self._known[tenant].settled = structs.replace(
                parcel.position, forwarded_seq=seq, forwarded_event_id=parcel.last_event_id, pending=0
            )
        overdue_ns = self.store.clock.now_ns() - nanoseconds(self._keep * (1 + PRUNE_SLACK))
        if parcel.moves and seq == known and parcel.oldest_ns is not None and parcel.oldest_ns <= overdue_ns:
            outbox.prune(older_than=self._keep)

    # What can go wrong with one tenant

    @contextlib.contextmanager
    def _sparing_others(
        self, tenant: str, state: ForwardingState | None = None, position: OutboxPosition | None = None
    ) -> Iterator[None]:
        """Deal with what is one tenant's trouble; an outage of Postgres is everyone's and goes on."""
        try:
            yield
        except UnknownTenant:
            self._forget(tenant)
        except FileReplaced:
            self._known.pop(tenant, None)  # with the way to the file that was
            self._line.add([tenant])
        except OtherHistory:
            assert state is not None
            assert position is not None
            logger.warning("tenant %r has another history than Postgres: a new epoch", tenant)
            self._known.pop(tenant, None)
            self._states.begin_epoch(state, position.file_id)
            self._line.add([tenant])
        except TenantQuarantined as exc:
            assert state is not None
            self._known.pop(tenant, None)
            if self._states.quarantine(state, exc.message):
                self.quarantines += 1
                logger.error("quarantined: %s", exc)
        except PostgresUnavailable:
            raise
        except TenantqError as exc:
            self._known.pop(tenant, None)
            pause = self._line.leave(tenant, exc)
            logger.warning("tenant %r is left for %.0f s: %s", tenant, pause, exc)
        else:
            self._line.forget(tenant)

    def _ship_without_refused(self, parcel: Parcel, error: PostgresRefused) -> None:
        tenant = parcel.state.tenant

        def commit(piece: Parcel) -> bool:
            shipment = self._commit([piece])
            self._settle([piece], shipment)
            return tenant in shipment.moved

        def keep(event: Event, exc: PostgresRefused) -> bool:
            if not self._outbox(tenant).keep_undeliverable(event, exc.message):
                return False
            self.undeliverable += 1
            logger.error(
                "tenant %r: Postgres refuses event %d (%s, %s), which is kept in the tenant's file: %s",
                tenant,
                event.seq,
                event.topic,
                event.event_id,
                exc.message,
            )
            self._failpoint("parked")
            return True

        ship_without_refused(parcel, error, commit=commit, keep=keep, is_taken=self._is_taken)
        self._line.add([tenant])  # it may have more, or another file by now

    def _is_taken(self, parcel: Parcel) -> bool:
        """Tell whether Postgres takes a parcel, without leaving it there."""

        def undo() -> None:
            raise _Undone

        try:
            ship(self.queue, self._sql, [parcel], before_commit=undo)
        except _Undone:
            return True
        except PostgresRefused:
            self._next_days = 0.0  # today's partition may be missing: the clock has been set
        return False

    def _outbox(self, tenant: str) -> Outbox:
        known = self._known.get(tenant)
        return self.store.tenant(tenant, create=False).outbox if known is None else known.outbox

    def _remember(self, state: ForwardingState) -> None:
        outbox = self._outbox(state.tenant)
        self._known.pop(state.tenant, None)
        self._known[state.tenant] = Known(state, outbox)
        if len(self._known) > KNOWN_TENANTS:
            del self._known[next(iter(self._known))]

    def _forget(self, tenant: str) -> None:
        self._known.pop(tenant, None)
        self._line.forget(tenant)


class _Undone(Exception):
    """Ends a transaction that was only to be tried."""


def _pass(_step: str) -> None:
    """What a failpoint does when no test asks for more."""
