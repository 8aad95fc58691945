"""How long does a message take from one process to another, at 1,000, 5,000 and 10,000 messages a second?

Enqueue is the producer's call, dequeue a claim that found something, end to end from the producer's call to
the consumer's hands. Producers keep the rate; consumers wait as each queue lets them: the documents' loop
sleeps 5 ms when it found nothing.
"""

from __future__ import annotations

from bench._load import Plan, Trial, run_trial
from bench._measure import median, paired, percentile, percentiles_ms
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

RATES = (1_000, 5_000, 10_000)

SHAPES = ((1, 1), (4, 4))
"""Producers and consumers: a pair, and the documents' shape."""

CONTENDERS = ("documents' loop", "tenantq", "tenantq batched", "tenantq worker")

PUBLISHED = {1_000: 1.1, 5_000: 2.8, 10_000: 8.4}
"""The documents' p99 end to end in milliseconds, on 8 cores, with 4 producers and 4 consumers."""


def run(options: Options) -> Result:
    rows: list[Row] = []
    result = Result(rows=rows, parameters={"durability": options.durability})
    for producers, consumers in options.pick(SHAPES, SHAPES[:1]):
        for rate in options.pick(RATES, RATES[:1]):
            trials: dict[str, list[Trial]] = {name: [] for name in CONTENDERS}
            for _ in range(options.iterations):
                for name in CONTENDERS:
                    plan_options = {"batch": 10} if name == "tenantq batched" else {}
                    with options.directory() as directory:
                        plan = Plan(
                            contender=name,
                            place=str(directory),
                            producers=producers,
                            consumers=consumers,
                            depth=0,
                            rate=rate,
                            durability=options.durability,
                            options=plan_options,
                        )
                        trials[name].append(run_trial(plan, options, directory / "logs"))
            shape = f"{producers} + {consumers}"
            rows += [row_of(shape, rate, name, found) for name, found in trials.items()]
            add_ratios(result, shape, rate, trials)
    result.figure = chart(
        [{**row, "at": f"{row['rate']}/s, {row['shape']}"} for row in rows],
        x="at",
        y="e2e_p99",
        by="contender",
        title="End to end, p99",
        x_label="messages/s, producers + consumers",
        y_label="milliseconds",
        is_line=False,
        is_log=True,
        lower_is_better=True,
    )
    result.notes.append(
        "published: the documents' p99 end to end on their 8 cores: "
        + ", ".join(f"{value} ms at {rate:,}/s" for rate, value in PUBLISHED.items()),
    )
    return result


def row_of(shape: str, rate: int, name: str, trials: list[Trial]) -> Row:
    """Return the medians over the trials of each percentile."""
    row: Row = {
        "shape": shape,
        "rate": rate,
        "contender": name,
        "achieved": round(median([trial.rate for trial in trials])),
    }
    for prefix, attribute in (("enq_", "enqueue"), ("deq_", "dequeue"), ("e2e_", "end_to_end")):
        each = [percentiles_ms(getattr(trial, attribute), prefix) for trial in trials]
        row |= {key: median([one[key] for one in each]) for key in each[0]}
    row["errors"] = sum(sum(trial.errors.values()) for trial in trials)
    row["published_p99"] = PUBLISHED.get(rate)
    return row


def add_ratios(result: Result, shape: str, rate: int, trials: dict[str, list[Trial]]) -> None:
    """Add the p99 end to end of ours beside the documents' loop."""
    p99 = {name: [percentile(sorted(trial.end_to_end), 99) for trial in found] for name, found in trials.items()}
    for name in CONTENDERS[1:]:
        result.ratios.append(
            paired(
                f"p99 end to end, {name} / documents' loop, {rate:,}/s, {shape}",
                p99[name],
                p99[CONTENDERS[0]],
                at_most=0.3 if name == "tenantq" and shape == "1 + 1" else None,
            ),
        )
