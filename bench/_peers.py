"""Other queues in SQLite from PyPI, each used as its documentation says."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PEERS", "Peer", "missing"]

MODULES = {"persist-queue": "persistqueue"}
"""The module of a package that has another name."""


class Peer(ABC):
    """One peer's queue, open in this process: enqueue, take one and end it."""

    package: str
    durability: str
    """The durability at which both run: what the peer's documentation offers and SQLite calls it."""
    note: str

    @abstractmethod
    def __init__(self, directory: Path) -> None:
        """Open the queue."""

    def fill(self, texts: Sequence[str]) -> None:
        """Enqueue many, as fast as the peer offers."""
        for text in texts:
            self.put(text)

    @abstractmethod
    def put(self, text: str) -> None:
        """Enqueue one message; committed on return."""

    @abstractmethod
    def take(self) -> None:
        """Take one message and end it."""

    def tidy(self) -> None:
        """Remove what is done, where the peer leaves that to its user; not timed."""

    def close(self) -> None:
        """Close it."""


class Huey(Peer):
    package = "huey"
    durability = "full"
    note = "SqliteHuey as it comes, which syncs; dequeue deletes, so there is no ack; the task is executed"

    def __init__(self, directory: Path) -> None:
        self._open = importlib.import_module("huey").SqliteHuey
        self._path = str(directory / "huey.db")
        self._huey = self._open(filename=self._path, results=False)
        self._task = self._huey.task(name="noop")(_noop)

    def fill(self, texts: Sequence[str]) -> None:
        unsynced = self._open(filename=self._path, results=False, fsync=False)
        task = unsynced.task(name="noop")(_noop)
        for text in texts:
            task(text)
        unsynced.storage.close()

    def put(self, text: str) -> None:
        self._task(text)

    def take(self) -> None:
        self._huey.execute(self._huey.dequeue())

    def close(self) -> None:
        self._huey.storage.close()


class LiteQueue(Peer):
    package = "litequeue"
    durability = "normal"
    note = "put, pop, done; it sets NORMAL itself; prune between the trials, not timed"

    def __init__(self, directory: Path) -> None:
        self._queue = importlib.import_module("litequeue").LiteQueue(str(directory / "queue.sqlite3"))

    def fill(self, texts: Sequence[str]) -> None:
        with self._queue.transaction():
            for text in texts:
                self._queue.put(text)

    def put(self, text: str) -> None:
        self._queue.put(text)

    def take(self) -> None:
        self._queue.done(self._queue.pop().message_id)

    def tidy(self) -> None:
        self._queue.prune()

    def close(self) -> None:
        self._queue.close()


class LocalQueue(Peer):
    package = "localqueue"
    durability = "normal"
    note = "put, get, ack; DurabilityMode.RELAXED, its default, is NORMAL"

    def __init__(self, directory: Path) -> None:
        self._queue = importlib.import_module("localqueue").SimpleQueue(str(directory))

    def fill(self, texts: Sequence[str]) -> None:
        for start in range(0, len(texts), 1000):
            self._queue.put_many(texts[start : start + 1000])

    def put(self, text: str) -> None:
        self._queue.put(text)

    def take(self) -> None:
        self._queue.ack(self._queue.get())

    def close(self) -> None:
        self._queue.close()


class SimpleBroker(Peer):
    package = "simplebroker"
    durability = "normal"
    note = (
        "a persistent Queue; it syncs by default, here BROKER_SYNC_MODE=NORMAL; read deletes, so there is no ack"
    )

    def __init__(self, directory: Path) -> None:
        module = importlib.import_module("simplebroker")
        config = module.resolve_config(env={"BROKER_SYNC_MODE": "NORMAL"})
        self._queue = module.Queue("jobs", db_path=str(directory / "broker.db"), persistent=True, config=config)

    def put(self, text: str) -> None:
        self._queue.write(text)

    def take(self) -> None:
        assert self._queue.read_one() is not None

    def close(self) -> None:
        self._queue.close()


class PersistQueue(Peer):
    package = "persist-queue"
    durability = "full"
    note = "SQLiteAckQueue: put, get, ack; it always syncs; clear_acked_data between the trials, not timed"

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._queue = importlib.import_module("persistqueue").SQLiteAckQueue(str(directory / "queue"))

    def put(self, text: str) -> None:
        self._queue.put(text)

    def take(self) -> None:
        self._queue.ack(self._queue.get())

    def tidy(self) -> None:
        self._queue.clear_acked_data(keep_latest=0)

    def close(self) -> None:
        self._queue.close()


def _noop(_text: str) -> None:
    """Do nothing."""


PEERS: dict[str, type[Peer]] = {
    peer.package: peer for peer in (Huey, LiteQueue, LocalQueue, SimpleBroker, PersistQueue)
}


def missing() -> set[str]:
    """Return the packages that are not installed."""
    return {name for name in PEERS if importlib.util.find_spec(MODULES.get(name, name)) is None}
