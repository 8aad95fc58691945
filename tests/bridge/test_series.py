"""What sizes over time say, on the shapes of series that the documents measured.

Their numbers are from "Three ways to measure a Postgres queue table, three different answers": a heap that steps
up and is truncated, indexes that only rise, and dead rows in a sawtooth; at 8,000 jobs a second with an hour of
retention, sampled each 30 s. The two ways that it shows to be wrong are here too, to show that the series is one
on which they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import linear_regression

import pytest

from tenantq_bridge import Growth, HeapHealth
from tenantq_bridge.series import Sample, Series, measure_heap, measure_index, on_grid, without_fill

MB = 1_000_000
START = datetime(2026, 11, 30, tzinfo=UTC)
RETENTION = 3_600

# The heap at 8,000 jobs/s: (second, MB) at which it changes. It fills for an hour; by 17,254 s it is at 9,233.1;
# four values up to 9,296.3, the steepest 20 minutes; then 171 minutes without an extension, in which it falls to
# 9,218.8; it extends at 28,206 s to 9,235.2, and goes on until 38,767 s; it ends at 9,254.8.
HEAP = [
    *((second, 9_089.0 * second / RETENTION) for second in range(0, RETENTION, 30)),
    (3_600, 9_089.0),
    *((6_000, 9_121.0), (9_000, 9_160.0), (12_000, 9_200.0), (15_000, 9_233.1)),
    *((17_300, 9_254.0), (17_600, 9_275.0), (17_940, 9_296.3)),
    *((19_835, 9_296.234), (22_600, 9_270.0), (23_500, 9_245.0), (25_500, 9_230.0), (27_000, 9_218.8)),
    *((28_206, 9_235.193856), (31_000, 9_260.0), (33_000, 9_240.0), (35_000, 9_268.0), (38_767, 9_279.0)),
    (40_000, 9_254.8),
]
END = 41_255


def series(
    values: Callable[[int], float],
    seconds: Iterable[int],
    *,
    is_index: bool = False,
    live: Callable[[int], int] = lambda second: 28_800_000,
    dead: Callable[[int], int] = lambda second: 1_300_000,
    filled_at: int = RETENTION,
) -> Series:
    """Return samples of what a function of the second says, in MB; from `filled_at` on rows die."""
    return Series(
        relation="ready_pkey" if is_index else "ready",
        table="ready",
        is_index=is_index,
        samples=tuple(
            Sample(
                at=START + timedelta(seconds=second),
                bytes=round(values(second) * MB),
                live_rows=live(second),
                dead_rows=dead(second),
                removed_rows=max(0, second - filled_at) * 8_000,
                vacuums=second // 60,  # inserts alone bring some too
            )
            for second in seconds
        ),
    )


def steps(changes: Sequence[tuple[float, float]]) -> Callable[[int], float]:
    """Return a function that keeps each value until the next change."""

    def at(second: int) -> float:
        return [value for since, value in changes if since <= second][-1]

    return at


def every(interval: int, start: int = 0, end: int = END) -> range:
    return range(start, end, interval)


@pytest.fixture(scope="module")
def measured() -> Series:
    """The documents' heap at 8,000 jobs/s, from its first second."""
    return series(steps(HEAP), every(30))


def slope_per_day(samples: Sequence[Sample]) -> float:
    """The first wrong way: fit a line, and extrapolate it."""
    hours = [(sample.at - START).total_seconds() / 3_600 for sample in samples]
    return linear_regression(hours, [sample.bytes for sample in samples]).slope * 24 / samples[-1].bytes


def quiet_stretches(samples: Sequence[Sample]) -> list[float]:
    """The second wrong way: wait until extensions stop. Return the minutes between two of them."""
    extended = [after.at for before, after in pairwise(samples) if after.bytes - before.bytes > MB]
    return [(after - before).total_seconds() / 60 for before, after in pairwise(extended)]


# The first shape: a heap


def test_the_heap_that_breathes_is_bounded_where_a_line_says_that_it_grows(measured: Series) -> None:
    steady = without_fill(measured.samples)
    assert 0.02 < slope_per_day(steady) < 0.05
    steepest = max(slope_per_day(steady[n : n + 40]) for n in range(len(steady) - 40))
    assert steepest > 0.5
    heap = measure_heap(measured)
    assert heap.growth is Growth.BOUNDED
    assert (heap.trough_bytes, heap.peak_bytes, heap.bytes) == (9_218_800_000, 9_296_234_000, 9_254_800_000)
    assert heap.band == pytest.approx(0.0084, abs=0.0001)
    assert heap.below_peak == pytest.approx(0.0045, abs=0.0001)
    assert heap.peak_ever_bytes == 9_296_300_000


def test_a_heaps_report_has_no_slope() -> None:
    assert not any("slope" in name or "per_hour" in name for name in HeapHealth.__struct_fields__)


