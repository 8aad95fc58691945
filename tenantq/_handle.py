"""An open tenant file shared by the threads of a process: they take turns here, not inside SQLite.

Group commit: a thread that finds the file busy leaves its operation with the one that has it. Whoever gets the
turn next commits all the operations that wait in one transaction; each call returns only after that
transaction's COMMIT. A thread that finds the file free pays for none of this.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from tenantq._file import TenantFile
from tenantq.errors import FileReplaced, TenantBusy, TransactionError

__all__ = ["Handle", "HandleGone"]

T = TypeVar("T")
Operation = Callable[[TenantFile], T]

MERGE = 256
"""Operations that one transaction carries at most, so that none waits long for the others' work."""


class HandleGone(Exception):
    """The handle was evicted between two steps; the caller opens the file again."""


class _Waiting(Generic[T]):
    """An operation that another thread may commit."""

    __slots__ = ("error", "is_done", "operation", "result")

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation
        self.is_done = False
        self.result: T | None = None
        self.error: BaseException | None = None


class Handle:
    """One open tenant file, and whose turn it is."""

    def __init__(self, file: TenantFile, path: Path, ring: Callable[[str], None]) -> None:
        self.file = file
        self.path = path
        self.is_closed = False
        self.was_used = True
        """Set by every use and cleared by the store's eviction: what was not used lately goes first."""
        self.operations = 0
        self._ring = ring
        self._identity = identity_of(path)
        self._timeout = file.database.busy_timeout
        self._lock = threading.Lock()
        self._owner = 0
        self._pending: deque[_Waiting[Any]] = deque()
        self._listeners: set[threading.Event] = set()

    def write(self, operation: Operation[T]) -> T:
        """Run an operation in a transaction; durable on return. If it raises, nothing of it is."""
        if self._lock.acquire(blocking=False):
            try:
                if self._pending:
                    waiting = _Waiting(operation)
                    self._pending.appendleft(waiting)
                    has_news = self._commit_until_done(waiting)
                    result = _outcome(waiting)
                else:
                    result = self._commit_one(operation)
                    has_news = self.file.news
            finally:
                self._lock.release()
        else:
            result, has_news = self._write_later(operation)
        if has_news:
            self.ring()
        return result

    def read(self, operation: Operation[T]) -> T:
        """Run an operation that changes nothing, on one snapshot of the file."""
        self._take_turn()
        try:
            self._check()
            database = self.file.database
            database.execute("BEGIN")
            try:
                return operation(self.file)
            finally:
                database.rollback()
        finally:
            self._lock.release()

    def read_one(self, operation: Operation[T]) -> T:
        """Run an operation of a single statement that changes nothing."""
        self._take_turn()
        try:
            self._check()
            return operation(self.file)
        finally:
            self._lock.release()

    def begin(self) -> None:
        """Begin a transaction that this thread holds until `end`."""
        self._take_turn()
        try:
            self._check()
            self.file.begin()
        except BaseException:
            self._lock.release()
            raise
        self._owner = threading.get_ident()

    def end(self, *, commit: bool) -> None:
        """Commit or undo the transaction of this thread."""
        has_news = False
        try:
            if commit:
                self.file.commit()
                has_news = self.file.news
                self.operations += 1
            else:
                self.file.rollback()
        finally:
            self._owner = 0
            self._lock.release()
        if has_news:
            self.ring()

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds a transaction."""
        return self._owner == threading.get_ident()

    def ring(self) -> None:
        """Tell who waits for this tenant, in this process, that it has something new."""
        for listener in tuple(self._listeners):
            listener.set()
        self._ring(self.file.tenant_id)

    def listen(self, listener: threading.Event) -> None:
        """Have an event set at every commit that brings something new."""
        self._listeners.add(listener)

    def unlisten(self, listener: threading.Event) -> None:
        """End what `listen` began."""
        self._listeners.discard(listener)

    def close(self, *, wait: bool) -> bool:
        """Close the file; False if it is in use and `wait` is not set."""
        if self.is_mine:
            raise TransactionError("a tenant cannot be closed inside of its own transaction")
        if not self._lock.acquire(blocking=wait):
            return False
        try:
            if self._pending and not wait:
                return False
            if not self.is_closed:
                self.is_closed = True
                if self._was_replaced():
                    self.file.database.abandon_replaced()
                else:
                    self.file.database.close()
            return True
        finally:
            self._lock.release()

    def leak(self) -> None:
        """Give the file up in a forked child, where it belongs to the parent."""
        self.is_closed = True
        self._lock = threading.Lock()
        self._owner = 0
        self._pending.clear()
        self.file.database.leak()

    # One thread at a time from here on

    def _take_turn(self) -> None:
        if self.is_mine:
            raise TransactionError(
                "this thread has a transaction open on the tenant",
                hint="use the transaction's own methods until it ends",
                tenant=self.file.tenant_id,
            )
        if not self._lock.acquire(timeout=self._timeout):
            raise self._busy()

    def _busy(self) -> TenantBusy:
        return TenantBusy(
            f"a transaction in this process held the tenant for more than {self._timeout:g} s",
            tenant=self.file.tenant_id,
            path=str(self.path),
        )

    def _check(self) -> None:
        self.was_used = True
        if self.is_closed:
            raise HandleGone
        if self._was_replaced():
            self.is_closed = True
            self.file.database.abandon_replaced()
            raise FileReplaced(
                f"{self.path} was deleted or replaced while it was open",
                tenant=self.file.tenant_id,
                path=str(self.path),
            )

    def _was_replaced(self) -> bool:
        return identity_of(self.path) != self._identity

    def _commit_one(self, operation: Operation[T]) -> T:
        self._check()
        file = self.file
        file.begin()
        try:
            result = operation(file)
        except BaseException:
            file.rollback()
            raise
        file.commit()
        self.operations += 1
        return result

    def _write_later(self, operation: Operation[T]) -> tuple[T, bool]:
        waiting = _Waiting(operation)
        if self.is_mine:
            self._take_turn()  # raises
        self._pending.append(waiting)
        if not self._lock.acquire(timeout=self._timeout):
            try:
                self._pending.remove(waiting)
            except ValueError:
                self._lock.acquire()  # another thread is committing it: its outcome counts
            else:
                raise self._busy()
        try:
            has_news = self._commit_until_done(waiting)
        finally:
            self._lock.release()
        return _outcome(waiting), has_news

    def _commit_until_done(self, waiting: _Waiting[Any]) -> bool:
        """Commit what waits, this operation among it; tell whether that brought something new."""
        has_news = False
        while not waiting.is_done:
            batch = [self._pending.popleft() for _ in range(min(MERGE, len(self._pending)))]
            try:
                has_news |= self._commit_merged(batch)
            except BaseException:  # an interrupt of this thread, not a failure of the others' operations
                self._pending.extendleft(
                    other for other in reversed(batch) if other is not waiting and not other.is_done
                )
                raise
        return has_news

    def _commit_merged(self, batch: list[_Waiting[Any]]) -> bool:
        """Commit many operations in one transaction; one that fails is undone alone."""
        file = self.file
        try:
            self._check()
            file.begin()
            try:
                for waiting in batch:
                    saved = file.savepoint()
                    try:
                        waiting.result = waiting.operation(file)
                    except Exception as exc:
                        file.undo_savepoint(saved)
                        waiting.error = exc
                    else:
                        file.release_savepoint()
            except BaseException:
                file.rollback()
                raise
            file.commit()
        except Exception as exc:
            # Nothing was committed. Each may fare better alone: one may be too large for the disk.
            if len(batch) == 1:
                batch[0].error = exc
                batch[0].is_done = True
                return False
            has_news = False
            for waiting in batch:
                waiting.error = None
                has_news |= self._commit_merged([waiting])
            return has_news
        self.operations += len(batch)
        for waiting in batch:
            waiting.is_done = True
        return file.news


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return what tells one file from another under the same name; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - every write asks, and Path.stat takes twice as long
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _outcome(waiting: _Waiting[T]) -> T:
    if waiting.error is not None:
        raise waiting.error
    return waiting.result  # type: ignore[return-value]
