"""tenantq: a durable queue for every tenant, in a SQLite file of its own.

A store is a directory of tenants. Each tenant has named queues in one file: enqueue commits a message, claim
leases it to one worker, ack removes it, nack lets it wait for another attempt, and what has used up its
attempts is a dead letter. A lease that ends gives its message to the next claim. Every verb is one SQLite
transaction, fenced by a token of the delivery, and durable when it returns.

A message type declares what it needs, and `send` picks the layer: other hosts must see it (the outbox of the
tenant's file, from which `tenantq_bridge` forwards it to Postgres), or it must survive a restart (the
tenant's file), or neither (memory). One Worker handles all three.

    >>> import msgspec, tempfile, tenantq
    >>> @tenantq.message("example.welcome")
    ... class Welcome(msgspec.Struct):
    ...     to: str
    >>> with tempfile.TemporaryDirectory() as root, tenantq.open(root) as store:
    ...     acme = store.tenant("acme")
    ...     with acme.transaction() as tx:
    ...         _ = tx.execute("CREATE TABLE customer (email TEXT)")
    ...         _ = tx.execute("INSERT INTO customer VALUES (?)", ("ada@example.org",))
    ...         id = tx.send(Welcome(to="ada@example.org"))
    ...     for message in acme.claim("example.welcome", limit=10):
    ...         print(message.payload.to)
    ...         message.ack()
    ada@example.org
"""

from tenantq import statements
from tenantq._deleting import Deletion, RemovedFile
from tenantq._failing import FailingTenant
from tenantq._salvage import LostRows, SalvagedQueue, SalvageReport, salvage
from tenantq._sqlite import Durability
from tenantq._tombstones import Tombstone
from tenantq._verification import VerifyReport, verify
from tenantq._version import __version__
from tenantq.backoff import Backoff
from tenantq.backups import Backup, BackupDirectory, BackupResult, BackupSummary
from tenantq.errors import (
    BackupNotFound,
    CorruptFile,
    CronMissing,
    DeclarationError,
    DiskFull,
    EventsWaiting,
    FileReplaced,
    ForeignHandle,
    InvalidArgument,
    InvalidCron,
    InvalidName,
    InvalidTenantId,
    LeaseLost,
    NewerFile,
    NotATenantFile,
    OlderFile,
    PayloadError,
    PayloadTooLarge,
    QueueFull,
    StatementFailed,
    StoreClosed,
    StoreNotFound,
    TenantBusy,
    TenantDeleted,
    TenantExists,
    TenantFileError,
    TenantGone,
    TenantInUse,
    TenantMoved,
    TenantqError,
    TransactionError,
    UndecodablePayload,
    UnknownTenant,
    UnsupportedSQLite,
    WrongEventLoop,
    WrongTenant,
)
from tenantq.memory import MemoryQueue, MemoryStats
from tenantq.message import Message
from tenantq.outbox import Event, Outbox, OutboxPage, OutboxPosition, UndeliverableEvent
from tenantq.outcome import DeadLetter, Snooze
from tenantq.periodic import Missed, PeriodicMessage, PeriodicMessages
from tenantq.router import Layer, message
from tenantq.stats import QueueStats, StoreActivity, TenantStats
from tenantq.store import Store, open  # noqa: A004 - tenantq.open reads as it should
from tenantq.tenant import Tenant
from tenantq.transaction import Transaction
from tenantq.watch import Watch, Work
from tenantq.worker import Worker

__all__ = [
    "Backoff",
    "Backup",
    "BackupDirectory",
    "BackupNotFound",
    "BackupResult",
    "BackupSummary",
    "CorruptFile",
    "CronMissing",
    "DeadLetter",
    "DeclarationError",
    "Deletion",
    "DiskFull",
    "Durability",
    "Event",
    "EventsWaiting",
    "FailingTenant",
    "FileReplaced",
    "ForeignHandle",
    "InvalidArgument",
    "InvalidCron",
    "InvalidName",
    "InvalidTenantId",
    "Layer",
    "LeaseLost",
    "LostRows",
    "MemoryQueue",
    "MemoryStats",
    "Message",
    "Missed",
    "NewerFile",
    "NotATenantFile",
    "OlderFile",
    "Outbox",
    "OutboxPage",
    "OutboxPosition",
    "PayloadError",
    "PayloadTooLarge",
    "PeriodicMessage",
    "PeriodicMessages",
    "QueueFull",
    "QueueStats",
    "RemovedFile",
    "SalvageReport",
    "SalvagedQueue",
    "Snooze",
    "StatementFailed",
    "Store",
    "StoreActivity",
    "StoreClosed",
    "StoreNotFound",
    "Tenant",
    "TenantBusy",
    "TenantDeleted",
    "TenantExists",
    "TenantFileError",
    "TenantGone",
    "TenantInUse",
    "TenantMoved",
    "TenantStats",
    "TenantqError",
    "Tombstone",
    "Transaction",
    "TransactionError",
    "UndecodablePayload",
    "UndeliverableEvent",
    "UnknownTenant",
    "UnsupportedSQLite",
    "VerifyReport",
    "Watch",
    "Work",
    "Worker",
    "WrongEventLoop",
    "WrongTenant",
    "__version__",
    "message",
    "open",
    "salvage",
    "statements",
    "verify",
]
