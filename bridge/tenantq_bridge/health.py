"""Reads whether the queue's tables stay flat: sizes over time, old snapshots, autovacuum, overgrown indexes."""

from __future__ import annotations

from tenantq.errors import InvalidArgument
from tenantq_bridge.autovacuum import read_autovacuum
from tenantq_bridge.diagnosis import Health, diagnose
from tenantq_bridge.horizon import list_holders
from tenantq_bridge.indexes import Indexes
from tenantq_bridge.queue import PostgresQueue
from tenantq_bridge.samples import Samples
from tenantq_bridge.series import SAMPLE_INTERVAL

__all__ = ["read_health", "take_sample"]

MAX_INTERVAL = 3_600.0
"""Seconds: rarer samples would be forgotten before there are enough of them."""


def read_health(queue: PostgresQueue) -> Health:
    """Judge the queue's tables by the samples that Maintenance has taken, and by how the server is now.

    Changes nothing. Raises PostgresUnavailable, SchemaMissing, SchemaOutdated.
    """
    queue.schema.check()
    return diagnose(
        Samples(queue.database).load(),
        list_holders(queue.database),
        read_autovacuum(queue.database),
        Indexes(queue.database).overgrown(),
    )


def take_sample(queue: PostgresQueue, *, interval: float = SAMPLE_INTERVAL) -> bool:
    """Commit a sample of the tables' sizes; False if this interval of so many seconds has one already.

    Maintenance takes one each half minute: this is for where none runs. Raises MissingRights
    where the role may not write, as a worker may.
    """
    if not 0 < interval <= MAX_INTERVAL:
        raise InvalidArgument(f"interval {interval!r} is not above 0 and at most {MAX_INTERVAL:g} s")
    queue.schema.check()
    return Samples(queue.database).try_take(interval)
