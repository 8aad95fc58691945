"""The sizes of the queue's tables over the last day, taken at a fixed interval into a bounded table."""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby

from tenantq_bridge._postgres import Database, Session
from tenantq_bridge.errors import PostgresBusy
from tenantq_bridge.series import SAMPLE_INTERVAL, Sample, Series

__all__ = ["Samples"]

KEEP = timedelta(days=1)
"""Twice the run in which the documents saw a heap settle; about 5 MB for each ten tables and indexes."""

DROP_STEP = 1_000
"""Rows that one sample removes of those that are older: far more than it adds."""


class Samples:
    """The samples of one queue's tables."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = database.statements("health.sql")

    def take(self, session: Session, interval: float = SAMPLE_INTERVAL) -> bool:
        """Add a sample in a transaction, and drop what is too old; False if this interval has one already."""
        session.run(self._sql["bound_locks"])
        added = session.run(self._sql["take_sample"], {"interval": timedelta(seconds=interval)})
        session.run(self._sql["drop_samples"], {"keep": KEEP, "limit": DROP_STEP})
        return bool(added)

    def try_take(self, interval: float = SAMPLE_INTERVAL) -> bool:
        """Commit a sample; False if this interval has one, or a lock on one of the tables is not to be had."""
        try:
            with self._database.transaction() as session:
                return self.take(session, interval)
        except PostgresBusy:
            return False  # a table is being dropped or emptied: the next interval has its sample

    def load(self) -> list[Series]:
        """Return the samples of each table and index, oldest first."""
        rows = self._database.run(self._sql["load_samples"], {"schema": self._database.schema}, repeatable=True)
        return [
            Series(
                relation=relation,
                table=table,
                is_index=is_index,
                samples=tuple(Sample(*row[3:]) for row in group),
            )
            for (relation, table, is_index), group in groupby(rows, key=lambda row: row[:3])
        ]
