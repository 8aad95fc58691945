"""What the verbs of all layers take: each check returns the argument, or raises InvalidArgument."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tenantq.clock import nanoseconds, to_unix_ns
from tenantq.errors import InvalidArgument

__all__ = [
    "DEFAULT_MAX_ATTEMPTS",
    "MAX_PRIORITY",
    "MAX_SECONDS",
    "check_headers",
    "check_lease",
    "check_limit",
    "check_max_attempts",
    "check_priority",
    "check_seconds",
    "visible_ns",
]

DEFAULT_MAX_ATTEMPTS = 25
"""Attempts before a message is dead: with the default backoff about two and a half days."""

MAX_PRIORITY = 32_767
"""Priorities are 16-bit signed integers, so that every layer can keep them."""

MAX_SECONDS = 3_155_760_000.0
"""A hundred years: what a delay or a lease may last, so that its end fits into 64 bits of nanoseconds."""

MAX_UNIX_NS = 2**63 - 1
"""In the year 2262: the last time that SQLite and Postgres can keep as Unix nanoseconds."""


def check_seconds(value: float, what: str, *, minimum: float = 0.0) -> float:
    """Return a duration in seconds: a finite number from `minimum` to MAX_SECONDS."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(f"{what} is a {type(value).__name__}, not a number of seconds")
    if not minimum <= value <= MAX_SECONDS:  # false for NaN too
        raise InvalidArgument(f"{what} {value!r} is not within {minimum:g} and {MAX_SECONDS:g} seconds")
    return float(value)


def check_lease(value: float, what: str = "lease") -> float:
    """Return how long a lease lasts: at least a nanosecond."""
    return check_seconds(value, what, minimum=1e-9)


def check_limit(limit: int, what: str = "limit") -> int:
    """Return how many messages a call may take: a whole number from 1."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidArgument(f"{what} {limit!r} is not a whole number from 1")
    return limit


def check_priority(priority: int) -> int:
    """Return a priority: a whole number within ±MAX_PRIORITY."""
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise InvalidArgument(f"priority {priority!r} is not a whole number within ±{MAX_PRIORITY}")
    return priority


def check_max_attempts(max_attempts: int) -> int:
    """Return how often a message may be claimed: a whole number from 1."""
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int):
        raise InvalidArgument(f"max_attempts {max_attempts!r} is not a whole number")
    if not 1 <= max_attempts <= MAX_PRIORITY:
        raise InvalidArgument(f"max_attempts {max_attempts!r} is not from 1 to {MAX_PRIORITY}")
    return max_attempts


def check_headers(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return a copy of the headers, None if there are none: a mapping of text to text."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers is a {type(headers).__name__}, not a mapping of str to str")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"header {name!r} is not a str with a str value")
    return dict(headers) or None


def visible_ns(now_ns: int, delay: float = 0, at: datetime | None = None) -> int:
    """Return the time (Unix nanoseconds) before which a message is not claimable.

    That is `now_ns` and `delay` seconds, or the moment `at`, which must be aware. A moment in the past is
    kept as it is: the message is claimable at once, before those that came to be claimable later.
    """
    if at is None:
        return now_ns if delay == 0 else now_ns + nanoseconds(check_seconds(delay, "delay"))
    if delay != 0:
        raise InvalidArgument("a message takes either delay or at, not both")
    if not isinstance(at, datetime):
        raise InvalidArgument(f"at is a {type(at).__name__}, not a datetime")
    if at.utcoffset() is None:
        raise InvalidArgument(
            f"at {at.isoformat()} has no time zone",
            hint="give an aware datetime, such as datetime.now(UTC) + timedelta(hours=1)",
        )
    moment = to_unix_ns(at)
    if not 0 <= moment <= MAX_UNIX_NS:
        raise InvalidArgument(f"at {at.isoformat()} is not within the years 1970 and 2262")
    return moment
