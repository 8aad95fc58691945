"""A store: a directory of tenants, a bounded number of them open, each found by its id alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from msgspec import structs

from tenantq import _litestream, _migrations, _schema, naming
from tenantq._board import Board, new_slot
from tenantq._budget import Budget, is_out_of_descriptors
from tenantq._checkpointer import Checkpointer, checkpoint
from tenantq._creation import clear_leftovers, create_file
from tenantq._deleting import Deletion, check_backups, check_events, delete_file, refuse_existing
from tenantq._departures import Departures
from tenantq._doorbell import Doorbell, slot_of, slot_of_key
from tenantq._failing import FailingTenant, FailingTenants
from tenantq._file import TenantFile
from tenantq._filesystem import refuse_network_filesystem
from tenantq._handle import Handle
from tenantq._listeners import Listeners
from tenantq._load import Load, name_of
from tenantq._moving import export_file, import_file, refuse_moved, tenant_of, undo_export
from tenantq._patience import at_most
from tenantq._producers import Rooms
from tenantq._quiet import quiet
from tenantq._restoring import EVICTION_SECONDS, copy_as, restore_file
from tenantq._schedule import Entry, Schedule, Work
from tenantq._sqlite import Database, Durability, check_sqlite_version, identity_of
from tenantq._store_periods import FILE_NAME as PERIODS_FILE
from tenantq._store_periods import StorePeriods
from tenantq._tombstones import Tombstone, moment, tombstones_in
from tenantq._turns import Turn
from tenantq.arguments import check_seconds
from tenantq.backoff import Backoff
from tenantq.clock import Clock, SystemClock
from tenantq.config import MAX_CACHE_BYTES, MAX_WAL_BYTES, StoreConfig
from tenantq.errors import (
    EventsWaiting,
    NewerFile,
    OlderFile,
    StoreClosed,
    StoreNotFound,
    TenantBusy,
    TenantFileError,
    TenantGone,
    TenantqError,
    UnknownTenant,
)
from tenantq.memory import MemoryQueue
from tenantq.periodic import StorePeriodic
from tenantq.stats import StoreActivity
from tenantq.tenant import Tenant
from tenantq.watch import Watch, list_names, list_shards

__all__ = ["Store", "open"]

T = TypeVar("T")

ROOM_BELL = ".room"
"""The file of the bell that tells of room in bounded queues."""

FORWARD_SECONDS = 30.0
"""Seconds that a deletion waits for a forwarder to take the tenant's events."""

FORWARD_LOOK_SECONDS = 0.05
"""Between two looks whether it has: what another process marks in the file tells nobody."""

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


