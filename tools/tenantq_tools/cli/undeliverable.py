"""`tenantq bridge undeliverable`: the events of a tenant that Postgres refused."""

from __future__ import annotations

import click

from tenantq import UndeliverableEvent
from tenantq.clock import to_datetime
from tenantq_tools.cli._options import confirm, open_store, with_json, with_store, with_yes
from tenantq_tools.cli._output import describe_event, note, print_json, print_table, printable, shorten

__all__ = ["undeliverable"]


@click.command()
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
