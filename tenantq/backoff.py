"""How long a failed message waits before its next attempt."""

from __future__ import annotations

import random

import msgspec

from tenantq.arguments import check_seconds
from tenantq.errors import InvalidArgument

__all__ = ["Backoff"]


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential backoff with a cap and jitter; all times in seconds.

    The documents' `1 << attempts` seconds is the base. It has neither cap nor jitter: the cap keeps a
    long outage from pushing a message out by years, the jitter keeps what failed together apart.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 21_600.0
    jitter: float = 0.5
    """The share of the delay that is random: 0.5 gives half of it up to all of it."""

    def __post_init__(self) -> None:
        check_seconds(self.base, "base")
        check_seconds(self.cap, "cap")
        if not (self.factor >= 1 and 0 <= self.jitter <= 1):  # false for NaN too
            raise InvalidArgument("backoff takes a factor >= 1 and a jitter from 0 to 1")

    def delay(self, attempts: int) -> float:
        """Return the seconds to wait after the given number of attempts."""
        exponent = min(attempts, 1000)  # 2.0 ** 1024 overflows a float
        try:
            full = min(self.cap, self.base * self.factor**exponent)
        except OverflowError:
            full = self.cap
        return full * (1 - self.jitter * random.random())
