"""`tenantq bridge status`: what the queues in Postgres hold, and how far a store's events have come."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tenantq import Store, TenantqError
from tenantq_tools.cli._failures import PROBLEM, report
from tenantq_tools.cli._options import connect, open_store, with_json, with_postgres, with_store
from tenantq_tools.cli._output import note, print_json, print_table, printable
from tenantq_tools.cli._overview import tenants_and_strays
from tenantq_tools.cli._progress import progress

if TYPE_CHECKING:
    from tenantq_bridge import ForwarderStatus, PostgresQueue, TenantOwner

__all__ = ["NO_SUBSCRIPTIONS", "status"]

NO_SUBSCRIPTIONS = "nothing is subscribed, so events are passed over: `tenantq bridge subscribe QUEUE PATTERN`"

SHOWN_TENANTS = 20
"""Tenants for which something waits that `status` lists; with --json there are all of them."""


@click.command()
@with_store(required=False)
@with_postgres()
@with_json
@click.pass_context
def status(ctx: click.Context, *, store_path: str | None, dsn: str, as_json: bool) -> None:
    """Show the queues in Postgres, what waits for tenants and, given a store, its forwarders.

    Where tenants take turns in a queue, its limits are those of the messages that are claimed at once.

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
            shares, recorded = queue.shares(), queue.recorded()
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
                "shares": shares,
                "recorded": recorded,
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
        if shares:
            print_table(
                ("MAX_CLAIMED", "PER_TENANT", "STATE", "QUEUE IN WHICH TENANTS TAKE TURNS"),
                [
                    (
                        row.max_claimed,
                        row.max_claimed_per_tenant,
                        "ending" if row.is_ending else "shared",
                        row.queue,
                    )
                    for row in shares
                ],
            )
            click.echo()
        if recorded:
            print_table(("RECORDED QUEUE",), [(name,) for name in recorded])
            click.echo()
        _print_outgoing(outgoing)
        click.echo("events waiting: give --store" if pending is None else f"events waiting: {pending}")
        if not subscriptions:
            note(NO_SUBSCRIPTIONS)
        if undeliverable:
            note(f"{undeliverable} events are undeliverable: `tenantq bridge undeliverable TENANT` shows them")
        _note_forwarders(forwarders)
        for tenant in held:
            note(f"held back: {tenant['tenant']}: {tenant['reason']}")
    if held or unreadable:
        ctx.exit(PROBLEM)


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
