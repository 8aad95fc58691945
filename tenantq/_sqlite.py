"""One connection to one SQLite file: pragmas, turns, and errors in our own words. The only user of apsw."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from tenantq import _foreign
from tenantq._board import new_slot
from tenantq._load import Load
from tenantq._patience import at_most
from tenantq._turns import TRY_SECONDS, Turn, random_wait
from tenantq._writeback import written_back
from tenantq.errors import (
    CorruptFile,
    DiskFull,
    InvalidArgument,
    NotATenantFile,
    StatementFailed,
    TenantBusy,
    TenantFileError,
    TenantqError,
    UnsupportedSQLite,
)

__all__ = ["Database", "Durability", "Image", "Row", "check_sqlite_version", "identity_of"]

Row = tuple[Any, ...]
Parameters = Sequence[Any] | Mapping[str, Any]

SAFE_SQLITE = (3, 51, 3)
"""The first release in which a write and a checkpoint at once cannot lose a transaction (WAL reset)."""

PRAGMAS = """
PRAGMA cache_size = -{cache_kib};
PRAGMA synchronous = {durability};
PRAGMA mmap_size = 0;
PRAGMA temp_store = MEMORY;
PRAGMA wal_autocheckpoint = {wal_pages};
PRAGMA journal_size_limit = {wal_bytes};
"""
"""The documents' set, but for mmap_size: with it, a file that somebody truncates (a `cp` onto it) is no error of
one tenant but a SIGBUS, the end of the process for all of them. journal_size_limit is not theirs: a -wal that a
slow reader let grow is cut back to it by the next checkpoint."""

SHARE_PRAGMAS = """
PRAGMA cache_size = -{cache_kib};
PRAGMA wal_autocheckpoint = {wal_pages};
PRAGMA journal_size_limit = {wal_bytes};
"""

WAL_PAGES = 10_000
"""Of these pages, a commit checkpoints by itself: a backstop, see CHECKPOINT_SHARE."""

PAGE_BYTES = 4096

WAL_VERSIONS = slice(18, 20)
"""The two bytes of a file's header that say which version of the format writes and reads it: 2 is WAL."""

CHECKPOINT_SHARE = 0.4
"""This share of them in the -wal and not in the file, 16 MB of 40, asks for a checkpoint beside the writers."""

CHECKPOINT_INTERVAL = 0.1
"""Seconds between two looks at the -wal."""


class Durability(StrEnum):
    """What an acknowledged write survives."""

    NORMAL = "normal"
    """A crash of the process (the documents' synchronous=NORMAL); power loss may take the last commits."""
    FULL = "full"
    """Power loss too: every commit is synced."""


