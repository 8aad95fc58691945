"""What happens to a table while a load runs on it: its sizes over time, a snapshot held, a vacuum by hand."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import msgspec

from bench._servers import connect

__all__ = ["Table", "Watch"]

SIZES = """
SELECT p.relation, p.is_index, pg_relation_size(p.oid), s.n_live_tup, s.n_dead_tup, s.n_tup_upd + s.n_tup_del,
       s.vacuum_count + s.autovacuum_count
  FROM pg_class AS t
  JOIN pg_stat_all_tables AS s ON s.relid = t.oid
 CROSS JOIN LATERAL (
       SELECT t.oid, t.relname::text AS relation, false AS is_index
       UNION ALL
       SELECT i.indexrelid, c.relname::text, true
         FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = t.oid
       ) AS p
 WHERE t.oid = %s::regclass
"""

SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1"


class Size(msgspec.Struct, frozen=True):
    """One relation at one moment; the counters of rows are its table's."""

    seconds: float
    """Since the watch began."""
    at: datetime
    bytes: int
    live_rows: int
    dead_rows: int
    removed_rows: int
    vacuums: int


class Table(msgspec.Struct, kw_only=True):
    """The samples of a table and its indexes, by name."""

    name: str
    heap: list[Size] = []
    indexes: dict[str, list[Size]] = {}

    def peaks(self, first: float, last: float) -> dict[str, int]:
        """Return the largest size of the heap and of each index in a part of the time."""
        found: dict[str, int] = {}
        for relation, sizes in {self.name: self.heap, **self.indexes}.items():
            part = [size.bytes for size in sizes if first <= size.seconds < last]
            if part:
                found[relation] = max(part)
        return found

    @property
    def vacuums(self) -> int:
        """How many came while it was watched."""
        return self.heap[-1].vacuums - self.heap[0].vacuums if self.heap else 0

    @property
    def most_dead(self) -> int:
        """The most dead rows, as the statistics estimate them."""
        return max((size.dead_rows for size in self.heap), default=0)


class Watch:
    """Samples a table while it is entered, and does what it is told at its moments."""

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        interval: float,
        hold: tuple[float, float] | None = None,
        vacuum_at: float | None = None,
    ) -> None:
        self.table = Table(name=table.rpartition(".")[2])
        self._of = table
        self._dsn = dsn
        self._interval = interval
        self._hold = hold
        self._vacuum_at = vacuum_at
        self._holder: Any = None
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._look, daemon=True)]
        if vacuum_at is not None:
            self._threads.append(threading.Thread(target=self._vacuum, daemon=True))
        self._started = 0.0

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        connection = connect(self._dsn)
        while True:
            seconds = time.monotonic() - self._started
            self._hold_or_not(seconds)
            now = datetime.now(UTC)
            for relation, is_index, *size in connection.execute(SIZES, (self._of,)).fetchall():
                sizes = self.table.indexes.setdefault(relation, []) if is_index else self.table.heap
                sizes.append(Size(seconds, now, *size))
            if self._stop.wait(self._interval):
                break
        connection.close()
        if self._holder is not None:
            self._holder.close()

    def _hold_or_not(self, seconds: float) -> None:
        """Hold a snapshot in its part of the time."""
        if self._hold is None:
            return
        first, last = self._hold
        if self._holder is None and first <= seconds < last:
            self._holder = connect(self._dsn)
            self._holder.execute(SNAPSHOT)
        elif self._holder is not None and seconds >= last:
            self._holder.close()
            self._holder = None

    def _vacuum(self) -> None:
        assert self._vacuum_at is not None
        if not self._stop.wait(self._vacuum_at):
            connection = connect(self._dsn)
            connection.execute(f"VACUUM {self._of}")
            connection.close()
