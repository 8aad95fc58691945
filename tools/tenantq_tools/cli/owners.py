"""`tenantq bridge send`, `owners`, `assign`, `forget`: what is sent down to tenants, and whose they are."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from tenantq_tools.cli._entries import Options, check_entry, parse_moment, parse_payload
from tenantq_tools.cli._failures import PROBLEM
from tenantq_tools.cli._options import confirm, connect, with_json, with_message, with_postgres, with_yes
from tenantq_tools.cli._output import print_json, print_table, printable

__all__ = ["assign", "forget", "owners", "send"]


@click.command()
@click.argument("tenant")
@click.argument("queue")
@click.argument("payload")
@with_message
@with_postgres()
@with_json
def send(
    *,
    tenant: str,
    queue: str,
    payload: str,
    text: bool,
    raw: bool,
    dsn: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Send one message to a queue in a tenant's own file, whichever host has it.

    PAYLOAD is JSON, or with --text or --raw what you like; - reads it from standard input. It waits in
    Postgres until the host that owns the tenant delivers it, which `tenantq bridge run` does there.

    \b
    Example:
      tenantq bridge send acme plan.changed '{"plan": "pro"}'
    """
    options = Options(
        delay=given["delay"] or 0,
        at=None if given["at"] is None else parse_moment(given["at"]),
        priority=given["priority"],
        key=given["key"],
        max_attempts=given["max_attempts"],
    )
    value = parse_payload(payload, text=text, raw=raw)
    check_entry(queue, value, options)
    with connect(dsn) as shared:
        seq = shared.send_to_tenant(tenant, queue, value, **msgspec.structs.asdict(options))
    if as_json:
        print_json({"tenant": tenant, "queue": queue, "seq": seq})
    else:
        click.echo(f"{printable(tenant)}: message {seq} waits for queue {printable(queue)}")


@click.command()
@click.option("--host", metavar="NAME", help="Only the tenants of this host.")
@click.option("--waiting", is_flag=True, help="Only those for which something waits.")
@with_postgres()
@with_json
def owners(*, host: str | None, waiting: bool, dsn: str, as_json: bool) -> None:
    """List which host owns which tenant, and how much waits to be delivered to it.

    A host becomes the owner of every tenant in its store that has none when `tenantq bridge run` first sees
    it there. A tenant without an owner is one that something was sent to before that.

    \b
    Examples:
      tenantq bridge owners --waiting
      tenantq bridge owners --host db-7 --json | jq -r .tenant
    """
    with connect(dsn) as queue:
        found = queue.owners(host, waiting=waiting)
    if as_json:
        for owner in found:
            print_json(owner)
    else:
        print_table(
            ("WAITING", "TENANT", "HOST", "FAILURE"),
            [(owner.waiting, owner.tenant, owner.host, owner.failure) for owner in found],
        )


@click.command()
@click.argument("tenant")
@click.argument("host")
@with_postgres()
@with_json
def assign(*, tenant: str, host: str, dsn: str, as_json: bool) -> None:
    """Make HOST the owner of TENANT, whichever host was.

    When this has ended the host before delivers nothing more to the tenant: then stop what uses it there,
    move its file, and what waits is delivered to it on the new host.

    \b
    Example:
      tenantq bridge assign acme db-7
    """
    with connect(dsn) as queue:
        before = queue.assign(tenant, host)
    if as_json:
        print_json({"tenant": tenant, "host": host, "before": before})
    else:
        was = "nobody's" if before is None else f"{printable(before)}'s"
        click.echo(f"{printable(tenant)}: {printable(host)}'s now, {was} before")


@click.command()
@click.argument("tenant")
@with_yes
@with_postgres()
@with_json
@click.pass_context
def forget(ctx: click.Context, *, tenant: str, yes: bool, dsn: str, as_json: bool) -> None:
    """Remove a tenant's owner and all that waits to be delivered to it, when the tenant is gone for good.

    The exit status is 1 if Postgres knows nothing of it.

    \b
    Example:
      tenantq delete acme --yes && tenantq bridge forget acme --yes
    """
    confirm(f"Remove all that was sent to tenant {printable(tenant)} and not delivered?", yes=yes)
    with connect(dsn) as queue:
        removed = queue.forget_tenant(tenant)
    if as_json:
        print_json({"tenant": tenant, "removed": removed})
    elif removed is None:
        click.echo(f"{printable(tenant)}: nothing is known of it")
    else:
        click.echo(f"{printable(tenant)}: {removed} messages removed")
    if removed is None:
        ctx.exit(PROBLEM)
