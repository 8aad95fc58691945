"""One tenant, now: sent to the replica, looked for there, with a supervisor or without."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tenantq import Store
from tenantq._litestream import LitestreamSilent, Running
from tenantq.errors import NewerFile, OlderFile, UnknownTenant
from tenantq_tools.litestream.binary import Binary
from tenantq_tools.litestream.control import Control, shard_lock
from tenantq_tools.litestream.errors import SupervisorRuns
from tenantq_tools.litestream.ledger import Ledger, position_of
from tenantq_tools.litestream.mover import tidy
from tenantq_tools.litestream.once import run_once
from tenantq_tools.litestream.process import end_orphan
from tenantq_tools.litestream.replica import look_for, reach_of
from tenantq_tools.litestream.settings import Settings, directory_of
from tenantq_tools.litestream.supervisor import replication_lock

__all__ = ["Sent", "send"]

TURN_SECONDS = 30.0
"""Until another process that holds the replication, and no Litestream that answers, is given up."""

PAUSE = 0.1

ROUNDS = 5
"""Until the position of a tenant that is written to all the time is left to the next time."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that is in its replica."""

    tenant: str
    replica: str
    """Its own URL."""
    txid: int
    """Up to which it can be restored, as Litestream counts."""


def send(store: Store, settings: Settings, binary: Binary, tenant_id: str, *, snapshot: bool = False) -> Sent:
    """Return when all that the tenant had committed before the call can be restored from its replica.

    The replica itself is asked for it. `snapshot` sends the whole file, which mends a replica that has lost files.
    Raises UnknownTenant, ReplicaError, ReplicaGap, LitestreamFailed, LitestreamSilent.
    """
    settings.check(store.root)
    path = store.tenant(tenant_id, create=False).path
    deadline = time.monotonic() + TURN_SECONDS
    while True:
        with contextlib.suppress(SupervisorRuns), replication_lock(store):
            end_orphan(store.root)
            return _send_alone(store, settings, binary, tenant_id, path, snapshot=snapshot)
        running = Running.read(store.root)
        if running is not None:
            return _send_through(running, settings, binary, tenant_id, path, snapshot=snapshot)
        if time.monotonic() > deadline:
            raise LitestreamSilent("another process has the replication of this store, and no Litestream")
        threading.Event().wait(PAUSE)  # it is starting, or is another command like this one


def _send_through(
    running: Running, settings: Settings, binary: Binary, tenant_id: str, path: Path, *, snapshot: bool
) -> Sent:
    """Send a tenant by the Litestream that runs."""
    control, url = Control(running), settings.url_of(path)
    if snapshot:
        with _files_lock(path, tenant_id):  # the supervisor registers it again when this is over
            control.unregister(path)
            run_once(settings, binary, tenant_id, path, snapshot=True)
            txid = reach_of(binary, url, tenant_id)
        return Sent(tenant=tenant_id, replica=url, txid=txid)
    was_there = running.path_of(path) in control.registered()
    with _files_lock(path, tenant_id):
        # Anew: it may have a file open that was replaced since, and would say of that one that it is sent.
        control.unregister(path)
        control.register(path, url)
    try:
        synced = control.sync(path, tenant=tenant_id)
        look_for(binary, url, tenant_id, synced.txid)
    finally:
        if not was_there:
            control.unregister(path)
    return Sent(tenant=tenant_id, replica=url, txid=synced.txid)


def _send_alone(
    store: Store, settings: Settings, binary: Binary, tenant_id: str, path: Path, *, snapshot: bool
) -> Sent:
    """Send a tenant by a Litestream of its own, which ends with it."""
    url = settings.url_of(path)
    with contextlib.closing(Ledger.read(directory_of(store.root))) as ledger:
        entry = ledger.of(tenant_id)
        if entry.position == position_of(path) and not snapshot and not entry.is_broken:
            look_for(binary, url, tenant_id, entry.txid)
            return Sent(tenant=tenant_id, replica=url, txid=entry.txid)
        with contextlib.suppress(OlderFile, NewerFile):
            store.tenant(tenant_id, create=False).stats()  # open here, it keeps its -wal from one run to the next
        for _ in range(ROUNDS):
            position = position_of(path)
            run_once(settings, binary, tenant_id, path, snapshot=snapshot)
            txid = reach_of(binary, url, tenant_id)
            snapshot = False
            if position_of(path) == position:  # else Litestream has made its marks, or somebody has written
                ledger.confirm(tenant_id, tidy(store, tenant_id, path, position), txid)
                break
    return Sent(tenant=tenant_id, replica=url, txid=txid)


@contextlib.contextmanager
def _files_lock(path: Path, tenant_id: str) -> Iterator[None]:
    with shard_lock(path):
        if not path.exists():
            raise UnknownTenant(f"the store has no tenant {tenant_id!r}", tenant=tenant_id)
        yield
