"""How a tenant and its queues are, as numbers."""

from __future__ import annotations

import msgspec

__all__ = ["QueueStats", "TenantStats"]


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
