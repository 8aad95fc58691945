"""Every error that tenantq raises: one tree, each with what it is about and, where there is one, what to do."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BackupNotFound",
    "CorruptFile",
    "CronMissing",
    "DeclarationError",
    "DiskFull",
    "EventsWaiting",
    "FileReplaced",
    "ForeignHandle",
    "InvalidArgument",
    "InvalidCron",
    "InvalidName",
    "InvalidTenantId",
    "LeaseLost",
    "NewerFile",
    "NotATenantFile",
    "OlderFile",
    "PayloadError",
    "PayloadTooLarge",
    "QueueFull",
    "StatementFailed",
    "StoreClosed",
    "StoreNotFound",
    "TenantBusy",
    "TenantDeleted",
    "TenantExists",
    "TenantFileError",
    "TenantGone",
    "TenantInUse",
    "TenantMoved",
    "TenantqError",
    "TransactionError",
    "UndecodablePayload",
    "UnknownTenant",
    "UnsupportedSQLite",
    "WrongEventLoop",
    "WrongTenant",
]


class TenantqError(Exception):
    """tenantq could not do what was asked."""

    default_hint = ""

    def __init__(
        self,
        message: str = "",
        *,
        hint: str = "",
        tenant: str | None = None,
        queue: str | None = None,
        path: str | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0].strip()
        self.hint = hint or self.default_hint
        self.tenant = tenant
        self.queue = queue
        self.path = path
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidArgument(TenantqError, ValueError):
    """An argument is outside of what the call takes."""


class InvalidTenantId(InvalidArgument):
    """A tenant id is not one."""

    default_hint = "an id is 1 to 128 characters of Unicode without control characters"


class InvalidName(InvalidArgument):
    """A queue, topic, key or worker name is not one."""

    default_hint = "a name is 1 to 128 characters of Unicode without control characters"


class InvalidCron(InvalidArgument):
    """A cron expression is not one, or never fires."""

    default_hint = (
        "five fields: minute, hour, day of the month, month, day of the week, such as '30 6 * * MON-FRI'"
    )


class CronMissing(TenantqError):
    """Periodic messages need cronsim, which is not installed."""

    default_hint = "pip install 'tenantq[cron]'"


class PayloadError(InvalidArgument):
    """A payload cannot be encoded."""

    default_hint = "a payload is bytes, or anything that msgspec encodes as JSON without losing a value"


class PayloadTooLarge(PayloadError):
    """A payload is larger than the limit."""

    default_hint = "keep large bodies elsewhere and send a reference to them"


class UndecodablePayload(TenantqError, ValueError):
    """A stored payload does not decode to the type its queue declares."""

    default_hint = "message.body has what is stored"


class DeclarationError(TenantqError, TypeError):
    """A message type is not declared, or one name was declared twice."""

    default_hint = "declare each type once with @tenantq.message(name)"


class LeaseLost(TenantqError):
    """A delivery no longer holds the lease of its message, so it changed nothing."""

    default_hint = "the message was given to another claim, or removed; let this delivery go"

    def __init__(
        self,
        message: str = "",
        *,
        lost: Sequence[int] = (),
        hint: str = "",
        tenant: str | None = None,
        queue: str | None = None,
        path: str | None = None,
    ) -> None:
        self.lost = tuple(lost)
        """The ids whose leases were lost. The others of the same call took effect."""
        super().__init__(message, hint=hint, tenant=tenant, queue=queue, path=path)


class QueueFull(TenantqError):
    """A bounded queue has no room for another message."""

    default_hint = "wait until messages are handled, or raise the bound"

    def __init__(
        self,
        message: str = "",
        *,
        depth: int | None = None,
        max_depth: int | None = None,
        hint: str = "",
        tenant: str | None = None,
        queue: str | None = None,
        path: str | None = None,
    ) -> None:
        self.depth = depth
        """How many messages it held; None where that is not one number."""
        self.max_depth = max_depth
        """How many it may hold."""
        super().__init__(message, hint=hint, tenant=tenant, queue=queue, path=path)


class StoreNotFound(TenantqError, FileNotFoundError):
    """There is no store at this path."""

    default_hint = "check the path, or open it with create=True"


class StoreClosed(TenantqError):
    """The store is closed."""

    default_hint = "open it again with tenantq.open"


class WrongEventLoop(TenantqError, RuntimeError):
    """A store of tenantq.aio was used outside of the event loop that it belongs to."""

    default_hint = "open one store in each event loop, and in a forked child, and close it there"


class UnknownTenant(TenantqError, LookupError):
    """The store has no such tenant."""

    default_hint = "check the id, or ask for it with create=True"


class TenantGone(UnknownTenant):
    """The tenant was in this store and is no more; nothing brings it back but what says so."""

    def __init__(
        self,
        message: str = "",
        *,
        at: str | None = None,
        to: str | None = None,
        hint: str = "",
        tenant: str | None = None,
        queue: str | None = None,
        path: str | None = None,
    ) -> None:
        self.at = at
        """When it went (ISO 8601, UTC)."""
        self.to = to
        """Where its export went; None where it was deleted."""
        super().__init__(message, hint=hint, tenant=tenant, queue=queue, path=path)


class TenantDeleted(TenantGone):
    """The tenant was deleted; a call does not make it anew."""

    default_hint = "`store.create(id)` or `tenantq create` makes it anew; a restore brings a backup back"


class TenantMoved(TenantGone):
    """The tenant was exported, to be moved to another store."""

    default_hint = "use the store that imported it; if none did, `store.undo_export(id)` takes it back"


class EventsWaiting(TenantqError):
    """The tenant has events that Postgres has not got; it was not deleted."""

    default_hint = "forward them first (events='forward', --events forward), or drop them (events='drop')"

    def __init__(
        self,
        message: str = "",
        *,
        pending: int = 0,
        undeliverable: int = 0,
        hint: str = "",
        tenant: str | None = None,
        queue: str | None = None,
        path: str | None = None,
    ) -> None:
        self.pending = pending
        """Events that wait for a forwarder."""
        self.undeliverable = undeliverable
        """Events that Postgres refused."""
        super().__init__(message, hint=hint, tenant=tenant, queue=queue, path=path)


class TenantExists(TenantqError):
    """The store has this tenant already."""


class TransactionError(TenantqError):
    """A transaction was used outside of its bounds."""


class StatementFailed(TenantqError):
    """SQLite refused a statement of the application."""


class UnsupportedSQLite(TenantqError, RuntimeError):
    """The SQLite library has a bug that can lose committed rows."""

    default_hint = "install apsw 3.51.3 or newer"


class TenantFileError(TenantqError):
    """A tenant's file could not be read or written."""


