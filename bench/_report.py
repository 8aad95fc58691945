"""What a benchmark found: a Result, as a table for people and as one line of JSON for programs."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import apsw
import msgspec
from rich.console import Console
from rich.table import Table

import tenantq
from bench._measure import Ratio
from bench._options import Options

__all__ = ["Figure", "Result", "Row", "json_line", "machine", "print_result", "shown"]

Row = dict[str, Any]
"""One line of the table; all rows of a Result have the same keys in the same order."""

WIDTH = 240
"""Characters of the widest table: a terminal shows the ends of its lines, or wraps them."""

PACKAGES = ("msgspec", "psycopg", "huey", "litequeue", "localqueue", "simplebroker", "persist-queue")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What the plot shows: one line or one group of bars for each series."""

    title: str
    x_label: str
    y_label: str
    x: list[Any]
    series: dict[str, list[float | None]]
    is_line: bool = True
    is_log: bool = False
    lower_is_better: bool = False


class Result(msgspec.Struct, kw_only=True):
    """What one run of a benchmark found."""

    rows: list[Row]
    parameters: dict[str, Any]
    name: str = ""
    """Of the module; the command fills it in, and its question."""
    question: str = ""
    ratios: list[Ratio] = []
    notes: list[str] = []
    figure: Figure | None = None
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}
    date: str = ""

    def stamp(self, options: Options) -> None:
        """Add where, with what and when it was measured."""
        self.machine = machine(Path(options.scratch or tempfile.gettempdir()))
        self.versions = versions()
        self.rows = [{name: _rounded(value) for name, value in row.items()} for row in self.rows]
        self.date = datetime.now(UTC).isoformat(timespec="seconds")
        self.parameters = {
            "seconds": options.window,
            "warm_up": options.warm_up,
            "iterations": options.iterations,
            **self.parameters,
        }


def json_line(result: Result) -> str:
    """Return the result as one line of JSON."""
    return msgspec.json.encode(result).decode()


def print_result(result: Result) -> None:
    """Print the table, the ratios and the notes."""
    console = Console(width=WIDTH)
    console.print(f"{result.name}: {result.question}", markup=False, highlight=False)
    table = Table()
    for column in result.rows[0] if result.rows else ():
        is_number = isinstance(result.rows[0][column], int | float | None)
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for row in result.rows:
        table.add_row(*(shown(value) for value in row.values()))
    console.print(table)
    for ratio in result.ratios:
        console.print(describe(ratio), markup=False, highlight=False)
    for note in result.notes:
        console.print(f"note: {note}", markup=False, highlight=False)


def describe(ratio: Ratio) -> str:
    """Return a ratio, its target and whether it is met."""
    text = f"{ratio.name}: {ratio.median:.3g}"
    if len(ratio.pairs) > 1:
        text += f" (median of {len(ratio.pairs)} pairs, {min(ratio.pairs):.3g} to {max(ratio.pairs):.3g})"
    if ratio.at_least is not None:
        text += f"; at least {ratio.at_least:g}: {'met' if ratio.is_met else 'not met'}"
    if ratio.at_most is not None:
        text += f"; at most {ratio.at_most:g}: {'met' if ratio.is_met else 'not met'}"
    return text


def shown(value: Any) -> str:
    """Return a cell as people read it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            if value == 0 or abs(value) >= 1000:
                return f"{value:,.0f}"
            return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def _rounded(value: Any) -> Any:
    """Return a measured number with the digits that mean something."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def machine(scratch: Path) -> dict[str, Any]:
    """Return what the benchmark ran on."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": _filesystem(scratch.resolve()),
    }


def versions() -> dict[str, str]:
    """Return the versions of what took part."""
    found = {
        "tenantq": tenantq.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "apsw": apsw.apsw_version(),
        "sqlite": apsw.sqlite_lib_version(),
    }
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _filesystem(path: Path) -> str:
    best, kind = "", "unknown"
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
            _device, point, of_kind, *_ = line.split()
            if path.is_relative_to(point) and len(point) >= len(best):
                best, kind = point, of_kind
    return kind
