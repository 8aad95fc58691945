from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tenantq.clock import SystemClock, nanoseconds, to_datetime, to_unix_ns

MOMENTS = [
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2026, 11, 30, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2262, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_moment_comes_back_to_the_microsecond(moment: datetime) -> None:
    assert to_datetime(to_unix_ns(moment)) == moment


def test_a_moment_is_the_same_in_every_time_zone() -> None:
    moment = datetime(2026, 3, 29, 3, 0, tzinfo=timezone(timedelta(hours=2)))
    assert to_unix_ns(moment) == to_unix_ns(moment.astimezone(UTC))
    assert to_datetime(to_unix_ns(moment)).tzinfo is UTC


def test_nanoseconds_are_whole() -> None:
    assert nanoseconds(0.1) == 100_000_000
    assert nanoseconds(1e-10) == 0


def test_the_system_clock_moves() -> None:
    clock = SystemClock()
    before = clock.now_ns(), clock.monotonic()
    assert before[0] > to_unix_ns(MOMENTS[0])
    assert (clock.now_ns(), clock.monotonic()) >= before
