"""When a cron expression fires in its time zone. The only user of cronsim, which is imported when it is needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from tenantq.clock import NANOSECONDS, to_datetime, to_unix_ns
from tenantq.errors import CronMissing, InvalidArgument, InvalidCron

if TYPE_CHECKING:
    from cronsim import CronSim

__all__ = ["Cron", "is_installed"]

MAX_LENGTH = 256
"""Characters in an expression."""

SLACK_NS = 3 * 3600 * NANOSECONDS
"""How far the library moves a fire of a time that a change of the clocks skips or repeats, at the most."""


class Cron:
    """A cron expression in a time zone. Times are Unix nanoseconds; a fire is at a whole second.

    Expressions are those of Debian's cron, and so is what the changes of the clocks do: a time that is skipped
    fires right behind the gap, one that comes twice fires once. An expression whose minutes or hours begin with
    `*` goes by real time: it fires in both of the hours that look the same.
    """

    def __init__(self, expression: str, timezone: str) -> None:
        """Raise InvalidCron, InvalidArgument for a zone that is not known, CronMissing."""
        if not isinstance(expression, str) or len(expression) > MAX_LENGTH:
            raise InvalidCron(f"cron expression {expression!r:.80} is not a str of up to {MAX_LENGTH} characters")
        self._zone = _zone_of(timezone)
        self._expression = expression
        self._has_seconds = len(expression.split()) != 5
        self._sim: type[CronSim] = _sim()
        try:
            self._sim(expression, datetime(2000, 1, 1, tzinfo=UTC))
        except Exception as exc:  # whatever a parser trips over
            raise InvalidCron(f"cron expression {expression!r}: {exc or type(exc).__name__}") from exc

    def check(self) -> None:
        """Raise InvalidCron for one that never fires."""
        if self.next_after(to_unix_ns(datetime(2000, 1, 1, tzinfo=UTC))) is None:
            raise InvalidCron(f"cron expression {self._expression!r} never fires")

    def next_after(self, moment: int) -> int | None:
        """Return the first fire behind a moment; None if there is none in fifty years."""
        return next(self._after(moment), None)

    def due(self, first: int, now: int, most: int) -> list[int]:
        """Return the fires from `first`, which is one, until now: the last ones if there are over `most`."""
        found = deque([first], maxlen=most)
        for fire in islice(self._after(first), most):
            if fire > now:
                return list(found)
            found.append(fire)
        # Not one by one over a year of minutes: back from now, and from a little before that forward again, since
        # around a change of the clocks the way back has other steps.
        for fire in self._after(max(found[-1], self._before(now, most))):
            if fire > now:
                break
            found.append(fire)
        return list(found)

    def _after(self, moment: int) -> Iterator[int]:
        # Always later than the one before: the library gives a time that comes twice as the first of the two,
        # even to who asks from between them, and every time that a gap swallows as the end of that gap.
        last = moment
        for fire in self._sim(self._expression, to_datetime(moment).astimezone(self._zone)):
            fire_ns = to_unix_ns(fire)
            if fire_ns > last:
                last = fire_ns
                yield fire_ns

    def _before(self, moment: int, count: int) -> int:
        """Return a moment with at least so many fires between it and the given one."""
        back = self._sim(self._expression, to_datetime(moment).astimezone(self._zone), reverse=True)
        earliest = moment
        for fire in islice(back, count + 1):
            earliest = to_unix_ns(fire)
        return earliest - (NANOSECONDS if self._has_seconds else SLACK_NS)


@lru_cache(maxsize=1)
def is_installed() -> bool:
    """Tell whether the library is there."""
    try:
        _sim()
    except CronMissing:
        return False
    return True


def _sim() -> type[CronSim]:
    try:
        from cronsim import CronSim  # noqa: PLC0415 - an extra: only who has periodic messages needs it
    except ModuleNotFoundError as exc:
        raise CronMissing from exc
    return CronSim


def _zone_of(timezone: str) -> tzinfo:
    if timezone == "UTC":
        return UTC
    try:
        return ZoneInfo(timezone)
    except Exception as exc:  # KeyError, ValueError, OSError, TypeError: by how wrong the name is
        raise InvalidArgument(
            f"time zone {timezone!r:.80} is not known",
            hint="give a name of the IANA database, such as 'Europe/Berlin'; without the system's, install tzdata",
        ) from exc
