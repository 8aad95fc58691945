"""An open tenant file shared by the threads of a process: they take turns here, not inside SQLite.

Group commit: a thread that finds the file busy leaves its operation with the one that has it. Whoever gets the
turn next commits all the operations that wait in one transaction; each call returns only after that
transaction's COMMIT. A thread that finds the file free pays for none of this.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from tenantq._file import TenantFile
from tenantq._sqlite import identity_of
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

    def __init__(self, file: TenantFile, path: Path, ring: Callable[[], None]) -> None:
        self.file = file
        self.path = path
        self.is_closed = False
        self.was_used = True
        """Set by every use and cleared by the store's eviction: what was not used lately goes first."""
        self.operations = 0
        self._ring = ring
        self._timeout = file.database.busy_timeout
        self._lock = threading.Lock()
        self._owner = 0
        self._pending: deque[_Waiting[Any]] = deque()

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
            self._ring()
        return result

    def read(self, operation: Operation[T]) -> T:
        """Run an operation that changes nothing, on one snapshot of the file."""
        self._take_turn()
        try:
            self._check()
            database = self.file.database
            try:
                database.execute("BEGIN")
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
            self._begin()
            self._owner = threading.get_ident()
        except BaseException:
            self._lock.release()
            raise

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
            self._ring()

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds a transaction."""
        return self._owner == threading.get_ident()

    def close(self, *, wait: bool) -> bool:
        """Close the file; False if it is in use and `wait` is not set. Raises TenantBusy, TransactionError."""
        if not wait:
            if not self._lock.acquire(blocking=False):
                return False
        elif self.is_mine:
            raise TransactionError(
                "a tenant cannot be closed inside of its own transaction",
                tenant=self.file.tenant_id,
            )
        elif not self._lock.acquire(timeout=self._timeout):
            raise self._busy()
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

    def disown(self) -> None:
        """Give the file up in a forked child, where it belongs to the parent."""
        self.is_closed = True
        self._lock = threading.Lock()
        self._owner = 0
        self._pending.clear()

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
        if self.file.database.in_transaction:  # an interrupt in a rollback left it open
            self.file.rollback()

    def _begin(self) -> None:
        self._check()
        try:
            self.file.begin()
        except BaseException:
            self.file.rollback()  # an interrupt may have come behind the BEGIN
            raise

    def _was_replaced(self) -> bool:
        return identity_of(self.path) != self.file.database.identity

    def _commit_one(self, operation: Operation[T]) -> T:
        self._begin()
        file = self.file
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
        try:
            if not self._lock.acquire(timeout=self._timeout):
                if self._withdraw(waiting):
                    raise self._busy()
                self._lock.acquire()  # another thread is committing it: its outcome counts
        except BaseException:  # an interrupt: nobody is to do later what nobody waits for
            self._withdraw(waiting)
            raise
        try:
            has_news = self._commit_until_done(waiting)
        finally:
            self._lock.release()
        return _outcome(waiting), has_news

    def _withdraw(self, waiting: _Waiting[Any]) -> bool:
        try:
            self._pending.remove(waiting)
        except ValueError:
            return False
        return True

    def _commit_until_done(self, waiting: _Waiting[Any]) -> bool:
        """Commit what waits, this operation among it; tell whether that brought something new."""
        has_news = False
        while not waiting.is_done:
            batch: list[_Waiting[Any]] = []
            try:
                while self._pending and len(batch) < MERGE:
                    with contextlib.suppress(IndexError):  # another thread withdrew the last one
                        batch.append(self._pending.popleft())
                batch = batch or [waiting]  # an interrupt of another thread came between its two steps
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
            self._begin()
        except Exception as exc:
            # The file's fault (locked, replaced), not an operation's: the lock is not waited for again.
            for waiting in batch:
                waiting.error = copy.copy(exc)
                waiting.is_done = True
            return False
        try:
            self._run_each(batch)
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
        except BaseException:
            if file.is_committed:
                for waiting in batch:
                    waiting.is_done = True
            raise
        self.operations += len(batch)
        for waiting in batch:
            waiting.is_done = True
        return file.news

    def _run_each(self, batch: list[_Waiting[Any]]) -> None:
        file = self.file
        try:
            for waiting in batch:
                saved = file.savepoint()
                try:
                    waiting.result = waiting.operation(file)
                except Exception as exc:
                    if not file.database.in_transaction:
                        raise  # SQLite undid the others' too: a full disk
                    file.undo_savepoint(saved)
                    waiting.error = exc
                else:
                    file.release_savepoint()
        except BaseException:
            file.rollback()
            raise


def _outcome(waiting: _Waiting[T]) -> T:
    if waiting.error is not None:
        raise waiting.error
    return waiting.result  # type: ignore[return-value]
