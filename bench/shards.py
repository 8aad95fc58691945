"""What do more files give: 1, 4 and 8 tenants at once?

Each file has a producer and a consumer of its own; the sum is what counts. The documents reached 41,200
messages a second with 4 files and about 41,000 with 8, on 8 cores, in batches of 50.
"""

from __future__ import annotations

from bench._load import Plan, run_trials
from bench._measure import median, paired
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

FILES = (1, 4, 8)

CONTENDERS: dict[str, tuple[str, dict[str, int]]] = {
    "documents' loop": ("documents' loop", {}),
    "documents' batches of 50": ("documents' loop", {"batch": 50}),
    "tenantq": ("tenantq", {}),
    "tenantq batched": ("tenantq batched", {}),
}


def run(options: Options) -> Result:
    rows: list[Row] = []
    rates: dict[tuple[int, str], list[float]] = {}
    for files in options.pick(FILES, (1, 4)):
        for _ in range(options.iterations):
            for name in CONTENDERS:
                rates.setdefault((files, name), []).append(run_once(name, files, options))
        rows += [
            {"files": files, "contender": name, "throughput": round(median(rates[files, name]))}
            for name in CONTENDERS
        ]
    result = Result(
        rows=rows,
        parameters={"producers": 1, "consumers": 1, "depth": options.depth(), "durability": options.durability},
        figure=chart(
            rows, x="files", y="throughput", by="contender", title="Files at once", y_label="messages/s, all files"
        ),
    )
    for files in options.pick(FILES, (1, 4)):
        for ours, theirs in (
            ("tenantq", "documents' loop"),
            ("tenantq batched", "documents' batches of 50"),
        ):
            result.ratios.append(
                paired(f"{ours} / {theirs}, {files} files", rates[files, ours], rates[files, theirs]),
            )
    return result


def run_once(name: str, files: int, options: Options) -> float:
    """Return the messages a second of all files together."""
    contender, batch = CONTENDERS[name]
    with options.directory() as directory:
        plans = []
        for number in range(files):
            place = directory / str(number)
            place.mkdir()
            plans.append(
                Plan(
                    contender=contender,
                    place=str(place),
                    producers=1,
                    consumers=1,
                    depth=options.depth(),
                    durability=options.durability,
                    options=dict(batch),
                ),
            )
        return sum(trial.rate for trial in run_trials(plans, options, directory / "logs"))
