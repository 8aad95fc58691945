"""The documents' queue, as raw apsw: their schema, their pragmas and their statements, word for word.

A benchmark on Postgres and SQLite queues printed them; its consumer loop is `claim`, `ack`, and 5 ms of
sleep when there is nothing. Every statement is a transaction of its own there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

__all__ = ["IDLE_SLEEP", "DocumentsQueue"]

IDLE_SLEEP = 0.005
"""What their consumer sleeps when it found nothing."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS queue (
    id          INTEGER PRIMARY KEY,
    payload     BLOB NOT NULL,
    visible_at  INTEGER NOT NULL,        -- unix nanoseconds
    claimed_by  TEXT,                     -- NULL = available
    claimed_at  INTEGER,                  -- unix nanoseconds
    attempts    INTEGER NOT NULL DEFAULT 0,
    enqueued_at INTEGER NOT NULL          -- unix nanoseconds
);

CREATE INDEX IF NOT EXISTS queue_visible
    ON queue(visible_at)
    WHERE claimed_by IS NULL;
"""

PRAGMAS = {
    "journal_mode": ("WAL", "wal"),
    "synchronous": ("NORMAL", 1),
    "busy_timeout": ("5000", 5000),
    "cache_size": ("-262144", -262144),
    "mmap_size": ("4294967296", 4294967296),
    "wal_autocheckpoint": ("10000", 10000),
    "temp_store": ("MEMORY", 2),
}
"""Each as they set it, and as SQLite reads it back."""

SYNCHRONOUS = {"off": 0, "normal": 1, "full": 2}

ENQUEUE = """
INSERT INTO queue (payload, visible_at, enqueued_at)
VALUES (?, ?, ?);
"""

CLAIM = """
UPDATE queue
SET claimed_by = ?,
    claimed_at = ?,
    attempts   = attempts + 1
WHERE id = (
    SELECT id FROM queue
    WHERE claimed_by IS NULL
      AND visible_at <= ?
    ORDER BY visible_at
    LIMIT 1
)
RETURNING id, payload, attempts;
"""

ACK = "DELETE FROM queue WHERE id = ? AND claimed_by = ?;"

CLAIM_BATCH = """
UPDATE queue
SET claimed_by = ?,
    claimed_at = ?,
    attempts   = attempts + 1
WHERE id IN (
    SELECT id FROM queue
    WHERE claimed_by IS NULL
      AND visible_at <= ?
    ORDER BY visible_at
    LIMIT 50
)
RETURNING id, payload;
"""

LADDER_MS = (1, 2, 5, 10, 15, 20, 25, 25, 25, 50, 50, 100)
"""What SQLite's own busy handler sleeps, try by try: `count_waits` does the same and counts."""


class DocumentsQueue:
    """One connection to their file, for one thread."""

    def __init__(self, path: Path, *, durability: str = "normal", worker: str = "worker") -> None:
        self.worker = worker
        self.waits: list[float] = []
        """Seconds of each wait for the lock, where `count_waits` was called."""
        self._connection = apsw.Connection(str(path))
        self._execute = self._connection.execute
        self._set_pragmas(durability)
        self._execute(SCHEMA).fetchall()

    def _set_pragmas(self, durability: str) -> None:
        # busy_timeout first: others may be switching the same new file to WAL.
        for name in sorted(PRAGMAS, key=lambda name: name != "busy_timeout"):
            value, expected = PRAGMAS[name]
            if name == "synchronous":
                value, expected = durability.upper(), SYNCHRONOUS[durability]
            self._execute(f"PRAGMA {name} = {value}").fetchall()
            actual = self._execute(f"PRAGMA {name}").fetchall()
            if actual != [(expected,)]:
                raise RuntimeError(f"PRAGMA {name} = {value} did not take effect: {actual}")

    def enqueue(self, payload: bytes) -> None:
        """Add one message."""
        now = time.time_ns()
        self._execute(ENQUEUE, (payload, now, now))

    def claim(self) -> tuple[int, bytes] | None:
        """Claim one message."""
        now = time.time_ns()
        rows: list[Any] = self._execute(CLAIM, (self.worker, now, now)).fetchall()
        return (rows[0][0], rows[0][1]) if rows else None

    def ack(self, message_id: int) -> None:
        """Remove a message."""
        self._execute(ACK, (message_id, self.worker))

    def enqueue_many(self, payloads: Sequence[bytes], *, delay: float = 0) -> None:
        """Add messages in one transaction."""
        now = time.time_ns()
        visible_at = now + int(delay * 1e9)
        self._execute("BEGIN IMMEDIATE")
        self._connection.executemany(ENQUEUE, ((payload, visible_at, now) for payload in payloads)).fetchall()
        self._execute("COMMIT")

    def claim_batch(self, limit: int = 50) -> list[tuple[int, bytes]]:
        """Claim messages with their batched statement, its 50 being `limit`."""
        now = time.time_ns()
        sql = CLAIM_BATCH if limit == 50 else CLAIM_BATCH.replace("LIMIT 50", f"LIMIT {int(limit)}")
        return [(row[0], row[1]) for row in self._execute(sql, (self.worker, now, now))]

    def exchange(self, acks: Sequence[int], limit: int = 50) -> list[tuple[int, bytes]]:
        """Remove messages and claim the next in one transaction."""
        self._execute("BEGIN IMMEDIATE")
        self._connection.executemany(ACK, ((id_, self.worker) for id_ in acks)).fetchall()
        rows = self.claim_batch(limit)
        self._execute("COMMIT")
        return rows

    def count_waits(self) -> None:
        """Keep the length of every wait for the lock; the waits stay as SQLite's."""
        since = [0.0]

        def wait(tries: int) -> bool:
            now = time.monotonic()
            if tries == 0:
                since[0] = now
                self.waits.append(0.0)
            if now - since[0] >= 5.0:
                return False
            time.sleep(LADDER_MS[min(tries, len(LADDER_MS) - 1)] / 1000)
            self.waits[-1] = time.monotonic() - since[0]
            return True

        self._connection.set_busy_handler(wait)

    def rollback(self) -> None:
        """Undo a transaction that an error left open."""
        if not self._connection.get_autocommit():
            self._execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
