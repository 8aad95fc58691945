"""How often does a writer wait for the lock, and how long, against the rate and the consumers?

The documents counted the calls of SQLite's busy handler. Their queue runs here with a handler that sleeps as
SQLite's does and counts; tenantq counts by itself, in `stats()`.
"""

from __future__ import annotations

from bench._load import Plan, Trial, run_trial
from bench._measure import median, paired, percentile
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

POINTS = ((1_000, 4), (5_000, 4), (10_000, 8), (None, 1), (None, 4), (None, 16))
"""Messages a second and consumers; None: as many as pass. The first three are the documents'."""

CONTENDERS = ("documents' loop", "tenantq", "tenantq batched")

PUBLISHED = {(1_000, 4): "12/s, under 0.1 ms", (5_000, 4): "410/s, 0.6 ms", (10_000, 8): "8,200/s, 2.1 ms"}


def run(options: Options) -> Result:
    rows: list[Row] = []
    result = Result(rows=rows, parameters={"producers": 4})
    for rate, consumers in options.pick(POINTS, POINTS[:1]):
        trials: dict[str, list[Trial]] = {name: [] for name in CONTENDERS}
        for _ in range(options.iterations):
            for name in CONTENDERS:
                with options.directory() as directory:
                    plan = Plan(
                        contender=name,
                        place=str(directory),
                        consumers=consumers,
                        depth=options.depth() if rate is None else 0,
                        rate=rate,
                        durability=options.durability,
                        options={"count_waits": True} if name == CONTENDERS[0] else {},
                    )
                    trials[name].append(run_trial(plan, options, directory / "logs"))
        seconds = options.warm_up + options.window
        rows += [
            row_of(
                name,
                rate,
                consumers,
                trials=found,
                seconds=seconds,
                published=PUBLISHED.get((rate or 0, consumers), "-"),
            )
            for name, found in trials.items()
        ]
        for name in CONTENDERS[1:]:
            load = "all that pass" if rate is None else f"{rate:,}/s"
            result.ratios.append(
                paired(
                    f"seconds of waiting for a message, {name} / documents' loop, {load}, {consumers} consumers",
                    [trial.waited / max(1.0, trial.rate) for trial in trials[name]],
                    [trial.waited / max(1.0, trial.rate) for trial in trials[CONTENDERS[0]]],
                ),
            )
    result.figure = chart(
        [{**row, "at": f"{row['load']}, {row['consumers']}"} for row in rows],
        x="at",
        y="waiting_share",
        by="contender",
        title="Processes that wait for the lock, on average",
        x_label="messages/s, consumers",
        y_label="processes",
        is_line=False,
        lower_is_better=True,
    )
    return result


def row_of(
    name: str,
    rate: int | None,
    consumers: int,
    *,
    trials: list[Trial],
    seconds: float,
    published: str,
) -> Row:
    """Return the medians of one contender at one point."""
    waits = median([trial.waits for trial in trials])
    waited = median([trial.waited for trial in trials])
    lengths = sorted(length for trial in trials for length in trial.wait)
    return {
        "load": "all that pass" if rate is None else f"{rate:,}/s",
        "consumers": consumers,
        "contender": name,
        "throughput": round(median([trial.rate for trial in trials])),
        "waits_per_s": round(waits / seconds),
        "mean_wait_ms": waited / waits * 1000 if waits else 0.0,
        "median_wait_ms": percentile(lengths, 50) / 1e6 if lengths else None,
        "longest_wait_ms": lengths[-1] / 1e6 if lengths else None,
        "waiting_share": waited / seconds,
        "longest_call_ms": max(max(trial.enqueue + trial.dequeue, default=0) for trial in trials) / 1e6,
        "errors": sum(sum(trial.errors.values()) for trial in trials),
        "published": published,
    }
