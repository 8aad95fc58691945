"""`tenantq tenants`, `path` and `delete`: which tenants there are, where, and one less."""

from __future__ import annotations

import click

from tenantq import Tenant, TenantqError
from tenantq_tools.cli._failures import PROBLEM, report
from tenantq_tools.cli._options import confirm, open_store, with_json, with_store, with_yes
from tenantq_tools.cli._output import print_json, printable
from tenantq_tools.cli._overview import COLUMNS, Overview, print_header, print_row

__all__ = ["delete", "path", "tenants"]


@click.command()
@click.option("--long", "is_long", is_flag=True, help=f"Print what each holds too: {', '.join(COLUMNS)}.")
@with_store()
@with_json
@click.pass_context
def tenants(ctx: click.Context, *, is_long: bool, store_path: str, as_json: bool) -> None:
    """List the tenants of the store.

    Characters that a terminal would act on are spelled out; --json gives every id exactly.

    \b
    Examples:
      tenantq tenants
      tenantq tenants --long --json | jq -r 'select(.dead > 0) | .tenant'
    """
    with open_store(store_path) as store:
        if is_long and not as_json:
            print_header()
        failed = False
        for tenant_id in store.tenants():
            if not is_long:
                print_json({"tenant": tenant_id}) if as_json else click.echo(printable(tenant_id))
                continue
            try:
                row = Overview.of(store.tenant(tenant_id).stats())
            except TenantqError as exc:
                report(exc)
                failed = True
            else:
                print_json(row) if as_json else print_row(row)
    if failed:
        ctx.exit(PROBLEM)


@click.command()
@click.argument("tenant")
@with_store()
@with_json
def path(*, tenant: str, store_path: str, as_json: bool) -> None:
    """Print the path of a tenant's file.

    While a process has the file open, touch it only through tenantq; `tenantq backup` copies it safely.

    \b
    Example:
      sqlite3 -readonly "$(tenantq path acme)" 'SELECT count(*) FROM queue'
    """
    with open_store(store_path) as store:
        found = store.tenant(tenant, create=False).path
    print_json({"tenant": tenant, "path": str(found)}) if as_json else click.echo(str(found))


@click.command()
@click.argument("tenant")
@with_yes
@with_store()
@with_json
def delete(*, tenant: str, yes: bool, store_path: str, as_json: bool) -> None:
    """Delete a tenant and all that is in its file.

    Its messages, dead letters and events, and what the application keeps there. Take
    a backup first, and stop what uses the tenant: its next write would fail.

    \b
    Example:
      tenantq backup acme acme-last.db && tenantq delete acme --yes
    """
    with open_store(store_path) as store:
        chosen = store.tenant(tenant, create=False)
        if not yes:
            confirm(f"Delete tenant {printable(tenant)} and {_contents(chosen)}?", yes=yes)
        was_deleted = store.delete(tenant)
    if as_json:
        print_json({"tenant": tenant, "deleted": was_deleted})
    else:
        click.echo(f"{printable(tenant)}: deleted")


def _contents(tenant: Tenant) -> str:
    try:
        held = tenant.stats()
    except TenantqError as exc:
        return f"its file, which cannot be read ({printable(exc.message)})"
    messages = held.ready + held.scheduled + held.claimed
    return f"its {messages} messages, {held.dead} dead letters and {held.outbox} events not forwarded"
