"""Rebuilds an index that has grown far beyond its rows, and drops what an interrupted rebuild has left.

Pages of an index that hold a single row are kept whole, and an index never becomes smaller by itself. The hot
tables are made so that it should not come to that; this is for when it did, after an incident.

REINDEX CONCURRENTLY is not run in a transaction, and needs a session that keeps its settings: a timeout for locks,
or it would wait behind a forgotten transaction for ever. So it has a connection of its own, which a pooler in
transaction mode cannot give.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta

import msgspec

from tenantq.service import Service
from tenantq_bridge._postgres import Database, OwnSession
from tenantq_bridge.errors import PostgresBusy, PostgresTimeout, SessionRefused
from tenantq_bridge.schema import Schema

__all__ = ["IndexSize", "Indexes", "Rebuilder"]

logger = logging.getLogger("tenantq.bridge")

REBUILD_INTERVAL = 600.0

MIN_BYTES = 64 * 1024 * 1024
MIN_FACTOR = 20
"""An index is rebuilt when it is larger than both: so much, and so many times what its live rows need."""

MAX_SNAPSHOT_AGE = timedelta(minutes=1)
"""A rebuild waits for every older snapshot: with such a one it is not begun."""

SESSION_SETTINGS = {"lock_timeout": "5000", "statement_timeout": "900000", "idle_session_timeout": "0"}
"""In milliseconds. Each wait for a lock or a snapshot is bounded, and so is a rebuild as a whole."""

FRUITLESS_PAUSE = 86_400.0
"""Seconds before an index is tried again that a rebuild did not make smaller: the estimate was wrong."""


class IndexSize(msgspec.Struct, frozen=True, kw_only=True):
    """An index, and what it should be."""

    schema: str
    name: str
    bytes: int
    needed_bytes: int
    """What its live rows need, by an estimate."""
    is_ours: bool
    """This role owns it, and may rebuild it."""


class Indexes:
    """The indexes of one queue's tables."""

    def __init__(self, database: Database, *, min_bytes: int = MIN_BYTES, min_factor: float = MIN_FACTOR) -> None:
        self.database = database
        self.sql = database.statements("indexes.sql")
        self._min_bytes = min_bytes
        self._min_factor = min_factor

    def sizes(self) -> list[IndexSize]:
        """Return each index whose table's rows are known to the statistics, the largest first."""
        fields = IndexSize.__struct_fields__
        rows = self.database.run(self.sql["list_indexes"], repeatable=True)
        return [IndexSize(**dict(zip(fields, row, strict=True))) for row in rows]

    def overgrown(self) -> list[IndexSize]:
        """Return those that are to be rebuilt."""
        return [
            index
            for index in self.sizes()
            if index.bytes >= self._min_bytes and index.bytes >= self._min_factor * index.needed_bytes
        ]

    def leftovers(self) -> list[tuple[str, str]]:
        """Return what interrupted rebuilds have left and this role may drop, as schema and name."""
        return [(row[0], row[1]) for row in self.database.run(self.sql["list_leftovers"], repeatable=True)]


class Rebuilder(Service):
    """Rebuilds overgrown indexes one after the other; one rebuilder at a time in a database.

    direct_dsn: a way to the database that no pooler is on, where the queue's own leads through one.
    """

    name = "rebuilder"

    def __init__(self, schema: Schema, indexes: Indexes, *, direct_dsn: str | None = None) -> None:
        super().__init__(interval=REBUILD_INTERVAL)
        self._schema = schema
        self._indexes = indexes
        self._direct_dsn = direct_dsn
        self._fruitless: dict[str, float] = {}
        self._is_refused = False
        self._session: OwnSession | None = None

    def run_once(self) -> int:
        """Drop leftovers and rebuild what is overgrown; return how many indexes were rebuilt.

        Connects only when there is something to do. 0, and a warning once, where no session is to be had.
        """
        self._schema.check()
        if not self._indexes.leftovers() and not self._due():
            return 0
        try:
            with self._indexes.database.session(SESSION_SETTINGS, dsn=self._direct_dsn) as session:
                if not self._is_elected(session):
                    return 0
                self._session = session
                self._drop_leftovers(session)
                return sum(self._rebuild(session, index) for index in self._due() if not self.is_stopping)
        except SessionRefused as exc:
            if not self._is_refused:
                logger.warning("no index can be rebuilt: %s", exc)
            self._is_refused = True
            return 0
        finally:
            self._session = None

    def stop(self) -> None:
        """End the role; a rebuild that runs is cancelled, and what it leaves is dropped by the next round."""
        self.request_stop()
        session = self._session
        if session is not None:
            session.cancel()
        super().stop()

    def _due(self) -> list[IndexSize]:
        now = time.monotonic()
        return [
            index
            for index in self._indexes.overgrown()
            if index.is_ours and now >= self._fruitless.get(index.name, 0.0)
        ]

    def _is_elected(self, session: OwnSession) -> bool:
        params = {"schema": self._indexes.database.schema}
        return bool(session.run(self._indexes.sql["elect_rebuilder"], params)[0][0])

    def _drop_leftovers(self, session: OwnSession) -> None:
        """Drop invalid indexes. One that a REINDEX builds at this moment is safe: it holds the table's lock."""
        for schema, name in self._indexes.leftovers():
            try:
                session.run_on(self._indexes.sql["drop_index"], index=(schema, name))
            except (PostgresBusy, PostgresTimeout):
                logger.info("index %s is left for later: its table is in use", name)
            else:
                logger.info("dropped index %s, which an interrupted REINDEX had left", name)

    def _rebuild(self, session: OwnSession, index: IndexSize) -> bool:
        params = {"age": MAX_SNAPSHOT_AGE}
        if session.run(self._indexes.sql["has_old_snapshot"], params)[0][0]:
            return False
        try:
            session.run_on(self._indexes.sql["rebuild_index"], index=(index.schema, index.name))
        except (PostgresBusy, PostgresTimeout) as exc:
            # In its last phases the new index has taken over already, and the old one is left.
            logger.info("the rebuild of index %s was given up: %s", index.name, exc.message)
            if not self.is_stopping:  # the next round of anybody drops it
                self._drop_leftovers(session)
            return False
        left = {size.name: size.bytes for size in self._indexes.sizes()}.get(index.name, 0)
        if left * 2 > index.bytes:
            self._fruitless[index.name] = time.monotonic() + FRUITLESS_PAUSE
        logger.info("rebuilt index %s: it took %d bytes, now %d", index.name, index.bytes, left)
        return True
