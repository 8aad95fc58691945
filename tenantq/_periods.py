"""The periodic messages that a SQLite file keeps, a tenant's or the store's own, and the fires that are due."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tenantq import _schema
from tenantq._bounds import Admitted, Full
from tenantq._cron import Cron, is_installed
from tenantq._fires import MOST_FIRES, Fires, Missed, fires_due, headers_of
from tenantq._sqlite import Database, Row
from tenantq.clock import NANOSECONDS, to_datetime
from tenantq.errors import CronMissing, InvalidArgument
from tenantq.payload import decode_payload
from tenantq.sqlfile import load_statements

__all__ = ["PeriodicMessage", "Periods"]

logger = logging.getLogger("tenantq.periodic")

RETRY_NS = 10 * NANOSECONDS
"""After which a fire that could not be made is tried again: its queue is full, its time zone not known here."""

MARK = "fired:"
"""Before a name, the fact under which a tenant's file keeps how far it has the fires of one of the store's."""

_SQL = load_statements("tenantq", "periodic.sql")


class PeriodicMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is enqueued again and again, at the times of a cron expression."""

    name: str
    queue: str
    cron: str
    timezone: str
    missed: Missed
    priority: int
    max_attempts: int
    key: str | None
    encoded_headers: str | None
    body: str | bytes
    """The payload as it is kept: JSON text or bytes."""
    added_ns: int = 0
    fire_ns: int | None = None
    due_ns: int | None = None
    fired_ns: int | None = None
    error: str | None = None
    """Why the fire that is due could not be made yet."""

    @property
    def payload(self) -> Any:
        """The payload of each of its messages."""
        return decode_payload(self.body)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of each of its messages, beside those that tell of the fire."""
        return {} if self.encoded_headers is None else dict(json.loads(self.encoded_headers))

    @property
    def next_at(self) -> datetime | None:
        """The next fire (UTC), or the one that is due; None if there will be none."""
        return None if self.fire_ns is None else to_datetime(self.fire_ns)

    @property
    def last_at(self) -> datetime | None:
        """The last fire that was made (UTC); None before the first."""
        return None if self.fired_ns is None else to_datetime(self.fired_ns)

    @property
    def definition(self) -> tuple[object, ...]:
        """What whoever added it said."""
        return msgspec.structs.astuple(self)[:DEFINED]

    def fires(self, now: int) -> Fires:
        """Return what is due of it. Raises CronMissing, InvalidArgument for a zone that is not known here."""
        assert self.fire_ns is not None  # it is due
        return fires_due(Cron(self.cron, self.timezone), self.missed, self.fire_ns, now)

    def enqueue(
        self,
        enqueue: Callable[..., Admitted],
        times: Sequence[int],
        missed_from: int | None,
        now: int,
    ) -> tuple[int, Full | None]:
        """Enqueue the messages of some fires, by a file's method; return how many, and why not the next."""
        for count, fire_at in enumerate(times):
            admitted = enqueue(
                self.queue,
                [self.body],
                now=now,
                visible_at=now,
                priority=self.priority,
                max_attempts=self.max_attempts,
                key=self.key,
                headers=headers_of(self.encoded_headers, self.name, fire_at, None if count else missed_from),
            )
            if isinstance(admitted, Full):
                return count, admitted
        return len(times), None


DEFINED = 10
"""Fields of a definition: those before added_ns."""


