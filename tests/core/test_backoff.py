from __future__ import annotations

import math
from typing import Any

import pytest

from tenantq.backoff import Backoff
from tenantq.errors import InvalidArgument


def test_a_delay_doubles_up_to_its_cap() -> None:
    backoff = Backoff(base=1, factor=2, cap=60, jitter=0)
    assert [backoff.delay(attempts) for attempts in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize("attempts", [63, 64, 1023, 1024, 5000, 32_767])
def test_no_number_of_attempts_overflows(attempts: int) -> None:
    assert Backoff(jitter=0).delay(attempts) == 21_600
    assert Backoff(factor=1e300, jitter=0).delay(attempts) == 21_600


def test_jitter_takes_off_up_to_its_share() -> None:
    backoff = Backoff(base=100, factor=1, cap=100, jitter=0.5)
    delays = [backoff.delay(1) for _ in range(500)]
    assert all(50 <= delay <= 100 for delay in delays)
    assert max(delays) - min(delays) > 25


@pytest.mark.parametrize(
    "options",
    [
        {"base": -1},
        {"factor": 0.5},
        {"cap": -1},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"base": math.nan},
        {"cap": math.nan},
    ],
)
def test_a_backoff_is_checked(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Backoff(**options)
