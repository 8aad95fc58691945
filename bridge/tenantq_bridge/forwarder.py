"""Takes the events in tenants' outboxes to Postgres: each once by effect, whatever is killed, and in order.

A batch is one transaction in Postgres: it inserts the events of many tenants and moves each tenant's state
from the place where this forwarder found it. Then, and only then, the tenants' files are marked. So:

- killed between the two: the state says what is there; the next round marks the file and goes on behind it;
- a second forwarder, a replay, an overlap: the state has moved, so the slower one inserts nothing and looks
  again; no lease between forwarders is needed for that;
- the reply to COMMIT lost: nothing is assumed; the next round reads the state;
- Postgres lost what it had acknowledged: its state is behind the file's mark; the events, which the file keeps
  for a day, are sent again;
- another file under the tenant's id, or an older one: see tenantq_bridge.parcel.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import structs

from tenantq import Store, Watch
from tenantq.arguments import check_limit, check_seconds
from tenantq.errors import TenantqError, UnknownTenant
from tenantq.outbox import Outbox, OutboxPosition
from tenantq.service import Service
from tenantq_bridge.errors import PostgresRefused, PostgresUnavailable, TenantQuarantined
from tenantq_bridge.parcel import OtherHistory, Parcel, pack
from tenantq_bridge.queue import PostgresQueue
from tenantq_bridge.shipment import ship
from tenantq_bridge.states import ForwardingState, ForwardingStates

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

PRUNE_INTERVAL = 3_600.0
SEEN_DAYS_INTERVAL = 3_600.0
HEARTBEAT = 10.0
"""Seconds of quiet before Postgres is asked for a sign of life: a failover while nothing is sent is noticed."""

OUTAGE_PAUSE = 0.25
OUTAGE_PAUSE_MAX = 30.0
TENANT_PAUSE = 1.0
TENANT_PAUSE_MAX = 60.0

Failpoint = Callable[[str], None]


class Forwarder(Service):
    """Forwards the events of one store's tenants to one Postgres database.

    More than one may run on a store: one is enough, another is a spare. An event goes to every queue with a
    matching subscription at that moment; one that nobody has subscribed to is passed over, for good.

    batch_rows, batch_bytes, tenant_rows: what one transaction carries, and one tenant's part of it.
    keep: seconds that files keep what was forwarded.
    failpoint: called with "staged" (before the commit in Postgres), "committed" and "marked", for tests.
    """

    name = "forwarder"

    def __init__(
        self,
        store: Store,
        queue: PostgresQueue,
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
        self.quarantines = 0
        """Tenants that this forwarder has put into quarantine."""
        self.tenant_failures: dict[str, TenantqError] = {}
        """The last error of each tenant that could not be read or marked, until it can."""
        self._batch_rows = check_limit(batch_rows, "batch_rows")
        self._batch_bytes = check_limit(batch_bytes, "batch_bytes")
        self._tenant_rows = check_limit(tenant_rows, "tenant_rows")
        self._keep = check_seconds(keep, "keep")
        self._failpoint = failpoint or _pass
        self._database = queue.database
        self._states = ForwardingStates(queue.database, queue.schema)
        self._sql = queue.database.statements("forwarding.sql")
        self._watch: Watch | None = None
        self._is_running = False
        self._line: deque[str] = deque()
        self._in_line: set[str] = set()
        self._retries: dict[str, tuple[float, float]] = {}
        self._pruned: dict[str, float] = {}
        self._settled: dict[str, OutboxPosition] = {}
        """The files whose last event is known to be in Postgres, as this forwarder left them."""
        self._losses = 0
        self._outages = 0
        self._next_heartbeat = 0.0
        self._next_days = 0.0

    def run_once(self) -> int:
        """Forward one batch of what waits, and return how many events it committed; 0: nothing waits.

        Raises PostgresUnavailable, PostgresError; whatever was not committed waits as before. A tenant whose
        file fails is left for later and does not hold up the others: see `tenant_failures`.
        """
        self._notice(0)
        if not self._line and not self._is_running:
            # Called by hand: a ring may be a moment late, and 0 is to mean that nothing waits.
            self._queue_up(tenant for tenant in self.store.tenants() if tenant not in self._retries)
        try:
            self._keep_in_touch()
            count = 0
            while self._line and not count:
                count = self._forward_batch()
        except PostgresUnavailable:
            self._outages += 1
            raise
        self._outages = 0
        return count

    def run(self) -> None:
        """Forward what comes in this thread until `stop` is called from elsewhere; an outage is waited out."""
        self._is_running = True
        try:
            super().run()
        finally:
            self._is_running = False

    def pause(self) -> None:
        """Wait until a tenant has something; after an outage for longer each time, and not all at once."""
        if self._outages:
            most = min(OUTAGE_PAUSE_MAX, OUTAGE_PAUSE * 2 ** min(self._outages, 10))
            self.wait(most * (0.5 + 0.5 * random.random()))
        elif not self.is_stopping:
            self._notice(self.interval)

    def stop(self) -> None:
        """End the role and wait for its batch; may be called more than once."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.close()
        super().stop()
        self._watch = None
        self._settled.clear()

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
        self._queue_up([tenant_id])
        return was_held

    # Who has something

    def _notice(self, timeout: float) -> None:
        if self._watch is None:
            self._watch = self.store.watch()
        self._queue_up(sorted(self._watch.wait(timeout)))
        now = time.monotonic()
        due = [tenant for tenant, (when, _pause) in self._retries.items() if when <= now]
        self._queue_up(due)

    def _queue_up(self, tenants: Iterable[str]) -> None:
        for tenant in tenants:
            if tenant not in self._in_line:
                self._in_line.add(tenant)
                self._line.append(tenant)

    def _take(self) -> list[str]:
        taken = [self._line.popleft() for _ in range(min(len(self._line), BATCH_TENANTS))]
        self._in_line.difference_update(taken)
        return taken

    def _put_back(self, tenants: Sequence[str]) -> None:
        """To the front: they were first in line and got nothing."""
        back = [tenant for tenant in tenants if tenant not in self._in_line]
        self._in_line.update(back)
        self._line.extendleft(reversed(back))

    def _keep_in_touch(self) -> None:
        self.queue.schema.check()
        now = time.monotonic()
        if now >= self._next_days:
            self._database.run(self._sql["open_seen_days"], repeatable=True)
            self._next_days = now + SEEN_DAYS_INTERVAL
        elif now >= self._next_heartbeat:
            self._states.window_ns()
        self._next_heartbeat = now + HEARTBEAT
        if self._losses != self._database.losses:
            # It may have been a failover: what the files think is in Postgres is compared, tenant by tenant.
            self._losses = self._database.losses
            self._database.run(self._sql["open_seen_days"], repeatable=True)  # those that it had not got
            self._settled.clear()
            self._queue_up(self.store.tenants())

    # One batch

    def _forward_batch(self) -> int:
        tenants = self._take()
        try:
            parcels = self._pack(tenants)
            return self._ship(parcels)
        except BaseException:
            self._put_back(tenants)  # whatever was done is found done: a tenant too many in line costs a look
            raise

    def _pack(self, tenants: Sequence[str]) -> list[Parcel]:
        found: dict[str, tuple[Outbox, OutboxPosition]] = {}
        for tenant in tenants:
            with self._sparing_others(tenant):
                outbox = self.store.tenant(tenant, create=False).outbox
                position = outbox.position()
                # Its own mark is a change of the file too: what was left complete need not be compared again.
                if position.file_id and position != self._settled.get(tenant):
                    found[tenant] = outbox, position
        if not found:
            return []
        states = self._states.load({tenant: position.file_id for tenant, (_, position) in found.items()})
        window_ns = self._states.window_ns()
        rows, size = self._batch_rows, self._batch_bytes
        parcels: list[Parcel] = []
        left_out: list[str] = []
        for tenant, (outbox, position) in found.items():
            state = states[tenant]
            if state.quarantined_at is not None:
                continue
            if rows <= 0 or size <= 0:
                left_out.append(tenant)
                continue
            with self._sparing_others(tenant, state, position):
                limit = min(self._tenant_rows, rows)
                parcel = pack(outbox, state, position, limit=limit, max_bytes=size, window_ns=window_ns)
                rows -= len(parcel.events)
                size -= parcel.size
                if parcel.moves:
                    parcels.append(parcel)
                else:
                    self._mark(parcel)
        self._put_back(left_out)
        return parcels

    def _ship(self, parcels: Sequence[Parcel]) -> int:
        if not parcels:
            return 0
        try:
            shipment = ship(self._database, self._sql, parcels, before_commit=lambda: self._failpoint("staged"))
        except PostgresRefused as exc:
            if len(parcels) == 1:
                self._fail(parcels[0].state.tenant, exc)
                return 0
            # One tenant's event is refused: halve until it is alone, so that the others go on.
            middle = len(parcels) // 2
            return self._ship(parcels[:middle]) + self._ship(parcels[middle:])
        self._failpoint("committed")
        for queue in shipment.queues:
            self.queue.ring(queue)
        for parcel in parcels:
            tenant = parcel.state.tenant
            if tenant not in shipment.moved:
                self._queue_up([tenant])
                continue
            with self._sparing_others(tenant):
                self._mark(parcel)
            if parcel.has_more:
                self._queue_up([tenant])
        self.forwarded += shipment.forwarded
        self._failpoint("marked")
        return shipment.forwarded

    def _mark(self, parcel: Parcel) -> None:
        """Tell a tenant's file how far it has come; never back, since what it knows to be forwarded was."""
        tenant, seq, known = parcel.state.tenant, parcel.last_seq, parcel.position.forwarded_seq
        outbox = self.store.tenant(tenant, create=False).outbox
        # Compared once more: the file may have been replaced since its events were read.
        if seq > known and outbox.event_id_at(seq) == parcel.last_event_id:
            outbox.mark_forwarded(seq, parcel.last_event_id)
            known = seq
        if seq == known == parcel.position.last_seq:
            self._settled[tenant] = structs.replace(
                parcel.position, forwarded_seq=seq, forwarded_event_id=parcel.last_event_id, pending=0
            )
        now = time.monotonic()
        if parcel.moves and seq == known and now >= self._pruned.get(tenant, float("-inf")) + PRUNE_INTERVAL:
            self._pruned[tenant] = now
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
        except OtherHistory:
            assert state is not None
            assert position is not None
            logger.warning("tenant %r has another history than Postgres: a new epoch", tenant)
            self._states.begin_epoch(state, position.file_id)
            self._queue_up([tenant])
        except TenantQuarantined as exc:
            assert state is not None
            if self._states.quarantine(state, exc.message):
                self.quarantines += 1
                logger.error("quarantined: %s", exc)
        except PostgresUnavailable:
            raise
        except TenantqError as exc:
            self._fail(tenant, exc)
        else:
            self._forget(tenant)

    def _fail(self, tenant: str, exc: TenantqError) -> None:
        """Leave a tenant for later, each time for longer."""
        _when, pause = self._retries.get(tenant, (0.0, TENANT_PAUSE / 2))
        pause = min(TENANT_PAUSE_MAX, 2 * pause)
        self._retries[tenant] = (time.monotonic() + pause, pause)
        self.tenant_failures[tenant] = exc
        logger.warning("tenant %r is left for %.0f s: %s", tenant, pause, exc)

    def _forget(self, tenant: str) -> None:
        self._retries.pop(tenant, None)
        self.tenant_failures.pop(tenant, None)


def _pass(_step: str) -> None:
    """What a failpoint does when no test asks for more."""
