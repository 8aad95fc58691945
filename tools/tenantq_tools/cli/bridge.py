"""`tenantq bridge`: the tables in Postgres, the forwarder that fills them, and how far it has come."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tenantq import Store, TenantqError, UndeliverableEvent
from tenantq.clock import to_datetime
from tenantq_tools.cli._failures import PROBLEM, report
from tenantq_tools.cli._health import health
from tenantq_tools.cli._logs import show_log, with_log_level
from tenantq_tools.cli._options import (
    confirm,
    connect,
    open_store,
    with_json,
    with_postgres,
    with_store,
    with_yes,
)
from tenantq_tools.cli._output import describe_event, note, print_json, print_table, printable, shorten
from tenantq_tools.cli._overview import tenants_and_strays
from tenantq_tools.cli._progress import progress
from tenantq_tools.cli._signals import on_signals
from tenantq_tools.cli.owners import assign, forget, owners, send

if TYPE_CHECKING:
    from tenantq_bridge import Deliverer, Forwarder, ForwarderStatus, PostgresQueue, TenantOwner

__all__ = ["bridge"]

SHOWN_TENANTS = 20
"""Tenants for which something waits that `status` lists; with --json there are all of them."""


@click.group()
def bridge() -> None:
    """Lead events to queues in one shared Postgres, and messages from there to tenants.

    \b
    Example:
      export TENANTQ_POSTGRES=postgresql://app@db/shop TENANTQ_STORE=var/tenants
      tenantq bridge migrate
      tenantq bridge subscribe invoices 'billing.*'
      tenantq bridge run
    """


for command in (health, send, owners, assign, forget):
    bridge.add_command(command)


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
@click.option("--once", is_flag=True, help="Forward and deliver what waits now, and end.")
@click.option("--host", metavar="NAME", help="What this host owns tenants as.  [default: the machine's host name]")
@click.option(
    "--direct-postgres",
    "direct_dsn",
    envvar="TENANTQ_DIRECT_POSTGRES",
    show_envvar=True,
    metavar="DSN",
    help="The same database past a pooler, through which no index can be rebuilt.",
)
@click.option(
    "--pgmq",
    "routes",
    metavar="[PATTERN=]QUEUE",
    multiple=True,
    callback=lambda _ctx, _parameter, given: _routes(given),
    help="Send the events whose topics match, or all, to a queue of pgmq in the same Postgres too.",
)
@with_log_level
@with_store()
@with_postgres()
@with_json
@click.pass_context
def run(
    ctx: click.Context,
    *,
    once: bool,
    direct_dsn: str | None,
    host: str | None,
    routes: dict[str, str],
    log_level: str,
    store_path: str,
    dsn: str,
    as_json: bool,
) -> None:
    """Forward events until SIGTERM or SIGINT, deliver what was sent to tenants, and look after the tables.

    It may be killed and started again at any time, and run twice: no event or message is lost or repeated.
    While Postgres is away it waits, and events wait in the tenants' files. With --once, the exit status is 1
    if a tenant's file failed, and 4 if Postgres is away.

    This host becomes the owner of the tenants in the store that no host owns. Where its name changes from
    one start to the next, as in a container, give it one with --host; two stores on one machine need two.

    \b
    Examples:
      tenantq bridge run
      tenantq bridge run --once --json
      tenantq bridge run --pgmq 'billing.*=invoices' --pgmq '*=audit'
    """
    from tenantq_bridge import Deliverer, Forwarder, PgmqTarget  # noqa: PLC0415 - an extra

    show_log(log_level)
    with open_store(store_path) as store, connect(dsn) as queue:
        forwarder = Forwarder(store, PgmqTarget(queue, routes) if routes else queue)
        deliverer = Deliverer(store, queue, host=host)
        if once:
            for what, service in (("forwarding", forwarder), ("delivering", deliverer)):
                with progress(what) as advance:
                    while count := service.run_once():
                        advance(count)
                service.stop()
        else:
            _run(forwarder, deliverer, queue, direct_dsn)
    failures = deliverer.tenant_failures | forwarder.tenant_failures
    for failure in failures.values():
        report(failure)
    if as_json:
        failed = {tenant: failure.message for tenant, failure in failures.items()}
        print_json(
            {
                "forwarded": forwarder.forwarded,
                "delivered": deliverer.delivered,
                "failed": failed,
                "undeliverable": forwarder.undeliverable,
            }
        )
    else:
        click.echo(f"{forwarder.forwarded} events forwarded, {deliverer.delivered} messages delivered")
    if once and failures:
        ctx.exit(PROBLEM)


@bridge.command()
@with_store(required=False)
@with_postgres()
@with_json
@click.pass_context
def status(ctx: click.Context, *, store_path: str | None, dsn: str, as_json: bool) -> None:
    """Show the shared queues, the subscriptions, what waits for tenants and, given a store, its forwarders.

    A forwarder's breaker is closed while Postgres answers it, open while it waits to try again, and half-open
    while it tries.

    A tenant is held back when its file and Postgres disagree about what was forwarded: the exit status is
    then 1, and `tenantq bridge readmit` ends it.

    \b
    Example:
      tenantq bridge status --json | jq .pending
    """
    from tenantq_bridge import running_forwarders  # noqa: PLC0415 - an extra

    held: list[dict[str, object]] = []
    pending: int | None = None
    undeliverable: int | None = None
    unreadable = 0
    with contextlib.ExitStack() as stack:
        queue = stack.enter_context(connect(dsn))
        store = None if store_path is None else stack.enter_context(open_store(store_path))
        forwarders = [] if store is None else running_forwarders(store.root)
        try:
            shared, subscriptions, outgoing = queue.stats(), queue.subscriptions(), queue.owners(waiting=True)
        except TenantqError:
            _note_forwarders(forwarders)  # when Postgres is away, this is what one wants to know
            raise
        if store is not None:
            pending, undeliverable, unreadable = _waiting(store)
            held = _held_back(store, queue)
    if as_json:
        print_json(
            {
                "shared": shared,
                "subscriptions": subscriptions,
                "outgoing": outgoing,
                "pending": pending,
                "undeliverable": undeliverable,
                "unreadable": unreadable,
                "held_back": held,
                "forwarders": forwarders,
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
        _print_outgoing(outgoing)
        click.echo("events waiting: give --store" if pending is None else f"events waiting: {pending}")
        if undeliverable:
            note(f"{undeliverable} events are undeliverable: `tenantq bridge undeliverable TENANT` shows them")
        _note_forwarders(forwarders)
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


@bridge.command()
@click.argument("tenant")
@click.argument("places", metavar="[PLACE]...", type=int, nargs=-1)
@click.option("--resend", "action", flag_value="resend", help="Send them again, under their own event ids.")
@click.option("--discard", "action", flag_value="discard", help="Remove them for good.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Events shown at most.")
@click.option(
    "--width",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Characters of an error and of a payload; --json has all of them.",
)
@with_yes
@with_store()
@with_json
def undeliverable(
    *,
    tenant: str,
    places: tuple[int, ...],
    action: str | None,
    limit: int,
    width: int,
    yes: bool,
    store_path: str,
    as_json: bool,
) -> None:
    """List the events of a tenant that Postgres refused, send them again, or remove them.

    PLACE is an event's place in the tenant's outbox, as the list shows it; without one, --resend and --discard
    take all.

    \b
    Examples:
      tenantq bridge undeliverable acme
      tenantq bridge undeliverable acme 17 --resend
    """
    with open_store(store_path) as store:
        outbox = store.tenant(tenant, create=False).outbox
        match action:
            case "resend":
                _say_settled(tenant, "resent", outbox.redeliver(*places), as_json=as_json)
            case "discard":
                held = len(places) or outbox.position().undeliverable
                confirm(f"Remove {held} events of tenant {printable(tenant)}?", yes=yes)
                _say_settled(tenant, "discarded", outbox.discard(*places), as_json=as_json)
            case _:
                chosen = [event for event in outbox.undeliverable(limit) if not places or event.seq in places]
                _list_undeliverable(tenant, chosen, width, as_json=as_json)


def _say_settled(tenant: str, done: str, count: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"tenant": tenant, done: count})
    else:
        click.echo(f"{printable(tenant)}: {count} {done}")


def _list_undeliverable(tenant: str, events: list[UndeliverableEvent], width: int, *, as_json: bool) -> None:
    if as_json:
        for event in events:
            print_json(describe_event(tenant, event))
        return
    if not events:
        note("There are no undeliverable events.")
        return
    print_table(
        ("PLACE", "TOPIC", "REFUSED_AT", "ERROR", "PAYLOAD"),
        [
            (
                event.seq,
                event.topic,
                to_datetime(event.refused_ns).isoformat(timespec="seconds"),
                shorten(event.error, width),
                shorten(event.body, width),
            )
            for event in events
        ],
    )


def _routes(given: Sequence[str]) -> dict[str, str]:
    """Return what `--pgmq` says: the queue of each pattern."""
    routes: dict[str, str] = {}
    for text in given:
        pattern, is_given, queue = text.rpartition("=")
        pattern = pattern if is_given else "*"
        if pattern in routes:
            raise click.BadParameter(f"the pattern {pattern!r} is given twice")
        routes[pattern] = queue
    return routes


def _print_outgoing(outgoing: Sequence[TenantOwner]) -> None:
    """Print what waits for tenants, those that wait longest first; none of it if nothing does."""
    if not outgoing:
        return
    longest = sorted(outgoing, key=lambda owner: owner.oldest_age or 0.0, reverse=True)
    print_table(
        ("WAITING", "TENANT", "HOST", "FAILURE"),
        [(owner.waiting, owner.tenant, owner.host, owner.failure) for owner in longest[:SHOWN_TENANTS]],
    )
    if len(outgoing) > SHOWN_TENANTS:
        click.echo(f"and {len(outgoing) - SHOWN_TENANTS} more tenants: tenantq bridge owners --waiting")
    click.echo()


def _run(forwarder: Forwarder, deliverer: Deliverer, queue: PostgresQueue, direct_dsn: str | None) -> None:
    """Forward, deliver and maintain, each in a thread of its own, until a signal."""
    from tenantq_bridge import Maintenance, PostgresUnavailable  # noqa: PLC0415 - an extra

    try:
        queue.subscriptions()  # tables that are missing are told at once; a server that is away is waited for
    except PostgresUnavailable as exc:
        report(exc)
    stopping = threading.Event()
    with on_signals(stopping.set), forwarder, deliverer, Maintenance(queue, direct_dsn=direct_dsn):
        note(f"forwarding the events of the store {forwarder.store.root}, as host {deliverer.host}")
        stopping.wait()


def _note_forwarders(forwarders: list[ForwarderStatus]) -> None:
    for forwarder in forwarders:
        breaker = forwarder.breaker
        said = [f"forwarder {forwarder.pid}: the breaker is {breaker.state}"]
        if breaker.since is not None:
            said.append(f"since {breaker.since.isoformat(timespec='seconds')}")
        if breaker.next_try_at is not None:
            said.append(f"next try at {breaker.next_try_at.isoformat(timespec='seconds')}")
        if breaker.error is not None:
            said.append(printable(breaker.error))
        note(", ".join(said))


def _waiting(store: Store) -> tuple[int, int, int]:
    """Return how many events wait, how many are undeliverable, and in how many files nobody can tell."""
    ids, strays = tenants_and_strays(store)
    pending, undeliverable, unreadable = 0, 0, len(strays)
    with progress("reading tenants", len(ids)) as advance:
        for tenant_id in ids:
            try:
                position = store.tenant(tenant_id).outbox.position()
                pending += position.pending
                undeliverable += position.undeliverable
            except TenantqError as exc:
                report(exc)
                unreadable += 1
            advance(1)
    return pending, undeliverable, unreadable


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
