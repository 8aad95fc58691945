"""`tenantq demo`: the main job on real input, watched."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from tenantq_tools.embedded import embedded_postgres

__all__ = ["demo"]

ORDERS = 3_500


@click.command()
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="TENANTQ_DEMO_STORE",
    help="An empty directory to keep the demo's files in. Default: a temporary one, removed at the end.",
)
@click.option("--postgres", help="The DSN of a Postgres to use. Default: an embedded one, stopped at the end.")
@click.option("--orders", type=click.IntRange(1), default=ORDERS, show_default=True, help="How many orders.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
def demo(store: Path | None, postgres: str | None, orders: int, as_json: bool) -> None:
    """Run a small shop's orders through all three layers, and check that nothing is lost or repeated.

    Makes a handful of tenants from a data file, sends their orders, runs two workers and the forwarder, kills
    one worker with SIGKILL in the middle and starts another, copies one tenant's file, and counts. Takes
    about half a minute. Exit status 1 if a check fails.

    Example: tenantq demo --orders 1000
    """
    from tenantq_tools.demo.run import Progress, run_demo  # noqa: PLC0415 - psycopg is an extra

    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        directory = store or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenantq-demo-")))
        directory.mkdir(parents=True, exist_ok=True)
        if postgres is None:
            console.print("starting an embedded Postgres")
            postgres = stack.enter_context(embedded_postgres(directory / "postgres"))
        bars = stack.enter_context(
            Bars(
                TextColumn("{task.description:<8}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                disable=not console.is_terminal,
            ),
        )
        tasks: dict[str, TaskID] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done)

        report = run_demo(directory, postgres, orders=orders, progress=Progress(console.print, show))
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        _print(report)
    sys.exit(0 if report.ok else 1)


def _print(report: object) -> None:
    from tenantq_tools.demo.report import Report  # noqa: PLC0415

    assert isinstance(report, Report)
    console = Console()
    table = Table("layer", "sent", "handled", "redelivered", "forwarded")
    for layer in report.layers:
        forwarded = "" if layer.forwarded is None else str(layer.forwarded)
        table.add_row(layer.name, str(layer.sent), str(layer.handled), str(layer.redelivered), forwarded)
    console.print(table)
    console.print("What was in the memory of the killed worker is gone with it, as that layer says.", style="dim")
    for check in report.checks:
        mark = "[green]ok[/green]  " if check.holds else "[red]FAIL[/red]"
        console.print(f"{mark} {check.claim} [dim]({check.found})[/dim]")
