from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from tenantq.arguments import (
    MAX_PRIORITY,
    MAX_SECONDS,
    check_headers,
    check_lease,
    check_limit,
    check_max_attempts,
    check_priority,
    check_seconds,
    visible_ns,
)
from tenantq.errors import InvalidArgument

NOW_NS = 1_790_000_000_000_000_000
NOT_SECONDS: list[Any] = [
    -0.001,
    math.nan,
    math.inf,
    -math.inf,
    MAX_SECONDS * 2,
    10**400,
    True,
    None,
    "1",
    1j,
]


@pytest.mark.parametrize("value", NOT_SECONDS)
def test_seconds_are_finite_numbers_from_the_minimum_up_to_a_century(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="delay"):
        check_seconds(value, "delay")


def test_seconds_come_back_as_a_float() -> None:
    seconds = check_seconds(3, "wait")
    assert (seconds, type(seconds)) == (3.0, float)


def test_the_minimum_itself_is_allowed() -> None:
    assert check_seconds(0.5, "pause", minimum=0.5) == 0.5
    with pytest.raises(InvalidArgument, match=r"pause 0\.4 is not within 0\.5 and"):
        check_seconds(0.4, "pause", minimum=0.5)


@pytest.mark.parametrize("value", [*NOT_SECONDS, 0, 0.0, -0.0, 1e-10])
def test_a_lease_lasts_at_least_a_nanosecond(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="lease"):
        check_lease(value)


def test_a_short_lease_is_a_lease() -> None:
    assert check_lease(1e-6) == 1e-6


@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "1"])
def test_a_limit_is_a_whole_number_from_1(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        check_limit(value)


def test_a_limit_has_no_upper_end() -> None:
    assert check_limit(10**9) == 10**9


@pytest.mark.parametrize("value", [MAX_PRIORITY + 1, -MAX_PRIORITY - 1, 1.0, False, None])
def test_a_priority_is_a_16_bit_whole_number(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="priority"):
        check_priority(value)


def test_the_ends_of_the_priorities_are_priorities() -> None:
    assert check_priority(MAX_PRIORITY) == -check_priority(-MAX_PRIORITY)


@pytest.mark.parametrize("value", [0, -1, MAX_PRIORITY + 1, 2.0, True, None])
def test_a_message_has_at_least_one_attempt(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="max_attempts"):
        check_max_attempts(value)
    assert check_max_attempts(1) == 1


def test_headers_are_copied() -> None:
    headers = {"trace": "1"}
    kept = check_headers(headers)
    headers["trace"] = "2"
    assert kept == {"trace": "1"}


@pytest.mark.parametrize("headers", [None, {}])
def test_no_headers_are_none(headers: dict[str, str] | None) -> None:
    assert check_headers(headers) is None


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": None}, [("a", "b")], "ab"])
def test_headers_map_text_to_text(headers: Any) -> None:
    with pytest.raises(InvalidArgument, match="header"):
        check_headers(headers)


def test_without_delay_a_message_is_visible_now() -> None:
    assert visible_ns(NOW_NS) == NOW_NS


def test_a_delay_counts_from_now() -> None:
    assert visible_ns(NOW_NS, 1.5) == NOW_NS + 1_500_000_000


@pytest.mark.parametrize("delay", NOT_SECONDS)
def test_a_delay_is_checked(delay: Any) -> None:
    with pytest.raises(InvalidArgument, match="delay"):
        visible_ns(NOW_NS, delay)


def test_a_moment_counts_in_any_time_zone() -> None:
    moment = datetime(2026, 11, 3, 12, 0, 0, 123456, tzinfo=UTC)
    expected = int(moment.timestamp()) * 10**9 + 123_456_000
    for offset in (-7, 0, 9):
        assert visible_ns(NOW_NS, at=moment.astimezone(timezone(timedelta(hours=offset)))) == expected


def test_a_moment_in_the_past_is_kept() -> None:
    assert visible_ns(NOW_NS, at=datetime(1970, 1, 1, tzinfo=UTC)) == 0


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: visible_ns(NOW_NS, 1, datetime(2026, 1, 1, tzinfo=UTC)), "either delay or at"),
        (lambda: visible_ns(NOW_NS, math.nan, datetime(2026, 1, 1, tzinfo=UTC)), "either delay or at"),
        (lambda: visible_ns(NOW_NS, at=datetime(2026, 1, 1)), "no time zone"),
        (lambda: visible_ns(NOW_NS, at=datetime(1969, 12, 31, tzinfo=UTC)), "1970 and 2262"),
        (lambda: visible_ns(NOW_NS, at=datetime(2263, 1, 1, tzinfo=UTC)), "1970 and 2262"),
        (lambda: visible_ns(NOW_NS, at=date(2026, 1, 1)), "not a datetime"),  # type: ignore[arg-type]
        (lambda: visible_ns(NOW_NS, at=1_790_000_000), "not a datetime"),  # type: ignore[arg-type]
    ],
)
def test_a_moment_that_is_none_is_refused(call: Callable[[], int], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        call()
