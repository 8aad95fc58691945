"""Other queues in Postgres from PyPI, each by its own documented fast path; one run of one of them, in a process.

    python -m bench._pg_peers NAME DSN JOBS SECONDS

prints what it found as one line of JSON. It is a process of its own, since the peers' event loops, threads
and signal handlers are theirs to set up; and it ends by itself when its time is over, whatever a peer does
then.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from bench._claimers import BATCH, QUEUE, open_queue
from bench._jobs_table import ACK, CLAIM_RETURNING, ENQUEUE, PARTIAL_INDEX, TABLE, TUNED
from bench._servers import connect

__all__ = ["PEERS", "Found", "missing"]

CHUNK = 1_000
"""Messages that one call enqueues, where a peer has such a call."""

CONCURRENCY = 10
"""Of the peers that run jobs beside each other."""

POLL = 0.005

Handled = Callable[[int], None]


class Found(msgspec.Struct, kw_only=True):
    """What one run found."""

    enqueued: int
    enqueue_seconds: float
    handled: int
    handle_seconds: float
    """From the start of the worker to the last job."""


class Peer(ABC):
    """One peer's queue, open in this process."""

    packages: tuple[str, ...] = ()
    """To install; the first is the peer's own."""
    modules: tuple[str, ...] = ()
    note: str
    chunk = CHUNK

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    @abstractmethod
    def prepare(self, handled: Handled) -> None:
        """Make the tables, and register a job that does nothing but tell that it was handled."""

    @abstractmethod
    def enqueue(self, numbers: range) -> None:
        """Enqueue so many; committed on return."""

    @abstractmethod
    def work(self) -> None:
        """Handle what was enqueued: claim, run, ack. May go on for ever."""


