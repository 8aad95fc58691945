"""The options that many commands share, and the stores and servers that they open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

import tenantq
from tenantq.arguments import DEFAULT_MAX_ATTEMPTS
from tenantq_tools.cli._failures import PROBLEM
from tenantq_tools.cli._output import note

if TYPE_CHECKING:
    from tenantq_bridge import PostgresQueue

__all__ = [
    "confirm",
    "connect",
    "open_store",
    "with_json",
    "with_message",
    "with_postgres",
    "with_store",
    "with_yes",
]

F = TypeVar("F", bound=Callable[..., Any])


def with_store(*, required: bool = True) -> Callable[[F], F]:
    """Add `--store`, given here or before the command or by TENANTQ_STORE; the parameter is `store_path`."""

    def find(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
        path = value or ctx.find_root().params.get("store")
        if required and not path and not ctx.resilient_parsing:
            raise click.UsageError("no store is given: use --store DIR, or set TENANTQ_STORE", ctx)
        return path

    return click.option(
        "--store",
        "store_path",
        metavar="DIR",
        callback=find,
        help="The directory of the tenants.  [env var: TENANTQ_STORE]",
    )


def with_postgres(*, required: bool = True) -> Callable[[F], F]:
    """Add `--postgres`, given here or before the command or by TENANTQ_POSTGRES; the parameter is `dsn`."""

    def find(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
        dsn = value or ctx.find_root().params.get("postgres")
        if required and not dsn and not ctx.resilient_parsing:
            raise click.UsageError("no Postgres is given: set TENANTQ_POSTGRES, or use --postgres DSN", ctx)
        return dsn

    return click.option(
        "--postgres",
        "dsn",
        metavar="DSN",
        callback=find,
        help="The shared Postgres, such as postgresql://user@host/db.  [env var: TENANTQ_POSTGRES]",
    )


def with_json(function: F) -> F:
    """Add `--json`, given here or before the command; the parameter is `as_json`."""

    def find(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
        return value or bool(ctx.find_root().params.get("as_json"))

    option = click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=find,
        help="Print JSON: a document, or a line for each item.",
    )
    return option(function)


def with_message(function: F) -> F:
    """Add the options of one message; the parameters are text, raw, delay, at, priority, key and max_attempts."""
    options = (
        click.option("--text", is_flag=True, help="PAYLOAD is text, not JSON: it is sent as a JSON string."),
        click.option("--raw", is_flag=True, help="PAYLOAD is bytes, not JSON: they are kept as they are."),
        click.option("--delay", type=float, metavar="S", help="Claimable after so many seconds."),
        click.option("--at", metavar="ISO", help="Claimable from then on, such as 2026-11-30T08:00:00Z."),
        click.option("--priority", type=int, default=0, metavar="N", show_default=True, help="Higher ones first."),
        click.option("--key", metavar="K", help="While one with this key waits or is claimed, add no other."),
        click.option(
            "--max-attempts",
            type=int,
            default=DEFAULT_MAX_ATTEMPTS,
            metavar="N",
            show_default=True,
            help="Attempts before the message is a dead letter.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def with_yes(function: F) -> F:
    """Add `--yes`, which answers the question before something is removed; the parameter is `yes`."""
    return click.option("--yes", is_flag=True, help="Do it without asking.")(function)


def open_store(path: str, *, create: bool = False, **options: Any) -> tenantq.Store:
    """Open a store; one that is not there is made only where that is asked for."""
    return tenantq.open(path, create=create, **options)


@contextlib.contextmanager
def connect(dsn: str) -> Iterator[PostgresQueue]:
    """Give the shared queues of a Postgres, and end its connections."""
    from tenantq_bridge import PostgresQueue  # noqa: PLC0415 - an extra

    with PostgresQueue(dsn) as queue:
        yield queue


def confirm(question: str, *, yes: bool) -> None:
    """Ask on standard error before something is removed; end the command if the answer is not yes."""
    if yes:
        return
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    note("Nothing was done. Without a terminal, give --yes.")
    click.get_current_context().exit(PROBLEM)
