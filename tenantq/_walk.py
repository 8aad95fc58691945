"""A worker's walk through the shards: it takes the fires of the store's periodic messages to all tenants."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tenantq._store_periods import Due, Part
from tenantq.clock import NANOSECONDS, nanoseconds
from tenantq.errors import StoreClosed, TenantFileError
from tenantq.naming import is_shard
from tenantq.service import Service
from tenantq.store import Store

__all__ = ["PeriodicWalk"]

logger = logging.getLogger("tenantq.periodic")

INTERVAL = 1.0
"""Seconds between two looks at whether there is anything to do; one costs two stat calls."""

INTERVAL_NS = nanoseconds(INTERVAL)

BACKSTOP_NS = 60 * NANOSECONDS
"""Between two looks into the file, whatever its size and time say."""

VISITORS = 4
"""Threads that visit tenants: where one waits for a locked file, the others go on."""

REST = 3
"""Times the processor time of a visit that its thread then rests: together they take one processor at the most."""

LONGEST_REST = 0.1

Signature = tuple[tuple[int, int, int] | None, ...]


class PeriodicWalk(Service):
    """Takes fires to the tenants. Any number of processes may do so: each takes a shard at a time, what one that
    died had taken is another's after two minutes, and a tenant's file lets in each fire once.
    """

    name = "periodic"

    def __init__(self, store: Store) -> None:
        super().__init__(interval=INTERVAL)
        self._store = store
        self._seen: Signature = ()
        self._seen_at = 0
        self._next_look = 0

    def run_once(self) -> int:
        """Take parts of what is due until there is none to take; return how many messages were made."""
        if not self._may_be_due():
            return 0
        before = self._signature()
        made = 0
        with self._store.periods() as book:
            if book is None:
                return 0
            part: Part | None = None
            failed: dict[str, str] = {}
            while (part := book.take(self._shards(), part, failed)) is not None:
                count, failed = self._visit(part)
                made += count
                if self.is_stopping:
                    book.give_back(part)  # what it has made is in the tenants' files
                    return made
            next_look = book.next_look()
        after = self._signature()
        is_settled = before == self._seen == after  # else somebody may have changed it behind that look
        self._seen, self._seen_at = after, self._store.clock.now_ns()
        latest = self._seen_at + (BACKSTOP_NS if is_settled else INTERVAL_NS)
        self._next_look = latest if next_look is None else min(latest, next_look)
        return made

    def pause(self) -> None:
        """Wait until a fire may be due, or for a change that another process made."""
        until = (self._next_look - self._store.clock.now_ns()) / NANOSECONDS
        self.wait(min(self.interval, until) if until > 0 else self.interval)

    def _may_be_due(self) -> bool:
        signature = self._signature()
        if signature[0] is None:
            return False
        return signature != self._seen or not self._seen_at <= self._store.clock.now_ns() < self._next_look

    def _signature(self) -> Signature:
        """Return what changes with every commit to the file."""
        found: list[tuple[int, int, int] | None] = []
        path = self._store.periods_path
        for each in (path, path.with_name(path.name + "-wal")):
            try:
                status = each.stat()
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)

    def _shards(self) -> list[int]:
        return sorted(int(path.name, 16) for path in self._store.root.iterdir() if is_shard(path.name))

    def _visit(self, part: Part) -> tuple[int, dict[str, str]]:
        """Give tenants their messages; return how many, and what went wrong with which tenant."""
        tenants: Iterable[str] = part.late
        if part.due is not None:
            tenants = self._tenants_of(f"{part.shard:02x}")
        failed: dict[str, str] = {}

        def visit(tenant_id: str) -> int:
            due = part.late.get(tenant_id, part.due)
            assert due is not None  # it is of the shard, or late
            if self.is_stopping or not due.times:
                return 0
            started = time.thread_time()
            try:
                made = self._give(part, tenant_id, due)
            except StoreClosed:
                raise
            except Exception as exc:  # whatever it is: this tenant's fault is none of the others
                logger.warning("a periodic message waits for a tenant", exc_info=True, extra={"tenant": tenant_id})
                failed[tenant_id] = str(exc)
                made = 0
            self.wait(min(LONGEST_REST, REST * (time.thread_time() - started)))
            return made

        with ThreadPoolExecutor(VISITORS, thread_name_prefix="tenantq-periodic") as pool:
            return sum(pool.map(visit, tenants)), failed

    def _tenants_of(self, shard_name: str) -> list[str]:
        try:
            return list(self._store.tenants_of(shard_name))
        except TenantFileError:  # a shard that nobody can read must not keep the walk from its end
            logger.warning("a periodic message passes over a shard", exc_info=True, extra={"shard": shard_name})
            return []

    def _give(self, part: Part, tenant_id: str, due: Due) -> int:
        tenant = self._store.tenant(tenant_id)
        return tenant.periodic.make_fires(part.period, due.times, due.missed_from)
