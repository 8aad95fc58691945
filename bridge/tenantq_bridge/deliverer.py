"""Takes what was sent to tenants down into their files, on the host that has them: each message once by effect.

A round is one transaction in Postgres around many tenants' files. It locks the tenants' deliveries and reads what
waits; each file takes the messages above its mark and moves the mark, in a transaction of its own; then the round
deletes in Postgres what the files have. So:

- killed between the two: the messages are read again, and the files' marks drop them;
- two deliverers on one host: each leaves the tenants that the other has locked;
- a tenant that is moved to another host: the move waits for the lock, and once it is committed the old host reads
  nothing of the tenant any more;
- a tenant whose file is missing, damaged, locked or full: that one alone waits, each time for longer, and is
  tried again at once when its file changes.

Who sends is never held up by a delivery: it takes another lock.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from tenantq import Store, Watch
from tenantq.arguments import check_limit
from tenantq.backoff import Backoff
from tenantq.clock import to_unix_ns
from tenantq.errors import TenantqError
from tenantq.inbox import Incoming
from tenantq.naming import check_name
from tenantq.service import Service
from tenantq_bridge._postgres import Row, Session
from tenantq_bridge.errors import PostgresError, PostgresUnavailable
from tenantq_bridge.queue import PostgresQueue

__all__ = ["PLACE_HEADER", "Deliverer"]

logger = logging.getLogger("tenantq.bridge")

PLACE_HEADER = "tenantq-seq"
"""The header that a delivered message has besides its own: its place among all that was sent to its tenant."""

DEFAULT_ROUND_ROWS = 2_000
DEFAULT_ROUND_BYTES = 8 * 1024 * 1024
DEFAULT_TENANT_ROWS = 200
"""A tenant's share of a round: one with a million messages takes turns with those that have one."""

ROUND_TENANTS = 100
ROUND_SECONDS = 1.0
"""After that a round begins with no other file: its locks are held as long, and a locked file may take seconds."""

MEET_TENANTS = 1_000
MEET_INTERVAL = 0.25
"""Seconds between two looks at what changed among the tenants that failed: a busy one must not make a hot loop."""

REVIEW_INTERVAL = 3_600.0
"""Seconds after which all tenants are registered again: some may have lost their owner in Postgres."""

OUTAGE_BACKOFF = Backoff(base=0.25, cap=30.0)

Failpoint = Callable[[str], None]


