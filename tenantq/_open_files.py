"""The files that a store has open: a bounded number of them, each opened and closed by one thread at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from msgspec import structs

from tenantq import _litestream, _migrations, _schema, naming
from tenantq._board import Board, new_slot
from tenantq._budget import Budget, is_out_of_descriptors
from tenantq._checkpointer import Checkpointer, checkpoint
from tenantq._creation import create_file
from tenantq._departures import Departures
from tenantq._doorbell import Doorbell, slot_of, slot_of_key
from tenantq._failing import FailingTenants
from tenantq._file import TenantFile
from tenantq._handle import Handle
from tenantq._listeners import Listeners
from tenantq._load import Load, name_of
from tenantq._patience import at_most
from tenantq._producers import Rooms
from tenantq._schedule import Entry, Schedule
from tenantq._sqlite import Database, Durability
from tenantq._tombstones import Tombstone
from tenantq._turns import Turn
from tenantq.clock import Clock
from tenantq.config import StoreConfig
from tenantq.errors import (
    NewerFile,
    OlderFile,
    StoreClosed,
    TenantBusy,
    TenantFileError,
    TenantGone,
    TenantqError,
    UnknownTenant,
)
from tenantq.memory import MemoryQueue
from tenantq.stats import StoreActivity
from tenantq.watch import Watch

__all__ = ["OpenFiles"]

T = TypeVar("T")

ROOM_BELL = ".room"
"""The file of the bell that tells of room in bounded queues."""


class OpenFiles:
    """What a store has open in this process; it keeps threads, processes and forks out of each other's way."""

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

    def activity(self) -> StoreActivity:
        """Return what this process has done on the files since it opened the store; opens none, and locks none."""
        with self._lock:
            found = self._past
            for handle in self._handles.values():
                found = found.plus(*handle.activity())
        return structs.replace(found, failing_tenants=len(self.failing_tenants))

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

    def absence(self, tenant_id: str, path: Path) -> UnknownTenant:
        """Return what a call raises that needs a tenant which is not there."""
        stone = Tombstone.read(path)
        if stone is not None:
            return stone.error(tenant_id, str(path))
        return UnknownTenant(f"the store has no tenant {tenant_id!r}", tenant=tenant_id)

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


_stores: weakref.WeakSet[OpenFiles] = weakref.WeakSet()
_forking: list[OpenFiles] = []
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
