"""`tenantq bridge subscribe`, `share`, `record`, `history`: what the queues in Postgres get, give out and keep."""

from __future__ import annotations

import click

from tenantq_tools.cli._options import connect, with_json, with_postgres
from tenantq_tools.cli._output import describe, note, print_json, print_table, printable, shorten
from tenantq_tools.cli._progress import progress

__all__ = ["history", "record", "share", "subscribe", "unrecord", "unshare", "unsubscribe"]


@click.command()
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


@click.command()
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


@click.command()
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


@click.command()
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


@click.command()
@click.argument("queue")
@with_postgres()
@with_json
def record(*, queue: str, dsn: str, as_json: bool) -> None:
    """Keep what is acked in QUEUE from now on, for a day or so; `tenantq bridge history` shows it.

    \b
    Example:
      tenantq bridge record invoices
    """
    with connect(dsn) as shared:
        shared.record(queue)
    _say_recorded(queue, True, as_json=as_json)


@click.command()
@click.argument("queue")
@with_postgres()
@with_json
def unrecord(*, queue: str, dsn: str, as_json: bool) -> None:
    """Keep no more of what is acked in QUEUE; what is kept stays for its time.

    \b
    Example:
      tenantq bridge unrecord invoices
    """
    with connect(dsn) as shared:
        shared.unrecord(queue)
    _say_recorded(queue, False, as_json=as_json)


@click.command()
@click.argument("queue")
@click.option("--tenant", metavar="TENANT", help="Only the messages of this tenant.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Messages at most.")
@click.option(
    "--width",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Characters of a payload; --json has all of it.",
)
@with_postgres()
@with_json
def history(*, queue: str, tenant: str | None, limit: int, width: int, dsn: str, as_json: bool) -> None:
    """List what was acked last in QUEUE, the latest first, if the queue is recorded.

    It reads all that is kept, of every queue: a look for a person, not for a program that works. What died
    is not in it, as dead letters are kept until somebody removes them.

    \b
    Examples:
      tenantq bridge history invoices --tenant acme
      tenantq bridge history invoices --limit 1000 --json | jq -r .worker
    """
    with connect(dsn) as shared:
        found = shared.history(queue, tenant=tenant, limit=limit)
        is_recorded = queue in shared.recorded()
    if not is_recorded:
        note(f"Queue {queue} is not recorded: `tenantq bridge record` keeps what is acked from then on.")
    if as_json:
        for acked in found:
            own = {"topic": acked.message.topic, "event_id": acked.message.event_id, "worker": acked.worker}
            print_json(describe(acked.message) | own | {"acked_at": acked.acked_at.isoformat()})
        return
    if not found:
        note(f"Nothing is kept of queue {queue}.")
        return
    print_table(
        ("ID", "ACKED_AT", "ATTEMPTS", "TENANT", "WORKER", "PAYLOAD"),
        [
            (
                acked.message.id,
                acked.acked_at.isoformat(timespec="seconds"),
                f"{acked.message.attempts}/{acked.message.max_attempts}",
                acked.message.tenant,
                acked.worker,
                shorten(acked.message.body, width),
            )
            for acked in found
        ],
    )


def _say(queue: str, pattern: str, is_subscribed: bool, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "pattern": pattern, "subscribed": is_subscribed})
    else:
        does = "gets" if is_subscribed else "no longer gets"
        click.echo(f"queue {printable(queue)} {does} the topics {printable(pattern)}")


def _say_recorded(queue: str, is_recorded: bool, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "recorded": is_recorded})
    else:
        does = "is kept" if is_recorded else "is no longer kept"
        click.echo(f"what is acked in queue {printable(queue)} {does}")
