"""An open tenant file shared by the threads of a process: they take turns here, not inside SQLite.

Group commit: threads that find the file busy stand in line with their operations. Whoever gets the turn next
commits all that wait behind it in one transaction; each call returns only after that transaction's COMMIT. A
thread that finds the file free pays for none of this.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tenantq._departures import Request
from tenantq._file import TenantFile
from tenantq._line import Line, Waiting
from tenantq._patience import at_most, is_impatient
from tenantq._schedule import has_wal, signature_of
from tenantq.errors import FileReplaced, TenantBusy, TenantqError, TransactionError

__all__ = ["MERGE", "Handle", "HandleGone"]

T = TypeVar("T")
Operation = Callable[[TenantFile], T]

MERGE = 256
"""Operations that one transaction carries at most, so that none waits long for the others' work."""


GUARD_INTERVAL = 1.0
"""Seconds between two looks for somebody else's handle on the file in this process."""


class HandleGone(Exception):
    """The handle was evicted between two steps; the caller opens the file again."""


class Handle:
    """One open tenant file, and whose turn it is."""

    def __init__(
        self,
        file: TenantFile,
        path: Path,
        ring: Callable[[], None],
        request: Request | None = None,
    ) -> None:
        self.file = file
        self.path = path
        self.is_closed = False
        self.was_used = True
        """Set by every use and cleared by the store's eviction: what was not used lately goes first."""
        self.operations = 0
        self._ring = ring
        self._request = request or Request.none()
        self._next_guard = time.monotonic() + GUARD_INTERVAL  # its database has just looked
        self._timeout = file.database.busy_timeout
        self._line = Line()
        self._owner = 0

    def write(self, operation: Operation[T]) -> T:
        """Run an operation in a transaction; durable on return. If it raises, nothing of it is."""
        if not self._line.try_take():
            return self._write_with_others(operation)
        file, line = self.file, self._line
        try:
            self._begin()
            try:
                result = operation(file)
            except BaseException:
                file.rollback()
                raise
            if line.waiting:  # others came meanwhile: their work goes along
                return self._commit_with_others(operation, result)
            file.commit()
            self.operations += 1
            has_news = file.news
        finally:
            line.hand_over()
        if has_news:
            self._ring()
        return result

    def write_all(self, batch: Sequence[Waiting[Any]]) -> None:
        """Run the operations of other threads with the first, in one transaction; each fails alone.

        One that gives None did nothing, and is not counted.
        """
        self._take_turn()
        merged = list(batch)
        try:
            try:
                has_news = self._commit_merged(merged)
            finally:
                self._line.bring_back(merged[len(batch) :])
        finally:
            self._line.hand_over()
        self.operations -= sum(waiting.result is None and waiting.error is None for waiting in batch)
        if has_news:
            self._ring()
        if isinstance(batch[0].error, HandleGone):  # all of them, then: nothing was run
            for waiting in batch:
                waiting.error, waiting.is_done = None, False
            raise HandleGone

    def read(self, operation: Operation[T]) -> T:
        """Run an operation that changes nothing, on one snapshot of the file."""
        self._take_turn()
        try:
            self._check()
            database = self.file.database
            try:
                database.execute("BEGIN")
                return self._look(operation)
            finally:
                database.rollback()
        finally:
            self._line.hand_over()

    def read_one(self, operation: Operation[T]) -> T:
        """Run an operation of a single statement that changes nothing."""
        self._take_turn()
        try:
            self._check()
            return self._look(operation)
        finally:
            self._line.hand_over()

    def begin(self) -> None:
        """Begin a transaction that this thread holds until `end`."""
        self._take_turn()
        try:
            self._begin()
            self._owner = threading.get_ident()
        except BaseException:
            self._line.hand_over()
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
            self._line.hand_over()
        if has_news:
            self._ring()

    def part(self) -> None:
        """Let another thread go on with the transaction of this one."""
        self._owner = 0

    def go_on(self) -> None:
        """Go on in this thread with the transaction that another has parted with."""
        self._owner = threading.get_ident()

    def activity(self) -> tuple[int, int, int, float, float]:
        """Return commits, operations, and how often, how long and at longest how long the lock was waited for."""
        database = self.file.database
        waits = (database.busy_waits, database.busy_seconds, database.busy_longest)
        return (self.file.commits, self.operations, *waits)

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds a transaction."""
        return self._owner == threading.get_ident()

    def close(self, *, wait: bool) -> bool:
        """Close the file; False if it is in use and `wait` is not set. Raises TenantBusy, TransactionError."""
        if self.is_mine:
            if not wait:
                return False
            raise TransactionError(
                "a tenant cannot be closed inside of its own transaction",
                tenant=self.file.tenant_id,
            )
        if not self._line.try_take():
            if not wait:
                return False
            self._take_turn()
        try:
            if not self.is_closed:
                self.is_closed = True
                if self.file.database.was_replaced():
                    self.file.database.abandon_replaced()
                else:
                    self._leave()
            return True
        finally:
            self._line.hand_over()

    def _leave(self) -> None:
        """Close the file, and say in the store's schedule what it has and how it looks from now on."""
        try:
            seen = self.file.settle_schedule()
        except TenantqError:
            seen = 0  # a damaged file: whoever has work for it finds out
        # What ours commit from then on is in the schedule already; what another library does is to be looked for.
        is_settled = seen == signature_of(self.path)
        self.file.database.close()
        if self.file.entry is not None:
            closed = signature_of(self.path)
            is_settled = is_settled and (closed == seen or not has_wal(self.path))
            self.file.entry.stamp(closed if is_settled else 0)

    def resize(self, *, cache_kib: int, wal_pages: int) -> bool:
        """Change what the file may take of memory and disk; False if it is in use, which is not waited for."""
        if self.is_mine or not self._line.try_take():
            return False
        try:
            if not self.is_closed:
                self.file.database.resize(cache_kib=cache_kib, wal_pages=wal_pages)
            return True
        finally:
            self._line.hand_over()

    def disown(self) -> None:
        """Give the file up in a forked child, where it belongs to the parent."""
        self.is_closed = True
        self._line = Line()
        self._owner = 0

    # One thread at a time from here on

    def _take_turn(self) -> None:
        if self.is_mine:
            raise TransactionError(
                "this thread has a transaction open on the tenant",
                hint="use the transaction's own methods until it ends",
                tenant=self.file.tenant_id,
            )
        if not self._line.try_take() and not self._line.wait(Waiting(None), at_most(self._timeout)):
            raise self._busy()

    def _busy(self) -> TenantBusy:
        return TenantBusy(
            f"a transaction in this process held the tenant for more than {at_most(self._timeout):g} s",
            tenant=self.file.tenant_id,
            path=str(self.path),
        )

    def _check(self) -> None:
        self.was_used = True
        if self.is_closed:
            raise HandleGone
        if self.file.database.was_replaced():
            self.is_closed = True
            self.file.database.abandon_replaced()
            raise FileReplaced(
                f"{self.path} was deleted or replaced while it was open",
                tenant=self.file.tenant_id,
                path=str(self.path),
            )
        if self.file.database.in_transaction:  # an interrupt in a rollback left it open
            self.file.rollback()
        if self._request.word[0] and self._request.stands():
            self.is_closed = True
            self._leave()
            raise HandleGone
        now = time.monotonic()
        if now >= self._next_guard:
            self.file.database.check_alone()  # raises at every call until it is alone again
            self._next_guard = now + GUARD_INTERVAL

    def _look(self, operation: Operation[T]) -> T:
        try:
            return operation(self.file)
        finally:  # whether it failed or not: of a newer schema neither says anything
            self.file.check_schema()

    def _begin(self) -> None:
        self._check()
        try:
            self.file.begin()
        except BaseException:
            self.file.rollback()  # an interrupt may have come behind the BEGIN
            raise

    def _write_with_others(self, operation: Operation[T]) -> T:
        """Wait until another thread has committed the operation, or commit it with those of the next in line."""
        if self.is_mine:
            self._take_turn()  # raises
        waiting = Waiting(operation)
        if not self._line.wait(waiting, at_most(self._timeout)):
            raise self._busy()
        if not waiting.has_turn:
            return waiting.outcome()
        try:
            self.file.database.make_way()  # now: those who come meanwhile are taken along
            # Others would wait longer for another process's lock: until it is there, they stay in line.
            self._lead([waiting, *([] if is_impatient() else self._line.take_along(MERGE - 1))])
        finally:
            self._line.hand_over()
        return waiting.outcome()

    def _commit_with_others(self, operation: Operation[T], result: T) -> T:
        """Commit an operation that was run, in the transaction that is open, and those of the line."""
        waiting = Waiting(operation)
        waiting.result = result
        self._lead([waiting], is_begun=True)
        return waiting.outcome()

    def _lead(self, batch: list[Waiting[Any]], *, is_begun: bool = False) -> None:
        """Commit the first one's operation with all of the others, and with those who come before the COMMIT."""
        try:
            has_news = self._commit_merged(batch, is_begun=is_begun)
        finally:  # an interrupt of this thread is no failure of the others' operations
            self._line.bring_back(batch[1:])
        if has_news:
            self._ring()

    def _commit_merged(
        self,
        batch: list[Waiting[Any]],
        *,
        is_begun: bool = False,
        is_apart: bool = False,
    ) -> bool:
        """Commit many operations in one transaction; one that fails is undone alone.

        They are run without a savepoint each, since hardly any ever fails; where one does, all are undone and
        run again, set apart by savepoints.
        """
        file = self.file
        try:
            if not is_begun:
                self._begin()
        except Exception as exc:
            # The file's fault (locked, replaced), not an operation's: the lock is not waited for again.
            for waiting in batch:
                waiting.error = copy.copy(exc)
                waiting.is_done = True
            return False
        try:
            if not is_begun:
                self._run_each(batch, is_apart=is_apart)
            while not is_apart and self._line.waiting and len(batch) < MERGE:
                more = self._line.take_along(MERGE - len(batch))
                if not more:
                    break
                batch += more
                self._run_each(more)
            file.database.operations = len(batch)
            file.commit()
        except Exception as exc:
            return self._commit_otherwise(batch, exc, is_apart=is_apart)
        except BaseException:
            if file.is_committed:
                for waiting in batch:
                    waiting.is_done = True
            raise
        self.operations += len(batch)
        for waiting in batch:
            waiting.is_done = True
        return file.news

    def _commit_otherwise(self, batch: list[Waiting[Any]], exc: Exception, *, is_apart: bool) -> bool:
        """Commit what could not be committed together: nothing of it was."""
        if len(batch) == 1:
            batch[0].error = exc
            batch[0].is_done = True
            return False
        if not is_apart:
            return self._commit_merged(batch, is_apart=True)
        has_news = False
        for waiting in batch:  # each may fare better alone: one may be too large for the disk
            waiting.error = None
            has_news |= self._commit_merged([waiting])
        return has_news

    def _run_each(self, batch: Sequence[Waiting[Any]], *, is_apart: bool = False) -> None:
        file = self.file
        try:
            if not is_apart:
                for alike, group in itertools.groupby(batch, _alike):
                    _run_group(file, list(group), is_alike=alike is not None)
                return
            for waiting in batch:
                saved = file.savepoint()
                try:
                    _run_group(file, [waiting])
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


def _alike(waiting: Waiting[Any]) -> object:
    return getattr(waiting.operation, "alike", None)


def _run_group(file: TenantFile, group: Sequence[Waiting[Any]], *, is_alike: bool = False) -> None:
    """Run operations one by one, or in one go those that say of themselves that they can be."""
    first: Any = group[0].operation
    if is_alike and len(group) > 1:
        results = first.together(file, [waiting.operation for waiting in group])
        for waiting, result in zip(group, results, strict=True):
            waiting.result = result
        return
    for waiting in group:
        assert waiting.operation is not None  # the line takes along no other
        waiting.result = waiting.operation(file)
