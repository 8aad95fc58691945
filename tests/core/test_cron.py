"""When cron expressions fire: changes of the clocks, long backlogs, and what is no expression."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq._cron import Cron
from tenantq._fires import MOST_FIRES, Missed, fires_due
from tenantq.clock import NANOSECONDS, to_datetime, to_unix_ns
from tenantq.errors import InvalidArgument, InvalidCron

DAY = 86_400 * NANOSECONDS


def ns(text: str) -> int:
    return to_unix_ns(datetime.fromisoformat(text))


def fires(expression: str, timezone: str, after: str, count: int) -> list[str]:
    cron, moment, found = Cron(expression, timezone), ns(after), []
    for _ in range(count):
        following = cron.next_after(moment)
        assert following is not None
        moment = following
        found.append(to_datetime(moment).strftime("%m-%d %H:%M"))
    return found


def test_a_time_that_the_clocks_skip_fires_once_behind_the_gap() -> None:
    # In Berlin, 2026-03-29 has no hour from 02:00 to 03:00: the gap is at 01:00 UTC.
    assert fires("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00+00:00", 3) == [
        "03-28 01:30",
        "03-29 01:00",
        "03-30 00:30",
    ]
    assert fires("0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00+00:00", 3) == [
        "03-29 01:00",  # 02:00, 02:30 and 03:00 are one
        "03-29 01:30",
        "03-30 00:00",
    ]


def test_a_time_that_comes_twice_fires_once() -> None:
    # In Berlin, 2026-10-25 has the hour from 02:00 to 03:00 twice: at 00:00 and 01:00 UTC.
    expected = ["10-24 00:30", "10-25 00:30", "10-26 01:30"]
    assert fires("30 2 * * *", "Europe/Berlin", "2026-10-23T12:00:00+00:00", 3) == expected
    # Who asks from within the second of the two is not sent back into the first.
    assert fires("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00+00:00", 1) == ["10-26 01:30"]


def test_an_expression_that_begins_with_a_star_goes_by_real_time_through_both_hours() -> None:
    cron = Cron("*/20 * * * *", "Europe/Berlin")
    first = ns("2026-10-24T23:00:00+00:00")
    found = cron.due(first, first + 4 * 3600 * NANOSECONDS, 100)
    assert {later - earlier for earlier, later in pairwise(found)} == {1200 * NANOSECONDS}


def test_a_zone_counts_and_not_the_machines() -> None:
    assert fires("0 9 * * MON-FRI", "America/New_York", "2026-07-03T12:59:59+00:00", 2) == [
        "07-03 13:00",
        "07-06 13:00",
    ]
    assert fires("0 9 * * *", "UTC", "2026-07-03T09:00:00+00:00", 1) == ["07-04 09:00"]


@settings(max_examples=150, deadline=None)
@given(
    expression=st.sampled_from(
        [
            "*/7 * * * *",
            "30 2 * * *",
            "0,30 2,3 * * *",
            "5 */3 * * *",
            "0 0 1 * *",
            "15 1-4 * * SUN",
            "0 30 * * * *",
        ]
    ),
    timezone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
    start=st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),
    days=st.floats(0, 45),
    most=st.integers(1, 40),
)
def test_what_is_due_is_the_last_of_what_would_have_fired_one_by_one(
    expression: str, timezone: str, start: datetime, days: float, most: int
) -> None:
    cron = Cron(expression, timezone)
    first = cron.next_after(to_unix_ns(start.replace(tzinfo=UTC)))
    assert first is not None
    now = first + int(days * DAY)
    one_by_one = [first]
    while (following := cron.next_after(one_by_one[-1])) is not None and following <= now:
        one_by_one.append(following)
    assert cron.due(first, now, most) == one_by_one[-most:]


def test_a_year_of_minutes_costs_no_walk_over_all_of_them() -> None:
    cron = Cron("* * * * *", "Europe/Berlin")
    first = ns("2026-01-01T00:00:00+00:00")
    now = first + 365 * DAY
    found = cron.due(first, now, MOST_FIRES)
    assert (len(found), found[-1]) == (MOST_FIRES, now)
    assert found[0] == now - (MOST_FIRES - 1) * 60 * NANOSECONDS


@pytest.mark.parametrize(
    ("missed", "late", "count", "missed_from"),
    [
        (Missed.ONCE, timedelta(seconds=3), 1, None),
        (Missed.ONCE, timedelta(hours=5), 1, "first"),
        (Missed.ALL, timedelta(hours=5), 6, None),
        (Missed.ALL, timedelta(hours=1200), MOST_FIRES, "first"),
        (Missed.SKIP, timedelta(seconds=59), 1, None),
        (Missed.SKIP, timedelta(seconds=61), 0, None),
        (Missed.SKIP, timedelta(hours=5, seconds=3), 1, None),
    ],
)
def test_the_policy_says_what_becomes_of_missed_fires(
    missed: Missed, late: timedelta, count: int, missed_from: str | None
) -> None:
    first = ns("2026-01-01T00:00:00+00:00")
    now = first + late // timedelta(microseconds=1) * 1000
    found = fires_due(Cron("0 * * * *", "UTC"), missed, first, now)
    assert len(found.times) == count
    assert found.times == sorted(found.times)
    assert found.missed_from == (first if missed_from else None)
    assert found.next_at is not None
    assert now < found.next_at <= now + 3600 * NANOSECONDS


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "* * * * * * *",
        "61 * * * *",
        "0 0 30 2 *",
        "@daily",
        "*/0 * * * *",
        "MON#1/2 * * * *",
        "0 0 * * 5L/2",
        "a b c d e",
        "* " * 200,
        "0 0 * * \0",
        "9" * 200 + " * * * *",
    ],
)
def test_what_is_no_expression_is_a_typed_error(expression: str) -> None:
    with pytest.raises(InvalidCron) as caught:
        Cron(expression, "UTC")
    assert caught.value.hint


def test_an_expression_that_never_fires_is_an_error() -> None:
    with pytest.raises(InvalidCron, match="never fires"):
        Cron("* * */20 * 1L", "UTC").check()


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../../etc/passwd", "/etc/passwd", "\0", None, 7])
def test_a_zone_that_is_not_known_is_a_typed_error(zone: str) -> None:
    with pytest.raises(InvalidArgument, match="time zone"):
        Cron("* * * * *", zone)


def test_the_library_is_imported_by_who_needs_it_alone() -> None:
    script = "import sys, tenantq, tenantq.worker; assert 'cronsim' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