class Deliverer(Service):
    """Delivers what was sent to the tenants of one store, on the host that owns them.

    It makes its host the owner of every tenant of the store that has none, and never takes one from another host:
    see `foreign`. Run one for a store; another is a spare.

    host: the name of this host and store in Postgres, the machine's host name if None. It must stay the same from
    one start to the next; two stores on one machine need two.
    round_rows, round_bytes, tenant_rows: what one round carries, and one tenant's part of it.
    failpoint: called with "read" (before the first file), "received" (a file has its messages), "deleting" (before
    the commit in Postgres) and "delivered", for tests.
    """

    name = "deliverer"

    def __init__(
        self,
        store: Store,
        queue: PostgresQueue,
        *,
        host: str | None = None,
        round_rows: int = DEFAULT_ROUND_ROWS,
        round_bytes: int = DEFAULT_ROUND_BYTES,
        tenant_rows: int = DEFAULT_TENANT_ROWS,
        interval: float = 0.5,
        failpoint: Failpoint | None = None,
    ) -> None:
        super().__init__(interval=interval)
        self.store = store
        self.queue = queue
        self.host = check_name(socket.gethostname() if host is None else host, "host")
        self.delivered = 0
        """Messages that this deliverer has put into tenants' files."""
        self.foreign: dict[str, str] = {}
        """The owners of those tenants of the store that are another host's: nothing is delivered to them here."""
        self.tenant_failures: dict[str, TenantqError] = {}
        """The last error of each tenant that did not take what was sent to it, until it does."""
        self._limits = {
            "tenants": ROUND_TENANTS,
            "rows": check_limit(round_rows, "round_rows"),
            "bytes": check_limit(round_bytes, "round_bytes"),
            "tenant_rows": check_limit(tenant_rows, "tenant_rows"),
        }
        self._failpoint = failpoint or (lambda _step: None)
        self._sql = queue.database.statements("delivering.sql")
        self._watch: Watch | None = None
        self._is_running = False
        self._rung = threading.Event()
        self._met: set[str] = set()
        self._unmet: set[str] = set()
        self._next_meeting = 0.0
        self._next_review = 0.0
        self._losses = 0
        self._outages = 0

    def run_once(self) -> int:
        """Deliver one round of what waits, and return how many messages it put into files; 0: nothing waits.

        Raises PostgresUnavailable, PostgresError; what is not in a file by then waits as before. A tenant whose
        file does not take its messages is left for later and does not hold up the others: see `tenant_failures`.
        """
        try:
            self.queue.schema.check()
            self._meet()
            while True:
                found, received = self._deliver_round()
                if received or not found or self.is_stopping:
                    break
        except PostgresError:  # away, or it refuses whatever it is asked, as without rights
            self._outages += 1
            raise
        self._outages = 0
        return received

    def run(self) -> None:
        """Deliver what comes in this thread until `stop` is called from elsewhere; an outage is waited out."""
        self._is_running = True
        try:
            with self.queue.outgoing.waiter(self.host) as self._rung:
                super().run()
        finally:
            self._is_running = False

    def pause(self) -> None:
        """Wait until something is sent to a tenant of this host; after an outage for longer each time."""
        if self._outages:
            self.wait(OUTAGE_BACKOFF.delay(self._outages))
        elif not self.is_stopping:
            self._rung.wait(self.interval)
            self._rung.clear()

    def stop(self) -> None:
        """End the role and wait for its round; may be called more than once."""
        self._stopping.set()
        self._rung.set()
        super().stop()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    # Whose tenants these are

    def _meet(self) -> None:
        """Register the tenants that are new here, and let those that failed be tried again when they changed."""
        now = time.monotonic()
        if self._watch is None or now >= self._next_review or self._losses != self.queue.database.losses:
            # A lost connection may have been a failover, which lost what was registered last.
            self._losses = self.queue.database.losses
            self._next_review = now + REVIEW_INTERVAL
            self._met.clear()
            self.tenant_failures.clear()
            if self._watch is not None:
                self._unmet.update(self.store.tenants())
        if self._watch is None:
            self._watch = self.store.watch()
        found = self._watch.wait(0)
        if not self._is_running:
            found.update(self.store.tenants())  # called by hand: a ring may be a moment late
        self._unmet |= (found - self._met) | (found & self.tenant_failures.keys())
        if self._unmet and (now >= self._next_meeting or not self._is_running):
            self._next_meeting = now + MEET_INTERVAL
            unmet = sorted(self._unmet)
            for start in range(0, len(unmet), MEET_TENANTS):
                self._register(unmet[start : start + MEET_TENANTS])

    def _register(self, tenants: Sequence[str]) -> None:
        others = self.queue.outgoing.meet(self.host, tenants)
        news = {tenant: host for tenant, host in others.items() if self.foreign.get(tenant) != host}
        if news:
            tenant, host = next(iter(news.items()))
            logger.warning(
                "%d tenants of this store belong to other hosts than %r, such as %r to %r: "
                "nothing is delivered to them here",
                len(news),
                self.host,
                tenant,
                host,
            )
        for tenant in tenants:
            self.foreign.pop(tenant, None)
        self.foreign |= others
        self._met.update(tenants)
        self._unmet.difference_update(tenants)

    # One round

    def _deliver_round(self) -> tuple[bool, int]:
        """Return whether any tenant had its turn, and how many messages are new to the files."""
        deadline = time.monotonic() + ROUND_SECONDS
        received = 0
        marks: dict[str, int] = {}
        with self.queue.database.transaction() as session:
            rows = session.run(self._sql["begin_delivery"], {"host": self.host, **self._limits})
            if not rows:
                return False, 0
            self._failpoint("read")
            for tenant, messages in groupby(rows, key=itemgetter(0)):
                if marks and (time.monotonic() >= deadline or (self.is_stopping and self._is_running)):
                    break  # the others keep their places in the line
                marks[tenant], count = self._receive(session, tenant, list(messages))
                received += count
                self.delivered += count
            failures = {tenant: self.tenant_failures.get(tenant) for tenant in marks}
            self._failpoint("deleting")
            session.run(
                self._sql["finish_deliveries"],
                {
                    "host": self.host,
                    "tenants": list(marks),
                    "marks": list(marks.values()),
                    "failures": [None if failure is None else _text(failure) for failure in failures.values()],
                },
            )
        self._failpoint("delivered")
        return True, received

    def _receive(self, session: Session, tenant: str, rows: Sequence[Row]) -> tuple[int, int]:
        """Put messages into a tenant's file; return up to where it has all, and how many were new to it."""
        messages = [_incoming(row) for row in rows if row[1] is not None]
        if not messages:
            self.tenant_failures.pop(tenant, None)
            return 0, 0
        if not session.is_alive:
            # Its locks are gone with it: the tenant may have been moved.
            raise PostgresUnavailable("the session of a delivery was ended")
        with self._sparing_others(tenant):
            receipt = self.store.tenant(tenant, create=False).inbox.receive(messages)
            self._failpoint("received")
            self.foreign.pop(tenant, None)  # it may have been assigned to this host since
            if receipt.refusal is not None:
                self._fail(tenant, receipt.refusal)
            else:
                self.tenant_failures.pop(tenant, None)
            return receipt.seq, receipt.received
        return 0, 0

    @contextlib.contextmanager
    def _sparing_others(self, tenant: str) -> Iterator[None]:
        """Keep one tenant's trouble with its file from the others."""
        try:
            yield
        except PostgresUnavailable:
            raise
        except TenantqError as exc:
            self._fail(tenant, exc)

    def _fail(self, tenant: str, exc: TenantqError) -> None:
        before = self.tenant_failures.get(tenant)
        self.tenant_failures[tenant] = exc
        if before is None or type(before) is not type(exc):  # once, not at every try
            logger.warning("what was sent to tenant %r waits: %s", tenant, exc)


def _incoming(row: Row) -> Incoming:
    _tenant, seq, queue, rank, key, max_attempts, visible_at, headers, body, data = row
    own = {} if headers is None else msgspec.json.decode(headers, type=dict[str, str])
    return Incoming(
        seq=seq,
        queue=queue,
        body=data if body is None else body,
        headers=msgspec.json.encode(own | {PLACE_HEADER: str(seq)}).decode(),
        priority=-rank,
        max_attempts=max_attempts,
        key=key,
        visible_ns=None if visible_at is None else to_unix_ns(visible_at),
    )


def _text(failure: TenantqError) -> str:
    """Return an error's text as Postgres takes it."""
    return failure.message.encode("utf-8", "replace").decode().replace("\0", "\N{SYMBOL FOR NULL}")
