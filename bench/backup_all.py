"""How long does a backup of all tenants take when one in a hundred has changed since the last one?

A store of 10,000 tenants and a backup directory: the first run copies all of them, one that finds nothing changed
only looks, and then, before each run, a hundred tenants get a message. The runs are those of the command
`tenantq backup --all`, a process each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

import tenantq
from bench._measure import Ratio, median, timed
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

TENANTS = 10_000

SHARE = 100
"""One in so many changes."""

MOST_SECONDS = 5.0
"""What a run with 1% changed may take."""


def run(options: Options) -> Result:
    count = options.pick(TENANTS, 200)
    found: dict[str, list[float]] = {"all are new": [], "none changed": [], "1% changed": []}
    with options.directory() as directory:
        store = directory / "store"
        with tenantq.open(store) as opened:
            for number in range(count):
                opened.tenant(f"tenant-{number}").enqueue("mail", {})
        found["all are new"].append(timed(lambda: back_up(directory, taken=count)))
        for _ in range(options.iterations):
            found["none changed"].append(timed(lambda: back_up(directory, taken=0)))
            with tenantq.open(store) as opened:
                for number in range(0, count, SHARE):
                    opened.tenant(f"tenant-{number}").enqueue("mail", {})
            found["1% changed"].append(timed(lambda: back_up(directory, taken=count // SHARE)))
        manifest = (directory / "copies" / "manifest.json").stat().st_size
    rows: list[Row] = [
        {"run": name, "tenants": count, "seconds": median(seconds), "longest": max(seconds)}
        for name, seconds in found.items()
    ]
    pairs = [round(seconds / MOST_SECONDS, 4) for seconds in found["1% changed"]]
    return Result(
        rows=rows,
        parameters={"tenants": count, "changed": count // SHARE, "manifest_bytes": manifest},
        ratios=[
            Ratio(
                name=f"a run with 1% changed / {MOST_SECONDS:g} s", median=median(pairs), pairs=pairs, at_most=1
            ),
        ],
        figure=chart(
            [{"run": row["run"], "at": "tenantq backup --all", "seconds": row["seconds"]} for row in rows],
            x="at",
            y="seconds",
            by="run",
            title=f"A run over {count:,} tenants",
            y_label="seconds",
            is_line=False,
            lower_is_better=True,
        ),
    )


def back_up(directory: Path, *, taken: int) -> None:
    """Run the command, which must copy so many."""
    places = [str(directory / "copies"), "--store", str(directory / "store")]
    root = Path(__file__).resolve().parents[1]
    paths = os.pathsep.join(str(root / part) for part in (".", "bridge", "tools"))
    done = subprocess.run(
        [sys.executable, "-m", "tenantq_tools", "backup", "--all", *places, "--json"],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    summary = msgspec.json.decode(done.stdout.splitlines()[-1])
    assert summary["taken"] == taken, summary
