"""The store's own file of periodic messages for all tenants, and which part of a fire is whose to make."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tenantq._cron import is_installed
from tenantq._fires import GRACE_NS, MOST_FIRES, Missed
from tenantq._periods import RETRY_NS, PeriodicMessage, Periods
from tenantq._sqlite import Database, Durability, Row
from tenantq.clock import NANOSECONDS, Clock
from tenantq.errors import InvalidArgument, NewerFile, NotATenantFile
from tenantq.sqlfile import load_statements

__all__ = ["FILE_NAME", "SHARDS", "Due", "Part", "StorePeriods"]

FILE_NAME = ".periodic.db"

APPLICATION_ID = 0x746E7470
"""The bytes "tntp"."""

VERSION = 1

SHARDS = 256

TAKEN_NS = 120 * NANOSECONDS
"""How long a process has for a shard until it is taken for gone. One that is slow does no harm: the tenants' files
tell what is made."""

MAX_RETRY_NS = 600 * NANOSECONDS

MOST_LATE = 50
"""Late tenants that are tried again at once."""

LOOK_NS = NANOSECONDS
"""Between two looks for shards that a process has left, while a fire is on its way."""

_SQL = load_statements("tenantq", "walk.sql")

Place = tuple[str, int]
"""A periodic message's name, and a shard."""


class Due(msgspec.Struct, frozen=True):
    """The fires that a tenant is to be given."""

    times: list[int]
    missed_from: int | None
    failures: int = 0
    """How often it could not be given them."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a fire's way that one process has taken."""

    period: PeriodicMessage
    shard: int
    due: Due | None
    """What each tenant of the shard is to be given; None for a part that is for late tenants alone."""
    late: dict[str, Due]
    """What tenants are to be given that could not be given theirs before."""


