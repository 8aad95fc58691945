"""`tenantq pause`, `resume`, `limit`, `reap` and `purge`: what an operator does to a queue."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from tenantq_tools.cli._options import confirm, open_store, with_json, with_store, with_yes
from tenantq_tools.cli._output import print_json, printable

__all__ = ["limit", "pause", "purge", "reap", "resume"]


class Words(NamedTuple):
    """How a limit is told."""

    given: str
    without: str


LIMITS = {
    "max_depth": Words("at most {}", "no bound"),
    "max_claimed": Words("at most {} claimed at once", "any number claimed at once"),
    "rate": Words("at most {} claimed", "no rate"),
    "weight": Words("weight {:g}", "weight 1"),
}


class Unchanged:
    """Stands for an option that was not given."""


def _number(ctx: click.Context, param: click.Parameter, value: str | None) -> float | Unchanged | None:
    """Return a number, None for `none`. The library says which numbers do."""
    if value is None:
        return Unchanged()
    if value == "none":
        return None
    try:
        return float(value) if param.name == "weight" else int(value)
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
@click.option("--max-depth", callback=_number, metavar="N|none", help="How many messages it may hold.")
@click.option("--max-claimed", callback=_number, metavar="N|none", help="How many may be under a lease at once.")
@click.option("--rate", callback=_number, metavar="N|none", help="How many may be claimed in --per seconds.")
@click.option("--per", type=float, metavar="SECONDS", help="What --rate is counted over; a second by default.")
@click.option("--weight", callback=_number, metavar="X|none", help="The tenant's share of a worker's time.")
@with_store()
@with_json
def limit(
    *, tenant: str, queue: str | None, per: float | None, store_path: str, as_json: bool, **given: Any
) -> None:
    """Limit what a queue holds and what is claimed from it.

    Without QUEUE: all queues of the tenant together. Every process obeys from now on. What is not given stays as
    it is, `none` removes a limit.

    Over --max-depth an enqueue waits or fails; what is in stays in. A queue without a bound has that of the
    application's store, if it sets any. Over --max-claimed and --rate a claim gives out fewer messages. A tenant
    of --weight 2 gets twice the handler time of one of weight 1 while both have something to do.

    \b
    Examples:
      tenantq limit acme report.build --max-depth 10000
      tenantq limit acme --max-depth none
      tenantq limit acme mail.send --rate 100 --per 60 --max-claimed 5
      tenantq limit acme --weight 2
    """
    limits = {name: value for name, value in given.items() if not isinstance(value, Unchanged)}
    if not limits:
        raise click.UsageError("give a limit: --max-depth, --max-claimed, --rate or --weight")
    if per is not None and "rate" not in limits:
        raise click.UsageError("--per says what --rate is counted over: give that too")
    with open_store(store_path) as store:
        store.tenant(tenant, create=False).limit(queue, per=1.0 if per is None else per, **limits)
    if as_json:
        print_json({"tenant": tenant, "queue": queue, **limits, **({} if per is None else {"per": per})})
        return
    where = "all queues together" if queue is None else f"queue {printable(queue)}"
    said = []
    for name, words in LIMITS.items():
        if name not in limits:
            continue
        value = limits[name]
        over = f" in {per or 1:g} s" if name == "rate" and value is not None else ""
        said.append(words.without if value is None else f"{words.given.format(value)}{over}")
    click.echo(f"{printable(tenant)}: {where}: {', '.join(said)}")


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
