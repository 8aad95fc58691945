"""What sizes over time say: the heap as a band, the index as a slope, dead rows as a median.

A heap has no slope to fit: it steps up, and VACUUM hands trailing pages back, so that a line through it reports
growth where there is none; and counting its steps until they stop waits for a state that a busy table never
reaches. So nothing here fits a line to a heap, and nothing waits for quiet. An index gives nothing back, and there
a slope means what it says. Dead rows are a sawtooth: one sample catches its top as easily as its middle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from statistics import linear_regression, median

import msgspec

__all__ = [
    "SAMPLE_INTERVAL",
    "SMALL_BYTES",
    "Growth",
    "HeapHealth",
    "IndexHealth",
    "Sample",
    "Series",
    "measure_heap",
    "measure_index",
]

SAMPLE_INTERVAL = 30.0
"""Seconds: the documents' own, and below autovacuum_naptime's default, whose beat it would else show."""

MIN_SPAN = 3_600.0
"""Seconds of samples behind the fill before anything is judged."""

MIN_CYCLES = 10
"""Vacuums in them: the documents' heap took its last extension nine to eleven cycles in."""

LONG_SPAN = 43_200.0
"""Seconds after which fewer vacuums are enough: a table that is seldom vacuumed seldom changes."""

SMALL_BYTES = 8 * 1024 * 1024
"""What has stayed below is not judged: doubling would not matter."""

PARTS = 6
"""Of the window. A heap that set a new peak in each of the last three by chance alone is one in 120."""

INDEX_DAILY_GROWTH = 0.1
"""Of its size, by which an index may grow in a day."""

INDEX_ROW_BYTES = 64
"""What a further row may cost an index without the index being called grown."""


class Growth(StrEnum):
    """What one relation's samples say."""

    BOUNDED = "bounded"
    """A heap that breathes in a band, or an index that keeps its size."""
    GROWING = "growing"
    GROWING_WITH_ROWS = "growing with its rows"
    """As many rows more explain it: a backlog, not bloat."""
    SMALL = "small"
    """It has stayed below 8 MiB all the time."""
    FILLING = "filling"
    """Nothing was removed and vacuumed yet, so nothing says how large it becomes."""
    UNKNOWN = "not enough samples"


class Sample(msgspec.Struct, frozen=True):
    """One relation at one moment; the counters of rows are its table's."""

    at: datetime
    bytes: int
    live_rows: int
    dead_rows: int
    removed_rows: int
    """Row versions that died so far."""
    vacuums: int
    """So far."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One relation's samples, oldest first; there is at least one."""

    relation: str
    table: str
    is_index: bool
    samples: tuple[Sample, ...]


class HeapHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One heap's band. There is no slope here, and there must be none."""

    relation: str
    table: str
    growth: Growth
    lacking: str = ""
    """What is missing for a judgement, where there are not enough samples."""
    steady_seconds: float
    """What the samples behind the fill span; 0 while it fills."""
    cycles: int
    """Vacuums in that time."""
    trough_bytes: int
    """The band is that of the second half of the time behind the fill; of all, while there is none."""
    peak_bytes: int
    bytes: int
    """Where it ended."""
    peak_ever_bytes: int
    """Of all samples that are kept."""
    live_rows: int
    """A median, as the next one."""
    dead_rows: int
    removed_per_second: float
    samples: int
    """One an interval."""
    band: float | None
    """How far the peak lies above the trough, as a part of the trough; None where that is empty."""
    below_peak: float
    """How far it ended below its all-time peak, as a part of that; 0 at the peak."""


class IndexHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One index's slope."""

    relation: str
    table: str
    growth: Growth
    lacking: str = ""
    steady_seconds: float
    """What the samples behind the fill, and behind the last rebuild, span."""
    bytes: int
    bytes_per_hour: float | None
    """By least squares; None where there are fewer than three samples to fit."""
    live_rows: int
    """A median."""


