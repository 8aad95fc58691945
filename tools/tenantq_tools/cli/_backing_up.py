"""A run over all tenants into a backup directory, as `tenantq backup --all` tells of it."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import click
from msgspec import structs

from tenantq import BackupDirectory, BackupResult, BackupSummary, Store
from tenantq_tools.cli._output import note, print_json
from tenantq_tools.cli._progress import progress
from tenantq_tools.cli._signals import on_signals

__all__ = ["back_up_all"]


def back_up_all(
    store: Store,
    directory: Path,
    *,
    jobs: int,
    keep: int | None,
    keep_days: float | None,
    moved: bool,
    as_json: bool,
) -> bool:
    """Back up all tenants that changed; False if one failed or was not reached."""
    stopping = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_signals(stopping.set))
        bars = [lambda _step: None]

        def plan(count: int) -> None:
            bars[:] = [stack.enter_context(progress("backing up", count))]

        def tell(result: BackupResult) -> None:
            _tell(result, as_json=as_json)
            if result.tenant is not None:
                bars[0](1)

        summary = BackupDirectory(directory).update(
            store,
            jobs=jobs,
            keep=keep,
            keep_days=keep_days,
            moved=moved,
            stop=stopping,
            on_plan=plan,
            on_result=tell,
        )
    if summary.left:
        note(f"Stopped: {summary.left} tenants were not reached. Give the command again to go on.")
    if as_json:
        print_json(summary)
    else:
        click.echo(_describe(summary))
    return not summary.failed and not summary.left


def _tell(result: BackupResult, *, as_json: bool) -> None:
    """Print what became of a tenant; people hear of failures only."""
    if result.error is not None:
        note(result.error.message if result.tenant is None else f"{result.tenant}: {result.error.message}")
    if as_json:
        error = None if result.error is None else result.error.message
        found = {"path": None, "bytes": None, "generation": None, "sha256": None}
        if result.backup is not None:
            found = {name: getattr(result.backup, name) for name in found} | {"path": str(result.backup.path)}
        print_json({"tenant": result.tenant, **found, "error": error})


def _describe(summary: BackupSummary) -> str:
    counts = structs.asdict(summary)
    return (
        "{tenants} tenants: {taken} backed up, {bytes} bytes; {same} had the content of their last backup, "
        "{unchanged} were unchanged; {failed} failed"
    ).format(**counts) + (f"; {summary.removed} old ones were removed" if summary.removed else "")