class TenantBusy(TenantFileError):
    """Another process held the tenant's write lock for longer than the time allowed."""

    default_hint = "try again; look for a long transaction in another process"


class TenantInUse(TenantFileError):
    """Another process has the tenant open."""

    default_hint = "stop the processes that use this tenant, then try again"


class BackupNotFound(TenantqError):
    """There is no such backup."""


class DiskFull(TenantFileError):
    """There is no space left for the tenant's file; nothing was written."""

    default_hint = "free space on the file system, then try again"


class CorruptFile(TenantFileError):
    """The tenant's file is damaged."""

    default_hint = "restore it from a backup"


class NotATenantFile(TenantFileError):
    """The file is not a tenantq tenant file."""

    default_hint = "check the path; the file was left as it is"


class NewerFile(TenantFileError):
    """The file was written by a newer version of tenantq."""

    default_hint = "upgrade tenantq in this process; the file was left as it is"


class OlderFile(TenantFileError):
    """The file was written by an older version of tenantq and was not to be migrated."""

    default_hint = (
        "run `tenantq migrate`, or open the store with migrate=True, once no process of the older version is "
        "left; the file was left as it is"
    )


class WrongTenant(TenantFileError):
    """The file belongs to another tenant than its name says."""

    default_hint = "restore it under the id that it names, or restore the right file"


class FileReplaced(TenantFileError):
    """The tenant's file was deleted or replaced while it was open; the write was not made."""

    default_hint = "call again: the tenant is opened anew"


class ForeignHandle(TenantFileError):
    """Something else in this process has the tenant's file open, which can lose committed rows."""

    default_hint = (
        "use transaction().execute for the application's own SQL; or let its own library alone have the file in "
        "this process, with tenantq.statements; never open a tenant's file by both"
    )
