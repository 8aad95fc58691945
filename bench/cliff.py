"""What happens to a queue that is offered more than it can serve?

Each contender's capacity is measured first, as what passes while the depth is held; then half of it to three
times as much is offered. The documents' queue collapsed between 13,000 and 15,000 messages a second. The bounded
queue holds what it serves in half a second: its producers wait for room.
"""

from __future__ import annotations

from bench._load import Plan, Trial, run_trial
from bench._measure import median, paired, percentile
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

BOUNDED = "tenantq, bounded"

BOUND_SECONDS = 0.5
"""How long it takes to serve what a bounded queue holds."""

FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)

CONTENDERS = ("documents' loop", "tenantq", BOUNDED, "tenantq batched", "tenantq worker")

BUSY = ("BusyError", "LockedError", "TenantBusy")


def run(options: Options) -> Result:
    factors = options.pick(FACTORS, (0.5, 3.0))
    capacities: dict[str, list[float]] = {}
    trials: dict[tuple[str, float], list[Trial]] = {}
    for _ in range(options.iterations):
        for name in CONTENDERS:
            capacity = run_once(name, None, options).rate
            capacities.setdefault(name, []).append(capacity)
            for factor in factors:
                bound = max(1, round(BOUND_SECONDS * capacity)) if name == BOUNDED and factor > 1 else None
                trial = run_once(name, max(10.0, factor * capacity), options, max_depth=bound)
                trials.setdefault((name, factor), []).append(trial)
    rows = [
        row_of(name, factor, capacities[name], trials[name, factor]) for name in CONTENDERS for factor in factors
    ]
    result = Result(
        rows=rows,
        parameters={"producers": 4, "consumers": 4, "durability": options.durability},
        figure=chart(
            rows,
            x="times_capacity",
            y="throughput",
            by="contender",
            title="Throughput under load",
            x_label="offered load, times the capacity",
            y_label="messages/s",
        ),
    )
    for name in CONTENDERS:
        last = [trial.rate for trial in trials[name, factors[-1]]]
        peaks = [
            max(capacities[name][number], *(trials[name, factor][number].rate for factor in factors))
            for number in range(options.iterations)
        ]
        result.ratios.append(
            paired(
                f"throughput at {factors[-1]:g} times the capacity / the peak, {name}",
                last,
                peaks,
                at_least=0.95 if name.startswith("tenantq") else None,
            ),
        )
    return result


def run_once(name: str, rate: float | None, options: Options, *, max_depth: int | None = None) -> Trial:
    """Run one trial at a rate, or without one at its capacity."""
    # What is offered too much fills an empty queue first; a bounded one begins as it ends, full.
    depth = options.depth() if rate is None else max_depth or 0
    with options.directory() as directory:
        plan = Plan(
            contender=name,
            place=str(directory),
            depth=depth,
            rate=rate,
            durability=options.durability,
            options={} if max_depth is None else {"max_depth": max_depth},
        )
        return run_trial(plan, options, directory / "logs")


def row_of(name: str, factor: float, capacities: list[float], trials: list[Trial]) -> Row:
    """Return the medians of one contender at one load."""

    def p99(attribute: str) -> float:
        return median([percentile(sorted(getattr(trial, attribute)), 99) / 1e6 for trial in trials])

    return {
        "contender": name,
        "times_capacity": factor,
        "capacity": round(median(capacities)),
        "enqueued": round(median([trial.offered for trial in trials])),
        "throughput": round(median([trial.rate for trial in trials])),
        "depth_at_end": round(median([trial.depth for trial in trials])),
        "enqueue_p99_ms": p99("enqueue"),
        "end_to_end_p99_ms": p99("end_to_end"),
        "lock_errors": sum(trial.errors.get(error, 0) for trial in trials for error in BUSY),
        "other_errors": sum(
            count for trial in trials for error, count in trial.errors.items() if error not in BUSY
        ),
    }