def test_a_quiet_stretch_is_no_end_and_its_band_is_seen(measured: Series) -> None:
    assert max(quiet_stretches(without_fill(measured.samples))) == pytest.approx(171, abs=1)
    quiet = Series(
        relation="ready",
        table="ready",
        is_index=False,
        samples=tuple(s for s in measured.samples if 17_947 <= (s.at - START).total_seconds() < 28_206),
    )
    heap = measure_heap(quiet)
    # Nothing was extended, and it was not idle: the falling edges are in the band.
    assert (heap.growth, heap.trough_bytes) == (Growth.BOUNDED, 9_218_800_000)
    assert heap.below_peak == pytest.approx(0.0083, abs=0.0001)


def test_the_steepest_twenty_minutes_are_too_few_to_judge() -> None:
    heap = measure_heap(series(steps(HEAP), every(30, 17_254, 18_455)))
    assert (heap.growth, heap.lacking) == (Growth.UNKNOWN, "20 min of samples, 60 min are needed")
    assert heap.peak_bytes == 9_296_300_000


@pytest.mark.parametrize(
    ("trough", "peak", "end", "band", "below"),
    [
        (1_109.1, 1_109.9, 1_109.6, 0.0007, 0.0003),
        (2_222.3, 2_226.2, 2_225.1, 0.0018, 0.0005),
        (4_483.0, 4_581.8, 4_489.2, 0.0220, 0.0202),
        (9_218.8, 9_296.3, 9_254.8, 0.0084, 0.0045),
        (11_764.0, 12_151.8, 11_764.0, 0.0330, 0.0319),
    ],
    ids=["1,000", "2,000", "4,000", "8,000", "8,000 with stock autovacuum"],
)
def test_every_heap_of_the_documents_is_bounded_wide_band_or_narrow(
    trough: float, peak: float, end: float, band: float, below: float
) -> None:
    changes = [(0, 0.0), (3_600, trough), (9_000, peak), (15_000, trough), (25_000, peak), (30_000, trough)]
    heap = measure_heap(series(steps([*changes, (37_000, end)]), every(30)))
    assert heap.growth is Growth.BOUNDED
    assert heap.band == pytest.approx(band, abs=0.0001)
    assert heap.below_peak == pytest.approx(below, abs=0.0001)


def test_a_heap_that_still_sets_new_peaks_grows_however_narrow_its_band() -> None:
    heap = measure_heap(series(lambda second: 1_109 + 0.9 * second / END, every(30)))
    assert heap.band is not None
    assert heap.band < 0.001
    assert heap.growth is Growth.GROWING


def test_a_heap_that_grows_in_rare_steps_and_falls_back_between_them_grows() -> None:
    changes = [(0, 100.0), (4_000, 120), (12_000, 110), (20_000, 150), (24_000, 140), (32_000, 200), (34_000, 190)]
    assert measure_heap(series(steps([*changes, (40_000, 215.0)]), every(30))).growth is Growth.GROWING


def test_a_heap_that_came_down_again_after_an_incident_is_bounded() -> None:
    """As measured here: 2 MB while it breathed, 86 MB behind a held snapshot, and back soon after its release."""

    def size(second: int) -> float:
        if 28_000 <= second < 38_000:
            return 10 + (second - 28_000) / 130
        return 10 + second // 30 % 3

    held = measure_heap(series(size, every(30, 0, 38_000)))
    assert held.growth is Growth.GROWING
    released = measure_heap(series(size, every(30, 0, 40_000)))
    assert released.growth is Growth.BOUNDED
    assert released.below_peak > 0.8


def test_a_high_water_mark_that_was_reached_late_is_no_growth() -> None:
    changes = [(0, 100.0), (24_000, 130.0), (28_000, 120.0), (38_000, 130.0)]
    assert measure_heap(series(steps(changes), every(30))).growth is Growth.BOUNDED


def test_what_only_breathes_is_hardly_ever_called_growth() -> None:
    dice = random.Random(3)
    grown = 0
    for _ in range(200):
        sizes = {second: 1_000 * (1 + dice.random() * 0.03) for second in every(300)}
        grown += measure_heap(series(sizes.__getitem__, sizes)).growth is not Growth.BOUNDED
    assert grown <= 6


def test_a_heap_that_grows_with_its_rows_is_a_backlog() -> None:
    rows = series(lambda second: 100 + second / 100, every(30), live=lambda second: 300_000 + second * 30)
    assert measure_heap(rows).growth is Growth.GROWING_WITH_ROWS


def test_the_fill_is_left_out(measured: Series) -> None:
    steady = without_fill(measured.samples)
    assert (steady[0].at - START).total_seconds() == 3_660  # the first vacuum after the first row that died
    filling = series(steps(HEAP), every(30, 0, 3_600))
    assert without_fill(filling.samples) == ()
    long_fill = series(lambda second: 100 + second, every(30), filled_at=END)
    assert measure_heap(long_fill).growth is Growth.FILLING


