"""`tenantq salvage`: what can be read of a damaged file, in a new one."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

import tenantq
from tenantq import LostRows, SalvageReport
from tenantq_tools.cli._failures import PROBLEM
from tenantq_tools.cli._options import with_json
from tenantq_tools.cli._output import note, print_json, printable
from tenantq_tools.cli._progress import progress

__all__ = ["salvage"]

SHOWN = 20
"""Lost parts that are listed for people; --json has all."""


@click.command()
@click.argument("source", metavar="PATH", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("dest", type=click.Path(path_type=Path))
@click.option("--tenant", metavar="ID", help="Whose file it is, where it cannot tell any more.")
@with_json
@click.pass_context
def salvage(ctx: click.Context, *, source: Path, dest: Path, tenant: str | None, as_json: bool) -> None:
    """Bring what can be read of a damaged file into a new one.

    Messages, dead letters, events, settings and the application's own tables, from the file and the -wal beside
    it. PATH is only read, and DEST must not be there. What could not be read is listed, and the exit status is 1
    if that is anything. DEST can be restored when you have looked at it.

    \b
    Examples:
      tenantq salvage var/tenants/8b/acme.db acme-salvaged.db
      tenantq restore acme acme-salvaged.db
    """
    with progress(f"reading {printable(str(source))}"):
        report = tenantq.salvage(source, dest, tenant=tenant)
    if as_json:
        print_json({"is_complete": report.is_complete, **msgspec.to_builtins(report)})
    else:
        _print(report)
    if not report.is_complete:
        ctx.exit(PROBLEM)


def _print(report: SalvageReport) -> None:
    counts = f"{report.messages} messages, {report.dead} dead, {report.outbox} in the outbox"
    where = printable(report.dest)
    click.echo(f"{printable(report.tenant)}: {counts}, {report.undeliverable} undeliverable, in {where}")
    for queue in report.queues:
        if queue.missing:
            click.echo(f"  {printable(queue.queue)}: {queue.missing} messages are missing")
    for lost in report.lost[:SHOWN]:
        click.echo(f"  lost: {printable(_said(lost))}")
    if len(report.lost) > SHOWN:
        note(f"{len(report.lost) - SHOWN} more losses are in the report of --json.")
    for problem in report.problems:
        click.echo(f"  {printable(problem)}")


def _said(lost: LostRows) -> str:
    if not lost.is_range:
        which = "a row" if lost.first_id is None else f"row {lost.first_id}"
    elif lost.first_id is None and lost.last_id is None:
        which = "rows"
    else:
        which = (
            f"rows {'' if lost.first_id is None else lost.first_id}-{'' if lost.last_id is None else lost.last_id}"
        )
    return f"{which} of {lost.table}: {lost.reason}"
