"""How long a failed message waits before its next attempt."""

from __future__ import annotations

import random

import msgspec

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
        if self.base < 0 or self.factor < 1 or self.cap < 0 or not 0 <= self.jitter <= 1:
            raise InvalidArgument(
                "backoff takes base >= 0, factor >= 1, cap >= 0 and jitter from 0 to 1",
            )

    def delay(self, attempts: int) -> float:
        """Return the seconds to wait after the given number of attempts."""
        exponent = min(attempts, 1000)  # 2.0 ** 1024 overflows a float
        try:
            full = min(self.cap, self.base * self.factor**exponent)
        except OverflowError:
            full = self.cap
        return full * (1 - self.jitter * random.random())
