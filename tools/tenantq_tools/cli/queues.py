"""`tenantq pause`, `resume`, `limit`, `reap` and `purge`: what an operator does to a queue."""

from __future__ import annotations

import click

from tenantq_tools.cli._options import confirm, open_store, with_json, with_store, with_yes
from tenantq_tools.cli._output import print_json, printable

__all__ = ["limit", "pause", "purge", "reap", "resume"]


def _depth(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Return a number of messages, None for `none`. The library says which numbers do."""
    if value == "none":
        return None
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor none", ctx, param) from None


@click.command()
@click.argument("tenant")
@click.argument("queue")
@with_store()
@with_json
def pause(*, tenant: str, queue: str, store_path: str, as_json: bool) -> None:
    """Let claims find nothing in a queue until `tenantq resume`.

    Messages can be enqueued all the same, and what is claimed already may go on. It survives restarts.

    \b
    Example:
      tenantq pause acme report.build
    """
    with open_store(store_path) as store:
        store.tenant(tenant, create=False).pause(queue)
    _say(tenant, queue, "paused", True, as_json=as_json)


@click.command()
@click.argument("tenant")
@click.argument("queue")
@with_store()
@with_json
def resume(*, tenant: str, queue: str, store_path: str, as_json: bool) -> None:
    """Let claims find a paused queue's messages again.

    \b
    Example:
      tenantq resume acme report.build
    """
    with open_store(store_path) as store:
        store.tenant(tenant, create=False).resume(queue)
    _say(tenant, queue, "paused", False, as_json=as_json)


@click.command()
@click.argument("tenant")
@click.argument("queue", required=False)
@click.option(
    "--max-depth", callback=_depth, required=True, metavar="N|none", help="How many messages it may hold."
)
@with_store()
@with_json
def limit(*, tenant: str, queue: str | None, max_depth: int | None, store_path: str, as_json: bool) -> None:
    """Let a queue hold no more than N messages, or any number.

    Without QUEUE: all queues of the tenant together. Messages that wait or are claimed count. Where there is no
    room an enqueue waits or fails, in every process and from now on; what is in stays in. `none` removes the
    bound: a queue without one has that of the application's store, if it sets any.

    \b
    Examples:
      tenantq limit acme report.build --max-depth 10000
      tenantq limit acme --max-depth none
    """
    with open_store(store_path) as store:
        store.tenant(tenant, create=False).limit(queue, max_depth=max_depth)
    if as_json:
        print_json({"tenant": tenant, "queue": queue, "max_depth": max_depth})
    else:
        where = "all queues together" if queue is None else f"queue {printable(queue)}"
        click.echo(f"{printable(tenant)}: {where}: {'no bound' if max_depth is None else f'at most {max_depth}'}")


@click.command()
@click.argument("tenant")
@with_store()
@with_json
def reap(*, tenant: str, store_path: str, as_json: bool) -> None:
    """Take back the expired leases of a tenant now.

    Claims find these messages anyway; this sets the numbers right where nobody claims. Messages that have
    used up their attempts become dead letters.

    \b
    Example:
      tenantq reap acme
    """
    with open_store(store_path) as store:
        count = store.tenant(tenant, create=False).reap()
    if as_json:
        print_json({"tenant": tenant, "reaped": count})
    else:
        click.echo(f"{printable(tenant)}: {count} leases taken back")


@click.command()
@click.argument("tenant")
@click.argument("queue")
@with_yes
@with_store()
@with_json
def purge(*, tenant: str, queue: str, yes: bool, store_path: str, as_json: bool) -> None:
    """Remove what waits or is claimed in a queue.

    Dead letters stay: see `tenantq dead purge`. A worker that has one of the messages finds its lease lost.

    \b
    Example:
      tenantq purge acme report.build --yes
    """
    with open_store(store_path) as store:
        chosen = store.tenant(tenant, create=False)
        if not yes:
            held = [found for found in chosen.stats().queues if found.queue == queue]
            waiting = sum(found.ready + found.scheduled for found in held)
            claimed = sum(found.claimed for found in held)
            where = f"queue {printable(queue)} of tenant {printable(tenant)}"
            confirm(f"Remove {waiting} messages that wait and {claimed} claimed ones from {where}?", yes=yes)
        count = chosen.purge(queue)
    if as_json:
        print_json({"tenant": tenant, "queue": queue, "purged": count})
    else:
        click.echo(f"{printable(tenant)}: {count} messages removed from queue {printable(queue)}")


def _say(tenant: str, queue: str, state: str, value: bool, *, as_json: bool) -> None:
    if as_json:
        print_json({"tenant": tenant, "queue": queue, state: value})
    else:
        click.echo(f"{printable(tenant)}: queue {printable(queue)} is {'' if value else 'not '}{state}")
