"""What can go wrong with Postgres, as part of tenantq's one error tree; the driver's own errors stay inside."""

from __future__ import annotations

from tenantq.errors import TenantqError

__all__ = [
    "EventTooOld",
    "MissingRights",
    "PgmqMissing",
    "PoolerBetween",
    "PostgresBusy",
    "PostgresError",
    "PostgresReadOnly",
    "PostgresRefused",
    "PostgresTimeout",
    "PostgresUnavailable",
    "SchemaMissing",
    "SchemaNewer",
    "SchemaOutdated",
    "SessionRefused",
    "TenantQuarantined",
    "UnsupportedPostgres",
]


class PostgresError(TenantqError):
    """Postgres could not do what was asked."""

    default_hint = "the log of Postgres says more"

    def __init__(
        self,
        message: str = "",
        *,
        sqlstate: str | None = None,
        hint: str = "",
        tenant: str | None = None,
        queue: str | None = None,
    ) -> None:
        self.sqlstate = sqlstate
        """The code that Postgres gave, where it gave one."""
        super().__init__(message, hint=hint, tenant=tenant, queue=queue)


class PostgresUnavailable(PostgresError, ConnectionError):
    """Postgres cannot be reached."""

    default_hint = (
        "check that the server runs and that the DSN is right: host, port, database, role, password; "
        "nothing in a tenant's file is lost"
    )

    def __init__(
        self,
        message: str = "",
        *,
        sqlstate: str | None = None,
        hint: str = "",
        outcome_unknown: bool = False,
    ) -> None:
        self.outcome_unknown = outcome_unknown
        """Whether the connection was lost after the call was sent: it may have taken effect or not."""
        super().__init__(message, sqlstate=sqlstate, hint=hint)


class PostgresReadOnly(PostgresUnavailable):
    """The server that answers is a standby, or read-only, and takes no writes."""

    default_hint = "name the primary in the DSN, or all hosts: one that takes writes is chosen"


class PostgresBusy(PostgresError):
    """Postgres is too busy: a lock or a connection did not come free in the time allowed."""

    default_hint = "try again; look for a long transaction or too small a pool"


class PostgresTimeout(PostgresError):
    """Postgres cancelled the statement."""

    default_hint = "raise statement_timeout for this role, or ask for less at once"


class PostgresRefused(PostgresError):
    """Postgres refused the data."""

    default_hint = "look at what was sent, and at constraints and triggers that are not tenantq's on its tables"


class PoolerBetween(PostgresError):
    """A pooler stands before Postgres, which may not pass notifications on."""

    default_hint = "pass listen=False; claims that wait then poll"


class EventTooOld(PostgresError):
    """The event was emitted so long ago that nobody knows any more whether it was applied."""

    default_hint = "look whether its effect is there; Maintenance(applied_days=...) says how long it is known"


class UnsupportedPostgres(PostgresError):
    """This server or database cannot hold the queue."""

    default_hint = "use Postgres 14 or newer and a database in UTF8"


class MissingRights(PostgresError):
    """The role may not do this in the database."""

    default_hint = "migrate as the schema's owner, and grant the role its schema, tables, sequences and functions"


class PgmqMissing(PostgresError):
    """There is no pgmq 1.5 or newer in this database."""

    default_hint = "run CREATE EXTENSION pgmq in the database that the queue's tables are in; the events wait"


class SchemaMissing(PostgresError):
    """The queue's tables are not in this database."""

    default_hint = "run `tenantq bridge migrate`, or call migrate() on the queue"


class SchemaOutdated(PostgresError):
    """The queue's tables are of an older version than this program."""

    default_hint = "run `tenantq bridge migrate`, or call migrate() on the queue"


class SchemaNewer(PostgresError):
    """The queue's tables are of a newer version than this program, and were left as they are."""

    default_hint = "upgrade tenantq on this host"


class SessionRefused(PostgresError):
    """No session of one's own is to be had: what stands between passes no settings on, as poolers do."""

    default_hint = "give Maintenance a direct_dsn that leads past the pooler"


class TenantQuarantined(TenantqError):
    """A tenant's events are held back: its file and Postgres disagree about what was forwarded."""

    default_hint = "look at the file and its backup, then readmit the tenant and say whether to send what waits"
