"""How a tenant and its queues are, as numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tenantq._file import TenantFile
from tenantq._limits import Limit
from tenantq.clock import NANOSECONDS

__all__ = ["QueueStats", "StoreActivity", "TenantStats", "is_blocked", "read_stats", "size_of", "warnings_of"]


BLOCKED_PAGES = 20_000
"""Twice what a commit checkpoints by itself, the backstop of all checkpoints: 80 MB that did not get through."""


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one queue holds."""

    queue: str
    ready: int = 0
    """Claimable now, those whose delay or lease has ended included."""
    scheduled: int = 0
    """Claimable later."""
    claimed: int = 0
    """Under a lease."""
    dead: int = 0
    """Dead letters."""
    oldest_age: float | None = None
    """Seconds that the oldest ready message has been claimable; None where none is ready."""
    is_paused: bool = False
    max_depth: int | None = None
    """What ready, scheduled and claimed messages may come to together; None without a bound."""
    max_claimed: int | None = None
    """How many messages may be under a lease at once; None for any number."""
    rate: int | None = None
    """How many messages may be claimed in `per` seconds; None for any number."""
    per: float | None = None


class TenantStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant holds, over all its queues, and how its file does."""

    tenant: str
    ready: int = 0
    scheduled: int = 0
    claimed: int = 0
    dead: int = 0
    outbox: int = 0
    """Events that are not known to be in Postgres."""
    undeliverable: int = 0
    """Events that Postgres refused: see `Outbox.undeliverable`."""
    oldest_age: float | None = None
    """Seconds that the oldest ready message has been claimable; None where none is ready."""
    max_depth: int | None = None
    """What ready, scheduled and claimed messages of all queues may come to together; None without a bound."""
    max_claimed: int | None = None
    """How many messages of all queues may be under a lease at once; None for any number."""
    rate: int | None = None
    """How many messages of all queues may be claimed in `per` seconds; None for any number."""
    per: float | None = None
    weight: float = 1.0
    """What its share of a worker's time weighs beside those of other tenants."""
    file_bytes: int = 0
    wal_bytes: int = 0
    wal_pages_pending: int = 0
    """Pages in the -wal that no checkpoint has copied into the file yet."""
    is_checkpoint_blocked: bool = False
    """Whether those are so many that checkpoints cannot have got through: a reader stays open."""
    commits: int = 0
    """Transactions of this process since it opened the file."""
    operations: int = 0
    """Calls that those transactions carried: more than commits where calls were merged."""
    busy_waits: int = 0
    """How often this process waited for another one's lock on the file, since it opened it."""
    busy_seconds: float = 0.0
    """How long it waited, all in all."""
    busy_longest: float = 0.0
    """Seconds of the longest of these waits."""
    utilisation: float = 0.0
    """Share of the last 10 s, the latest weighing most, in which some process of this host held the file's write
    turn: 0 to 1. Kept in memory that all of them share; it forgets with the host's boot."""
    utilisation_minute: float = 0.0
    """The same of the last minute."""
    headroom: float = 1.0
    """What is left: 1 - utilisation. Work in between takes some, so that a file that is full is at 0.1 or so."""
    operations_per_second: float = 0.0
    """Calls that were committed, by any process of this host, over the last 10 s."""
    capacity: float | None = None
    """Calls a second at which the write turn would never be free: operations_per_second / utilisation. A lower
    bound, since the file carries more of them when calls have to wait and are merged; None without any."""
    warnings: tuple[str, ...] = ()
    """What somebody should see to, one sentence each."""
    queues: tuple[QueueStats, ...] = ()


class StoreActivity(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has done on a store's files since it opened the store. All but the first two only grow."""

    open_tenants: int = 0
    """Files that are open now."""
    failing_tenants: int = 0
    """Tenants that could not be served when this process last tried: see `Store.failing`."""
    commits: int = 0
    operations: int = 0
    """Calls that those transactions carried."""
    busy_waits: int = 0
    """How often it waited for another process's lock."""
    busy_seconds: float = 0.0
    """How long it waited, all in all."""
    busy_longest: float = 0.0
    """Seconds of the longest of these waits."""
    migrated: int = 0
    """Files of an older schema that it brought to this version's."""

    def plus(self, commits: int, operations: int, waits: int, seconds: float, longest: float) -> StoreActivity:
        """Return it with what was done on one more file."""
        return StoreActivity(
            open_tenants=self.open_tenants + 1,
            failing_tenants=self.failing_tenants,
            commits=self.commits + commits,
            operations=self.operations + operations,
            busy_waits=self.busy_waits + waits,
            busy_seconds=self.busy_seconds + seconds,
            busy_longest=max(self.busy_longest, longest),
            migrated=self.migrated,
        )


def read_stats(
    file: TenantFile, now: int, boottime: int
) -> tuple[tuple[QueueStats, ...], int | None, Limit, int, int]:
    """Return how each queue is, the bound and the limit of all, and the outbox's pending and undeliverable."""
    file.bounds.forget()  # this reads what others wrote
    file.limits.forget()
    due = {(queue, bool(was_claimed)): count for queue, was_claimed, count in file.count_due(now, boottime)}
    paused = {row[0] for row in file.paused()}
    depths = {row[0]: row[1:] for row in file.depths()}
    queues = []
    for queue in sorted(depths.keys() | paused | file.bounds.queues() | file.limits.queues()):
        ready, scheduled, claimed, dead = depths.get(queue, (0, 0, 0, 0))
        from_scheduled, from_claimed = due.get((queue, False), 0), due.get((queue, True), 0)
        since = file.oldest_ready(queue) if ready else None
        limit = file.limits.of(queue)
        queues.append(
            QueueStats(
                queue=queue,
                ready=ready + from_scheduled + from_claimed,
                scheduled=scheduled - from_scheduled,
                claimed=claimed - from_claimed,
                dead=dead,
                oldest_age=None if since is None else max(0.0, (now - since) / NANOSECONDS),
                is_paused=queue in paused,
                max_depth=file.bounds.of(queue),
                max_claimed=limit.max_claimed,
                rate=limit.rate,
                per=None if limit.per is None else limit.per / NANOSECONDS,
            ),
        )
    *_places, pending, undeliverable = file.outbox_position()
    return tuple(queues), file.bounds.of_tenant, file.limits.of(None), pending, undeliverable


def is_blocked(pages_pending: int) -> bool:
    """Tell whether so many pages mean that checkpoints did not get through."""
    return pages_pending >= BLOCKED_PAGES


def warnings_of(*, wal_bytes: int, pages_pending: int) -> tuple[str, ...]:
    """Return what somebody should see to."""
    if not is_blocked(pages_pending):
        return ()
    return (
        f"a reader keeps {pages_pending:,} pages from being checkpointed; the -wal has grown to "
        f"{wal_bytes / 1e6:,.0f} MB, and shrinks when the reader (a shell, a long read, Litestream) has ended",
    )


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