class StorePeriods:
    """An open `.periodic.db`. Each method that changes it is one transaction. Not for two threads at once."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.periods = Periods(database)
        self._database = database
        self._execute = database.execute
        self._clock = clock

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, root: Path, clock: Clock, durability: Durability, busy_timeout: float, *, create: bool = False
    ) -> Iterator[StorePeriods | None]:
        """Give the file of a store; None where there is none and it is not to be made."""
        path = root / FILE_NAME
        if create:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        elif not path.exists():
            yield None
            return
        database = Database(path, durability=durability, busy_timeout=busy_timeout)
        try:
            _prepare(database)
            yield cls(database, clock)
        finally:
            database.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is done in it, or nothing."""
        self._database.begin()
        try:
            yield
            self._database.commit()
        except BaseException:
            self._database.rollback()
            raise

    def put(self, wanted: PeriodicMessage) -> PeriodicMessage:
        """Add a periodic message, or change the one of its name. A fire that is on its way goes on."""
        with self.transaction():
            return self.periods.put(wanted, self._clock.now_ns())[0]

    def remove(self, name: str) -> bool:
        """Remove one, with what is on its way of it; False if there was none."""
        with self.transaction():
            for statement in ("forget_walk", "forget_taken", "forget_late"):
                self._execute(_SQL[statement], (name,))
            return self.periods.remove(name)

    def next_look(self) -> int | None:
        """Return when there may be something to take; None if there will be nothing."""
        fire_at, late_at, is_under_way = self._execute(_SQL["next_look"])[0]
        moments = [self.periods.unless_blind(fire_at), late_at]
        moments += [self._clock.now_ns() + LOOK_NS] if is_under_way else []
        return min((moment for moment in moments if moment is not None), default=None)

    def take(self, shards: list[int], done: Part | None, failed: dict[str, str]) -> Part | None:
        """Write down what became of a part, and take the next; None if there is none to take.

        shards: those that there are, in order. failed: why tenants of the part were not given theirs.
        """
        with self.transaction():
            if done is not None:
                self._finish(done, failed)
            self._begin_walks()
            return self._take_shard(shards) or self._take_late()

    def give_back(self, part: Part) -> None:
        """Let another process take a part at once."""
        with self.transaction():
            self._execute(_SQL["give_back_shard"], (part.period.name, part.shard))

    def _begin_walks(self) -> None:
        """Let the fires that are due set out. A periodic message has one walk at a time: what becomes due behind
        it sets out when it has arrived, as what was missed.
        """
        now = self._clock.now_ns()
        for period in self.periods.due(now) if is_installed() else ():
            if self._execute(_SQL["find_walk"], (period.name,)):
                continue
            try:
                fires = period.fires(now)
            except InvalidArgument as exc:
                self.periods.postpone(period, now + RETRY_NS, str(exc))
                continue
            if fires.times:
                walk = (period.name, json.dumps(fires.times), fires.missed_from)
                self._execute(_SQL["begin_walk"], walk)
            self.periods.move(period, fires)

    def _take_shard(self, shards: list[int]) -> Part | None:
        boot_id, boottime = self._clock.boot_id(), self._clock.boottime_ns()
        found = self._execute(_SQL["find_abandoned"], (boot_id, boottime))
        place: Place | None = found[0] if found else None
        for name, _times, _missed_from, next_shard in () if place else self._execute(_SQL["list_walks"]):
            shard = next((shard for shard in shards if shard >= next_shard), None)
            self._execute(_SQL["move_walk"], (SHARDS if shard is None else shard + 1, name))
            if shard is not None:
                place = (name, shard)
                break
            self._execute(_SQL["end_walk"], (name, SHARDS))
        if place is None:
            return None
        self._execute(_SQL["take_shard"], (*place, boot_id, boottime + TAKEN_NS))
        times, missed_from = self._execute(_SQL["find_walk"], (place[0],))[0]
        late = self._execute(_SQL["find_late"], place)
        return self._part(place, Due(json.loads(times), missed_from), late)

    def _take_late(self) -> Part | None:
        now = self._clock.now_ns()
        for place in self._execute(_SQL["find_late_due"], (now,)):
            late = self._execute(_SQL["find_late_due_of_shard"], (*place, now, MOST_LATE))
            part = self._part(place, None, late)
            for tenant, due in part.late.items():  # another process is not to take them as well
                self._put_late(part, tenant, due, RETRY_NS, "is tried again")
            return part
        return None

    def _part(self, place: Place, due: Due | None, late: list[Row]) -> Part:
        period = self.periods.find(place[0])
        assert period is not None  # who removes it removes its walk
        known = {
            tenant: Due(json.loads(times), missed_from, failures) for tenant, times, missed_from, failures in late
        }
        joined = {tenant: self._joined(period, known[tenant], due) for tenant in known}
        return Part(period=period, shard=place[1], due=due, late=joined)

    def _joined(self, period: PeriodicMessage, late: Due, due: Due | None) -> Due:
        """Return what a late tenant is to be given, with the fire that has come to it meanwhile."""
        times = late.times + ([] if due is None else due.times)
        missed_from = late.missed_from
        match period.missed:
            case Missed.ALL:
                times = times[-MOST_FIRES:]
            case Missed.ONCE:
                missed_from = late.times[0] if missed_from is None and due is not None else missed_from
                times = times[-1:]
            case Missed.SKIP:
                earliest = self._clock.now_ns() - GRACE_NS
                times = [time for time in late.times if time >= earliest] + times[len(late.times) :]
        return Due(times, missed_from, late.failures)

    def _finish(self, part: Part, failed: dict[str, str]) -> None:
        period = self.periods.find(part.period.name)
        if period is None or period.added_ns != part.period.added_ns:
            return  # removed meanwhile, with all that was on its way
        for tenant in part.late.keys() - failed.keys():
            times = part.late[tenant].times
            through = times[-1] if times else self._clock.now_ns()
            self._execute(_SQL["remove_late"], (period.name, part.shard, tenant, through))
        for tenant, error in failed.items():
            due = part.late.get(tenant, part.due)
            assert due is not None  # it failed with something
            wait = min(MAX_RETRY_NS, RETRY_NS << min(due.failures, 10))
            self._put_late(part, tenant, Due(due.times, due.missed_from, due.failures + 1), wait, error)
        if part.due is not None:
            self._execute(_SQL["finish_shard"], (period.name, part.shard))
            self._execute(_SQL["end_walk"], (period.name, SHARDS))

    def _put_late(self, part: Part, tenant: str, due: Due, wait: int, error: str) -> None:
        late = (json.dumps(due.times), due.missed_from, self._clock.now_ns() + wait, due.failures, error)
        self._execute(_SQL["put_late"], (part.period.name, part.shard, tenant, *late))


def _prepare(database: Database) -> None:
    """Make the schema where there is none yet. Raises NewerFile, NotATenantFile."""
    path = str(database.path)
    if _version(database) == 0:
        database.execute("PRAGMA journal_mode = WAL")
        database.begin()
        if _version(database) == 0:
            if database.execute("SELECT 1 FROM sqlite_schema LIMIT 1"):
                database.rollback()
                raise NotATenantFile(f"{path} is not tenantq's", path=path)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {VERSION}")
            database.execute(_SQL["create_store"])
        database.commit()
    if _version(database) > VERSION:
        raise NewerFile(f"{path} has schema version {_version(database)}, this tenantq knows {VERSION}", path=path)


def _version(database: Database) -> int:
    return int(database.execute("PRAGMA user_version")[0][0])
