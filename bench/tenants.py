"""What do ten tenants cost, a thousand, a hundred thousand: the first call, an idle worker and forwarder, memory?

Cold calls go to tenants that are not open, and another one is closed for each; beside it, in turns, raw apsw
opens such a file, inserts a row and closes it. Idle processes are measured when they have come to rest, for
`--minutes`. The memory is that of a process that has enqueued, claimed and acked a message of every tenant.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import msgspec

from bench._measure import median, paired
from bench._options import Options
from bench._plots import chart
from bench._postgres import postgres_server, why_not
from bench._report import Result, Row
from bench._servers import MISSING
from bench._stores import counts_of, stocked
from bench.forward import database

ROLES = ("cold", "touch", "worker", "forwarder")


def run(options: Options) -> Result:
    counts = counts_of(options)
    found: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    missing = why_not("postgres, PostgresQueue")
    with contextlib.ExitStack() as stack:
        server = None if missing else stack.enter_context(postgres_server())[0]
        for _ in range(options.iterations):
            for count in counts:
                with stocked(count, options) as stock:
                    figures = {"made_per_s": stock.made_per_s} | measure(count, stock.path, server, options)
                for name, figure in figures.items():
                    found[count].setdefault(name, []).append(figure)
    rows: list[Row] = [
        {"tenants": count} | {name: median(figures) for name, figures in found[count].items()} for count in counts
    ]
    result = Result(
        rows=rows,
        parameters={"idle_seconds": idle_seconds(options), "durability": "normal"},
        notes=[MISSING] if missing else [],
        figure=chart(
            [
                {"tenants": str(row["tenants"]), "way": way, "microseconds": row[column]}
                for row in rows
                for way, column in (("tenantq", "enqueue_us"), ("raw apsw", "raw_us"))
            ],
            x="tenants",
            y="microseconds",
            by="way",
            title="A call on a tenant that is not open",
            y_label="microseconds",
            is_line=False,
            lower_is_better=True,
        ),
    )
    fewest, most = found[counts[0]], found[counts[-1]]
    for count in counts:
        result.ratios.append(
            paired(
                f"cold enqueue / raw apsw, {count} tenants",
                found[count]["enqueue_us"],
                found[count]["raw_us"],
                at_most=1.5,
            )
        )
    for role in ("worker", "forwarder"):
        if f"{role}_cpu" in most:
            name = f"idle {role}, {counts[-1]} tenants / {counts[0]}"
            result.ratios.append(paired(name, most[f"{role}_cpu"], fewest[f"{role}_cpu"], at_most=1.5))
    result.notes.append(
        "to reach: rss_mib at most 400 at 100,000 tenants; worker_cpu and forwarder_cpu under 0.01"
    )
    return result


def idle_seconds(options: Options) -> float:
    """Return how long an idle process is measured."""
    return options.pick(60 * options.minutes, 0.5)


def measure(count: int, root: Path, server: str | None, options: Options) -> dict[str, float]:
    """Let each role do its part on a store."""
    figures: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        dsn = "" if server is None else stack.enter_context(database(server))
        if dsn:
            migrate(dsn)
        for role in ROLES:
            if role != "forwarder" or dsn:
                command = [role, str(root), str(count), str(idle_seconds(options)), dsn]
                done = subprocess.run(
                    [sys.executable, "-m", "bench._tenant_roles", *command], stdout=subprocess.PIPE, check=True
                )
                figures |= msgspec.json.decode(done.stdout, type=dict[str, float])
    return figures


def migrate(dsn: str) -> None:
    """Make the tables of the queue."""
    import tenantq_bridge  # noqa: PLC0415 - needs an extra

    with tenantq_bridge.PostgresQueue(dsn) as queue:
        queue.migrate()
