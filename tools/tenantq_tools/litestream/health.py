"""The health of a store's replication: each file's position compared with the one that is in the replica.

Whether processes are there says nothing: a Litestream that stands still is there too.
"""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path

import msgspec

from tenantq import Store
from tenantq._litestream import LitestreamSilent, Running
from tenantq_tools.litestream.control import Control
from tenantq_tools.litestream.errors import SupervisorRuns
from tenantq_tools.litestream.ledger import Entry, Ledger, position_of
from tenantq_tools.litestream.settings import directory_of
from tenantq_tools.litestream.supervisor import HEARTBEAT_FILE, replication_lock

__all__ = ["DEFAULT_MAX_LAG", "Replication", "State", "TenantReplication", "read_replication", "read_tenant"]

DEFAULT_MAX_LAG = 60.0
"""Seconds that a change may take to the replica before the tenant counts as a problem."""

HEARTBEAT_SECONDS = 60.0
"""Without a round of the supervisor for so long, it stands still."""


class State(StrEnum):
    """How a tenant is replicated."""

    REPLICATED = "replicated"
    """All that is in its file is in the replica."""
    BEHIND = "behind"
    """It has changes that are not known to be there."""
    FAILING = "failing"
    """Sending them failed."""
    BROKEN = "broken"
    """The replica cannot be restored from."""
    NEVER = "never"
    """It was never replicated."""


class TenantReplication(msgspec.Struct, frozen=True, kw_only=True):
    """How one tenant is replicated."""

    tenant: str
    state: State
    lag: float
    """Seconds since the first change that is not known to be in the replica; 0 if there is none."""
    txid: int
    confirmed_at: float | None
    """When it was known to be in the replica last, in Unix seconds."""
    error: str | None

    def is_problem(self, max_lag: float) -> bool:
        """Whether somebody should see to it."""
        return self.state not in (State.REPLICATED, State.BEHIND, State.NEVER) or self.lag > max_lag


class Replication(msgspec.Struct, frozen=True, kw_only=True):
    """How a store is replicated."""

    supervisor: str
    """running, silent (it has not gone round lately) or stopped."""
    litestream: str | None
    """The version of the Litestream that answers; None if none does."""
    registered: int
    """Tenants that Litestream has."""
    tenants: list[TenantReplication]


def read_replication(store: Store) -> Replication:
    """Compare every tenant's file with what is known of its replica; no tenant is opened."""
    directory = directory_of(store.root)
    ledger = Ledger.read(directory)
    running = Running.read(store.root)
    version, registered = None, 0
    if running is not None:
        try:
            control = Control(running)
            version, registered = control.version(), len(control.registered())
        except LitestreamSilent:
            version = None
    return Replication(
        supervisor=_supervisor(store, directory),
        litestream=version,
        registered=registered,
        tenants=[_compare(ledger.of(tenant), store.tenant(tenant).path) for tenant in store.tenants()],
    )


def read_tenant(store: Store, tenant_id: str) -> TenantReplication:
    """Compare one tenant's file with what is known of its replica. Raises UnknownTenant."""
    path = store.tenant(tenant_id, create=False).path
    return _compare(Ledger.read(directory_of(store.root)).of(tenant_id), path)


def _compare(entry: Entry, path: Path) -> TenantReplication:
    is_same = entry.position == position_of(path)
    if entry.is_broken:
        state = State.BROKEN
    elif is_same:
        state = State.REPLICATED
    elif entry.error:
        state = State.FAILING
    else:
        state = State.BEHIND if entry.position else State.NEVER
    since = entry.behind_since or (0.0 if is_same else _changed_at(path))
    return TenantReplication(
        tenant=entry.tenant,
        state=state,
        lag=0.0 if state == State.REPLICATED else max(0.0, time.time() - since),
        txid=entry.txid,
        confirmed_at=entry.confirmed_at or None,
        error=entry.error or None,
    )


def _changed_at(path: Path) -> float:
    """Return when a file or its -wal was written last."""
    times = [0.0]
    for one in (path, path.with_name(f"{path.name}-wal")):
        try:
            times.append(one.stat().st_mtime)
        except OSError:
            continue
    return max(times)


def _supervisor(store: Store, directory: Path) -> str:
    try:
        with replication_lock(store):
            return "stopped"
    except SupervisorRuns:
        pass
    try:
        age = time.time() - (directory / HEARTBEAT_FILE).stat().st_mtime
    except OSError:
        age = 0.0  # it has just begun
    return "running" if age < HEARTBEAT_SECONDS else "silent"
