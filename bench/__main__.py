"""The command: `python -m bench NAME`, `python -m bench all`, `python -m bench list`."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import signal
import sys
from pathlib import Path
from typing import Protocol, cast

import bench
from bench._options import Options
from bench._page import write_page
from bench._plots import draw
from bench._report import Result, json_line, print_result
from bench._servers import SERVERS

ORDER = (
    "single",
    "batched",
    "threads",
    "worker",
    "consumers",
    "latency",
    "cliff",
    "contention",
    "fair",
    "fairness",
    "batch",
    "shards",
    "durability",
    "backlog",
    "peers",
    "aio",
    "recovery",
    "resources",
    "replicate",
    "forward",
    "soniq",
    "memory",
    "create",
    "restore",
    "tenants",
    "backup",
    "backup_all",
    "wake",
    "startup",
    "pg_claims",
    "pg_index",
    "pg_decay",
    "pg_retention",
    "pg_peers",
)
"""The benchmarks, as the page shows them."""


class Benchmark(Protocol):
    """A module of a benchmark."""

    def run(self, options: Options) -> Result:
        """Measure."""
        ...


def names() -> list[str]:
    """Return the names of all benchmarks: those in ORDER first."""
    found = {module.name for module in pkgutil.iter_modules(bench.__path__) if not module.name.startswith("_")}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def question_of(name: str) -> str:
    """Return what a benchmark asks."""
    doc = importlib.import_module(f"bench.{name}").__doc__ or ""
    return " ".join(doc.split("\n\n")[0].split())


def run(name: str, options: Options) -> Result:
    """Run a benchmark and return its result, with where and when it was measured."""
    module = cast("Benchmark", importlib.import_module(f"bench.{name}"))
    result = module.run(options)
    result.name, result.question = name, question_of(name)
    result.stamp(options)
    return result


def main() -> int:
    """Run what the command line says."""
    defaults = Options()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=[*names(), "all", "list"], metavar="NAME|all|list")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="how long a trial is measured")
    parser.add_argument(
        "--iterations",
        type=int,
        default=defaults.iterations,
        help="how often each trial is run (1, with --seconds 1: a smoke run on a small grid)",
    )
    parser.add_argument("--durability", choices=["normal", "full"], default=defaults.durability)
    parser.add_argument("--rows", type=int, default=defaults.rows, help="the largest backlog")
    parser.add_argument("--scratch", help="the directory for the files of the trials")
    parser.add_argument(
        "--stores", help="a directory that keeps stores of 10,000 tenants or more for the next run"
    )
    parser.add_argument("--postgres", choices=SERVERS, default=defaults.postgres, help="the server of pg_...")
    parser.add_argument("--history", type=int, default=defaults.history, help="the rows of pg_index")
    parser.add_argument(
        "--minutes",
        type=float,
        default=defaults.minutes,
        help="how long each load of pg_decay and pg_retention lasts (60: what their figures are for)",
    )
    parser.add_argument(
        "--rate", type=float, default=defaults.rate, help="its messages a second, at most (pg_decay: or 0)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only the loads whose names hold it")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw an SVG into this folder")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the page with its plots")
    arguments = parser.parse_args()
    if arguments.name == "list":
        for name in names():
            print(f"{name:12} {question_of(name)}")
        return 0
    options = Options(
        seconds=arguments.seconds,
        iterations=arguments.iterations,
        durability=arguments.durability,
        rows=arguments.rows,
        scratch=arguments.scratch,
        stores=arguments.stores,
        postgres=arguments.postgres,
        history=arguments.history,
        minutes=arguments.minutes,
        rate=arguments.rate,
        only=arguments.only,
    )
    # So that the servers and the processes of a trial end with what is ended from outside.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in names() if arguments.name == "all" else [arguments.name]:
        result = run(name, options)
        if not arguments.json:
            print_result(result)
        print(json_line(result), flush=True)
        if arguments.plots:
            draw(result, arguments.plots)
        if arguments.write:
            write_page(arguments.write, [result], names())
    return 0


if __name__ == "__main__":
    sys.exit(main())
