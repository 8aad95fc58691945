"""What one elected worker does for everyone: promote, bury, move floors on, drop old days, sample sizes.

Nothing here is needed for a message to be delivered: claims promote their own queue and find expired leases.
It keeps the figures true and the cost of a claim flat.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Self

from tenantq.arguments import check_limit, check_seconds
from tenantq.service import Service
from tenantq_bridge._postgres import Row, Session, check_dsn
from tenantq_bridge.errors import PostgresBusy
from tenantq_bridge.indexes import Indexes, Rebuilder
from tenantq_bridge.queue import PostgresQueue
from tenantq_bridge.samples import Samples
from tenantq_bridge.series import SAMPLE_INTERVAL

__all__ = ["Maintenance"]

STEP = 1_000
"""Rows that one step moves, so that none holds its locks for long."""

PROMOTE_INTERVAL = 0.25
FLOORS_INTERVAL = 1.0
SHARED_INTERVAL = 1.0
BURY_INTERVAL = 30.0
"""Seconds; it reads the whole hot table, and a claim buries too."""
DAYS_INTERVAL = 3_600.0
HISTORY_INTERVAL = 60.0

DEFAULT_SEEN_DAYS = 7
"""Whole days for which a forwarded event is known: how old a backup may be for its restore to repeat nothing."""


DEFAULT_APPLIED_DAYS = 30
"""Whole days after its emission for which it is known whether an event was applied."""


DEFAULT_HISTORY_HOURS = 24.0
"""Hours for which what was acked in recorded queues is kept at least."""


class Maintenance(Service):
    """Maintains one database's queues. Run one beside each worker or forwarder: one at a time is elected.

    seen_days: days for which forwarded events are remembered. Fewer cost less, and a tenant restored from an
    older backup with events that were pending then is quarantined.
    applied_days: days after its emission for which `PostgresQueue.apply_once` knows an event; it refuses older.
    history_hours: hours for which what was acked in recorded queues is kept; up to a third longer.
    direct_dsn: a way to the same database past the pooler that the queue's own leads through. Without one, no
    index is rebuilt through a pooler.
    """

    name = "maintenance"

    def __init__(
        self,
        queue: PostgresQueue,
        *,
        seen_days: int = DEFAULT_SEEN_DAYS,
        applied_days: int = DEFAULT_APPLIED_DAYS,
        history_hours: float = DEFAULT_HISTORY_HOURS,
        interval: float = PROMOTE_INTERVAL,
        direct_dsn: str | None = None,
    ) -> None:
        super().__init__(interval=interval)
        self.queue = queue
        self._seen_days = check_limit(seen_days, "seen_days")
        self._applied_days = check_limit(applied_days, "applied_days")
        # Of four tables one is being filled: the three others hold the hours that are promised.
        self._history_turn = timedelta(hours=check_seconds(history_hours, "history_hours") / 3)
        self._history_sql = queue.database.statements("history.sql")
        self._rebuilder = Rebuilder(
            queue.schema,
            Indexes(queue.database),
            direct_dsn=None if direct_dsn is None else check_dsn(direct_dsn),
        )
        """In a thread of its own: a rebuild may take minutes, and promoting does not wait."""
        self._samples = Samples(queue.database)
        self._sql = queue.database.statements("maintenance.sql")
        self._shares_sql = queue.database.statements("shares.sql")
        self._next: dict[str, float] = {}
        self._horizon: tuple[int, set[str]] | None = None

    def run_once(self) -> int:
        """Do each step that is due; return how many messages were moved. Raises PostgresUnavailable."""
        self.queue.schema.check()
        moved = self._when_due("promote", PROMOTE_INTERVAL, self.promote)
        moved += self._when_due("bury", BURY_INTERVAL, self.bury)
        self._when_due("floors", FLOORS_INTERVAL, self.advance_floors)
        self._when_due("shared", SHARED_INTERVAL, self.tend_shared)
        self._when_due("days", DAYS_INTERVAL, self.turn_days)
        self._when_due("history", HISTORY_INTERVAL, self.turn_history)
        self._when_due("sample", SAMPLE_INTERVAL, self.sample)
        return moved

    def promote(self) -> int:
        """Make delayed messages that are due ready, and wake who waits for them; return how many."""
        rows = self._elected(self._sql["promote_due"], {"limit": STEP})
        for queue, count in rows:
            if count:
                self.queue.ring(queue)
        return sum(row[1] for row in rows)

    def bury(self) -> int:
        """Move messages whose last attempt's lease has expired to the dead letters; return how many."""
        return sum(row[0] for row in self._elected(self._sql["bury_exhausted"], {"limit": STEP}))

    def advance_floors(self) -> int:
        """Move on the places where claims begin; return how many lanes.

        A floor may pass a place only when no transaction can still bring a row there: one that began before
        may have read the sequence and not have committed. So a horizon is read in one round, with who was
        writing then, and used in a later one, when they are all gone.
        """
        if self._horizon is None:
            with self.queue.database.transaction() as session:
                seq: int = session.run(self._sql["read_horizon"])[0][0]
                self._horizon = seq, self._writers(session)
        settled, writers = self._horizon
        with self.queue.database.transaction() as session:
            if not self._is_elected(session):
                self._horizon = None
                return 0
            if writers and writers & self._writers(session):
                return 0
            self._horizon = None
            lanes: int = session.run(self._sql["advance_floors"], {"settled": settled})[0][0]
        return lanes

    def tend_shared(self) -> int:
        """Place what came to shared queues by another way than a claim, and end their sharing where nothing
        waits any more; return how many queues are ordinary ones again.
        """
        # A transaction each: who changes the list of shared queues must hold no row before.
        for queue, _, _, state in self.queue.database.run(self._shares_sql["list_shared"], repeatable=True):
            step = self._shares_sql["sort_shared"] if state == "sorting" else self._sql["place_messages"]
            self._try_elected(step, {"queue": queue, "limit": STEP})
        return self._try_elected(self._shares_sql["retire_shared"])

    def turn_days(self) -> int:
        """Open the coming days of what was forwarded and applied, and drop old ones; return how many."""
        self._elected(self._sql["open_seen_days"])
        self._elected(self._sql["open_applied_days"])
        dropped = self._try_elected(self._sql["drop_seen_days"], {"days": self._seen_days})
        return dropped + self._try_elected(self._sql["drop_applied_days"], {"days": self._applied_days})

    def turn_history(self) -> int:
        """Empty the oldest table of what was acked and fill it from now on; return 1, or 0 if it is not time."""
        return self._try_elected(self._history_sql["turn_history"], {"turn": self._history_turn})

    def _try_elected(self, statement: bytes, params: dict[str, object] | None = None) -> int:
        """Run what needs a table for itself; 0 where somebody is using it: the next turn does it."""
        try:
            return sum(row[0] for row in self._elected(statement, params))
        except PostgresBusy:
            return 0

    def sample(self) -> int:
        """Record how large each table and index is, for `read_health`, and forget what is a day old."""
        try:
            with self.queue.database.transaction() as session:
                return int(self._is_elected(session) and self._samples.take(session))
        except PostgresBusy:
            return 0  # a table is being dropped or emptied: the next interval has its sample

    def start(self) -> Self:
        """Start the threads; a second call changes nothing."""
        self._rebuilder.start()
        return super().start()

    def stop(self) -> None:
        """End the role and wait for its round; a rebuild that runs is cancelled."""
        self.request_stop()
        super().stop()
        self._rebuilder.stop()

    def request_stop(self) -> None:
        """Let the role end after its round; returns at once. It takes no lock: a signal handler may call it."""
        super().request_stop()
        self._rebuilder.request_stop()

    def _when_due(self, step: str, interval: float, action: Callable[[], int]) -> int:
        now = time.monotonic()
        if now < self._next.get(step, 0.0):
            return 0
        self._next[step] = now + interval
        return action()

    def _elected(self, statement: bytes, params: dict[str, object] | None = None) -> list[Row]:
        with self.queue.database.transaction() as session:
            return session.run(statement, params) if self._is_elected(session) else []

    def _is_elected(self, session: Session) -> bool:
        params = {"schema": self.queue.database.schema}
        return bool(session.run(self._sql["elect_worker"], params)[0][0])

    def _writers(self, session: Session) -> set[str]:
        return {row[0] for row in session.run(self._sql["list_writers"])}
