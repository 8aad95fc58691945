from __future__ import annotations

import doctest
from datetime import UTC, datetime

import pytest

import tenantq.testing
from tenantq.clock import to_datetime
from tenantq.errors import InvalidArgument
from tenantq.testing import ManualClock


def test_the_examples_are_true() -> None:
    assert doctest.testmod(tenantq.testing).failed == 0


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(datetime(2026, 3, 29, 1, 59, 59, tzinfo=UTC))
    assert clock.now_ns() == clock.now_ns()
    clock.advance(1.5)
    assert to_datetime(clock.now_ns()) == datetime(2026, 3, 29, 2, 0, 0, 500_000, tzinfo=UTC)
    assert clock.monotonic() == 1.5


def test_small_steps_add_up_exactly() -> None:
    clock = ManualClock()
    for _ in range(10):
        clock.advance(0.1)
    assert clock.monotonic() == 1.0


def test_a_manual_clock_never_goes_back() -> None:
    with pytest.raises(InvalidArgument):
        ManualClock().advance(-1)
