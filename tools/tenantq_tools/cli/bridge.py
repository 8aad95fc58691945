"""`tenantq bridge`: the tables in Postgres, the forwarder that fills them, and how far it has come."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import click

from tenantq import Store, TenantqError
from tenantq_tools.cli._failures import PROBLEM, report
from tenantq_tools.cli._logs import show_log, with_log_level
from tenantq_tools.cli._options import connect, open_store, with_json, with_postgres, with_store
from tenantq_tools.cli._output import note, print_json, print_table, printable
from tenantq_tools.cli._overview import tenants_and_strays
from tenantq_tools.cli._progress import progress
from tenantq_tools.cli._signals import on_signals

if TYPE_CHECKING:
    from tenantq_bridge import Forwarder, PostgresQueue

__all__ = ["bridge"]


@click.group()
def bridge() -> None:
    """Lead events to queues in one shared Postgres.

    \b
    Example:
      export TENANTQ_POSTGRES=postgresql://app@db/shop TENANTQ_STORE=var/tenants
      tenantq bridge migrate
      tenantq bridge subscribe invoices 'billing.*'
      tenantq bridge run
    """


@bridge.command()
@with_postgres()
@with_json
def migrate(*, dsn: str, as_json: bool) -> None:
    """Make the tables in Postgres, or bring them to this version; again changes nothing.

    \b
    Example:
      tenantq bridge migrate --postgres postgresql://owner@db/shop
    """
    with connect(dsn) as queue, progress("migrating"):
        queue.migrate()
    if as_json:
        print_json({"migrated": True})
    else:
        click.echo("The tables in Postgres are of this version.")


@bridge.command()
@click.argument("queue")
@click.argument("pattern")
@with_postgres()
@with_json
def subscribe(*, queue: str, pattern: str, dsn: str, as_json: bool) -> None:
    """Have the events whose topics match PATTERN put into QUEUE, from now on.

    In a pattern * stands for any characters, dots too. Several queues may have one topic: each gets it. An
    event that no queue has subscribed to when it is forwarded is passed over.

    \b
    Example:
      tenantq bridge subscribe invoices 'billing.*'
    """
    with connect(dsn) as shared:
        shared.subscribe(queue, pattern)
    _say(queue, pattern, True, as_json=as_json)


@bridge.command()
@click.argument("queue")
@click.argument("pattern")
@with_postgres()
@with_json
def unsubscribe(*, queue: str, pattern: str, dsn: str, as_json: bool) -> None:
    """End a subscription; what it has brought stays in the queue.

    \b
    Example:
      tenantq bridge unsubscribe invoices 'billing.*'
    """
    with connect(dsn) as shared:
        shared.unsubscribe(queue, pattern)
    _say(queue, pattern, False, as_json=as_json)


@bridge.command()
@click.argument("queue")
@click.option("--max-claimed", type=click.IntRange(min=1), help="Messages under a lease at once, over all hosts.")
@click.option("--max-claimed-per-tenant", type=click.IntRange(min=1), help="Those of one tenant.")
@with_postgres()
@with_json
def share(
    *, queue: str, max_claimed: int | None, max_claimed_per_tenant: int | None, dsn: str, as_json: bool
) -> None:
    """Let tenants take turns in QUEUE, however much waits of one, and limit what is claimed at once.

    Again sets the limits anew; those that are left out are none.

    \b
    Example:
      tenantq bridge share reports --max-claimed 20 --max-claimed-per-tenant 2
    """
    with connect(dsn) as shared, progress("sorting what waits"):
        shared.share(queue, max_claimed=max_claimed, max_claimed_per_tenant=max_claimed_per_tenant)
    if as_json:
        limits = {"max_claimed": max_claimed, "max_claimed_per_tenant": max_claimed_per_tenant}
        print_json({"queue": queue, "shared": True} | limits)
    else:
        click.echo(f"Tenants take turns in queue {printable(queue)}.")


@bridge.command()
@click.argument("queue")
@with_postgres()
@with_json
def unshare(*, queue: str, dsn: str, as_json: bool) -> None:
    """End the limits of QUEUE at once, and the turns when nothing waits in it.

    \b
    Example:
      tenantq bridge unshare reports
    """
    with connect(dsn) as shared:
        shared.unshare(queue)
    if as_json:
        print_json({"queue": queue, "shared": False})
    else:
        click.echo(f"Queue {printable(queue)} has no limits.")


@bridge.command()
@click.option("--once", is_flag=True, help="Forward what waits now, and end.")
@with_log_level
@with_store()
@with_postgres()
@with_json
@click.pass_context
def run(
    ctx: click.Context,
    *,
    once: bool,
    log_level: str,
    store_path: str,
    dsn: str,
    as_json: bool,
) -> None:
    """Forward events until SIGTERM or SIGINT, and look after the tables in Postgres.

    It may be killed and started again at any time, and run twice: no event is lost or repeated. While
    Postgres is away it waits, and events wait in the tenants' files. With --once, the exit status is 1 if a
    tenant's file failed, and 4 if Postgres is away.

    \b
    Examples:
      tenantq bridge run
      tenantq bridge run --once --json
    """
    from tenantq_bridge import Forwarder  # noqa: PLC0415 - an extra

    show_log(log_level)
    with open_store(store_path) as store, connect(dsn) as queue:
        forwarder = Forwarder(store, queue)
        if once:
            with progress("forwarding") as advance:
                while count := forwarder.run_once():
                    advance(count)
            forwarder.stop()
        else:
            _run(forwarder, queue)
    failures = forwarder.tenant_failures
    for failure in failures.values():
        report(failure)
    if as_json:
        failed = {tenant: failure.message for tenant, failure in failures.items()}
        print_json({"forwarded": forwarder.forwarded, "failed": failed})
    else:
        click.echo(f"{forwarder.forwarded} events forwarded")
    if once and failures:
        ctx.exit(PROBLEM)


@bridge.command()
@with_store(required=False)
@with_postgres()
@with_json
@click.pass_context
def status(ctx: click.Context, *, store_path: str | None, dsn: str, as_json: bool) -> None:
    """Show the shared queues, the subscriptions and, given a store, the events that wait in it.

    A tenant is held back when its file and Postgres disagree about what was forwarded: the exit status is
    then 1, and `tenantq bridge readmit` ends it.

    \b
    Example:
      tenantq bridge status --json | jq .pending
    """
    held: list[dict[str, object]] = []
    pending: int | None = None
    unreadable = 0
    with contextlib.ExitStack() as stack:
        queue = stack.enter_context(connect(dsn))
        shared, subscriptions = queue.stats(), queue.subscriptions()
        if store_path is not None:
            store = stack.enter_context(open_store(store_path))
            pending, unreadable = _pending(store)
            held = _held_back(store, queue)
    if as_json:
        print_json(
            {
                "shared": shared,
                "subscriptions": subscriptions,
                "pending": pending,
                "unreadable": unreadable,
                "held_back": held,
            },
        )
    else:
        print_table(
            ("READY", "SCHEDULED", "CLAIMED", "DEAD", "SHARED QUEUE"),
            [(row.ready, row.scheduled, row.claimed, row.dead, row.queue) for row in shared.queues],
        )
        click.echo()
        print_table(("QUEUE", "PATTERN"), [(found.queue, found.pattern) for found in subscriptions])
        click.echo()
        click.echo("events waiting: give --store" if pending is None else f"events waiting: {pending}")
        for tenant in held:
            note(f"held back: {tenant['tenant']}: {tenant['reason']}")
    if held or unreadable:
        ctx.exit(PROBLEM)


@bridge.command()
@click.argument("tenant")
@click.option(
    "--resend/--skip",
    "resend",
    default=None,
    help="Send the events that the file does not know to be forwarded, or pass them over.",
)
@with_store()
@with_postgres()
@with_json
@click.pass_context
def readmit(
    ctx: click.Context,
    *,
    tenant: str,
    resend: bool | None,
    store_path: str,
    dsn: str,
    as_json: bool,
) -> None:
    """Forward a tenant's events again that were held back, after you have looked at its file and backups.

    --resend may repeat events that are too old to be compared; --skip may lose some. The exit status is 1 if
    the tenant was not held back.

    \b
    Example:
      tenantq bridge readmit acme --resend
    """
    from tenantq_bridge import Forwarder  # noqa: PLC0415 - an extra

    if resend is None:
        raise click.UsageError("say what becomes of the events that wait: --resend or --skip", ctx)
    with open_store(store_path) as store, connect(dsn) as queue:
        was_held = Forwarder(store, queue).readmit(tenant, resend=resend)
    if as_json:
        print_json({"tenant": tenant, "readmitted": was_held})
    else:
        click.echo(f"{printable(tenant)}: {'readmitted' if was_held else 'it was not held back'}")
    if not was_held:
        ctx.exit(PROBLEM)


def _run(forwarder: Forwarder, queue: PostgresQueue) -> None:
    """Forward and maintain, each in a thread of its own, until a signal."""
    from tenantq_bridge import Maintenance, PostgresUnavailable  # noqa: PLC0415 - an extra

    try:
        queue.subscriptions()  # tables that are missing are told at once; a server that is away is waited for
    except PostgresUnavailable as exc:
        report(exc)
    stopping = threading.Event()
    with on_signals(stopping.set), forwarder, Maintenance(queue):
        note(f"forwarding the events of the store {forwarder.store.root}")
        stopping.wait()


def _pending(store: Store) -> tuple[int, int]:
    """Return how many events wait, and in how many files nobody can tell."""
    ids, strays = tenants_and_strays(store)
    pending, unreadable = 0, len(strays)
    with progress("reading tenants", len(ids)) as advance:
        for tenant_id in ids:
            try:
                pending += store.tenant(tenant_id).outbox.position().pending
            except TenantqError as exc:
                report(exc)
                unreadable += 1
            advance(1)
    return pending, unreadable


def _held_back(store: Store, queue: PostgresQueue) -> list[dict[str, object]]:
    from tenantq_bridge import Forwarder  # noqa: PLC0415 - an extra

    return [
        {"tenant": state.tenant, "since": state.quarantined_at, "reason": state.reason}
        for state in Forwarder(store, queue).states()
        if state.quarantined_at is not None
    ]


def _say(queue: str, pattern: str, is_subscribed: bool, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "pattern": pattern, "subscribed": is_subscribed})
    else:
        does = "gets" if is_subscribed else "no longer gets"
        click.echo(f"queue {printable(queue)} {does} the topics {printable(pattern)}")
