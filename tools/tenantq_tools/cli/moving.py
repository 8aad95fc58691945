"""`tenantq export` and `import`: a tenant moves to another store, in a file, once."""

from __future__ import annotations

from pathlib import Path

import click

from tenantq_tools.cli._options import open_store, with_json, with_store
from tenantq_tools.cli._output import print_json, printable
from tenantq_tools.cli._progress import progress

__all__ = ["export", "import_"]


@click.command()
@click.argument("tenant")
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path), required=False)
@click.option("--undo", is_flag=True, help="Take a tenant back whose export nobody has imported.")
@with_store()
@with_json
@click.pass_context
def export(
    ctx: click.Context, *, tenant: str, target: Path | None, undo: bool, store_path: str, as_json: bool
) -> None:
    """Move a tenant out of the store into FILE, for `tenantq import` of another store.

    From then on this store refuses the tenant. All of it goes along: messages, events and how far they are
    forwarded, ids, the application's tables; what is claimed is given back at the import. If it is interrupted,
    give it again, or undo it.

    \b
    Examples:
      tenantq export acme /mnt/move/acme.tenant
      tenantq export acme --undo
    """
    if (target is None) is not undo:
        raise click.UsageError("give TENANT FILE, or TENANT --undo", ctx)
    with open_store(store_path) as store, progress(f"moving {printable(tenant)}"):
        written = store.undo_export(tenant).path if target is None else store.export(tenant, target)
    if as_json:
        print_json({"tenant": tenant, "path": str(written), "bytes": written.stat().st_size, "undone": undo})
    elif undo:
        click.echo(f"{printable(tenant)}: taken back")
    else:
        click.echo(f"{printable(tenant)}: in {printable(str(written))}, {written.stat().st_size} bytes")


@click.command(name="import")
@click.argument("source", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_store()
@with_json
def import_(*, source: Path, store_path: str, as_json: bool) -> None:
    """Take a tenant into the store that `tenantq export` of another one wrote into FILE.

    FILE is taken once, and marked so: remove it then. A store that is not there is made. What is sent down to the
    tenant goes to this host after `tenantq bridge assign TENANT HOST`.

    \b
    Example:
      tenantq import /mnt/move/acme.tenant
    """
    with open_store(store_path, create=True) as store:
        with progress(f"importing {printable(source.name)}"):
            tenant = store.import_(source)
        made = tenant.path
    if as_json:
        print_json({"tenant": tenant.id, "path": str(made)})
    else:
        click.echo(f"{printable(tenant.id)}: imported from {printable(str(source))}")
