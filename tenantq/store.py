"""A store: a directory of tenants, a bounded number of them open, each found by its id alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tenantq import _schema, naming
from tenantq._creation import clear_leftovers
from tenantq._failing import FailingTenant
from tenantq._filesystem import refuse_network_filesystem
from tenantq._lifecycle import Lifecycle
from tenantq._schedule import Work
from tenantq._sqlite import check_sqlite_version
from tenantq._store_periods import FILE_NAME as PERIODS_FILE
from tenantq._store_periods import StorePeriods
from tenantq.backoff import Backoff
from tenantq.clock import Clock, SystemClock
from tenantq.config import MAX_CACHE_BYTES, MAX_WAL_BYTES, StoreConfig
from tenantq.errors import (
    StoreNotFound,
    TenantFileError,
    TenantqError,
)
from tenantq.memory import MemoryQueue
from tenantq.periodic import StorePeriodic
from tenantq.tenant import Tenant
from tenantq.watch import Watch, list_names, list_shards

__all__ = ["Store", "open"]

SWEEP_INTERVAL = 1.0
"""Seconds between two looks at the files for what nobody rang the doorbell for."""


def open(  # noqa: A001 - tenantq.open reads as it should
    path: str | os.PathLike[str],
    *,
    durability: str = "normal",
    create: bool = True,
    busy_timeout: float = 5.0,
    max_open_tenants: int = 0,
    max_cache_bytes: int = MAX_CACHE_BYTES,
    max_wal_bytes: int = MAX_WAL_BYTES,
    max_depth: int | None = None,
    memory_depth: int = 10_000,
    max_outbox: int | None = None,
    checksums: bool = False,
    backoff: Backoff | None = None,
    migrate: bool = True,
    clock: Clock | None = None,
) -> Store:
    """Open a store, a directory of tenants; it is made if it is not there and `create` is set.

    durability: "normal" (the documents' pragma set): an acknowledged write survives a crash of the process,
    but power loss or a crash of the machine may take the last ones. "full": it survives those too, at the
    price of a disk sync for each commit.
    busy_timeout: seconds that a call waits for its turn at a tenant's file before it raises TenantBusy.
    max_open_tenants: files open at once, three descriptors each; 0 for as many as half of the process's
    descriptors (`ulimit -n`) allow, 1,000 at most. Where the application has taken the rest, fewer are open for
    a while.
    max_cache_bytes: what SQLite's page caches of all open tenants may come to; a tenant's is 256 MiB at most.
    max_wal_bytes: what their -wal files may come to before they are checkpointed; a tenant's is 40 MB at most.
    max_depth: messages that each queue of a tenant holds, where `Tenant.limit` gives it no bound of its own; one
    more waits for room or raises QueueFull. None for no bound.
    memory_depth: messages that the memory layer holds; one more raises QueueFull.
    max_outbox: events of one tenant that may wait for Postgres; one more raises QueueFull. None: any number, so
    that a long outage of Postgres stops nobody and fills the disk.
    checksums: write a checksum with each message and event, by which `tenantq.verify` finds a byte of a payload
    that has changed on the disk. Each process that writes says for itself; what is written without is not
    checked.
    backoff: the wait after a failed attempt.
    migrate: bring a file of an older schema to this version's when it is opened. False: raise OlderFile, and leave
    it to processes of the older version.

    Raises StoreNotFound, UnsupportedSQLite, InvalidArgument, TenantFileError (a network file system).
    """
    config = StoreConfig.of(
        durability=durability,
        busy_timeout=busy_timeout,
        max_open_tenants=max_open_tenants,
        max_cache_bytes=max_cache_bytes,
        max_wal_bytes=max_wal_bytes,
        max_depth=max_depth,
        memory_depth=memory_depth,
        max_outbox=max_outbox,
        checksums=checksums,
        backoff=backoff or Backoff(),
        migrate=migrate,
    )
    check_sqlite_version()
    root = Path(path).absolute()
    if not root.is_dir():
        if not create:
            raise StoreNotFound(f"there is no store at {root}", path=str(root))
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise TenantFileError(f"the store {root} cannot be made: {exc}", path=str(root)) from exc
    refuse_network_filesystem(root)
    return Store(root, config, clock or SystemClock())


class Store(Lifecycle):
    """A directory of tenants. Threads may share it; a forked child reopens what it uses.

    Made by `tenantq.open`; a context manager that closes it.
    """

    def tenant(self, tenant_id: str, *, create: bool = True) -> Tenant:
        """Return a tenant; its file appears at the first write. Raises InvalidTenantId, UnknownTenant."""
        self._check_open()
        naming.check_tenant_id(tenant_id)
        tenant = Tenant(self, tenant_id, create=create)
        if not create and not tenant.path.exists():
            raise self.absence(tenant_id, tenant.path)
        return tenant

    def tenants(self) -> Iterator[str]:
        """Yield the ids of all tenants that have a file; no readable name's file is opened for it.

        A file that is not where its tenant's file would be is none of a tenant.
        """
        self._check_open()
        for shard in list_shards(self.root):
            yield from self.tenants_of(shard.name)

    def __contains__(self, tenant_id: object) -> bool:
        self._check_open()
        try:
            path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))  # type: ignore[arg-type]
        except TenantqError:
            return False
        return path.exists()

    def watch(self, sweep_interval: float = SWEEP_INTERVAL, *, only: Work | None = None) -> Watch:
        """Return a Watch over all tenants; its first `wait` returns every one of them.

        With `only` it is one over those tenants that have messages to claim, or events to forward: the
        schedule knows them, and no other tenant's file is opened.
        """
        self._check_open()
        watch = Watch(
            self.root,
            self._doorbell,
            self._schedule,
            self.clock,
            only=only,
            sweep_interval=sweep_interval,
            unsubscribe=self._unwatch,
            read_id=self._read_id,
        )
        with self._lock:
            self._watches = (*self._watches, watch)
        return watch

    @property
    def periodic(self) -> StorePeriodic:
        """The periodic messages for all tenants: `add`, `list` and `remove`. They lie in a file of the store."""
        self._check_open()
        return StorePeriodic(self.clock, self.periods)

    @property
    def memory(self) -> MemoryQueue:
        """The memory layer of this store in this process: a restart empties it."""
        self._check_open()
        if self._memory is None:
            with self._lock:
                if self._memory is None:
                    self._memory = MemoryQueue(
                        max_depth=self.config.memory_depth,
                        backoff=self.config.backoff,
                        clock=self.clock,
                    )
        return self._memory

    def failing(self) -> list[FailingTenant]:
        """Return the tenants that this process could not serve when it last tried, the longest failing first.

        A worker tries each again after a second, and after twice as long each time, a minute at most; one that
        works again is no longer among them. Opens no file.
        """
        return self.failing_tenants.listed()

    # For the other modules of this package

    def tenants_of(self, shard_name: str) -> Iterator[str]:
        """Yield the ids of the tenants that have a file in one shard."""
        shard = self.root / shard_name
        names = sorted(list_names(shard))
        clear_leftovers(shard, names)
        for name in names:
            tenant_id = naming.tenant_id_of(name)
            if tenant_id is None and naming.is_hashed(name):
                tenant_id = self._read_id(shard / name)
            if tenant_id is None or naming.shard_name(tenant_id) != shard_name:
                continue
            if naming.file_name(tenant_id) == name:
                yield tenant_id

    @property
    def periods_path(self) -> Path:
        """Where the periodic messages for all tenants lie."""
        return self.root / PERIODS_FILE

    def periods(self, *, create: bool = False) -> contextlib.AbstractContextManager[StorePeriods | None]:
        """Open the file of the periodic messages for all tenants; None if there is none and none is to be made."""
        self._check_open()
        config = self.config
        return StorePeriods.opened(self.root, self.clock, config.durability, config.busy_timeout, create=create)
