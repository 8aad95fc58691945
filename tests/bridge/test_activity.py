"""The counts that metrics are made of."""

from __future__ import annotations

from tenantq_bridge.activity import LAG_BOUNDS, Lags


def test_a_lag_is_counted_under_the_first_bound_that_it_does_not_exceed() -> None:
    lags = Lags()
    for seconds in (-5.0, 0.01, 0.011, 1.0, 5_000.0):
        lags.add(seconds)
    counts, total = lags.read()
    assert len(counts) == len(LAG_BOUNDS) + 1
    assert {number: count for number, count in enumerate(counts) if count} == {
        0: 2,
        1: 1,
        LAG_BOUNDS.index(1.0): 1,
        len(LAG_BOUNDS): 1,
    }
    assert total == 0.01 + 0.011 + 1.0 + 5_000.0