class Store:
    """A directory of tenants. Threads may share it; a forked child reopens what it uses.

    Made by `tenantq.open`; a context manager that closes it.
    """

    def __init__(self, root: Path, config: StoreConfig, clock: Clock) -> None:
        self.root = root
        self.config = config
        self.clock = clock
        self._handles: OrderedDict[str, Handle] = OrderedDict()  # in the order in which the clock's hand passes
        self._unequal: set[Handle] = set()
        self._budget = Budget(config, clock)
        self._watches: tuple[Watch, ...] = ()
        self._board = Board(root)
        self._departures = Departures(self._board)
        self._doorbell = Doorbell(root, overhear=self._let_go)
        self._room_bell = Doorbell(root, ROOM_BELL)
        self._schedule = Schedule(root)
        self._checkpointer = Checkpointer(self._checkpoint)
        self._start_listening()
        self._memory: MemoryQueue | None = None
        self._past = StoreActivity()
        self._prepared: dict[str, tuple[int, int] | None] = {}
        self.failing_tenants = FailingTenants(clock)
        """What `failing` tells of. For the other modules of this package."""
        self.is_closed = False
        """Whether `close` was called."""
        self._make_locks()
        _stores.add(self)

    def tenant(self, tenant_id: str, *, create: bool = True) -> Tenant:
        """Return a tenant; its file appears at the first write. Raises InvalidTenantId, UnknownTenant."""
        self._check_open()
        naming.check_tenant_id(tenant_id)
        tenant = Tenant(self, tenant_id, create=create)
        if not create and not tenant.path.exists():
            raise self.absence(tenant_id, tenant.path)
        return tenant

    def create(self, tenant_id: str) -> Tenant:
        """Make a tenant that is not there, one that was deleted or moved away too; durable on return.

        It begins anew: nothing of what it had comes back. Raises TenantExists.
        """
        tenant = self.tenant(tenant_id)
        with self.exclusive(tenant_id):
            refuse_existing(tenant.path, tenant_id)
            _schema.remove_sidecars(tenant.path)
            create_file(tenant.path, tenant_id, survives_power_loss=True)
            Tombstone.remove(tenant.path)  # it counts no more; one that is left is in nobody's way
        return tenant

    def deleted(self) -> list[Tombstone]:
        """Return the tenants that were deleted or moved away and have not come again, by id."""
        self._check_open()
        found = [stone for shard in list_shards(self.root) for stone in tombstones_in(shard, list_names(shard))]
        return sorted(found, key=lambda stone: stone.tenant)

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

    def delete(
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

        Durable on return. A tombstone stays: no call of any process makes the tenant again or is acknowledged, but
        raises TenantDeleted, until `create`, `restore` or `import_` brings it back.

        events: what becomes of events that Postgres has not got. "refuse": raise EventsWaiting. "forward": wait up
        to `wait` seconds until a forwarder has taken them, and call `forward`, such as a Forwarder's `run_once`,
        for it to be done here. "drop": they are lost. backups: directories of `tenantq backup --all`, whose copies
        of the tenant go too. replica: removes what a replication has of it, and returns the names. Raises
        TenantBusy.
        """
        path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))
        self._check_open()
        directories = check_backups(backups, self.root)
        deadline = time.monotonic() + check_seconds(wait, "wait")
        is_forwarding = check_events(events) == "forward"
        while True:
            try:
                deletion = delete_file(
                    path,
                    tenant_id,
                    at=moment(self.clock.now_ns()),
                    drop=events == "drop",
                    backups=directories,
                    replica=replica,
                    exclusive=lambda: self.exclusive(tenant_id),
                    busy_timeout=self.config.busy_timeout,
                )
                break
            except EventsWaiting as exc:
                if not is_forwarding or not exc.pending or time.monotonic() >= deadline:
                    raise
            if forward is None or not forward():
                time.sleep(FORWARD_LOOK_SECONDS)
        self._schedule.drop(naming.key_of(tenant_id))
        self.failing_tenants.clear(tenant_id)
        return deletion

    def export(self, tenant_id: str, target: str | os.PathLike[str]) -> Path:
        """Move a tenant out of this store into a file, for `import_` of another one; durable on return.

        From its beginning on what would write to the tenant raises TenantMoved, in every process. All goes along:
        messages, events and how far they are forwarded, ids, the application's tables; claims are given back. An
        export that was killed is finished by the same call, or undone by `undo_export`. Raises UnknownTenant,
        TenantBusy, DiskFull.
        """
        path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))
        self._check_open()
        now = self.clock.now_ns()
        written = export_file(
            path,
            tenant_id,
            Path(target),
            at=moment(now),
            now=now,
            root=self.root,
            exclusive=lambda: self.exclusive(tenant_id),
            busy_timeout=self.config.busy_timeout,
        )
        self._schedule.drop(naming.key_of(tenant_id))
        self.failing_tenants.clear(tenant_id)
        return written

    def import_(self, source: str | os.PathLike[str]) -> Tenant:
        """Take a tenant that another store exported; durable on return. Return it.

        The export is taken once, and says so from then on: it may be removed. Raises TenantExists, TenantMoved if
        it was imported before, TenantFileError for what is no export.
        """
        self._check_open()
        tenant_id = tenant_of(Path(source))
        tenant = self.tenant(tenant_id)
        import_file(
            tenant.path,
            tenant_id,
            Path(source).absolute(),
            store_name=f"{socket.gethostname()}:{self.root}",
            exclusive=lambda: self.exclusive(tenant_id),
            busy_timeout=self.config.busy_timeout,
            now=self.clock.now_ns(),
        )
        self.announce(tenant_id)
        return tenant

    def undo_export(self, tenant_id: str) -> Tenant:
        """Make a tenant this store's again whose export nobody has imported, or that was killed.

        Durable on return. The export is taken from where it was written. Raises TenantMoved if it is not there, or
        was imported; TenantExists.
        """
        tenant = self.tenant(tenant_id)
        undo_export(
            tenant.path,
            tenant_id,
            exclusive=lambda: self.exclusive(tenant_id),
            busy_timeout=self.config.busy_timeout,
            take_back=self.import_,
        )
        self.announce(tenant_id)
        return tenant

    def restore(
        self,
        tenant_id: str,
        source: str | os.PathLike[str],
        *,
        replace: bool = True,
        wait: float = 0.0,
        evict: bool = False,
        as_: str | None = None,
    ) -> None:
        """Put a backup in the place of a tenant's file; durable on return.

        The source is checked first: ours, not newer, sound, and of this tenant. What it held claimed is
        ready again, one of an older schema is migrated on the way, and new ids go on above all that the
        replaced file gave out; where nobody can tell what it gave out, far above those of the backup.

        wait: seconds that other processes which have the tenant open are waited for.
        evict: they are asked to let go of it, and waited for 2 s at least. A process that listens for messages
        does so at once, another one at its next call on the tenant; one that does neither keeps it.
        as_: the id of a new tenant that is to be a copy, for a look. Nothing in it happens by itself: its queues
        are paused, its own periodic messages do not fire, and its events are not forwarded but `undeliverable`.

        Raises TenantInUse while another process has the tenant open, TenantExists with replace=False or for
        `as_`, NotATenantFile, NewerFile, OlderFile (of a store with migrate=False), CorruptFile, WrongTenant,
        DiskFull; the tenant is as it was then.
        """
        self._check_open()
        naming.check_tenant_id(tenant_id)
        check_seconds(wait, "wait")
        refuse_moved(_schema.path_of(self.root, as_ or tenant_id), tenant_id)
        now = self.clock.now_ns()
        migrate_at = now if self.config.migrate else None
        if as_ is not None:
            path = _schema.path_of(self.root, naming.check_tenant_id(as_))
            exclusive = partial(self.exclusive, as_)
            copy_as(path, Path(source), tenant_id, as_, exclusive=exclusive, migrate_at=migrate_at, now=now)
            self.announce(as_)
            return
        try:
            restore_file(
                _schema.path_of(self.root, tenant_id),
                Path(source),
                tenant_id,
                replace=replace,
                exclusive=partial(self.exclusive, tenant_id),
                migrate_at=migrate_at,
                wait=max(wait, EVICTION_SECONDS) if evict else wait,
                ask=partial(self._ask_for, tenant_id) if evict else None,
            )
        finally:
            self._departures.withdraw(naming.key_of(tenant_id))
        self.announce(tenant_id)

    def prepare(self, tenant_id: str) -> Path:
        """Make sure that a tenant's file is there, of this version's schema, and closed in this process.

        Return its path, for an application that opens it by a library of its own, with `tenantq.statements`: it
        calls this first, each time. Raises OlderFile (of a store with migrate=False), NewerFile, TenantBusy, and
        ForeignHandle where the file was opened without it.
        """
        path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))
        with self.exclusive(tenant_id):
            if not path.exists():
                self._make_file(tenant_id, path)
            # A file is looked at once: later the application's library may have it open.
            elif self._prepared.get(tenant_id) != identity_of(path):
                self._bring_file_to_schema(tenant_id, path)
            self._prepared[tenant_id] = identity_of(path)
        return path

    @contextlib.contextmanager
    def quiesce(self, tenant_id: str) -> Iterator[Path]:
        """Keep a tenant's file complete and unchanged until the block ends, and give its path.

        It is for tools that must copy the file themselves: a process of its own (`cp`, `rsync`, a snapshot of the
        disk) may read it and nothing else. This process must not open it by any means: closing it would drop
        SQLite's locks. Nobody writes to it meanwhile, not this process either: writers wait as long as their
        busy timeout and raise TenantBusy then, so be quick. Readers go on.

        It is quiet within this store's `busy_timeout`, or TenantBusy is raised. Raises UnknownTenant, and
        FileReplaced at the end if the file is another one by then.
        """
        path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))
        self._check_open()
        place = self._board.slot(slot_of(tenant_id))
        turn = None if place is None else Turn(place)
        with quiet(path, tenant_id, timeout=self.config.busy_timeout, turn=turn):
            yield path

    def migrate(self, tenant_id: str) -> int | None:
        """Bring a tenant's file to this version's schema; return the version that it had, None if it was current.

        Whatever `migrate` the store was opened with; the tenant is not kept open. A file that is current is only
        looked at. Raises UnknownTenant, NewerFile, TenantBusy, DiskFull; the file is as it was then.
        """
        path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))
        self._check_open()
        with self._gate(tenant_id):
            if not path.exists():
                raise UnknownTenant(f"the store has no tenant {tenant_id!r}", tenant=tenant_id)
            return self._migrate(tenant_id, path)

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

    def activity(self) -> StoreActivity:
        """Return what this process has done on the files since it opened the store; opens none, and locks none."""
        with self._lock:
            found = self._past
            for handle in self._handles.values():
                found = found.plus(*handle.activity())
        return structs.replace(found, failing_tenants=len(self.failing_tenants))

    def failing(self) -> list[FailingTenant]:
        """Return the tenants that this process could not serve when it last tried, the longest failing first.

        A worker tries each again after a second, and after twice as long each time, a minute at most; one that
        works again is no longer among them. Opens no file.
        """
        return self.failing_tenants.listed()

    def close(self) -> None:
        """Close every open tenant: each leaves one file, complete, where no other process has it open.

        Waits for the calls of other threads. Raises TenantBusy for a transaction that does not end in time,
        and TransactionError inside of one of this thread; all other tenants are closed then too.
        """
        with self._lock:
            self.is_closed = True
            handles = list(self._handles.items())
        for watch in self._watches:
            watch.close()
        self._checkpointer.close()
        failures: list[TenantqError] = []
        for tenant_id, handle in handles:
            try:
                handle.close(wait=True)
            except TenantqError as exc:  # in use: it is closed when `close` is called again
                failures.append(exc)
            else:
                self._forget(tenant_id, handle)
        self._doorbell.close()
        self._room_bell.close()
        self._board.close()
        self._schedule.close()
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def _start_listening(self) -> None:
        self._listeners = Listeners(self._doorbell)
        self.rooms = Rooms(self._room_bell)
        """The calls that wait for room in a queue."""

    def _make_locks(self) -> None:
        # Held for moments only: what may wait for a tenant's file waits behind that tenant's gate.
        self._lock = threading.Lock()
        self._gates: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
        self._opening = 0
        # Before the gates there is a door, shut while the process forks: nobody is inside then.
        self._door = threading.Condition(self._lock)
        self._inside = 0
        self._is_forking = False

    # For the other modules of this package

    def absence(self, tenant_id: str, path: Path) -> UnknownTenant:
        """Return what a call raises that needs a tenant which is not there."""
        stone = Tombstone.read(path)
        if stone is not None:
            return stone.error(tenant_id, str(path))
        return UnknownTenant(f"the store has no tenant {tenant_id!r}", tenant=tenant_id)

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

    def handle(self, tenant_id: str, path: Path, *, create: bool) -> Handle | None:
        """Return the open file of a tenant; None if it has none and is not to be made."""
        if not self._departures.wait_for_end(naming.key_of(tenant_id), at_most(self.config.busy_timeout)):
            raise TenantBusy(f"tenant {tenant_id!r} is being restored", tenant=tenant_id)
        with self._gate(tenant_id):
            with self._lock:
                self._check_open()
                handle = self._handles.get(tenant_id)
            if handle is not None and not handle.is_closed:
                return handle
            if not path.exists():
                if not create:
                    return None
                self._with_descriptors(partial(self._create, tenant_id, path))
            try:
                handle = self._open(tenant_id, path)
            except TenantFileError as exc:
                if not isinstance(exc, TenantBusy):
                    self.failing_tenants.note(tenant_id, exc)
                raise
            self.failing_tenants.clear(tenant_id)
            return handle

    def announce(self, tenant_id: str) -> None:
        """Tell who listens that a tenant may have anything: it was changed by other means than ours."""
        self._check_open()
        entry = self._schedule.entry(naming.key_of(tenant_id))
        if entry is not None:
            entry.doubt()
        self._ring(slot_of(tenant_id), entry)

    def listening(self, tenant_id: str) -> contextlib.AbstractContextManager[threading.Event]:
        """Give an event that is set whenever a tenant may have something new."""
        self._check_open()
        return self._listeners.listening(tenant_id)

    @contextlib.contextmanager
    def exclusive(self, tenant_id: str, *, is_replaced: bool = True) -> Iterator[None]:
        """Close a tenant in this process and keep it from being opened or made until the block ends.

        is_replaced: the file may be another one then, or none, so the store's Litestream closes it too.
        """
        self._check_open()
        path = _schema.path_of(self.root, tenant_id)
        with self._gate(tenant_id):
            with self._lock:
                handle = self._handles.get(tenant_id)
            if handle is not None:
                handle.close(wait=True)
                self._forget(tenant_id, handle)
            with self._shard_lock(path.parent):
                if is_replaced:
                    _litestream.release(self.root, path, tenant_id)
                yield

    @contextlib.contextmanager
    def _gate(self, tenant_id: str) -> Iterator[None]:
        # Between threads: one opens, closes, makes, deletes or replaces a tenant's file at a time, and
        # nobody waits here for another tenant's.
        with self._door:
            self._door.wait_for(lambda: not self._is_forking)
            self._inside += 1
        gate = self._gate_of(tenant_id)
        try:
            if not gate.acquire(timeout=self.config.busy_timeout):
                raise TenantBusy(
                    f"tenant {tenant_id!r} was being opened or replaced for {self.config.busy_timeout:g} s",
                    tenant=tenant_id,
                )
            try:
                yield
            finally:
                gate.release()
        finally:
            with self._door:
                self._inside -= 1
                self._door.notify_all()

    def _gate_of(self, tenant_id: str) -> threading.Lock:
        with self._lock:
            return self._gates.setdefault(tenant_id, threading.Lock())

    @contextlib.contextmanager
    def _shard_lock(self, shard: Path) -> Iterator[None]:
        # Between processes: one makes, deletes or replaces files of a shard at a time.
        try:
            try:
                descriptor = os.open(shard, os.O_RDONLY)
            except FileNotFoundError:
                shard.mkdir(mode=0o700, exist_ok=True)
                if self.config.durability is Durability.FULL:
                    _schema.sync_directory(shard.parent)
                descriptor = os.open(shard, os.O_RDONLY)
        except OSError as exc:
            raise TenantFileError(f"{shard}: {exc}", path=str(shard)) from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        except OSError as exc:
            raise TenantFileError(f"{shard}: {exc}", path=str(shard)) from exc
        finally:
            # A fork shares the descriptor, and with it the lock: closing ours would not end it.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _create(self, tenant_id: str, path: Path) -> None:
        with self._shard_lock(path.parent):
            if not path.exists():
                self._make_file(tenant_id, path)

    def _make_file(self, tenant_id: str, path: Path) -> None:
        stone = Tombstone.read(path)
        if stone is not None:
            raise stone.error(tenant_id, str(path))
        _schema.remove_sidecars(path)
        is_full = self.config.durability is Durability.FULL
        create_file(path, tenant_id, survives_power_loss=is_full)

    def _open(self, tenant_id: str, path: Path) -> Handle:
        with self._lock:
            self._opening += 1
        try:
            self._make_room()
            handle = self._with_descriptors(partial(self._open_file, tenant_id, path))
            with self._lock:
                self._handles[tenant_id] = handle
            self._share_out()
            if self.is_closed:  # meanwhile, and `close` may have missed this one
                self.close()
                self._check_open()
            return handle
        finally:
            with self._lock:
                self._opening -= 1

    def _ring(self, slot: int, entry: Entry | None) -> None:
        """Tell who listens, in any process, that a tenant has something new."""
        if entry is not None:
            entry.ring()
        self._doorbell.ring(slot)

    def _ask_for(self, tenant_id: str) -> None:
        """Ask the other processes to let go of a tenant."""
        self._departures.ask(naming.key_of(tenant_id))
        self._doorbell.ring(slot_of(tenant_id))

    def _let_go(self, slots: frozenset[int]) -> None:
        """Close the tenants that another process asks for, in the doorbell's thread."""
        asked = [key for key in map(self._departures.asked_in, slots) if key is not None]
        if not asked:
            return
        with self._lock:
            handles = list(self._handles.items())
        for tenant_id, handle in handles:
            if naming.key_of(tenant_id) in asked:
                self._evict(tenant_id, handle)  # one that is in use lets go itself, at the next call

    def _open_file(self, tenant_id: str, path: Path) -> Handle:
        key = naming.key_of(tenant_id)
        slot = slot_of_key(key)
        place = self._board.slot(slot)
        database = Database(
            path,
            durability=self.config.durability,
            busy_timeout=self.config.busy_timeout,
            cache_kib=self._budget.share.cache_kib,
            wal_pages=self._budget.share.wal_pages,
            tenant=tenant_id,
            turn=None if place is None else Turn(place),
            load=Load(new_slot() if place is None else place, name_of(tenant_id), self.clock.monotonic),
        )
        try:
            meta = _schema.check_file(database, tenant_id)
            self._bring_to_schema(database)
            entry = self._schedule.entry(key)
            file = TenantFile(
                database,
                meta,
                self.clock.boot_id(),
                max_depth=self.config.max_depth,
                tell_of_room=self.rooms.bell_of(tenant_id),
                entry=entry,
                checksums=self.config.checksums,
            )
            if "boot_id" in meta:  # else no claim was ever made
                file.end_leases_of_another_boot()
        except (NewerFile, OlderFile, TenantGone):
            database.close_untouched()
            raise
        except BaseException:
            database.close()
            raise
        database.on_long_wal = partial(self._checkpointer.request, tenant_id)
        return Handle(file, path, partial(self._ring, slot, entry), self._departures.request(key))

    def _bring_to_schema(self, database: Database) -> None:
        if not self.config.migrate:
            _migrations.check_current(database)
        else:
            self._count_migrated(_migrations.migrate(database, self.clock.now_ns()))

    def _bring_file_to_schema(self, tenant_id: str, path: Path) -> None:
        if self.config.migrate:
            self._migrate(tenant_id, path)
            return
        with contextlib.closing(_schema.open_to_read(path, tenant_id)) as database:
            _schema.check_file(database, tenant_id)
            _migrations.check_current(database)

    def _migrate(self, tenant_id: str, path: Path) -> int | None:
        found = _migrations.migrate_file(
            path,
            tenant_id,
            durability=self.config.durability,
            busy_timeout=self.config.busy_timeout,
            now=self.clock.now_ns(),
        )
        self._count_migrated(found)
        return found

    def _count_migrated(self, version: int | None) -> None:
        if version is not None:
            with self._lock:
                self._past = structs.replace(self._past, migrated=self._past.migrated + 1)

    def _checkpoint(self, tenant_id: str) -> None:
        # Behind the gate: the file is neither closed, replaced nor forked away meanwhile.
        with self._gate(tenant_id):
            handle = self._handles.get(tenant_id)
            if handle is not None and not handle.is_closed:
                checkpoint(handle)

    def _with_descriptors(self, action: Callable[[], T]) -> T:
        """Open files by `action`; where no descriptor is left for them, close tenants and try again."""
        while True:
            try:
                return action()
            except TenantFileError as exc:
                if not is_out_of_descriptors():
                    raise
                with self._lock:
                    before = len(self._handles)
                    self._budget.lower(before)
                self._make_room()
                if len(self._handles) >= before:
                    hint = "raise its limit (ulimit -n), or let it open fewer files"
                    text = f"{exc.path}: this process has no file descriptor left"
                    raise TenantFileError(text, hint=hint, tenant=exc.tenant, path=exc.path) from exc

    def _make_room(self) -> None:
        # Second chance: what was used since the hand of the clock passed it stays once more; what is in use stays
        # anyway.
        for _ in range(2 * len(self._handles)):
            with self._lock:
                if not self._handles or len(self._handles) + self._opening <= self._budget.limit():
                    return
                tenant_id, handle = next(iter(self._handles.items()))
                self._handles.move_to_end(tenant_id)
            if handle.was_used:
                handle.was_used = False
            else:
                self._evict(tenant_id, handle)

    def _share_out(self) -> None:
        """Give each open tenant its share of the budgets, where that is another one now; later, to one in use."""
        with self._lock:
            if self._budget.is_shared_anew(len(self._handles)):
                self._unequal = set(self._handles.values())
            if not self._unequal:
                return
            unequal, share = list(self._unequal), self._budget.share
        for handle in unequal:
            with contextlib.suppress(TenantqError):  # the next call that uses the file meets its fault
                if not handle.resize(cache_kib=share.cache_kib, wal_pages=share.wal_pages):
                    continue
            with self._lock:
                if self._budget.share is share:
                    self._unequal.discard(handle)

    def _evict(self, tenant_id: str, handle: Handle) -> None:
        gate = self._gate_of(tenant_id)
        if gate.acquire(blocking=False):  # else it is being opened or replaced: not ours to close
            try:
                if handle.close(wait=False):
                    self._forget(tenant_id, handle)
            finally:
                gate.release()

    def _forget(self, tenant_id: str, handle: Handle) -> None:
        with self._lock:
            if self._handles.get(tenant_id) is handle:
                del self._handles[tenant_id]
                self._unequal.discard(handle)
                self._past = structs.replace(self._past.plus(*handle.activity()), open_tenants=0)

    def _unwatch(self, watch: Watch) -> None:
        with self._lock:
            self._watches = tuple(other for other in self._watches if other is not watch)

    def _read_id(self, path: Path) -> str | None:
        """Return the id in a file whose name has only its hash; None where it cannot be read."""
        try:
            with contextlib.closing(_schema.open_to_read(path)) as database:
                return _schema.check_file(database, None)["tenant_id"]
        except TenantqError:
            return None

    def _check_open(self) -> None:
        if self.is_closed:
            raise StoreClosed(f"the store {self.root} is closed", path=str(self.root))

    def _before_fork(self) -> None:
        # A child cannot use a file that the parent has open (see Database.disown), so none stays open; this
        # process opens them again as it needs them. What is in a transaction stays, and is not the child's.
        deadline = time.monotonic() + self.config.busy_timeout
        with self._door:
            self._is_forking = True
            self._door.wait_for(lambda: not self._inside, self.config.busy_timeout)
            handles = list(self._handles.items())
        for tenant_id, handle in handles:
            while not handle.close(wait=False) and not handle.is_mine and time.monotonic() < deadline:
                time.sleep(0.0001)
            if handle.is_closed:
                self._forget(tenant_id, handle)
        self._lock.acquire()

    def _after_fork_in_parent(self) -> None:
        self._is_forking = False
        self._door.notify_all()
        self._lock.release()

    def _after_fork_in_child(self) -> None:
        for handle in self._handles.values():
            handle.disown()
        self._handles = OrderedDict()
        self._unequal = set()
        self._watches = ()
        self._doorbell.after_fork()
        self._room_bell.after_fork()
        self._board.after_fork()
        self._schedule.after_fork()
        self._checkpointer.after_fork()
        self._start_listening()
        self._memory = None
        self._past = StoreActivity()
        self.failing_tenants = FailingTenants(self.clock)
        self._make_locks()


_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_forking: list[Store] = []
_fork_lock = threading.Lock()


def _before_fork() -> None:
    _fork_lock.acquire()
    _forking[:] = _stores
    for store in _forking:
        store._before_fork()


def _after_fork_in_parent() -> None:
    for store in _forking:
        store._after_fork_in_parent()
    _forking.clear()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    for store in _forking:
        store._after_fork_in_child()
    _forking.clear()
    _fork_lock.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