def measure_heap(series: Series) -> HeapHealth:
    """Report a heap's band and tell whether it is bounded."""
    steady = without_fill(series.samples)
    growth, lacking = _judgeable(series.samples, steady)
    if growth is Growth.BOUNDED and _still_sets_peaks(steady):
        growth = _explained(steady, _row_bytes(steady))
    shown = steady or series.samples
    band = [sample.bytes for sample in shown[len(shown) // 2 :]]
    trough, peak = min(band), max(band)
    peak_ever = max(sample.bytes for sample in series.samples)
    thinned = on_grid(shown)
    seconds = _span(shown)
    return HeapHealth(
        relation=series.relation,
        table=series.table,
        growth=growth,
        lacking=lacking,
        steady_seconds=_span(steady),
        cycles=_cycles(steady),
        trough_bytes=trough,
        peak_bytes=peak,
        bytes=shown[-1].bytes,
        peak_ever_bytes=peak_ever,
        live_rows=int(median(sample.live_rows for sample in thinned)),
        dead_rows=int(median(sample.dead_rows for sample in thinned)),
        removed_per_second=_removed(shown) / seconds if seconds else 0.0,
        samples=len(thinned),
        band=(peak - trough) / trough if trough else None,
        below_peak=1 - shown[-1].bytes / peak_ever if peak_ever else 0.0,
    )


def measure_index(series: Series) -> IndexHealth:
    """Report an index's slope since the fill and the last rebuild, and tell whether it keeps its size."""
    steady = without_fill(series.samples)
    growth, lacking = _judgeable(series.samples, steady)
    shown = _since_rebuild(steady or series.samples)
    slope = _slope_per_hour(on_grid(shown))
    if growth is Growth.BOUNDED and _span(shown) < MIN_SPAN:
        growth, lacking = Growth.UNKNOWN, "it was rebuilt less than an hour ago"
    # In the last part too: one that has reached its size does not grow.
    slopes = (slope, _slope_per_hour(on_grid(shown[-math.ceil(len(shown) / PARTS) :])))
    daily = INDEX_DAILY_GROWTH * shown[-1].bytes
    if growth is Growth.BOUNDED and all(one is not None and one * 24 > daily for one in slopes):
        growth = _explained(shown, INDEX_ROW_BYTES)
    return IndexHealth(
        relation=series.relation,
        table=series.table,
        growth=growth,
        lacking=lacking,
        steady_seconds=_span(shown) if steady else 0.0,
        bytes=shown[-1].bytes,
        bytes_per_hour=slope,
        live_rows=int(median(sample.live_rows for sample in on_grid(shown))),
    )


def without_fill(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return what is behind the fill: from the first vacuum after the first row that died.

    Before it no space was given back for reuse, and nothing is steady. The counters may begin anew (a crash
    resets them); what has been filled stays so.
    """
    first = next((n for n, sample in enumerate(samples) if sample.removed_rows), None)
    if first is None:
        return ()
    vacuums = samples[first - 1].vacuums if first else 0
    for n in range(first, len(samples)):
        if samples[n].vacuums > vacuums:
            return tuple(samples[n:])
        vacuums = min(vacuums, samples[n].vacuums)
    return ()


def on_grid(samples: Sequence[Sample]) -> list[Sample]:
    """Return one sample for each interval: what somebody sampled more often must not weigh more."""
    return list({sample.at.timestamp() // SAMPLE_INTERVAL: sample for sample in samples}.values())


def _judgeable(samples: Sequence[Sample], steady: Sequence[Sample]) -> tuple[Growth, str]:
    """Tell whether there is enough to judge by (bounded, until shown otherwise), and what is missing."""
    if _span(samples) < MIN_SPAN:
        return Growth.UNKNOWN, f"{_minutes(_span(samples))} of samples, {_minutes(MIN_SPAN)} are needed"
    if max(sample.bytes for sample in samples) < SMALL_BYTES:
        return Growth.SMALL, ""
    if not steady:
        return Growth.FILLING, ""
    if _span(steady) < MIN_SPAN:
        lacking = f"{_minutes(_span(steady))} of samples since the fill, {_minutes(MIN_SPAN)} are needed"
        return Growth.UNKNOWN, lacking
    if _removed(steady) and _cycles(steady) < MIN_CYCLES and _span(steady) < LONG_SPAN:
        return Growth.UNKNOWN, f"{_cycles(steady)} of the {MIN_CYCLES} vacuums that are needed came since the fill"
    return Growth.BOUNDED, ""


def _still_sets_peaks(steady: Sequence[Sample]) -> bool:
    """Tell whether a heap set new peaks up to the end, however narrow its band is.

    In each of the last three parts of the window; or in the last one, which lies as a whole above all of the
    first half: a heap that grows in steps rarer than the parts. Not one that has come down again: what grew behind
    a held snapshot is truncated soon after it is let go.
    """
    size = len(steady) / PARTS
    parts = [[s.bytes for s in steady[round(n * size) : round((n + 1) * size)]] for n in range(PARTS)]
    peaks = [max(part) for part in parts if part]
    if len(peaks) < PARTS:
        return False
    first_half = max(peaks[: PARTS // 2])
    if max(sample.bytes for sample in steady[-math.ceil(size / 3) :]) <= first_half:
        return False
    new = [peaks[n] > max(peaks[:n]) for n in range(1, PARTS)]
    return new[-1] and (all(new[-3:]) or min(parts[-1]) > first_half)


def _explained(samples: Sequence[Sample], row_bytes: float) -> Growth:
    """Tell growth by rows that are there from growth by what is not."""
    half, last = samples[: len(samples) // 2], samples[-max(1, len(samples) // PARTS) :]
    rows = median(sample.live_rows for sample in last) - median(sample.live_rows for sample in half)
    grown = max(sample.bytes for sample in last) - max(sample.bytes for sample in half)
    return Growth.GROWING_WITH_ROWS if rows * row_bytes * 2 >= grown else Growth.GROWING


def _row_bytes(samples: Sequence[Sample]) -> float:
    last = samples[-1]
    return last.bytes / max(1, last.live_rows + last.dead_rows)


def _since_rebuild(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples since the index last became smaller, which only a rebuild or a TRUNCATE makes it."""
    drops = [n for n, (before, after) in enumerate(pairwise(samples), 1) if after.bytes < before.bytes]
    return samples[drops[-1] :] if drops else samples


def _slope_per_hour(samples: Sequence[Sample]) -> float | None:
    if len(samples) < 3:
        return None
    start = samples[0].at
    hours = [(sample.at - start).total_seconds() / 3_600 for sample in samples]
    return linear_regression(hours, [sample.bytes for sample in samples]).slope


def _span(samples: Sequence[Sample]) -> float:
    return (samples[-1].at - samples[0].at).total_seconds() if samples else 0.0


def _removed(samples: Sequence[Sample]) -> int:
    return sum(max(0, after.removed_rows - before.removed_rows) for before, after in pairwise(samples))


def _cycles(samples: Sequence[Sample]) -> int:
    return sum(max(0, after.vacuums - before.vacuums) for before, after in pairwise(samples))


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)} min"
