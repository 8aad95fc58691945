"""How long does the backup of one large tenant take, and how long do its writers wait meanwhile?

The file is a gigabyte or more. A backup of ours is checked and synced; beside it, in turns and nobody writing,
`sqlite3 .backup` (synced, not checked) and `cp` (neither, and of a live file worthless). Then two processes write
while the backup is taken, 500 messages a second each: what counts is the longest that a call took, beside that of
as long a time without a backup.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tenantq
from bench._children import Crew, Log, Seat
from bench._measure import Ratio, median, paired, percentile, timed
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

FILE_BYTES = 1_100_000_000

SMOKE_BYTES = 2_000_000

PAYLOAD_BYTES = 4_000

BATCH = 500

WRITERS = 2

PACE = 0.002
"""Seconds between a writer's calls."""

LONGEST_MS = 100
"""What a writer may wait at most."""

BY_MODULE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as source, sqlite3.connect(sys.argv[2]) as target:
    source.backup(target, pages=100)
"""
"""What `sqlite3 .backup` does, where that program is missing."""


def run(options: Options) -> Result:
    with options.directory() as directory:
        size = fill(directory / "store", options.pick(FILE_BYTES, SMOKE_BYTES))
        ways = contenders(directory)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(options.iterations + (0 if options.is_smoke else 1)):
            for name, way in ways.items():
                took = timed(way)
                for path in directory.glob("copy*"):
                    path.unlink()
                if number or options.is_smoke:  # the first is the warm-up
                    seconds[name].append(took)
        waits = [beside_writers(directory, options) for _ in range(options.iterations)]
    rows: list[Row] = [row(name, 0, found, size) for name, found in seconds.items()]
    rows.append(row("tenantq", WRITERS, [wait["seconds"] for wait in waits], size) | longest(waits, "during"))
    rows.append(row("no backup", WRITERS, [], size) | longest(waits, "without"))
    worst = max(wait["during_max"] for wait in waits)
    return Result(
        rows=rows,
        parameters={
            "file_bytes": size,
            "payload_bytes": PAYLOAD_BYTES,
            "writes_per_s": WRITERS / PACE,
            "sqlite3": shutil.which("sqlite3") or "module",
        },
        ratios=[
            paired("tenantq / sqlite3 .backup", seconds["tenantq"], seconds["sqlite3 .backup"], at_most=1.3),
            paired("tenantq / cp", seconds["tenantq"], seconds["cp"]),
            Ratio(
                name=f"a writer's longest wait during a backup / {LONGEST_MS} ms",
                median=round(worst / LONGEST_MS, 4),
                pairs=[round(wait["during_max"] / LONGEST_MS, 4) for wait in waits],
                at_most=1,
            ),
        ],
        figure=chart(
            [{"way": name, "at": "nobody writes", "seconds": median(found)} for name, found in seconds.items()],
            x="at",
            y="seconds",
            by="way",
            title=f"A copy of {size / 1e9:.1f} GB",
            y_label="seconds",
            is_line=False,
            lower_is_better=True,
        ),
    )


def fill(root: Path, size: int) -> int:
    """Make a tenant whose file is so large, and return its bytes."""
    with tenantq.open(root) as store:
        acme = store.tenant("acme")
        while not acme.path.exists() or acme.path.stat().st_size < size:
            acme.enqueue_many("mail", [os.urandom(PAYLOAD_BYTES) for _ in range(BATCH)])
        path = acme.path
    return path.stat().st_size


def contenders(directory: Path) -> dict[str, Callable[[], object]]:
    """Return the ways to copy the file."""
    store = directory / "store"
    with tenantq.open(store) as opened:
        source = opened.tenant("acme").path

    def ours() -> None:
        with tenantq.open(store) as opened:
            opened.tenant("acme").backup(directory / "copy.db")

    target = directory / "copy-theirs.db"
    program = ["sqlite3", str(source), f".backup {target}"]
    if shutil.which("sqlite3") is None:
        program = [sys.executable, "-c", BY_MODULE, str(source), str(target)]
    return {
        "tenantq": ours,
        "sqlite3 .backup": lambda: subprocess.run(program, check=True),
        "cp": lambda: subprocess.run(["cp", source, target], check=True),
    }


def beside_writers(directory: Path, options: Options) -> dict[str, float]:
    """Take a backup while others write; return what it took, and what their calls took."""
    with Crew(WRITERS, directory / "logs") as crew, tenantq.open(directory / "store") as store:
        for _ in range(WRITERS):
            crew.add(write, str(directory / "store"))
        crew.go(options.warm_up)
        began = time.monotonic_ns()
        store.tenant("acme").backup(directory / "copy.db")
        ended = time.monotonic_ns()
        time.sleep(max(options.window, (ended - began) / 1e9))
        logs = crew.stop()
    (directory / "copy.db").unlink()
    calls = [
        (at, took)
        for log in logs
        for at, took in zip(log.latencies["at"], log.latencies["took"], strict=True)
        if at >= began
    ]
    during = sorted(took for at, took in calls if at <= ended)
    without = sorted(took for at, took in calls if at > ended)
    return {
        "seconds": (ended - began) / 1e9,
        "during_p99": percentile(during, 99) / 1e6,
        "during_max": percentile(during, 100) / 1e6,
        "without_p99": percentile(without, 99) / 1e6,
        "without_max": percentile(without, 100) / 1e6,
    }


def write(seat: Seat, root: str) -> Log:
    """Enqueue at a steady pace."""
    log = Log(latencies={"at": [], "took": []})
    with tenantq.open(root) as store:
        acme = store.tenant("acme")
        acme.enqueue("written", 0)
        seat.ready()
        while not seat.is_stopped:
            began = time.monotonic_ns()
            acme.enqueue("written", 1)
            log.latencies["at"].append(began)
            log.latencies["took"].append(time.monotonic_ns() - began)
            time.sleep(PACE)
    return log


def row(name: str, writers: int, seconds: list[float], size: int) -> Row:
    took = median(seconds)
    return {
        "way": name,
        "writers": writers,
        "seconds": took or None,
        "mb_per_s": size / 1e6 / took if took else None,
        "p99_ms": None,
        "longest_ms": None,
    }


def longest(waits: list[dict[str, float]], when: str) -> Row:
    return {
        "p99_ms": median([wait[f"{when}_p99"] for wait in waits]),
        "longest_ms": max(wait[f"{when}_max"] for wait in waits),
    }
