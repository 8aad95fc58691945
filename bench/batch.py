"""What do batches give, and what do they cost in time?

4 producers and 4 consumers on one file; a call carries 1 to 1,000 messages. Raw apsw does the same two
transactions, with the documents' batched claim.
"""

from __future__ import annotations

from bench._load import Plan, Trial, run_trial
from bench._measure import median, paired, percentile
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

SIZES = (1, 5, 10, 50, 200, 1000)

CONTENDERS = ("documents' loop", "tenantq batched")


def run(options: Options) -> Result:
    rows: list[Row] = []
    result = Result(
        rows=rows,
        parameters={"producers": 4, "consumers": 4, "depth": options.depth(), "durability": options.durability},
    )
    for size in options.pick(SIZES, (1, 50)):
        trials: dict[str, list[Trial]] = {name: [] for name in CONTENDERS}
        for _ in range(options.iterations):
            for name in CONTENDERS:
                with options.directory() as directory:
                    plan = Plan(
                        contender=name,
                        place=str(directory),
                        depth=options.depth(),
                        durability=options.durability,
                        options={"batch": size},
                    )
                    trials[name].append(run_trial(plan, options, directory / "logs"))
        for name, found in trials.items():
            row: Row = {
                "batch": size,
                "contender": name,
                "throughput": round(median([trial.rate for trial in found])),
            }
            for percent in (50, 99):
                for call in ("enqueue", "dequeue"):
                    values = [percentile(sorted(getattr(trial, call)), percent) / 1e6 for trial in found]
                    row[f"{call}_p{percent}_ms"] = median(values)
            rows.append(row | {"errors": sum(sum(trial.errors.values()) for trial in found)})
        result.ratios.append(
            paired(
                f"tenantq / documents' statements, batches of {size}",
                [trial.rate for trial in trials[CONTENDERS[1]]],
                [trial.rate for trial in trials[CONTENDERS[0]]],
            ),
        )
    result.figure = chart(
        rows, x="batch", y="throughput", by="contender", title="Messages a call", y_label="messages/s"
    )
    return result
