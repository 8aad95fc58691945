"""A store for coroutines: the core's, with a few threads that serve all of its tenants."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tenantq import store as core
from tenantq._deleting import Deletion
from tenantq._failing import FailingTenant
from tenantq._lifecycle import FORWARD_SECONDS
from tenantq._tombstones import Tombstone
from tenantq.aio._bells import Bells
from tenantq.aio._core import Core
from tenantq.aio._pool import Pool, to_the_end
from tenantq.aio.memory import MemoryQueue
from tenantq.aio.periodic import PeriodicMessages
from tenantq.aio.tenant import Tenant
from tenantq.aio.transaction import Transaction
from tenantq.arguments import check_limit, check_seconds
from tenantq.backoff import Backoff
from tenantq.clock import Clock
from tenantq.config import MAX_CACHE_BYTES, MAX_WAL_BYTES
from tenantq.errors import StoreClosed, WrongEventLoop
from tenantq.stats import StoreActivity

__all__ = ["Store", "open"]

T = TypeVar("T")

DEFAULT_THREADS = 4
"""SQLite leaves Python's lock while it works: a few threads keep the cores busy, and more only take turns."""

DEFAULT_TRANSACTION_TIMEOUT = 5.0
"""Seconds: what the calls of other processes wait for a file by default."""

PAGE = 256
"""Tenants that a thread lists at a time."""


def open(  # noqa: A001 - tenantq.aio.open reads as it should
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
    threads: int = DEFAULT_THREADS,
    transaction_timeout: float = DEFAULT_TRANSACTION_TIMEOUT,
) -> Store:
    """Open a store for the coroutines of one event loop, the first that uses it; see `tenantq.open`.

    threads: how many tenants are worked on at once. Those whose file keeps a thread waiting get others.
    transaction_timeout: seconds that a transaction may hold a tenant's file before it is undone.
    """
    check_limit(threads, "threads")
    check_seconds(transaction_timeout, "transaction_timeout")
    store = core.open(
        path,
        durability=durability,
        create=create,
        busy_timeout=busy_timeout,
        max_open_tenants=max_open_tenants,
        max_cache_bytes=max_cache_bytes,
        max_wal_bytes=max_wal_bytes,
        max_depth=max_depth,
        memory_depth=memory_depth,
        max_outbox=max_outbox,
        checksums=checksums,
        backoff=backoff,
        migrate=migrate,
        clock=clock,
    )
    return Store(store, threads=threads, transaction_timeout=transaction_timeout)


