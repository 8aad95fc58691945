"""`tenantq tenants`, `path` and `create`: which tenants there are, where, and one more."""

from __future__ import annotations

import click

from tenantq import TenantqError, Tombstone
from tenantq_tools.cli._failures import PROBLEM, report
from tenantq_tools.cli._options import open_store, with_json, with_store
from tenantq_tools.cli._output import print_json, printable
from tenantq_tools.cli._overview import COLUMNS, Overview, print_header, print_row

__all__ = ["create", "path", "tenants"]


@click.command()
@click.option("--long", "is_long", is_flag=True, help=f"Print what each holds too: {', '.join(COLUMNS)}.")
@click.option("--deleted", "are_gone", is_flag=True, help="Those that were deleted or moved away, and when.")
@with_store()
@with_json
@click.pass_context
def tenants(ctx: click.Context, *, is_long: bool, are_gone: bool, store_path: str, as_json: bool) -> None:
    """List the tenants of the store.

    Characters that a terminal would act on are spelled out; --json gives every id exactly.

    \b
    Examples:
      tenantq tenants
      tenantq tenants --deleted
      tenantq tenants --long --json | jq -r 'select(.dead > 0) | .tenant'
    """
    with open_store(store_path) as store:
        if are_gone:
            for stone in store.deleted():
                where = "" if stone.to is None else f" to {printable(stone.to)}"
                shown = f"{printable(stone.tenant)}: {stone.went} at {stone.at}{where}"
                print_json(_gone(stone)) if as_json else click.echo(shown)
            return
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
@with_store()
@with_json
def create(*, tenant: str, store_path: str, as_json: bool) -> None:
    """Make a tenant that is not there, one that was deleted or moved away too.

    The first message makes a tenant that never was; one that was deleted comes again by this alone, and begins
    anew.

    \b
    Example:
      tenantq create acme
    """
    with open_store(store_path, create=True) as store:
        made = store.create(tenant).path
    print_json({"tenant": tenant, "path": str(made)}) if as_json else click.echo(f"{printable(tenant)}: made")


def _gone(stone: Tombstone) -> dict[str, str | None]:
    return {"tenant": stone.tenant, "went": stone.went, "at": stone.at, "to": stone.to}
