"""Numbers out of measurements: percentiles, paired ratios, contenders in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

__all__ = ["Ratio", "in_turns", "median", "paired", "percentile", "percentiles_ms", "timed"]

T = TypeVar("T")


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One contender's figures divided by another's, measured in turns; `median` is what counts."""

    name: str
    median: float
    pairs: list[float]
    at_least: float | None = None
    """The target: more is better."""
    at_most: float | None = None
    """The target: less is better."""

    @property
    def is_met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.at_least is not None:
            return self.median >= self.at_least
        if self.at_most is not None:
            return self.median <= self.at_most
        return None


def paired(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Ratio:
    """Divide neighbours pair by pair."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True) if b]
    return Ratio(
        name=name,
        median=round(median(pairs), 4),
        pairs=[round(pair, 4) for pair in pairs],
        at_least=at_least,
        at_most=at_most,
    )


def median(values: Sequence[float]) -> float:
    """Return the median; 0 of nothing."""
    return statistics.median(values) if values else 0.0


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of values in ascending order; 0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def percentiles_ms(nanoseconds: Sequence[int], prefix: str = "") -> dict[str, float]:
    """Return p50, p95, p99 and max in milliseconds."""
    ordered = sorted(nanoseconds)
    return {
        f"{prefix}{name}": round(percentile(ordered, percent) / 1e6, 4)
        for name, percent in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100))
    }


def in_turns(rounds: int, *contenders: Callable[[], T], warm_up: int = 1) -> list[list[T]]:
    """Run contenders A B A B; return what each gave, without the rounds of the warm-up."""
    results: list[list[T]] = [[] for _ in contenders]
    for number in range(warm_up + rounds):
        for contender, kept in zip(contenders, results, strict=True):
            result = contender()
            if number >= warm_up:
                kept.append(result)
    return results


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that an action took."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