class Store:
    """A directory of tenants for the coroutines of one event loop. An async context manager that closes it.

    Made by `tenantq.aio.open`. It belongs to the event loop that uses it first; another one, and a forked
    child, gets WrongEventLoop.
    """

    def __init__(
        self,
        store: core.Store,
        *,
        threads: int = DEFAULT_THREADS,
        transaction_timeout: float = DEFAULT_TRANSACTION_TIMEOUT,
    ) -> None:
        self.core = store
        """The same store for synchronous code, in threads of its own."""
        self.root = store.root
        self.config = store.config
        self.clock = store.clock
        self.threads = threads
        self.transaction_timeout = transaction_timeout
        self.is_closed = False
        """Whether `close` was called."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._open_transactions: set[Transaction] = set()
        self._closing: asyncio.Future[None] | None = None

    def tenant(self, tenant_id: str, *, create: bool = True) -> Tenant:
        """Return a tenant; its file appears at the first write. Raises InvalidTenantId, UnknownTenant."""
        self._check()
        self.core.tenant(tenant_id, create=create)  # raises
        return Tenant(self, Core(self.core, tenant_id, create=create))

    async def tenants(self) -> AsyncIterator[str]:
        """Yield the ids of all tenants that have a file; no readable name's file is opened for it."""
        ids = self.core.tenants()
        while page := await self._pool_of_loop().run_apart(lambda: list(islice(ids, PAGE))):
            for tenant_id in page:
                yield tenant_id

    def __contains__(self, tenant_id: object) -> bool:
        return tenant_id in self.core

    async def create(self, tenant_id: str) -> Tenant:
        """Make a tenant that is not there, one that was deleted too. See `tenantq.Store.create`."""
        await self._call_on(tenant_id, lambda _tenant: self.core.create(tenant_id))
        return self.tenant(tenant_id)

    async def deleted(self) -> list[Tombstone]:
        """Return the tenants that were deleted or moved away and have not come again, by id."""
        return await self._pool_of_loop().run_apart(self.core.deleted)

    async def delete(
        self,
        tenant_id: str,
        *,
        events: str = "refuse",
        wait: float = FORWARD_SECONDS,
        forward: Callable[[], object] | None = None,
        backups: Iterable[str | os.PathLike[str]] = (),
        replica: Callable[[str], Iterable[str]] | None = None,
    ) -> Deletion:
        """Delete a tenant's file with all that is in it, and say what that was; false if there was none.

        Durable on return. Behind the calls on the tenant that were made before. `forward` and `replica` run in a
        thread. See `tenantq.Store.delete`.
        """
        return await self._call_on(
            tenant_id,
            lambda _tenant: self.core.delete(
                tenant_id, events=events, wait=wait, forward=forward, backups=backups, replica=replica
            ),
        )

    async def export(self, tenant_id: str, target: str | os.PathLike[str]) -> Path:
        """Move a tenant out of this store into a file. See `tenantq.Store.export`."""
        return await self._call_on(tenant_id, lambda _tenant: self.core.export(tenant_id, target))

    async def import_(self, source: str | os.PathLike[str]) -> Tenant:
        """Take a tenant that another store exported, and return it. See `tenantq.Store.import_`."""
        return self.tenant((await self._pool_of_loop().run_apart(lambda: self.core.import_(source))).id)

    async def undo_export(self, tenant_id: str) -> Tenant:
        """Make a tenant this store's again whose export nobody has imported. See `tenantq.Store.undo_export`."""
        await self._call_on(tenant_id, lambda _tenant: self.core.undo_export(tenant_id))
        return self.tenant(tenant_id)

    async def restore(
        self,
        tenant_id: str,
        source: str | os.PathLike[str],
        *,
        replace: bool = True,
        wait: float = 0.0,
        evict: bool = False,
        as_: str | None = None,
    ) -> None:
        """Put a backup in the place of a tenant's file; durable on return. See `tenantq.Store.restore`."""
        await self._call_on(
            tenant_id if as_ is None else as_,
            lambda _tenant: self.core.restore(tenant_id, source, replace=replace, wait=wait, evict=evict, as_=as_),
        )

    async def prepare(self, tenant_id: str) -> Path:
        """Make sure that a tenant's file is there and closed in this process; return its path.

        See `tenantq.Store.prepare`.
        """
        return await self._call_on(tenant_id, lambda _tenant: self.core.prepare(tenant_id))

    @contextlib.asynccontextmanager
    async def quiesce(self, tenant_id: str) -> AsyncIterator[Path]:
        """Keep a tenant's file complete and unchanged until the block ends, and give its path.

        Calls on the tenant made meanwhile wait, and raise TenantBusy in time. See `tenantq.Store.quiesce`.
        """
        pool = self._pool_of_loop()
        context = self.core.quiesce(tenant_id)
        entering = pool.run_apart(context.__enter__)
        if await to_the_end(entering):  # cancelled meanwhile
            if entering.exception() is None:
                await to_the_end(pool.run_apart(lambda: context.__exit__(None, None, None)))
            raise asyncio.CancelledError
        path = entering.result()
        try:
            yield path
        finally:
            leaving = pool.run_apart(lambda: context.__exit__(None, None, None))
            if await to_the_end(leaving):
                raise asyncio.CancelledError
            leaving.result()

    async def migrate(self, tenant_id: str) -> int | None:
        """Bring a tenant's file to this version's schema. See `tenantq.Store.migrate`."""
        return await self._call_on(tenant_id, lambda _tenant: self.core.migrate(tenant_id))

    @property
    def memory(self) -> MemoryQueue:
        """The memory layer of this store in this process: a restart empties it."""
        return MemoryQueue(self.core.memory)

    @property
    def periodic(self) -> PeriodicMessages:
        """The periodic messages for all tenants: `add`, `list` and `remove`. They lie in a file of the store."""
        return PeriodicMessages(lambda verb: self._pool_of_loop().run_apart(lambda: verb(self.core.periodic)))

    def activity(self) -> StoreActivity:
        """Return what this process has done on the files since it opened the store; opens none, and locks none."""
        return self.core.activity()

    def failing(self) -> list[FailingTenant]:
        """Return the tenants that this process could not serve when it last tried, the longest failing first."""
        return self.core.failing()

    async def close(self) -> None:
        """Close every open tenant: each leaves one file, complete, where no other process has it open.

        The calls made before are run to their ends. Those that wait for a message or for room raise StoreClosed,
        and open transactions are undone. Is not cut short by a cancellation. Raises TenantBusy, as
        `tenantq.Store.close` does.
        """
        if self._closing is None:
            if self._loop is not None:
                self._check_loop()
            self.is_closed = True
            self._closing = asyncio.ensure_future(self._close())
        is_cancelled = await to_the_end(self._closing)
        closing = self._closing
        if closing.exception() is not None:
            self._closing = None  # for another try
        if is_cancelled:
            raise asyncio.CancelledError
        closing.result()

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.Store({str(self.root)!r})"

    async def _close(self) -> None:
        if self._loop is None:
            self.core.close()
            return
        for transaction in list(self._open_transactions):
            transaction._expire()
        for bells in (self._bells, self._room_bells):
            bells.ring_all()
        await self._pool.drain()
        for bells in (self._bells, self._room_bells):
            bells.close()
        closing = self._pool.run_apart(self.core.close)
        await to_the_end(closing)
        closing.result()
        self._pool.shut_down()

    async def _call_on(self, tenant_id: str, action: Callable[[Core], T]) -> T:
        tenant = self.tenant(tenant_id)
        return await tenant._call(action)

    # For the other modules of this package

    def _now(self) -> float:
        """Return the event loop's time, by which waits are counted."""
        assert self._loop is not None
        return self._loop.time()

    def _check(self) -> None:
        """Raise StoreClosed, WrongEventLoop."""
        if self.is_closed:
            raise StoreClosed(f"the store {self.root} is closed", path=str(self.root))
        self._check_loop()

    def _check_loop(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as exc:
            raise WrongEventLoop("a store of tenantq.aio is used where no event loop runs") from exc
        if self._loop is None and self._process == os.getpid():
            self._loop = loop
            self._pool = Pool(self.threads, loop)
            self._bells = Bells(self.core._doorbell, loop)
            self._room_bells = Bells(self.core._room_bell, loop)
        if self._loop is not loop or self._process != os.getpid():
            raise WrongEventLoop(path=str(self.root))

    def _pool_of_loop(self) -> Pool:
        self._check()
        return self._pool

    def _pool_in_use(self) -> Pool:
        """Return the pool, of a store that is being closed too."""
        self._check_loop()
        return self._pool

    def _bells_of_loop(self) -> Bells:
        self._check()
        return self._bells

    def _room_bells_of_loop(self) -> Bells:
        self._check()
        return self._room_bells