class AsyncPeer(Peer):
    """A peer of coroutines, all of them in one event loop."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        uvloop: Any = importlib.import_module("uvloop") if importlib.util.find_spec("uvloop") else None
        self._runner = asyncio.Runner(loop_factory=None if uvloop is None else uvloop.new_event_loop)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)


class Tenantq(Peer):
    note = f"enqueue_many of {CHUNK:,}; claim and ack of {BATCH}"

    def prepare(self, handled: Handled) -> None:
        self._handled = handled
        self._queue = open_queue(self.dsn)
        self._queue.migrate()

    def enqueue(self, numbers: range) -> None:
        self._queue.enqueue_many(QUEUE, [{"n": n} for n in numbers])

    def work(self) -> None:
        while messages := self._queue.claim(QUEUE, BATCH):
            for message in messages:
                assert "n" in message.payload
            self._queue.ack(*messages)
            self._handled(len(messages))


class Documents(Peer):
    note = (
        f"INSERT of {CHUNK:,} in one pipeline; the claim one by one, as printed; the ack deletes; tuned autovacuum"
    )

    def prepare(self, handled: Handled) -> None:
        self._handled = handled
        self._connection = connect(self.dsn)
        self._connection.execute(TABLE + PARTIAL_INDEX)
        self._connection.execute(TUNED)

    def enqueue(self, numbers: range) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(ENQUEUE, [(msgspec.json.encode({"n": n}).decode(),) for n in numbers])

    def work(self) -> None:
        worker = str(os.getpid())
        while row := self._connection.execute(CLAIM_RETURNING, (worker,)).fetchone():
            assert "n" in msgspec.json.decode(row[1])
            self._connection.execute(ACK, (row[0], worker))
            self._handled(1)


class Procrastinate(AsyncPeer):
    packages = ("procrastinate",)
    modules = ("procrastinate",)
    note = f"batch_defer_async of {CHUNK:,}; a worker of concurrency {CONCURRENCY}, one job a fetch; delete_jobs"

    def prepare(self, handled: Handled) -> None:
        module = importlib.import_module("procrastinate")
        connector = module.PsycopgConnector(conninfo=self.dsn, min_size=CONCURRENCY, max_size=CONCURRENCY)
        self._app = module.App(connector=connector)

        @self._app.task(name="noop")  # type: ignore[untyped-decorator]
        async def noop(n: int) -> None:  # noqa: ARG001
            handled(1)

        self._noop = noop
        self.run(self._open())

    async def _open(self) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    def enqueue(self, numbers: range) -> None:
        self.run(self._noop.batch_defer_async(*[{"n": n} for n in numbers]))

    def work(self) -> None:
        self.run(
            self._app.run_worker_async(
                concurrency=CONCURRENCY,
                wait=False,
                listen_notify=False,
                install_signal_handlers=False,
                delete_jobs="always",
            )
        )


class PgQueuer(AsyncPeer):
    packages = ("pgqueuer", "asyncpg")
    modules = ("pgqueuer", "asyncpg")
    note = (
        f"enqueue of {CHUNK:,}; asyncpg, uvloop; run(batch_size={BATCH}), which buffers its acks; durable tables"
    )

    def prepare(self, handled: Handled) -> None:
        self._pgqueuer = importlib.import_module("pgqueuer")
        self.run(self._open(handled))

    async def _open(self, handled: Handled) -> None:
        connection = await importlib.import_module("asyncpg").connect(self.dsn)
        driver = importlib.import_module("pgqueuer.db").AsyncpgDriver(connection)
        self._queries = importlib.import_module("pgqueuer.queries").Queries(driver)
        await self._queries.install()
        self._worker = self._pgqueuer.PgQueuer(driver)

        @self._worker.entrypoint("noop")  # type: ignore[untyped-decorator]
        async def noop(_job: object) -> None:
            handled(1)

    def enqueue(self, numbers: range) -> None:
        payloads = [msgspec.json.encode({"n": n}) for n in numbers]
        self.run(self._queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads)))

    def work(self) -> None:
        self.run(self._worker.qm.run(batch_size=BATCH))


class Soniq(AsyncPeer):
    packages = ("soniq",)
    modules = ("soniq",)
    note = f"enqueue_many of {CHUNK:,}; run_worker of concurrency {CONCURRENCY}, which claims one by one"

    def prepare(self, handled: Handled) -> None:
        self._app = importlib.import_module("soniq").Soniq(database_url=self.dsn, pool_max_size=3 * CONCURRENCY)

        @self._app.job(name="noop")  # type: ignore[untyped-decorator]
        async def noop(n: int) -> None:  # noqa: ARG001
            handled(1)

        self._noop = noop
        self.run(self._app.setup())

    def enqueue(self, numbers: range) -> None:
        self.run(self._app.enqueue_many(self._noop, [{"n": n} for n in numbers]))

    def work(self) -> None:
        self.run(self._work())

    async def _work(self) -> None:
        await self._app.run_worker(concurrency=CONCURRENCY, shutdown_event=asyncio.Event())


class Absurd(Peer):
    packages = ("absurd-sdk", "absurdctl")
    modules = ("absurd_sdk", "absurdctl")
    note = f"spawn, which takes one; start_worker(batch_size={BATCH}), which completes one by one"
    chunk = 50

    def prepare(self, handled: Handled) -> None:
        with connect(self.dsn) as connection:
            connection.execute(importlib.import_module("absurdctl").BUNDLED_SCHEMA_SQL)
        self._app = importlib.import_module("absurd_sdk").Absurd(self.dsn, queue_name="bench")
        self._app.create_queue()

        @self._app.register_task(name="noop")  # type: ignore[untyped-decorator]
        def noop(_params: object, _context: object) -> dict[str, Any]:
            handled(1)
            return {}

    def enqueue(self, numbers: range) -> None:
        for n in numbers:
            self._app.spawn("noop", {"n": n})

    def work(self) -> None:
        self._app.start_worker(batch_size=BATCH)


PEERS: dict[str, type[Peer]] = {
    "tenantq": Tenantq,
    "documents' loop": Documents,
    "procrastinate": Procrastinate,
    "pgqueuer": PgQueuer,
    "soniq": Soniq,
    "absurd-sdk": Absurd,
}


def missing(name: str) -> str | None:
    """Say what has to be installed for a peer; None if it is all there."""
    peer = PEERS[name]
    if all(importlib.util.find_spec(module) for module in peer.modules):
        return None
    return f"not installed: pip install {' '.join(peer.packages)}"


class Run:
    """One run: what was handled so far, and the end of the process when it is all or time is over."""

    def __init__(self, jobs: int, seconds: float) -> None:
        self._jobs = jobs
        self._seconds = seconds
        self._handled = 0
        self._last = 0.0

    def handled(self, count: int) -> None:
        """So many more were."""
        self._handled += count
        self._last = time.perf_counter()

    def go(self, peer: Peer) -> None:
        """Enqueue, handle, print what was found, and end the process."""
        peer.prepare(self.handled)
        peer.enqueue(range(10))  # the first call connects, and prepares what it prepares
        started = time.perf_counter()
        enqueued, step = 0, peer.chunk
        while enqueued < self._jobs and time.perf_counter() - started < self._seconds:
            peer.enqueue(range(enqueued, min(enqueued + step, self._jobs)))
            enqueued = min(enqueued + step, self._jobs)
        took = time.perf_counter() - started
        threading.Thread(target=self._watch, args=(enqueued, took), daemon=True).start()
        peer.work()
        threading.Event().wait(self._seconds)  # the watcher ends the process

    def _watch(self, enqueued: int, took: float) -> None:
        started = time.perf_counter()
        while self._handled < enqueued + 10 and time.perf_counter() - started < self._seconds:
            time.sleep(POLL)
        # What is handled last is acked a moment later; a worker that goes on for ever is ended here.
        seconds = max(self._last - started, POLL)
        found = Found(enqueued=enqueued, enqueue_seconds=took, handled=self._handled, handle_seconds=seconds)
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    _, name_, dsn_, jobs_, seconds_ = sys.argv
    Run(int(jobs_), float(seconds_)).go(PEERS[name_](dsn_))
