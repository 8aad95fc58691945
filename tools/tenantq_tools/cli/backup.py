"""`tenantq backup` and `restore`: copies of tenants' files while everything runs, and the way back."""

from __future__ import annotations

from pathlib import Path

import click

from tenantq import BackupDirectory
from tenantq.errors import CorruptFile
from tenantq_tools.cli._backing_up import back_up_all
from tenantq_tools.cli._entries import parse_moment
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
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--timestamp", metavar="ISO", help="SOURCE is a backup directory: as of this time.")
@click.option("--generation", metavar="NAME", help="SOURCE is a backup directory: this one of the tenant's files.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait for processes that have the tenant open.",
)
@click.option("--evict", is_flag=True, help="Ask them to let go of it.")
@click.option("--as", "as_id", metavar="NEW_TENANT", help="Make a new tenant, at rest, of the backup.")
@with_yes
@with_store()
@with_json
def restore(
    *,
    tenant: str,
    source: Path,
    timestamp: str | None,
    generation: str | None,
    wait: float,
    evict: bool,
    as_id: str | None,
    yes: bool,
    store_path: str,
    as_json: bool,
) -> None:
    """Put a backup in the place of a tenant's file.

    SOURCE is a copy, or a directory of `tenantq backup --all`, of which the tenant's newest generation is taken.
    The backup is checked first: ours, not newer, sound, and of this tenant. It is refused while another process
    has the tenant open: stop it, --wait for it, or let the processes of tenantq close the tenant for a moment
    with --evict. What was claimed in the backup is ready again. A store that is not there is made.

    With --as the tenant stays as it is, and the backup becomes another one, to be looked at: its queues are
    paused, it has no periodic messages of its own, and none of its events goes to Postgres.

    \b
    Examples:
      tenantq restore acme acme-2026-11-30.db
      tenantq restore acme /var/backups/tenants --timestamp 2026-11-30T08:00:00Z
      tenantq restore acme acme-2026-11-30.db --evict --wait 30
      tenantq restore acme acme-2026-11-30.db --as acme-before
    """
    restored = tenant if as_id is None else as_id
    if source.is_dir():
        source = _find(source, tenant, timestamp=timestamp, generation=generation)
    elif timestamp is not None or generation is not None:
        raise click.UsageError("--timestamp and --generation are of a backup directory, and SOURCE is a file")
    with open_store(store_path, create=True) as store:
        was_there = as_id is None and tenant in store
        if was_there:
            confirm(f"Replace the file of tenant {printable(tenant)}?", yes=yes)
        with progress(f"restoring {printable(restored)}"):
            store.restore(tenant, source, replace=was_there, wait=wait, evict=evict, as_=as_id)
        path = store.tenant(restored).path
    if as_json:
        print_json({"tenant": restored, "path": str(path), "replaced": was_there})
    else:
        done = "replaced" if was_there else "restored"
        click.echo(f"{printable(restored)}: {done} from {printable(str(source))}")


def _find(directory: Path, tenant: str, *, timestamp: str | None, generation: str | None) -> Path:
    moment = None if timestamp is None else parse_moment(timestamp)
    found = BackupDirectory(directory).find(tenant, at=moment, generation=generation)
    if not found.is_whole():
        raise CorruptFile(
            f"{found.path} is not as it was taken",
            hint="take an older generation; `tenantq salvage` brings what can be read into a new file",
            tenant=tenant,
            path=str(found.path),
        )
    return found.path
