"""How a tenant and its queues are, as numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tenantq._file import TenantFile
from tenantq.clock import NANOSECONDS

__all__ = ["QueueStats", "TenantStats", "read_stats", "size_of"]


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
    file_bytes: int = 0
    wal_bytes: int = 0
    commits: int = 0
    """Transactions of this process since it opened the file."""
    operations: int = 0
    """Calls that those transactions carried: more than commits where calls were merged."""
    busy_waits: int = 0
    """How often this process waited for another one's lock on the file, since it opened it."""
    busy_seconds: float = 0.0
    """How long it waited, all in all."""
    queues: tuple[QueueStats, ...] = ()


def read_stats(file: TenantFile, now: int, boottime: int) -> tuple[tuple[QueueStats, ...], int, int]:
    """Return how each queue of a file is, how many events wait in its outbox, and how many are undeliverable."""
    due = {(queue, bool(was_claimed)): count for queue, was_claimed, count in file.count_due(now, boottime)}
    paused = {row[0] for row in file.paused()}
    depths = {row[0]: row[1:] for row in file.depths()}
    queues = []
    for queue in sorted(depths.keys() | paused):
        ready, scheduled, claimed, dead = depths.get(queue, (0, 0, 0, 0))
        from_scheduled, from_claimed = due.get((queue, False), 0), due.get((queue, True), 0)
        since = file.oldest_ready(queue) if ready else None
        queues.append(
            QueueStats(
                queue=queue,
                ready=ready + from_scheduled + from_claimed,
                scheduled=scheduled - from_scheduled,
                claimed=claimed - from_claimed,
                dead=dead,
                oldest_age=None if since is None else max(0.0, (now - since) / NANOSECONDS),
                is_paused=queue in paused,
            ),
        )
    *_places, pending, undeliverable = file.outbox_position()
    return tuple(queues), pending, undeliverable


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
