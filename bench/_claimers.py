"""What claims in Postgres, in a process: the documents' statement; PostgresQueue, one by one and in batches."""

from __future__ import annotations

import importlib
import os
import time
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from bench._children import Log, Seat
from bench._jobs_table import ACK, CLAIM, CLAIM_RETURNING, FILL, PARTIAL_INDEX, PRODUCE, TABLE
from bench._servers import Server, connect

__all__ = ["BATCH", "CLAIMERS", "DOCUMENTS", "Claimer", "Plan", "claim", "open_queue", "prepare"]

BATCH = 100

QUEUE = "bench"

LEASE = 3_600.0
"""Seconds: longer than any trial, so that nothing comes back."""

IDLE = 0.002
"""Seconds that a claimer waits when it finds nothing."""

DOCUMENTS = ("documents' claim", "documents' claim and ack")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of a trial does."""

    claimer: str
    dsn: str


class Claimer(ABC):
    """One process's way to claim and to end what it claimed."""

    batch = 1
    """Messages that a claim brings, where it can bring more than one."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    @abstractmethod
    def take(self) -> int:
        """Claim; return how many."""

    def done(self) -> None:
        """End what was claimed."""

    @abstractmethod
    def put(self, count: int) -> None:
        """Enqueue so many in one call."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""


class DocumentsClaim(Claimer):
    """The documents' claim as they printed it: it brings nothing back, and there is no ack."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._connection = connect(dsn)
        self._worker = str(os.getpid())

    def take(self) -> int:
        return int(self._connection.execute(CLAIM, (self._worker,)).rowcount)

    def put(self, count: int) -> None:
        self._connection.execute(PRODUCE, (count,))

    def close(self) -> None:
        self._connection.close()


class DocumentsLoop(DocumentsClaim):
    """The documents' claim with the payload, and an ack that deletes."""

    _taken = 0

    def take(self) -> int:
        row = self._connection.execute(CLAIM_RETURNING, (self._worker,)).fetchone()
        if row is None:
            return 0
        self._taken = row[0]
        return 1

    def done(self) -> None:
        self._connection.execute(ACK, (self._taken, self._worker))


class TenantqClaim(Claimer):
    """PostgresQueue: a claim and an ack a message."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._queue = open_queue(dsn)
        self._messages: list[Any] = []
        self._number = 0

    def take(self) -> int:
        self._messages = self._queue.claim(QUEUE, self.batch, lease=LEASE)
        return len(self._messages)

    def done(self) -> None:
        self._queue.ack(*self._messages)

    def put(self, count: int) -> None:
        self._queue.enqueue_many(QUEUE, [{"n": self._number + n} for n in range(count)])
        self._number += count

    def close(self) -> None:
        self._queue.close()


class TenantqBatched(TenantqClaim):
    """PostgresQueue: a claim and an ack for a hundred messages."""

    batch = BATCH


CLAIMERS: dict[str, type[Claimer]] = {
    DOCUMENTS[0]: DocumentsClaim,
    DOCUMENTS[1]: DocumentsLoop,
    "tenantq": TenantqClaim,
    f"tenantq, batches of {BATCH}": TenantqBatched,
}


def open_queue(dsn: str) -> Any:
    """Open tenantq's queue, of one connection and no more."""
    return importlib.import_module("tenantq_bridge").PostgresQueue(dsn, pool_size=1, listen=False)


def prepare(server: Server, database: str, claimer: str, rows: int) -> None:
    """Fill an empty database with what a claimer reads, and vacuum it."""
    dsn = server.dsn(database)
    if claimer in DOCUMENTS:
        with connect(dsn) as connection:
            connection.execute("SET statement_timeout = 0")
            connection.execute(TABLE)
            # All in the past: what is produced later comes behind them.
            connection.execute(FILL, (1 - rows, 0))
            connection.execute(PARTIAL_INDEX)
            connection.execute("VACUUM (ANALYZE) jobs")
        return
    queue = open_queue(dsn)
    queue.migrate()
    for start in range(0, rows, 50_000):
        queue.enqueue_many(QUEUE, [{"n": n} for n in range(start, min(start + 50_000, rows))])
    queue.close()
    server.query("VACUUM (ANALYZE) tenantq.ready", database)


def claim(seat: Seat, plan: Plan) -> Log:
    """Be a worker: claim and end what was claimed, until it is over."""
    claimer = CLAIMERS[plan.claimer](plan.dsn)
    log = Log(latencies={"claim": []}, numbers={"dry": 0})
    seat.ready()
    while not seat.is_stopped:
        started = time.perf_counter_ns()
        count = claimer.take()
        took = time.perf_counter_ns() - started
        if not count:
            log.numbers["dry"] += 1
            time.sleep(IDLE)
            continue
        claimer.done()
        seat.count(count)
        if seat.is_measured:
            log.latencies["claim"].append(took)
    claimer.close()
    return log
