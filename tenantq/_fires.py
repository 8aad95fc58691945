"""Which fires of a periodic message become messages, when several are due at once, and what each message says."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import NamedTuple

from tenantq._cron import Cron
from tenantq.clock import NANOSECONDS, to_datetime

__all__ = ["GRACE_NS", "MOST_FIRES", "Fires", "Missed", "fires_due", "headers_of"]

MOST_FIRES = 1_000
"""Messages that a periodic message makes up for at once, at the most."""

GRACE_NS = 60 * NANOSECONDS
"""How late a fire may be that is not made once it is missed."""

NAME_HEADER = "tenantq-periodic"
FIRE_HEADER = "tenantq-fire-at"
MISSED_HEADER = "tenantq-missed-from"


class Missed(StrEnum):
    """What becomes of fires that nobody was there to make."""

    ONCE = "once"
    """One message stands for all of them: that of the last."""
    ALL = "all"
    """A message for each; of more than 1,000 the last 1,000, and the first of these stands for those before it."""
    SKIP = "skip"
    """None for a fire that is more than a minute late."""


class Fires(NamedTuple):
    """What is due."""

    times: list[int]
    """The fires to make, in order (Unix nanoseconds)."""
    missed_from: int | None
    """The first of the missed fires that the first of `times` stands for; None if it is for itself alone."""
    next_at: int | None
    """The next fire, which is not due yet."""


def fires_due(cron: Cron, missed: Missed, fire_at: int, now: int) -> Fires:
    """Return what to make of the fire at `fire_at`, which is due, and of those that became due behind it."""
    times = cron.due(fire_at, now, 1 if missed is Missed.ONCE else MOST_FIRES)
    missed_from: int | None = None
    if missed is Missed.SKIP:
        times = [time for time in times if time >= now - GRACE_NS]
    elif times[0] != fire_at:
        missed_from = fire_at
    return Fires(times, missed_from, cron.next_after(now))


def headers_of(headers: str | None, name: str, fire_at: int, missed_from: int | None) -> str:
    """Return a message's headers: those given, and which fire of which periodic message it is."""
    found: dict[str, str] = {} if headers is None else json.loads(headers)
    found[NAME_HEADER] = name
    found[FIRE_HEADER] = to_datetime(fire_at).isoformat()
    if missed_from is not None:
        found[MISSED_HEADER] = to_datetime(missed_from).isoformat()
    return json.dumps(found)
