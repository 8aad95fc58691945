"""What is done with one tenant: register it, confirm its position, let it go. Each call waits for Litestream."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from tenantq import Store, TenantqError
from tenantq._litestream import LitestreamSilent, meta_directory
from tenantq.errors import NewerFile, OlderFile, UnknownTenant
from tenantq_tools.litestream.binary import Binary
from tenantq_tools.litestream.control import Control, shard_lock
from tenantq_tools.litestream.errors import NotRegistered
from tenantq_tools.litestream.ledger import has_wal, inode_of, position_of
from tenantq_tools.litestream.once import run_once
from tenantq_tools.litestream.replica import look_for
from tenantq_tools.litestream.settings import Settings

__all__ = ["Moved", "Mover", "tidy"]

LOCKED_TIMEOUT = 2
"""Seconds that a tenant's writers may wait while its last changes are sent."""


FIRST = 1
"""The transaction that has the whole file: nothing that came before it can be missing."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """How far a tenant's file is in the replica."""

    position: str
    txid: int
    has_news: bool
    """Whether something was sent."""
    has_snapshot: bool = False


class _Undo(Exception):
    """Ends a transaction in which nothing was written."""


class Mover:
    """Acts on the tenants of a store, through one Litestream. Threads may share it."""

    def __init__(self, store: Store, control: Control, settings: Settings, binary: Binary) -> None:
        self._store = store
        self._control = control
        self._settings = settings
        self._binary = binary
        self._inodes: dict[str, str] = {}

    def admit(self, tenant_id: str) -> Moved:
        """Register a tenant and send all that it has. Raises UnknownTenant, ReplicaError, LitestreamSilent."""
        path = self._path_of(tenant_id)
        with shard_lock(path):  # or a restore would replace it between its word to Litestream and the swap
            self._inodes[tenant_id] = inode_of(position_of(path))
            if not self._inodes[tenant_id]:
                raise UnknownTenant(f"the store has no tenant {tenant_id!r}", tenant=tenant_id)
            self._control.register(path, self._settings.url_of(path))
        return self.confirm(tenant_id)

    def confirm(self, tenant_id: str) -> Moved:
        """Send what a registered tenant has, and return its position. Raises NotRegistered, ReplicaError."""
        path = self._path_of(tenant_id)
        position = self._position_of_same(tenant_id, path)
        synced = self._control.sync(path, tenant=tenant_id)
        has_news = synced.has_news
        if position_of(path) != position:  # Litestream writes too: it marks what it has sent
            position = position_of(path)
            synced = self._control.sync(path, tenant=tenant_id)
            has_news |= synced.has_news
        return Moved(position=position, txid=synced.txid, has_news=has_news)

    def release(self, tenant_id: str, *, with_snapshot: bool = False) -> Moved:
        """Send what a tenant has, let Litestream close it, and see whether it can be restored from the replica.

        with_snapshot: all of the file is sent once more, and what is older than it is to be kept is removed, which
        Litestream does by itself only for the files that it has at the turn of the day.

        Raises ReplicaError, ReplicaGap (the tenant is let go then too), NotRegistered.
        """
        path = self._path_of(tenant_id)
        try:
            self._position_of_same(tenant_id, path)
            if with_snapshot:
                run_once(self._settings, self._binary, tenant_id, path, snapshot=True)
            sent = self._send_last(tenant_id, path)
        except LitestreamSilent:
            raise
        except TenantqError:
            self._control.unregister(path)
            raise
        if sent.txid > FIRST:
            self.look(tenant_id, sent.txid)
        return msgspec.structs.replace(sent, has_snapshot=with_snapshot)

    def look(self, tenant_id: str, txid: int) -> None:
        """Check in the replica itself that a tenant can be restored up to a transaction. Raises ReplicaGap."""
        look_for(self._binary, self._settings.url_of(self._path_of(tenant_id)), tenant_id, txid)

    def _send_last(self, tenant_id: str, path: Path) -> Moved:
        synced = self._control.sync(path, tenant=tenant_id)  # what takes long comes before the lock
        try:
            transaction = self._store.tenant(tenant_id, create=False).transaction()
            with transaction:
                # Nobody writes between the last sync and the look at the position.
                synced = self._control.sync(path, timeout=LOCKED_TIMEOUT, tenant=tenant_id)
                self._control.unregister(path)
                position = position_of(path)
                raise _Undo
        except _Undo:
            return Moved(
                position=tidy(self._store, tenant_id, path, position), txid=synced.txid, has_news=synced.has_news
            )
        except (OlderFile, NewerFile):
            # Not ours to open, so nobody keeps its writers waiting: what another version commits in these very
            # milliseconds is sent with the tenant's next change.
            self._control.unregister(path)
            return Moved(position=position_of(path), txid=synced.txid, has_news=synced.has_news)

    def _position_of_same(self, tenant_id: str, path: Path) -> str:
        """Return the position of the file that was registered.

        Litestream does not notice that it was replaced past the store, by a `mv`: it would say of the old one that
        it is in the replica. It is let go, to be registered anew. Raises NotRegistered, UnknownTenant.
        """
        position = position_of(path)
        if inode_of(position) == self._inodes.get(tenant_id):
            return position
        self._control.unregister(path)
        shutil.rmtree(meta_directory(path), ignore_errors=True)
        if not position:
            raise UnknownTenant(f"the file of tenant {tenant_id!r} is gone", tenant=tenant_id)
        raise NotRegistered(f"the file of tenant {tenant_id!r} was replaced", tenant=tenant_id, path=str(path))

    def _path_of(self, tenant_id: str) -> Path:
        return self._store.tenant(tenant_id).path


def tidy(store: Store, tenant_id: str, path: Path, position: str) -> str:
    """Close a file that Litestream leaves with its -wal beside it; return the position that it has then.

    A -wal that is left behind would be replayed onto whatever file is copied there later. The position is that of
    the same content only if nobody has written meanwhile, and nobody else has the file open.
    """
    is_same = position_of(path) == position
    with store.exclusive(tenant_id, is_replaced=False):
        closed = position_of(path)
    return closed if is_same and not has_wal(closed) else position
