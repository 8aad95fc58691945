"""The shared layer of tenantq: queues in Postgres that every host sees, and the forwarder that fills them.

A message that other hosts must see is emitted into its tenant's own file, in the transaction that it belongs
to. A `Forwarder` takes it to Postgres from there: every queue with a subscription that matches its topic gets
it, exactly once by effect, in the order in which its tenant emitted it. Workers anywhere claim from those
queues with the verbs that a tenant has.

    queue = PostgresQueue("postgresql://app@db/shop")      # connects at the first call
    queue.migrate()
    queue.subscribe("invoices", "billing.*")               # before the event, not after

    with store.tenant("acme").transaction() as tx:         # the order and its event, or neither
        tx.execute("INSERT INTO orders (id) VALUES (?)", (42,))
        tx.emit("billing.order_placed", {"order": 42})

    with Forwarder(store, queue), Maintenance(queue):      # each in a thread of its own
        for message in queue.claim("invoices", wait=10.0):
            print(message.tenant, message.topic, message.event_id, message.payload)
            message.ack()

What is promised and how it is kept: docs/bridge.md. Needs the extra `bridge`.
"""

from tenantq_bridge.activity import ForwarderActivity
from tenantq_bridge.autovacuum import AutovacuumSettings, TableAutovacuum
from tenantq_bridge.breaker import BreakerState, BreakerStatus
from tenantq_bridge.deliverer import Deliverer
from tenantq_bridge.delivery import SharedMessage
from tenantq_bridge.diagnosis import Finding, Health, HealthVerdict
from tenantq_bridge.errors import (
    EventTooOld,
    MissingRights,
    PgmqMissing,
    PoolerBetween,
    PostgresBusy,
    PostgresError,
    PostgresReadOnly,
    PostgresRefused,
    PostgresTimeout,
    PostgresUnavailable,
    SchemaMissing,
    SchemaNewer,
    SchemaOutdated,
    SessionRefused,
    TenantQuarantined,
    UnsupportedPostgres,
)
from tenantq_bridge.forwarder import Forwarder
from tenantq_bridge.health import read_health, take_sample
from tenantq_bridge.history import Acked
from tenantq_bridge.horizon import HolderKind, SnapshotHolder
from tenantq_bridge.maintenance import Maintenance
from tenantq_bridge.outgoing import TenantOwner
from tenantq_bridge.pgmq import PgmqTarget
from tenantq_bridge.presence import ForwarderStatus, running_forwarders
from tenantq_bridge.queue import PostgresQueue
from tenantq_bridge.series import Growth, HeapHealth, IndexHealth
from tenantq_bridge.shares import Share
from tenantq_bridge.states import ForwardingState
from tenantq_bridge.stats import SharedStats
from tenantq_bridge.subscriptions import Subscription
from tenantq_bridge.target import Target
from tenantq_bridge.traces import TenantTraces

__all__ = [
    "Acked",
    "AutovacuumSettings",
    "BreakerState",
    "BreakerStatus",
    "Deliverer",
    "EventTooOld",
    "Finding",
    "Forwarder",
    "ForwarderActivity",
    "ForwarderStatus",
    "ForwardingState",
    "Growth",
    "Health",
    "HealthVerdict",
    "HeapHealth",
    "HolderKind",
    "IndexHealth",
    "Maintenance",
    "MissingRights",
    "PgmqMissing",
    "PgmqTarget",
    "PoolerBetween",
    "PostgresBusy",
    "PostgresError",
    "PostgresQueue",
    "PostgresReadOnly",
    "PostgresRefused",
    "PostgresTimeout",
    "PostgresUnavailable",
    "SchemaMissing",
    "SchemaNewer",
    "SchemaOutdated",
    "SessionRefused",
    "Share",
    "SharedMessage",
    "SharedStats",
    "SnapshotHolder",
    "Subscription",
    "TableAutovacuum",
    "Target",
    "TenantOwner",
    "TenantQuarantined",
    "TenantTraces",
    "UnsupportedPostgres",
    "read_health",
    "running_forwarders",
    "take_sample",
]
