"""`tenantq bridge health`: whether the tables in Postgres stay flat, and if not, why and what to do."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import click

from tenantq_tools.cli._failures import PROBLEM, TOO_FEW_SAMPLES, WARNING
from tenantq_tools.cli._options import connect, with_json, with_postgres
from tenantq_tools.cli._output import note, paint, print_json, print_table, printable
from tenantq_tools.cli._progress import progress
from tenantq_tools.cli._signals import on_signals

if TYPE_CHECKING:
    from tenantq_bridge import Health, HealthVerdict, PostgresQueue

__all__ = ["health"]

DEFAULT_INTERVAL = 30.0
"""Seconds, as the maintenance samples."""

SLICE = 0.5
"""Seconds between two steps of the bar, and within which a signal is heeded."""

STATUSES = {
    "healthy": (0, "green"),
    "not enough samples yet": (TOO_FEW_SAMPLES, "yellow"),
    "warning": (WARNING, "yellow"),
    "unhealthy": (PROBLEM, "red"),
}


@click.command()
@click.option(
    "--watch-for",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Take samples for so long before the verdict; Ctrl-C ends it early.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0, max=3600, min_open=True),
    default=DEFAULT_INTERVAL,
    show_default=True,
    metavar="SECONDS",
    help="Between two of these samples.",
)
@with_postgres()
@with_json
@click.pass_context
def health(ctx: click.Context, *, watch_for: float, interval: float, dsn: str, as_json: bool) -> None:
    """Tell whether the tables in Postgres stay flat, and if not, why and what to do.

    By the sizes that `tenantq bridge run` samples each half minute and keeps for a day, and one of this moment;
    by who holds an old snapshot, and how autovacuum is set. Heaps are judged by the band in which they breathe,
    indexes by their slope. It takes an hour of samples behind the first vacuums: before, it says so.

    \b
    Exit status: 0 healthy, 5 a warning, 1 unhealthy, 6 not enough samples yet to tell.

    \b
    Examples:
      tenantq bridge health
      tenantq bridge health --watch-for 7200
      tenantq bridge health --json | jq -r '.findings[].reason'
    """
    from tenantq_bridge import read_health  # noqa: PLC0415 - an extra

    with connect(dsn) as queue:
        _watch(queue, watch_for, interval)
        with progress("reading the samples"):
            found = read_health(queue)
    print_json(found) if as_json else _print(found)
    ctx.exit(_status(found.verdict)[0])


def _watch(queue: PostgresQueue, watch_for: float, interval: float) -> None:
    """Take a sample now and, with a time to watch for, each interval until it is over or a signal comes."""
    from tenantq_bridge import MissingRights, PostgresUnavailable, take_sample  # noqa: PLC0415 - an extra

    stopping = threading.Event()
    begun = time.monotonic()
    with on_signals(stopping.set), progress("sampling", watch_for) as advance:
        while True:
            try:
                take_sample(queue, interval=interval)
            except MissingRights as exc:
                note(f"no samples are taken: {exc.message}")
                return
            except PostgresUnavailable as exc:
                if not watch_for:
                    raise
                note(f"a sample is missing: {exc.message}")
            waited_for = min(time.monotonic() + interval, begun + watch_for)
            while not stopping.is_set() and (left := waited_for - time.monotonic()) > 0:
                stopping.wait(min(left, SLICE))
                advance(min(left, SLICE))
            if stopping.is_set() or time.monotonic() >= begun + watch_for:
                return


def _print(found: Health) -> None:
    print_table(
        ("TROUGH_MB", "PEAK_MB", "BAND_%", "ENDED_MB", "BELOW_PEAK_%", "DEAD_ROWS", "GROWTH", "HEAP"),
        [
            (
                _megabytes(heap.trough_bytes),
                _megabytes(heap.peak_bytes),
                None if heap.band is None else f"{heap.band:.2%}"[:-1],
                _megabytes(heap.bytes),
                f"{heap.below_peak:.2%}"[:-1],
                heap.dead_rows,
                heap.growth,
                heap.relation,
            )
            for heap in sorted(found.heaps, key=lambda heap: -heap.bytes)
        ],
    )
    click.echo()
    print_table(
        ("MB", "MB_PER_HOUR", "GROWTH", "INDEX"),
        [
            (
                _megabytes(index.bytes),
                None if index.bytes_per_hour is None else _megabytes(index.bytes_per_hour),
                index.growth,
                index.relation,
            )
            for index in sorted(found.indexes, key=lambda index: -index.bytes)
        ],
    )
    click.echo()
    click.echo(f"samples: {_samples(found)}")
    click.echo(f"oldest snapshot: {_oldest(found)}")
    vacuum = found.autovacuum
    state = "on" if vacuum.is_enabled else "off"
    click.echo(f"autovacuum: {state}, naptime {vacuum.naptime:g} s, {vacuum.max_workers} workers")
    click.echo()
    if found.verdict == "healthy":
        click.echo(_verdict(found.verdict, found.reason))
    for finding in found.findings:
        click.echo(_verdict(finding.verdict, finding.reason, well="note"))
        click.echo(f"  {printable(finding.advice)}")


def _verdict(verdict: HealthVerdict, reason: str, *, well: str = "healthy") -> str:
    word = well if verdict == "healthy" else verdict.value
    return f"{paint(word, fg=_status(verdict)[1])}: {printable(reason)}"


def _samples(found: Health) -> str:
    if found.sampled_from is None or found.sampled_until is None:
        return "none"
    since, until = (moment.isoformat(timespec="seconds") for moment in (found.sampled_from, found.sampled_until))
    return f"{found.samples}, from {since} to {until}"


def _oldest(found: Health) -> str:
    if not found.holders:
        return "nobody holds one"
    oldest = found.holders[0]
    age = "" if oldest.seconds is None else f"{oldest.seconds:.1f} s, "
    return printable(f"{age}{oldest.transactions} transactions, {oldest.described}")


def _megabytes(count: float) -> str:
    return f"{count / 1_000_000:.2f}"


def _status(verdict: HealthVerdict) -> tuple[int, str]:
    return STATUSES[verdict.value]
