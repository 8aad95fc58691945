"""What does a synced commit cost, for one message a call and for batches?

NORMAL survives a crash of the process, FULL power loss too. OFF is no durable queue; it stands here as a
reference, and tenantq does not offer it. 4 producers and 4 consumers.
"""

from __future__ import annotations

from bench._load import Plan, run_trial
from bench._measure import median, paired
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

CONTENDERS: dict[str, tuple[str, dict[str, int]]] = {
    "documents' loop": ("documents' loop", {}),
    "documents' batches of 50": ("documents' loop", {"batch": 50}),
    "tenantq": ("tenantq", {}),
    "tenantq batched": ("tenantq batched", {}),
}


def run(options: Options) -> Result:
    rows: list[Row] = []
    rates: dict[tuple[str, str], list[float]] = {}
    for durability in ("normal", "full", "off"):
        for _ in range(options.iterations):
            for name, (contender, batch) in CONTENDERS.items():
                if durability == "off" and contender != "documents' loop":
                    continue
                with options.directory() as directory:
                    plan = Plan(
                        contender=contender,
                        place=str(directory),
                        depth=options.depth(),
                        durability=durability,
                        options=dict(batch),
                    )
                    rate = run_trial(plan, options, directory / "logs").rate
                rates.setdefault((durability, name), []).append(rate)
        rows += [
            {
                "durability": durability.upper(),
                "contender": name,
                "throughput": round(median(rates[durability, name])) if (durability, name) in rates else None,
            }
            for name in CONTENDERS
        ]
    return Result(
        rows=rows,
        parameters={"producers": 4, "consumers": 4, "depth": options.depth()},
        ratios=[
            paired(f"{ours} / {theirs}, {durability.upper()}", rates[durability, ours], rates[durability, theirs])
            for durability in ("normal", "full")
            for ours, theirs in (("tenantq", "documents' loop"), ("tenantq batched", "documents' batches of 50"))
        ],
        figure=chart(
            rows,
            x="durability",
            y="throughput",
            by="contender",
            title="Durability",
            y_label="messages/s",
            is_line=False,
            is_log=True,
        ),
    )