def test_counters_that_begin_anew_do_not_begin_the_fill_anew(measured: Series) -> None:
    reset = [
        sample if n < 700 else Sample(sample.at, sample.bytes, 0, 0, 0, (n - 700) // 2)
        for n, sample in enumerate(measured.samples)
    ]
    assert without_fill(reset)[0].at == without_fill(measured.samples)[0].at
    crashed = Series(relation="ready", table="ready", is_index=False, samples=tuple(reset))
    assert measure_heap(crashed).cycles > 500
    assert measure_heap(crashed).removed_per_second > 0


def test_few_vacuums_are_not_enough_unless_the_time_is_long() -> None:
    def rarely(hours: int) -> Series:
        made = series(lambda second: 100 + second % 7, every(30, 0, hours * 3_600), filled_at=0)
        thin = tuple(
            Sample(s.at, s.bytes, s.live_rows, s.dead_rows, s.removed_rows, 1 + n // 360)
            for n, s in enumerate(made.samples)
        )
        return Series(relation="ready", table="ready", is_index=False, samples=thin)

    few = measure_heap(rarely(9))
    assert (few.growth, few.lacking) == (Growth.UNKNOWN, "1 of the 10 vacuums that are needed came since the fill")
    assert measure_heap(rarely(20)).growth is Growth.BOUNDED


def test_what_stays_small_needs_an_hour_and_nothing_else() -> None:
    assert measure_heap(series(lambda second: 1, every(30, 0, 3_700))).growth is Growth.SMALL
    assert measure_heap(series(lambda second: 1, every(30, 0, 3_500))).growth is Growth.UNKNOWN


def test_a_heap_that_was_empty_has_no_band_in_percent() -> None:
    heap = measure_heap(series(lambda second: 20 * (second // 30 % 2), every(30)))
    assert (heap.growth, heap.trough_bytes, heap.band) == (Growth.BOUNDED, 0, None)


# The second shape: an index


@pytest.mark.parametrize(("end", "slope"), [(293.0, 3.2), (585.2, 6.1), (1_174.5, 13.1), (2_387.2, 26.4)], ids=str)
def test_the_indexes_of_the_documents_grow_by_their_slope(end: float, slope: float) -> None:
    index = measure_index(series(lambda second: end - slope * (END - second) / 3_600, every(30), is_index=True))
    assert index.bytes_per_hour is not None
    assert index.bytes_per_hour / MB == pytest.approx(slope, abs=0.1)
    assert index.growth is Growth.GROWING


def test_an_index_that_keeps_its_size_is_bounded() -> None:
    index = measure_index(series(lambda second: 2_387.2, every(30), is_index=True))
    assert (index.growth, index.bytes_per_hour) == (Growth.BOUNDED, 0)


def test_an_index_that_has_only_reached_its_size_is_bounded() -> None:
    index = measure_index(
        series(lambda second: min(10.0, 8 + second / 2_400), every(30, 0, 12_000), is_index=True)
    )
    assert index.bytes_per_hour is not None
    assert index.bytes_per_hour * 24 > index.bytes / 10
    assert index.growth is Growth.BOUNDED


def test_an_index_is_fitted_since_it_was_rebuilt() -> None:
    grows = series(lambda second: 100 + second / 100 if second < 30_000 else 90.0, every(30), is_index=True)
    index = measure_index(grows)
    assert (index.growth, index.bytes_per_hour) == (Growth.BOUNDED, 0)
    just_now = series(lambda second: 100.0 if second < 40_000 else 90.0, every(30), is_index=True)
    assert measure_index(just_now).growth is Growth.UNKNOWN


def test_an_index_that_grows_with_its_rows_is_no_bloat() -> None:
    rows = series(
        lambda second: 100 + second * 40 / MB * 100,
        every(30),
        is_index=True,
        live=lambda second: 1_000_000 + second * 100,
    )
    assert measure_index(rows).growth is Growth.GROWING_WITH_ROWS


# The third shape: dead rows


def test_dead_rows_are_a_median_and_not_the_last_sample() -> None:
    # The documents' other arm: a median of 13.2 %, and a last sample of 27.0 %.
    share = (0.09, 0.132, 0.18, 0.10, 0.15)

    def dead(second: int) -> int:
        return int(1_000_000 * (0.27 if second >= END - 35 else share[second // 30 % 5]))

    heap = measure_heap(series(lambda second: 1_000, every(30), dead=dead))
    assert heap.dead_rows == 132_000


def test_a_second_sampler_does_not_weigh_more() -> None:
    def dead(second: int) -> int:
        return 9_000 if second >= 40_000 else 1_000

    moments = [*every(30, 0, 40_000), *range(40_000, END)]
    made = series(lambda second: 1_000, moments, dead=dead)
    assert measure_heap(made).dead_rows == 1_000
    assert len(on_grid(made.samples)) == pytest.approx(END / 30, abs=2)
