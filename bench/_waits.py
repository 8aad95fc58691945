"""What sessions wait for while a trial runs: samples of pg_stat_activity, as the documents took them."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import Self

from bench._servers import connect

__all__ = ["Waits"]

INTERVAL = 0.02
"""Seconds between two samples."""

SAMPLE = """
SELECT COALESCE(wait_event_type || ':' || wait_event, 'running')
  FROM pg_stat_activity
 WHERE datname = %s AND backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()
"""

ROW_LOCKS = ("Lock:transactionid", "Lock:tuple")


class Waits:
    """Counts what the sessions of a database wait for while it is entered."""

    def __init__(self, dsn: str, database: str) -> None:
        self._connection = connect(dsn)
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="waits", daemon=True)
        self.counts: Counter[str] = Counter()

    def share(self, *prefixes: str) -> float:
        """Return the percentage of the samples whose event begins with one of these."""
        hits = sum(count for event, count in self.counts.items() if event.startswith(prefixes))
        return round(100 * hits / max(1, self.counts.total()), 1)

    @property
    def wal(self) -> float:
        """Percent that wrote, synced or waited for the write-ahead log."""
        return self.share("LWLock:WAL", "IO:Wal", "IO:WAL", "IPC:Wal")

    @property
    def row_locks(self) -> float:
        """Percent that waited for another worker's row."""
        return self.share(*ROW_LOCKS)

    def top(self, count: int = 3) -> str:
        """Return the commonest with their percentages."""
        total = max(1, self.counts.total())
        return ", ".join(
            f"{event} {100 * number / total:.0f}%" for event, number in self.counts.most_common(count)
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def _look(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.counts.update(row[0] for row in self._connection.execute(SAMPLE, (self._database,)).fetchall())
