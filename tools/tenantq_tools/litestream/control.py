"""The control socket: a file is registered, synced, unregistered, and what Litestream says of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tenantq._litestream import Running, ask, listed
from tenantq.errors import TenantFileError
from tenantq_tools.litestream.errors import LitestreamFailed, NotRegistered, replica_error

__all__ = ["Control", "Synced", "shard_lock"]

SYNC_TIMEOUT = 30
"""Seconds that a sync may take: a first one sends the whole file."""

RELEASE_TIMEOUT = 5
"""Seconds that Litestream tries to send the last changes of a file that it is to let go."""

_OK = 200
_NOT_FOUND = 404


class Synced(msgspec.Struct, frozen=True):
    """How far a file is in its replica."""

    txid: int
    """Of the file, as Litestream counts."""
    has_news: bool
    """Whether there was anything to send since the last look."""


class Control:
    """Speaks to the Litestream of a store. Each call may raise LitestreamGone or LitestreamSilent."""

    def __init__(self, running: Running) -> None:
        self.running = running

    def version(self) -> str:
        """Return the version of the Litestream that answers."""
        _status, document = ask(self.running.socket, "GET /info")
        return str(document.get("version", ""))

    def register(self, path: Path, url: str) -> None:
        """Let Litestream open a file; it stays so until it is unregistered, or Litestream ends."""
        body: dict[str, object] = {"path": self.running.path_of(path), "replica_url": url}
        status, document = ask(self.running.socket, "POST /register", body, timeout=RELEASE_TIMEOUT)
        if status != _OK:
            raise LitestreamFailed(f"Litestream does not open {path}: {document.get('error')}", path=str(path))

    def sync(self, path: Path, *, timeout: int | None = None, tenant: str | None = None) -> Synced:
        """Wait until all that is committed is in the replica. Raises ReplicaError, NotRegistered."""
        seconds = SYNC_TIMEOUT if timeout is None else timeout
        body: dict[str, object] = {"path": self.running.path_of(path), "wait": True, "timeout": seconds}
        status, document = ask(self.running.socket, "POST /sync", body, timeout=seconds)
        if status == _NOT_FOUND:
            raise NotRegistered(tenant=tenant, path=str(path))
        if status != _OK:
            raise replica_error(str(document.get("error")), tenant)
        txid, replicated = _number(document, "txid"), _number(document, "replicated_txid")
        if replicated < txid:
            raise replica_error(f"it is at transaction {replicated}, the file at {txid}", tenant)
        return Synced(txid, document.get("status") != "no_change")

    def unregister(self, path: Path) -> str:
        """Let Litestream close a file; return what it says it could not send, empty if nothing."""
        body: dict[str, object] = {"path": self.running.path_of(path), "timeout": RELEASE_TIMEOUT}
        status, document = ask(self.running.socket, "POST /unregister", body, timeout=RELEASE_TIMEOUT)
        return "" if status in (_OK, _NOT_FOUND) else str(document.get("error"))

    def registered(self) -> set[str]:
        """Return the paths of the files that Litestream has open."""
        return listed(self.running.socket)


@contextmanager
def shard_lock(path: Path) -> Iterator[None]:
    """Hold the lock that the store holds while it deletes or replaces a file of the shard.

    A file is registered with it held, so that none is between the store's word to let it go and its end.
    """
    try:
        descriptor = os.open(path.parent, os.O_RDONLY)
    except OSError as exc:
        raise TenantFileError(f"{path.parent}: {exc}", path=str(path.parent)) from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that is being started may share the descriptor
        os.close(descriptor)


def _number(document: dict[str, object], name: str) -> int:
    value = document.get(name)
    return value if isinstance(value, int) else 0
