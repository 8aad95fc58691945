"""What does a queue cost at 5,000 messages a second: processor, memory, bytes written?

4 producers and 4 consumers, each a process. For Postgres its server's processes are counted apart. Memory is
the proportional set size, which counts a shared page once. The documents give 72% of one core for SQLite
and three and a half cores for Postgres.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

from bench._children import Crew
from bench._load import Plan, start, summarise
from bench._measure import median
from bench._options import Options
from bench._plots import chart
from bench._postgres import POSTGRES, postgres_server, why_not
from bench._report import Result, Row

RATE = 5_000

FILES = ("documents' loop", "tenantq", "tenantq batched", "tenantq worker")

TICKS = os.sysconf("SC_CLK_TCK")


class Usage(msgspec.Struct):
    """What processes have used so far."""

    cpu_seconds: float = 0.0
    memory_mib: float = 0.0
    written_mib: float = 0.0

    def since(self, earlier: Usage, seconds: float) -> dict[str, float]:
        """Return what they used a second."""
        return {
            "cores": (self.cpu_seconds - earlier.cpu_seconds) / seconds,
            "pss_mib": self.memory_mib,
            "written_mib_per_s": (self.written_mib - earlier.written_mib) / seconds,
        }


def run(options: Options) -> Result:
    missing = {name: reason for name in POSTGRES if (reason := why_not(name))}
    names = [*FILES, *(name for name in POSTGRES if name not in missing)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        dsn, server = stack.enter_context(postgres_server()) if len(names) > len(FILES) else ("", 0)
        for _ in range(options.iterations):
            for name in names:
                with options.directory() as directory:
                    is_postgres = name in POSTGRES
                    plan = Plan(
                        contender=name,
                        place=dsn if is_postgres else str(directory),
                        depth=options.pick(1000, 100),
                        rate=options.pick(RATE, 500),
                        durability=options.durability,
                    )
                    found[name].append(measure(plan, server if is_postgres else 0, directory, options))
    rows: list[Row] = [
        {"contender": name} | {key: median([one[key] for one in found[name]]) for key in found[name][0]}
        for name in names
    ]
    return Result(
        rows=rows,
        parameters={"rate": RATE, "producers": 4, "consumers": 4, "durability": options.durability},
        notes=[f"{name}: {reason}" for name, reason in missing.items()],
        figure=chart(
            [
                {"contender": row["contender"], "at": part, "cores": row[f"{part}_cores"]}
                for row in rows
                for part in ("clients", "server")
            ],
            x="at",
            y="cores",
            by="contender",
            title=f"Processor at {RATE:,} messages a second",
            y_label="cores",
            is_line=False,
            lower_is_better=True,
        ),
    )


def measure(plan: Plan, server: int, directory: Path, options: Options) -> dict[str, float]:
    """Run a trial and return what its clients and its server used a second."""
    with Crew(plan.producers + plan.consumers, directory / "logs") as crew:
        start(crew, plan)
        crew.go(options.warm_up)
        groups = {"clients": crew.pids, "server": tree_of(server) if server else []}
        before = {name: usage_of(pids) for name, pids in groups.items()}
        window = crew.measure(options.window)
        after = {name: usage_of(pids) for name, pids in groups.items()}
        totals = crew.counted()
        trial = summarise(plan, window, totals, crew.stop())
    figures: dict[str, float] = {"achieved": round(trial.rate)}
    for name in groups:
        used = after[name].since(before[name], window.seconds)
        figures |= {f"{name}_{key}": value for key, value in used.items()}
    figures["cpu_us_per_message"] = (
        (figures["clients_cores"] + figures["server_cores"]) / max(1.0, trial.rate) * 1_000_000
    )
    return figures


def usage_of(pids: list[int]) -> Usage:
    """Add up what processes have used; one that is gone counts for nothing."""
    usage = Usage()
    for pid in pids:
        with contextlib.suppress(OSError):
            process = Path("/proc") / str(pid)
            fields = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            usage.cpu_seconds += (int(fields[11]) + int(fields[12])) / TICKS
            usage.memory_mib += number_of(process / "smaps_rollup", r"^Pss:\s+(\d+)") / 1024
            usage.written_mib += number_of(process / "io", r"^write_bytes: (\d+)") / 2**20
    return usage


def number_of(path: Path, pattern: str) -> int:
    """Return the number that a file of /proc has for a name."""
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    return int(found[1]) if found else 0


def tree_of(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                parents[int(process.name)] = int(fields[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found
