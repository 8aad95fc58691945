"""What the shared layer holds, as numbers."""

from __future__ import annotations

import msgspec

from tenantq.stats import QueueStats
from tenantq_bridge._postgres import Row

__all__ = ["SharedStats", "stats_of_rows"]


class SharedStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the shared queues hold, all together and each."""

    ready: int = 0
    """Claimable now, those whose delay or lease has ended included."""
    scheduled: int = 0
    claimed: int = 0
    dead: int = 0
    oldest_age: float | None = None
    """Seconds that the oldest ready message has been claimable; None where none is ready."""
    queues: tuple[QueueStats, ...] = ()


def stats_of_rows(rows: list[Row]) -> SharedStats:
    """Sum up what count_messages returns."""
    queues = tuple(
        QueueStats(
            queue=queue,
            ready=ready,
            scheduled=scheduled,
            claimed=claimed,
            dead=dead,
            oldest_age=oldest_age,
            is_paused=is_paused,
        )
        for queue, ready, scheduled, claimed, dead, oldest_age, is_paused in rows
    )
    ages = [queue.oldest_age for queue in queues if queue.oldest_age is not None]
    return SharedStats(
        ready=sum(queue.ready for queue in queues),
        scheduled=sum(queue.scheduled for queue in queues),
        claimed=sum(queue.claimed for queue in queues),
        dead=sum(queue.dead for queue in queues),
        oldest_age=max(ages, default=None),
        queues=queues,
    )
