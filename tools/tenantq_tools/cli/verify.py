"""`tenantq verify`: whether tenants' files are sound, in the store or anywhere else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

import tenantq
from tenantq import Store, TenantqError, UnknownTenant, VerifyReport
from tenantq_tools.cli._failures import PROBLEM
from tenantq_tools.cli._options import open_store, with_json, with_store
from tenantq_tools.cli._output import note, paint, print_json, printable
from tenantq_tools.cli._overview import tenants_and_strays
from tenantq_tools.cli._progress import progress
from tenantq_tools.cli._signals import on_signals

__all__ = ["verify"]


@click.command()
@click.argument("targets", metavar="[TENANT|PATH]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every tenant of the store.")
@click.option("--quick", is_flag=True, help="Do not compare every row with every index.")
@with_store(required=False)
@with_json
@click.pass_context
def verify(
    ctx: click.Context,
    *,
    targets: tuple[str, ...],
    is_all: bool,
    quick: bool,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Check tenants' files, and change nothing.

    SQLite's own check, the schema, and the counts against the messages; of files that are open too. What is
    the id of a tenant in the store is that tenant; anything else is a path, such as that of a backup. The
    exit status is 1 if anything is wrong.

    \b
    Examples:
      tenantq verify acme
      tenantq verify /var/backups/tenants/*.db
      tenantq verify --all --quick --json
    """
    if bool(targets) == is_all:
        raise click.UsageError("give tenants and paths, or --all", ctx)
    if is_all and store_path is None:
        raise click.UsageError("no store is given: use --store DIR, or set TENANTQ_STORE", ctx)
    strays: list[Path] = []
    with contextlib.ExitStack() as stack:
        store = None if store_path is None else stack.enter_context(open_store(store_path))
        if is_all:
            assert store is not None
            targets_found, strays = tenants_and_strays(store)
        else:
            targets_found = list(targets)
        is_sound = _verify(targets_found, store, quick=quick, as_json=as_json)
    for stray in strays:
        problem = "it is no tenant's file, or cannot be read"
        _print(VerifyReport(path=str(stray), tenant="", problems=(problem,)), as_json=as_json)
    if strays or not is_sound:
        ctx.exit(PROBLEM)


def _verify(targets: list[str], store: Store | None, *, quick: bool, as_json: bool) -> bool:
    """Check one after the other; False if something is wrong, or not all were reached."""
    stopping = threading.Event()
    is_sound = True
    with on_signals(stopping.set), progress("verifying", len(targets)) as advance:
        for done, target in enumerate(targets):
            if stopping.is_set():
                note(f"Stopped: {len(targets) - done} files were not checked.")
                return False
            report = _report(target, store, quick=quick)
            is_sound = is_sound and report.ok
            _print(report, as_json=as_json)
            advance(1)
    return is_sound


def _report(target: str, store: Store | None, *, quick: bool) -> VerifyReport:
    tenant_id = target if store is not None and target in store else ""
    path = store.tenant(tenant_id).path if store is not None and tenant_id else Path(target)
    try:
        report = tenantq.verify(path, quick=quick)
    except UnknownTenant:
        problem = f"there is no such file{'' if store is None else ', and no such tenant'}"
        return VerifyReport(path=str(path), tenant=tenant_id, problems=(problem,))
    except TenantqError as exc:
        return VerifyReport(path=str(path), tenant=tenant_id, problems=(exc.message,))
    if tenant_id and report.tenant and report.tenant != tenant_id:
        problem = f"it belongs to tenant {report.tenant!r}, not {tenant_id!r}"
        return msgspec.structs.replace(report, problems=(*report.problems, problem))
    return report


def _print(report: VerifyReport, *, as_json: bool) -> None:
    if as_json:
        print_json({"ok": report.ok, **msgspec.structs.asdict(report)})
        return
    who = printable(report.tenant or report.path)
    if report.ok:
        held = f"{report.ready} ready, {report.scheduled} scheduled, {report.claimed} claimed, {report.dead} dead"
        schema = f", of the older schema {report.schema_version}" if report.is_older else ""
        click.echo(f"{paint('ok', fg='green')}   {who}: {held}, {report.outbox} in the outbox{schema}")
        return
    click.echo(f"{paint('BAD', fg='red')}  {who}: {printable(report.path)}")
    _print_problems(report.problems)


def _print_problems(problems: Iterable[str]) -> None:
    for problem in problems:
        click.echo(f"     {printable(problem)}")
