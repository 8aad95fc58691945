"""An open tenant file's transaction: what it adds to the depths, and what is known of the file between two."""

from __future__ import annotations

from collections.abc import Callable

from tenantq import _schema
from tenantq._bounds import Bounds
from tenantq._limits import Limits
from tenantq._periods import Periods
from tenantq._schedule import Entry, Work
from tenantq._sqlite import Database, Parameters, Row
from tenantq.sqlfile import load_statements

__all__ = ["STEP", "FileTransaction"]

STEP = 1000
"""Rows that one maintenance statement moves before other writers get their turn."""

_OUTBOX = load_statements("tenantq", "outbox.sql")
_STATS = load_statements("tenantq", "stats.sql")

ADD_DEPTH = _STATS["add_depth"]

MESSAGES, EVENTS = int(Work.MESSAGES), int(Work.EVENTS)


class FileTransaction:
    """The transaction of one open file. Not for two threads at once."""

    def __init__(
        self,
        database: Database,
        meta: dict[str, str],
        boot_id: str,
        *,
        max_depth: int | None = None,
        tell_of_room: Callable[[], None] = lambda: None,
        entry: Entry | None = None,
        checksums: bool = False,
    ) -> None:
        self.database = database
        self.checksums = checksums
        """Whether messages and events get a checksum."""
        self.tenant_id = meta["tenant_id"]
        self.file_id = meta["file_id"]
        self.boot_id = boot_id
        self.commits = 0
        self.news = False
        """Whether the transaction made something claimable or emitted an event."""
        self.is_committed = False
        """Whether the transaction is durable, even if an interrupt came before `commit` could return."""
        self.ready: dict[str, int] = {}
        """How many messages were ready in a queue when we last changed it. A hint: others may have them by now."""
        self.bounds = Bounds(database, max_depth)
        self.limits = Limits(database)
        self.periods = Periods(database)
        self.entry = entry
        """Its record in the store's schedule."""
        self._tell_of_room = tell_of_room
        self._has_room = False
        self._execute = database.execute
        self._run = database.run
        self._depths: dict[str, list[int]] = {}
        self._emitted = 0
        self._last_seq = 0
        self._is_of_this_boot = meta.get("boot_id") == boot_id
        self._version = self._checked_version = -1
        self._forget()

    def begin(self) -> None:
        """Begin a write transaction."""
        if self._depths or self._emitted:
            self._reset()
        self.news = self.is_committed = self._has_room = False
        self.database.begin()
        if self.database.version() != self._version:
            self._forget()
            self.check_schema()

    def check_schema(self) -> None:
        """Raise NewerFile if another process has migrated the file to a schema that is not known here.

        The file is asked only after somebody else has changed it: `begin` and every read end here.
        """
        version = self.database.version()
        if version != self._checked_version:
            _schema.check_version(self.database, self.tenant_id)
            self._checked_version = version

    def refresh(self) -> None:
        """Forget what others have changed, in a read that has begun."""
        if self.database.version() != self._version:
            self._forget()

    def commit(self) -> None:
        """Write the depths and commit; durable on return. A failure leaves nothing of the transaction."""
        ready = {}
        try:
            are_none = self.bounds.are_none and self.limits.are_none
            add = ADD_DEPTH if are_none else _STATS["add_bounded_depth"]
            for queue, depths in self._depths.items():
                row = (*depths, queue)
                found = self._execute(add, row) or self._execute(_STATS["begin_depth"], row)
                ready[queue] = found[0][0]
                if not are_none:
                    _ready, depth, are_bounds, are_limits = found[0]
                    self.bounds.learn(are_bounds)
                    self.limits.learn(are_limits)
                    if self.bounds.are_set and self.bounds.move(queue, depth, depths):
                        self._has_room = True
            if not self.limits.are_none and not self.news:
                self.news = self.limits.has_room_again({name: -some[3] for name, some in self._depths.items()})
            if self._emitted:
                self._run(_OUTBOX["count_events"], (self._last_seq, self._emitted))
            if self.entry is not None:
                self._announce(self.entry, ready)
            self.database.commit()
        except Exception:
            self.rollback()
            raise
        except BaseException:
            # SQLite waits for the disk in COMMIT, so this is where an interrupt arrives: mostly behind it.
            self.is_committed = not self.database.in_transaction
            if not self.is_committed:
                self.rollback()
            raise
        self.is_committed = True
        self._version = self._checked_version = self.database.version()
        self.ready.update(ready)
        self.commits += 1
        if self._has_room:
            self._tell_of_room()

    def _announce(self, entry: Entry, ready: dict[str, int]) -> None:
        """Write into the schedule what the transaction leaves for others: before it commits, so never too late."""
        work = MESSAGES if any(ready.values()) else 0
        if self._emitted:
            work |= EVENTS
        entry.expect(work, self._due_at, self._leased_until, is_whole=self._is_due_known)

    def rollback(self) -> None:
        """Undo the transaction."""
        self._forget()
        self._reset()
        self.database.rollback()

    def _forget(self) -> None:
        """Forget what the file said of itself: it has been changed by others, or by what was undone."""
        self._last_id = -1
        self._is_due_known = False
        self._due_at: int | None = None
        self._leased_until: int | None = None
        self.bounds.forget()
        self.limits.forget()
        self.ready.clear()

    def look_again(self) -> None:
        """Have everybody look anew when something will be due: what is, was changed by other means."""
        self._is_due_known = False
        self.news = True

    def savepoint(self) -> tuple[object, ...]:
        """Begin a part of the transaction that can be undone alone."""
        self._execute("SAVEPOINT operation")
        depths = {queue: list(counts) for queue, counts in self._depths.items()}
        return depths, self._emitted, self._last_seq, self.news

    def release_savepoint(self) -> None:
        """Keep the part."""
        self._execute("RELEASE operation")

    def undo_savepoint(self, saved: tuple[object, ...]) -> None:
        """Undo the part, and what it added to the depths."""
        self._execute("ROLLBACK TO operation")
        self._execute("RELEASE operation")
        self._depths, self._emitted, self._last_seq, self.news = saved  # type: ignore[assignment]
        self._forget()

    def _reset(self) -> None:
        self._depths = {}
        self._emitted = 0
        self.news = False
        self._has_room = False
        self.is_committed = False

    def execute_guest(self, sql: str, parameters: Parameters) -> list[Row]:
        """Run SQL of the application, which may have inserted into our tables too."""
        self._forget()
        return self.database.execute_guest(sql, parameters)

    def _depth(self, queue: str) -> list[int]:
        """Return what the transaction adds: [last_id, ready, scheduled, claimed, dead]."""
        depths = self._depths.get(queue)
        if depths is None:
            depths = self._depths[queue] = [0, 0, 0, 0, 0]
        return depths
