"""`tenantq periodic`: messages that are enqueued at the times of a cron expression."""

from __future__ import annotations

import click

from tenantq import Missed, PeriodicMessage, PeriodicMessages, Store
from tenantq_tools.cli._entries import parse_payload
from tenantq_tools.cli._failures import PROBLEM
from tenantq_tools.cli._options import open_store, with_json, with_store
from tenantq_tools.cli._output import describe_periodic, note, print_json, print_table, printable, shorten

__all__ = ["periodic"]

WIDTH = 60
"""Characters of a payload or an error in the table."""


@click.group()
def periodic() -> None:
    """List, add or remove periodic messages, of one tenant or for all tenants.

    They need the extra `cron`, and a worker that runs.

    \b
    Example:
      tenantq periodic list --tenant acme && tenantq periodic list --all
    """


@periodic.command(name="list")
@click.option("--tenant", metavar="T", help="Those of one tenant.")
@click.option("--all", "is_all", is_flag=True, help="Those for all tenants.")
@with_store()
@with_json
def list_periodic(*, tenant: str | None, is_all: bool, store_path: str, as_json: bool) -> None:
    """List periodic messages with their next and last fires, by name.

    \b
    Example:
      tenantq periodic list --tenant acme
    """
    _check_choice(tenant, is_all)
    with open_store(store_path) as store:
        found = _of(store, tenant).list()
    if as_json:
        for each in found:
            print_json({"tenant": tenant, **describe_periodic(each)})
    elif found:
        print_table(
            ("NAME", "CRON", "TIMEZONE", "MISSED", "NEXT_AT", "LAST_AT", "QUEUE", "PAYLOAD", "ERROR"),
            [_row(each) for each in found],
        )
    else:
        note("There are no periodic messages.")


@periodic.command()
@click.argument("name")
@click.argument("cron")
@click.argument("queue")
@click.argument("payload")
@click.option("--tenant", metavar="T", help="For one tenant.")
@click.option("--all", "is_all", is_flag=True, help="For all tenants.")
@click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="Of the IANA database.")
@click.option(
    "--missed",
    type=click.Choice([choice.value for choice in Missed]),
    default=Missed.ONCE.value,
    show_default=True,
    help="What becomes of fires that no worker ran for.",
)
@click.option("--priority", type=int, metavar="N", help="Higher ones are claimed first.")
@click.option("--key", metavar="K", help="While a message with this key is there, a fire adds none.")
@click.option("--max-attempts", type=int, metavar="N", help="Attempts before a message is dead.")
@click.option("--text", is_flag=True, help="PAYLOAD is text, not JSON.")
@with_store()
@with_json
def add(
    *,
    name: str,
    cron: str,
    queue: str,
    payload: str,
    tenant: str | None,
    is_all: bool,
    timezone: str,
    missed: str,
    priority: int | None,
    key: str | None,
    max_attempts: int | None,
    text: bool,
    store_path: str,
    as_json: bool,
) -> None:
    """Add a periodic message, or change the one of this name.

    CRON is minute, hour, day of the month, month and day of the week. Each fire is one message, whatever workers
    run. Of fires that no worker ran for, one message is made (once), one each (all), or none (skip).

    \b
    Examples:
      tenantq periodic add nightly '0 3 * * *' report.build null --tenant acme --timezone Europe/Berlin
      tenantq periodic add invoices '0 6 1 * *' invoice.build null --all --missed all
    """
    _check_choice(tenant, is_all)
    with open_store(store_path, durability="full") as store:
        added = _of(store, tenant).add(
            name,
            cron,
            queue,
            parse_payload(payload, text=text, raw=False),
            timezone=timezone,
            missed=missed,
            priority=priority,
            key=key,
            max_attempts=max_attempts,
        )
    if as_json:
        print_json({"tenant": tenant, **describe_periodic(added)})
    else:
        click.echo(f"{_where(tenant)}: {printable(name)} fires next at {_moment(added.next_at)}")


@periodic.command()
@click.argument("name")
@click.option("--tenant", metavar="T", help="That of one tenant.")
@click.option("--all", "is_all", is_flag=True, help="That for all tenants.")
@with_store()
@with_json
@click.pass_context
def remove(
    ctx: click.Context, *, name: str, tenant: str | None, is_all: bool, store_path: str, as_json: bool
) -> None:
    """Remove a periodic message; what it has enqueued stays. The exit status is 1 if there is none of this name.

    \b
    Example:
      tenantq periodic remove nightly --tenant acme
    """
    _check_choice(tenant, is_all)
    with open_store(store_path, durability="full") as store:
        is_removed = _of(store, tenant).remove(name)
    if as_json:
        print_json({"tenant": tenant, "name": name, "removed": is_removed})
    else:
        state = "is removed" if is_removed else "is not there"
        click.echo(f"{_where(tenant)}: {printable(name)} {state}")
    if not is_removed:
        ctx.exit(PROBLEM)


def _check_choice(tenant: str | None, is_all: bool) -> None:
    if (tenant is not None) == is_all:
        raise click.UsageError("give one of --tenant T and --all")


def _of(store: Store, tenant: str | None) -> PeriodicMessages:
    return store.periodic if tenant is None else store.tenant(tenant, create=False).periodic


def _where(tenant: str | None) -> str:
    return "all tenants" if tenant is None else printable(tenant)


def _moment(moment: object) -> str:
    return str(moment).replace(" ", "T") if moment else "never"


def _row(each: PeriodicMessage) -> tuple[object, ...]:
    return (
        each.name,
        each.cron,
        each.timezone,
        each.missed.value,
        _moment(each.next_at),
        _moment(each.last_at),
        each.queue,
        shorten(each.body, WIDTH),
        shorten(each.error or "", WIDTH),
    )
