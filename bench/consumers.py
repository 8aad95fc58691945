"""How many messages a second pass through one queue, with 1 to 64 consumers?

The documents' table: 4 producers hold the depth near 5,000, each consumer is a process that claims,
does nothing and acks.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from bench._load import Plan, run_trial
from bench._measure import median, paired
from bench._options import Options
from bench._plots import chart
from bench._postgres import POSTGRES, postgres_server, why_not
from bench._report import Result, Row

CONSUMERS = (1, 2, 4, 8, 16, 32, 64)

FILES = ("documents' loop", "tenantq", "tenantq batched")

PUBLISHED = {1: 4820, 4: 11940}
"""What the documents measured on their machine, where their text says it."""


def run(options: Options) -> Result:
    consumers = options.pick(CONSUMERS, (1, 4))
    missing = {name: reason for name in POSTGRES if (reason := why_not(name))}
    names = [*FILES, *(name for name in POSTGRES if name not in missing)]
    rates: dict[tuple[int, str], list[float]] = {}
    errors: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(postgres_server())[0] if len(names) > len(FILES) else ""
        for count in consumers:
            for _ in range(options.iterations):
                for name in names:
                    with options.directory() as directory:
                        trial = run_trial(plan(name, count, directory, dsn, options), options, directory / "logs")
                    rates.setdefault((count, name), []).append(trial.rate)
                    for error, number in trial.errors.items():
                        errors[f"{name}: {error}"] = errors.get(f"{name}: {error}", 0) + number
    rows: list[Row] = []
    for count in consumers:
        row: Row = {"consumers": count}
        row |= {name: round(median(rates[count, name])) for name in names}
        row |= dict.fromkeys(missing, "not installed")
        rows.append(row | {"published SQLite": PUBLISHED.get(count)})
    flat: list[Row] = [
        {"consumers": count, "contender": name, "rate": median(rates[count, name])}
        for name in names
        for count in consumers
    ]
    result = Result(
        rows=rows,
        parameters={"producers": 4, "depth": options.depth(), "durability": options.durability},
        figure=chart(flat, x="consumers", y="rate", by="contender", title="Throughput", y_label="messages/s"),
    )
    result.ratios = [
        paired(f"{name} / documents' loop, {count} consumers", rates[count, name], rates[count, FILES[0]])
        for count in consumers
        for name in FILES[1:]
    ]
    result.notes = [f"{name}: {reason}" for name, reason in missing.items()]
    result.notes += [f"{error} ({number} times)" for error, number in errors.items()]
    if len(names) > len(FILES):
        setting = {"normal": "off", "full": "on"}[options.durability]
        result.notes.append(f"Postgres runs with fsync on and synchronous_commit {setting}, for equal durability")
    return result


def plan(name: str, count: int, directory: Path, dsn: str, options: Options) -> Plan:
    """Return the trial of one contender."""
    return Plan(
        contender=name,
        place=dsn if name in POSTGRES else str(directory),
        consumers=count,
        depth=options.depth(),
        durability=options.durability,
    )
