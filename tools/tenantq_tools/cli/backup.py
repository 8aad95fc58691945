"""`tenantq backup` and `restore`: copies of tenants' files while everything runs, and the way back."""

from __future__ import annotations

from pathlib import Path

import click

from tenantq_tools.cli._backing_up import back_up_all
from tenantq_tools.cli._failures import PROBLEM
from tenantq_tools.cli._options import confirm, open_store, with_json, with_store, with_yes
from tenantq_tools.cli._output import print_json, printable
from tenantq_tools.cli._progress import progress

__all__ = ["backup", "restore"]


@click.command()
@click.argument("targets", metavar="TENANT DEST | --all DIR", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every tenant that changed since the last run into DIR.")
@click.option(
    "--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="With --all: tenants at once."
)
@click.option("--keep", type=click.IntRange(1), metavar="N", help="With --all: keep the newest N of each tenant.")
@click.option(
    "--keep-days",
    type=click.FloatRange(min=0, min_open=True),
    metavar="D",
    help="With --all: keep those that were the newest at any time in the last D days.",
)
@click.option("--moved", is_flag=True, help="With --all: DIR has the backups of this store at its former place.")
@with_store()
@with_json
@click.pass_context
def backup(
    ctx: click.Context,
    *,
    targets: tuple[str, ...],
    is_all: bool,
    jobs: int,
    keep: int | None,
    keep_days: float | None,
    moved: bool,
    store_path: str,
    as_json: bool,
) -> None:
    """Copy a tenant's file, or those of all that changed, while everything runs on.

    A copy is complete and checked: it has every message that was acknowledged before the command. DEST is a
    file, or a directory for a copy under the file's own name; an older backup of the tenant is replaced when the
    new one is complete, and nothing else ever is.

    With --all each tenant has a directory in DIR, with a file for each generation, and DIR/manifest.json says what
    there is. Tenants that did not change are not opened. A run may be stopped and given again: it goes on. Without
    --keep and --keep-days every generation stays; with both, what either keeps. A deleted tenant's generations go
    by --keep-days alone. A tenant that fails is named, the others go on, and the exit status is 1.

    \b
    Examples:
      tenantq backup acme acme-2026-11-30.db
      tenantq backup --all /var/backups/tenants --keep 7 --keep-days 30
    """
    if len(targets) != (1 if is_all else 2):
        raise click.UsageError("give TENANT DEST, or --all DIR", ctx)
    with open_store(store_path) as store:
        target = Path(targets[-1])
        if target.absolute().resolve().is_relative_to(store.root.resolve()):
            raise click.UsageError("a backup does not go into the store itself", ctx)
        if is_all:
            if not back_up_all(
                store, target, jobs=jobs, keep=keep, keep_days=keep_days, moved=moved, as_json=as_json
            ):
                ctx.exit(PROBLEM)
            return
        with progress(f"backing up {printable(targets[0])}"):
            written = store.tenant(targets[0], create=False).backup(target)
    if as_json:
        print_json({"tenant": targets[0], "path": str(written), "bytes": written.stat().st_size})
    else:
        click.echo(f"{printable(targets[0])}: {printable(str(written))}, {written.stat().st_size} bytes")


@click.command()
@click.argument("tenant")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_yes
@with_store()
@with_json
def restore(*, tenant: str, source: Path, yes: bool, store_path: str, as_json: bool) -> None:
    """Put a backup in the place of a tenant's file.

    The backup is checked first: ours, not newer, sound, and of this tenant. Stop the processes that have the
    tenant open: it is refused while there is one. What was claimed in the backup is ready again. A store that
    is not there is made.

    \b
    Example:
      tenantq restore acme acme-2026-11-30.db
    """
    with open_store(store_path, create=True) as store:
        was_there = tenant in store
        if was_there:
            confirm(f"Replace the file of tenant {printable(tenant)}?", yes=yes)
        with progress(f"restoring {printable(tenant)}"):
            store.restore(tenant, source, replace=was_there)
        path = store.tenant(tenant).path
    if as_json:
        print_json({"tenant": tenant, "path": str(path), "replaced": was_there})
    else:
        click.echo(f"{printable(tenant)}: {'replaced' if was_there else 'restored'} from {printable(str(source))}")