class Periods:
    """The periodic messages of one open file."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.execute
        self._is_blind = False

    def put(self, wanted: PeriodicMessage, now: int) -> tuple[PeriodicMessage, bool]:
        """Add a periodic message or change the one of its name; return it, and whether anything changed.

        One that is as it was keeps its next fire, so that what was missed is known; so does one with the same
        times. Otherwise the next fire is the first behind now, and never one that was made.
        """
        cron = Cron(wanted.cron, wanted.timezone)
        found = self.find(wanted.name)
        if found is not None and found.definition == wanted.definition:
            return found, False
        if found is None:
            fire_ns = cron.next_after(now)
            added = msgspec.structs.replace(wanted, added_ns=now, fire_ns=fire_ns, due_ns=fire_ns)
        else:
            fire_ns = found.fire_ns
            if (found.cron, found.timezone) != (wanted.cron, wanted.timezone):
                fire_ns = cron.next_after(max(now, found.fired_ns or 0))
            added = msgspec.structs.replace(
                wanted, added_ns=found.added_ns, fire_ns=fire_ns, due_ns=fire_ns, fired_ns=found.fired_ns
            )
        self._execute(_SQL["put_periodic"], msgspec.structs.astuple(added))
        return added, True

    def find(self, name: str) -> PeriodicMessage | None:
        """Return the periodic message of a name."""
        rows = self._execute(_SQL["find_periodic"], (name,))
        return _of_row(rows[0]) if rows else None

    def list(self) -> tuple[PeriodicMessage, ...]:
        """Return all, by name."""
        return tuple(map(_of_row, self._execute(_SQL["list_periodic"])))

    def remove(self, name: str) -> bool:
        """Remove one; False if there was none."""
        self._execute(_SQL["remove_periodic"], (name,))
        return self._database.changed > 0

    def due(self, now: int) -> tuple[PeriodicMessage, ...]:
        """Return those with a fire that is due, by name."""
        return tuple(map(_of_row, self._execute(_SQL["find_due_periodic"], (now,))))

    def next_due(self) -> int | None:
        """Return when the next fire is due; None in a process that cannot make any."""
        due_at: int | None = self._execute(_SQL["next_periodic"])[0][0]
        return self.unless_blind(due_at)

    def unless_blind(self, due_at: int | None) -> int | None:
        """Return when the next fire is due; None, and a warning, in a process that cannot make it."""
        if due_at is None or is_installed():
            return due_at
        if not self._is_blind:
            self._is_blind = True
            logger.warning(
                "periodic messages wait for another process: %s",
                CronMissing(),
                extra={"tenant": self._database.tenant},
            )
        return None

    def move(self, period: PeriodicMessage, fires: Fires) -> None:
        """Let a periodic message whose due fires are made wait for its next."""
        fired_at = fires.times[-1] if fires.times else None
        self._execute(_SQL["move_periodic"], (fires.next_at, fires.next_at, fired_at, None, period.name))

    def postpone(self, period: PeriodicMessage, due_at: int, error: str) -> None:
        """Try again later to make the fire that is due."""
        self._execute(_SQL["postpone_periodic"], (due_at, error, period.name))

    def fire_due(self, enqueue: Callable[..., Admitted], now: int) -> int:
        """Make what is due, by the file's own enqueue; return how many messages that came to.

        Part of a transaction that everybody's claims are in: a periodic message that cannot fire is put off, and
        fails none of them.
        """
        made = 0
        for period in self.due(now) if is_installed() else ():
            if made >= MOST_FIRES:  # the rest by the next transaction
                break
            try:
                fires = period.fires(now)
            except InvalidArgument as exc:
                self.postpone(period, now + RETRY_NS, str(exc))
                continue
            count, full = period.enqueue(enqueue, fires.times, fires.missed_from, now)
            made += count
            if full is None:
                self.move(period, fires)
                continue
            error = full.error(self._database.tenant or "").message
            if count:
                place = (fires.times[count], now + RETRY_NS, fires.times[count - 1], error, period.name)
                self._execute(_SQL["move_periodic"], place)
            else:
                self.postpone(period, now + RETRY_NS, error)
        return made

    # The store's periodic messages, in a tenant's file

    def has_fired(self, period: PeriodicMessage, fire_at: int) -> bool:
        """Tell whether the file has the message of a fire of one of the store's."""
        return fire_at <= self._mark(period)

    def fire_of_store(
        self,
        enqueue: Callable[..., Admitted],
        period: PeriodicMessage,
        times: Sequence[int],
        missed_from: int | None,
        now: int,
    ) -> int:
        """Make the fires of one of the store's that the file has not had; return how many. Raises QueueFull."""
        mark = self._mark(period)
        left = [time for time in times if time > mark]
        if not left:
            return 0
        count, full = period.enqueue(enqueue, left, missed_from if left[0] == times[0] else None, now)
        if full is not None:
            raise full.error(self._database.tenant or "")
        _schema.write_meta(self._database, MARK + period.name, f"{period.added_ns}:{left[-1]}")
        return count

    def _mark(self, period: PeriodicMessage) -> int:
        """Return the last fire that the file had. One that was removed and added anew begins anew."""
        added_ns, _, fired_at = _schema.read_meta(self._database).get(MARK + period.name, "").partition(":")
        return int(fired_at) if added_ns == str(period.added_ns) else 0


def _of_row(row: Row) -> PeriodicMessage:
    fields = dict(zip(PeriodicMessage.__struct_fields__, row, strict=True))
    return PeriodicMessage(**{**fields, "missed": Missed(row[4])})