def check_sqlite_version() -> None:
    """Raise UnsupportedSQLite where the library can lose committed rows."""
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < SAFE_SQLITE:
        raise UnsupportedSQLite(f"SQLite {version} can lose committed rows in WAL mode")


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return what tells one file from another under the same name; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - every write asks, and Path.stat takes twice as long
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Image:
    """A database in memory, to be written to a file in one piece."""

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Run a statement."""
        return self._connection.execute(sql, parameters).fetchall()

    def to_bytes(self) -> bytearray:
        """Return what a file in WAL mode holds that was closed after the same statements."""
        found = bytearray(self._connection.serialize("main"))
        found[WAL_VERSIONS] = bytes([2, 2])
        return found


class Database:
    """A connection that waits its turn and raises our errors.

    Not for two threads at once: its owner holds a lock. is_ours_alone: its owner keeps everybody else out of the
    file, by a descriptor for it, so that none is looked for.
    """

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = Durability.NORMAL,
        create: bool = False,
        read_only: bool = False,
        immutable: bool = False,
        is_ours_alone: bool = False,
        busy_timeout: float = 5.0,
        cache_kib: int = 8192,
        wal_pages: int = WAL_PAGES,
        tenant: str | None = None,
        turn: Turn | None = None,
        load: Load | None = None,
    ) -> None:
        self.path = path
        self.tenant = tenant
        self.busy_timeout = busy_timeout
        self.busy_waits = 0
        """How often this connection had to wait for another one's lock."""
        self.busy_seconds = 0.0
        """How long, all in all."""
        self.busy_longest = 0.0
        """Seconds of the longest of these waits."""
        self.on_long_wal: Callable[[], object] | None = None
        """Called after a commit, when it is time for a checkpoint."""
        self._checkpoint_pages = wal_pages * CHECKPOINT_SHARE
        self.load = load or Load(new_slot(), 0.0, time.monotonic)
        """How busy the file is."""
        self.operations = 1
        """Calls that the transaction carries."""
        self._turn = turn
        self._next_look = self._waiting_since = self._counted_until = 0.0
        self._has_waited = self._is_writing = False
        self.identity = identity_of(path)
        """Which file this is. Taken first: one that replaces it from here on is told from it."""
        if not is_ours_alone:
            self._check_ours()
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
        if create:
            flags |= apsw.SQLITE_OPEN_CREATE
        name = f"file:{quote(str(path.absolute()))}{'?immutable=1' if immutable else ''}"
        self._read_only = read_only
        _foreign.opening(self.identity, read_only=read_only)
        try:
            self._connection = apsw.Connection(name, flags=flags | apsw.SQLITE_OPEN_URI)
        except BaseException as exc:
            _foreign.closed(self.identity, read_only=read_only)
            if isinstance(exc, apsw.Error):
                raise self._translated(exc) from exc
            raise
        _open_databases.add(self)
        self._execute = self._connection.cursor().execute  # one for all: each result is fetched before the next
        self.version = self._connection.data_version
        """Return a number that every change of the file moves on, those of this connection too. It is up to date
        inside of a write transaction; elsewhere it is what this connection last saw."""
        self._moved = ctypes.c_int()
        self._moved_at = ctypes.addressof(self._moved)
        # Without it, SQLite prepares a statement anew for each value bound to a column of a partial index:
        # a claim takes four times as long.
        self._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self._connection.set_busy_handler(self._wait_for_lock)
        try:
            self.execute(
                PRAGMAS.format(
                    cache_kib=cache_kib,
                    durability=durability.value,
                    wal_pages=wal_pages,
                    wal_bytes=wal_pages * PAGE_BYTES,
                ),
            )
        except TenantqError:
            self.close()
            raise

    def _check_ours(self) -> None:
        """Raise for a file that is not to be opened: to close it again would drop the locks of whoever has it."""
        if self.identity in _inherited:
            raise TenantFileError(
                f"{self.path} was in use when this process was forked",
                hint="fork outside of transactions, or open the store in the child",
                path=str(self.path),
                tenant=self.tenant,
            )
        self.check_alone()

    def resize(self, *, cache_kib: int, wal_pages: int) -> None:
        """Let the page cache and the -wal grow as far as this from now on; a larger cache gives its pages back."""
        self._checkpoint_pages = wal_pages * CHECKPOINT_SHARE
        wal_bytes = wal_pages * PAGE_BYTES
        self.execute(SHARE_PRAGMAS.format(cache_kib=cache_kib, wal_pages=wal_pages, wal_bytes=wal_bytes))

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Run one statement and return all its rows, so that no open cursor holds a snapshot."""
        try:
            return self._execute(sql, parameters).fetchall()
        except (apsw.Error, OverflowError, TypeError, ValueError) as exc:
            raise self._translated(exc) from exc

    def run(self, sql: str, parameters: Parameters = ()) -> None:
        """Run one statement that returns no rows."""
        try:
            self._execute(sql, parameters)
        except (apsw.Error, OverflowError, TypeError, ValueError) as exc:
            raise self._translated(exc) from exc

    def execute_guest(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Run SQL that is not ours; a COMMIT hidden in it is refused and undoes the transaction instead."""
        self._connection.set_commit_hook(lambda: True)
        try:
            return self.execute(sql, parameters)
        finally:
            self._connection.set_commit_hook(None)

    def begin(self) -> None:
        """Begin a write transaction: the lock is taken here and waited for, never in the middle."""
        self.make_way()
        self.run("BEGIN IMMEDIATE")
        self._is_writing = True
        self.operations = 1
        self.load.begin()
        if self._has_waited:
            self._has_waited = False
            if self._turn is not None:
                self._turn.take()

    def try_begin(self) -> bool:
        """Begin a write transaction if nobody else has the lock at this moment."""
        self._connection.set_busy_handler(None)
        try:
            self._execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return False
        except apsw.Error as exc:
            raise self._translated(exc) from exc
        finally:
            self._connection.set_busy_handler(self._wait_for_lock)
        return True

    def make_way(self) -> None:
        """Let another process begin first, if this one has had its turn: then `begin` need not do so."""
        if self._turn is None or not self._turn.is_over:
            return
        self._wait_begins()  # one wait; if the lock is not free then, that is another
        self._turn.rest()
        self._wait_goes_on()

    def commit(self) -> None:
        """Make the transaction durable. If it fails, nothing of it is."""
        self.run("COMMIT")
        self._end_turn(self.operations)

    def rollback(self) -> None:
        """Undo the transaction; SQLite may have done it already (disk full), which is no second error."""
        if not self._connection.get_autocommit():
            self.run("ROLLBACK")
        self._end_turn(0)

    def _end_turn(self, operations: int) -> None:
        if not self._is_writing:
            return
        self._is_writing = False
        if self._turn is not None:
            self._turn.end()
        now = self.load.end(operations)
        if self.on_long_wal is not None and now >= self._next_look:
            self._next_look = now + CHECKPOINT_INTERVAL
            with contextlib.suppress(TenantqError):  # the commit stands, and the next one meets the fault
                if self.wal_pages() >= self._checkpoint_pages:
                    self.on_long_wal()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return not self._connection.get_autocommit()

    @property
    def changed(self) -> int:
        """The rows that the last statement changed."""
        return self._connection.changes()

    def was_replaced(self) -> bool:
        """Tell whether another file, or none, is at the path by now."""
        self._connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, self._moved_at)
        return bool(self._moved.value)

    def wal_pages(self) -> int:
        """Return how many pages of the -wal are not in the file yet. Not inside of a transaction."""
        deadline = time.monotonic() + at_most(self.busy_timeout)
        while True:
            try:
                pages, copied = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
            except apsw.BusyError as exc:  # a commit is half written at this moment: SQLite does not wait here
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._translated(exc) from exc
                time.sleep(random_wait(TRY_SECONDS, left))
            except apsw.Error as exc:
                raise self._translated(exc) from exc
            else:
                return max(0, pages - copied)

    def checkpoint(self) -> int:
        """Copy what no reader needs of the -wal into the file, waiting for nobody; return the pages left."""
        self.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return self.wal_pages()  # with what others have written since: the row does not count it

    def copy_to(self, target: Path) -> None:
        """Write all that is committed to a new file, by SQLite's online backup in one step.

        One step, since small ones start again with every commit of another process and may never end. The new
        file is whole or worthless, so it needs no journal; its caller syncs it.
        """
        try:
            destination = apsw.Connection(str(target))
            destination.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF")
        except apsw.Error as exc:
            raise self._translated(exc, target) from exc
        try:
            with written_back(target), destination.backup("main", self._connection, "main") as backup:
                backup.step(-1)
        except apsw.Error as exc:
            raise self._translated(exc, target) from exc
        finally:
            destination.close()

    def close(self) -> None:
        """Close; the last connection to a file leaves it alone, without -wal and -shm."""
        self.load.leave()
        self._turn = None
        self._connection.close()
        if self in _open_databases:
            _open_databases.discard(self)
            _foreign.closed(self.identity, read_only=self._read_only)

    def check_alone(self) -> None:
        """Raise ForeignHandle if something else in this process has the file open."""
        _foreign.check_alone(self.identity, str(self.path), self.tenant)

    def abandon_replaced(self) -> None:
        """Close a connection whose file is no longer at its path, and leave what lies there alone.

        A plain close would delete the -wal beside the new file by its name.
        """
        self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.close()

    def close_untouched(self) -> None:
        """Close a file that is not for this process: what others left in its -wal stays there.

        A plain close checkpoints it, if it is the last. It goes for a -wal that only opening the file made.
        """
        try:
            is_in_use = self.path.with_name(self.path.name + "-wal").stat().st_size > 0
        except OSError:
            is_in_use = False
        if is_in_use:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.close()

    def disown(self) -> None:
        """Never use or close, in a forked child, what is the parent's.

        Nor may the file be opened anew: SQLite's table of the process's locks came along with the fork, the
        locks did not. It would write without any, and lose what it wrote when the parent closes the file.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        _inherited.add(self.identity)

    def _wait_for_lock(self, tries: int) -> bool:
        if tries == 0:
            self._wait_begins()
        left = at_most(self.busy_timeout) - (time.monotonic() - self._waiting_since)
        if left <= 0:
            return False
        if self._turn is None:
            time.sleep(random_wait(TRY_SECONDS, left))
        else:
            self._turn.wait(tries, left)
        self._wait_goes_on()
        return True

    def _wait_begins(self) -> None:
        self._has_waited = True
        self._waiting_since = self._counted_until = time.monotonic()
        self.busy_waits += 1

    def _wait_goes_on(self) -> None:
        now = time.monotonic()
        self.busy_seconds += now - self._counted_until
        self._counted_until = now
        self.busy_longest = max(self.busy_longest, now - self._waiting_since)

    def _translated(self, exc: Exception, path: Path | None = None) -> TenantqError:
        where = str(path or self.path)
        for kind, ours, text in _ERRORS:
            if isinstance(exc, kind):
                message = text.format(path=where, exc=exc, seconds=at_most(self.busy_timeout))
                return ours(message, path=where, tenant=self.tenant)
        return TenantFileError(f"{where}: {exc}", path=where, tenant=self.tenant)


_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: set[tuple[int, int] | None] = set()
"""The files that were open in the parent when it forked this process."""


def _disown_in_child() -> None:
    for database in list(_open_databases):
        database.disown()


os.register_at_fork(after_in_child=_disown_in_child)

_ERRORS: tuple[tuple[tuple[type[Exception], ...], type[TenantqError], str], ...] = (
    ((OverflowError, TypeError, ValueError), InvalidArgument, "SQLite cannot keep a value: {exc}"),
    ((apsw.BusyError, apsw.LockedError), TenantBusy, "{path} was locked for {seconds:g} s"),
    ((apsw.FullError,), DiskFull, "no space is left for {path}"),
    ((apsw.NotADBError,), NotATenantFile, "{path} is not a SQLite database"),
    ((apsw.CorruptError,), CorruptFile, "{path} is damaged: {exc}"),
    (
        (apsw.CantOpenError, apsw.IOError, apsw.ReadOnlyError, apsw.PermissionsError),
        TenantFileError,
        "{path}: {exc}",
    ),
    ((apsw.Error,), StatementFailed, "{exc}"),
)
"""What SQLite raises, what it is in our words, and how that is said; the first that fits."""
