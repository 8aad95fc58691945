"""The schedule of a store: when each tenant will have something to do, known without opening its file.

A mapped file has a record for each tenant: whether messages are ready and events wait for Postgres, when the
earliest delayed message is due and the earliest lease ends, when the tenant last had news, and how its file
looked when it was last closed. Whoever changes a tenant writes its record, in memory, while it holds the file's
write lock: what comes sooner before its COMMIT, what is over when it closes the file. So a record may be early,
after a transaction that was undone or a process that was killed, and never late. A worker that starts reads the
records of all tenants, and opens the files of those that have something for it.

It survives the processes, and the host for what was closed when that went down. Where the file was deleted, for
what was open then, and for what wrote to a tenant without us, a shell or a `cp`, the look of the files
(`signature_of`) says that a record is not to be trusted. `_schedule_file` has the file.
"""

from __future__ import annotations

import enum
import errno
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tenantq._doorbell import SLOTS, slot_of_key
from tenantq._schedule_file import (
    CHECK,
    DIRECTORY_PAGE,
    DUE,
    FLAGS,
    HEADER_WORDS,
    KEY,
    LEASED,
    PAGE_WORDS,
    PAGES,
    RUNG,
    SEGMENT_BYTES,
    SEGMENT_PAGES,
    SIGNATURE,
    WORDS,
    check_of,
    locked,
    open_file,
)

__all__ = ["Entry", "Record", "Schedule", "Work", "has_wal", "sign", "signature_of"]

logger = logging.getLogger("tenantq.schedule")

FILE_NAME = ".schedule"


class Work(enum.IntFlag):
    """What a tenant may have for somebody."""

    MESSAGES = 1
    """Messages that are ready; for who asks, those that are due too."""
    EVENTS = 2
    """Events in the outbox that Postgres is not known to have."""


class Record(NamedTuple):
    """What the schedule says of one tenant."""

    key: int
    """Of its id; see `tenantq.naming.key_of`."""
    rung_at: int
    """When it last had news, in monotonic nanoseconds."""
    due_at: int
    """When the earliest delayed message is due, in Unix nanoseconds; 0: there is none."""
    leased_until: int
    """When the earliest lease ends, in nanoseconds since the boot; 0: there is none."""
    work: int
    """Flags of Work."""
    signature: int
    """How its file looked when it was closed and all the rest was true; 0: nobody knows."""


def signature_of(path: Path) -> int:
    """Return a number that every commit to a tenant's file changes, without opening it; 0 where there is no file.

    A commit changes the file or its -wal: their inodes, sizes and times are in it.
    """
    try:
        file = path.stat()
    except OSError:
        return 0
    try:
        wal = path.with_name(f"{path.name}-wal").stat()
    except OSError:
        return sign(file, None)
    return sign(file, wal)


def has_wal(path: Path) -> bool:
    """Tell whether a file has a -wal with something in it: a process has it open, or was killed."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size > 0
    except OSError:
        return False


def sign(file: os.stat_result, wal: os.stat_result | None) -> int:
    """Return the signature of what was found of a file and its -wal."""
    facts: tuple[int, ...] = (file.st_ino, file.st_size, file.st_mtime_ns)
    if wal is not None and wal.st_size:  # an empty one holds nothing, and comes and goes with readers
        facts += (wal.st_ino, wal.st_size, wal.st_mtime_ns)
    return hash(facts) & 0xFFFF_FFFF_FFFF_FFFF or 1


class Entry:
    """The record of one tenant, to be written. Its owner holds the tenant's write lock, but for `ring`."""

    __slots__ = ("_key", "_words")

    def __init__(self, words: memoryview, key: int) -> None:
        self._words = words
        self._key = key

    def expect(self, work: int, due_at: int | None, leased_until: int | None, *, is_whole: bool) -> None:
        """Say what a transaction that is about to commit leaves behind.

        is_whole: whether the two times are the earliest of the whole file, and not of the transaction alone.
        """
        words = self._words
        if work & ~words[FLAGS]:
            words[FLAGS] |= work
        due, leased = due_at or 0, leased_until or 0
        is_whole = is_whole and words[KEY] == self._key  # else the tenant was deleted meanwhile
        if due != words[DUE] and (is_whole or (due and not 0 < words[DUE] < due)):
            words[DUE] = due
        if leased != words[LEASED] and (is_whole or (leased and not 0 < words[LEASED] < leased)):
            words[LEASED] = leased

    def ring(self) -> None:
        """Say that the tenant has news."""
        self._words[RUNG] = time.monotonic_ns()

    def settle(self, work: int, due_at: int | None, leased_until: int | None) -> None:
        """Say what the file has, all of it."""
        if self._words[KEY] == self._key:  # else the tenant was deleted, and the record may be another's
            self._words[FLAGS] = work
            self._words[DUE] = due_at or 0
            self._words[LEASED] = leased_until or 0

    def stamp(self, signature: int) -> None:
        """Say how the file looks of which all the rest is true."""
        if self._words[KEY] == self._key:
            self._words[SIGNATURE] = signature
            self._words[CHECK] = check_of(self._words)

    def doubt(self) -> None:
        """Say that the file may have anything: whoever is interested looks."""
        self._words[SIGNATURE] = 0
        self._words[FLAGS] = Work.MESSAGES | Work.EVENTS


class Schedule:
    """The schedule of one store in this process. Threads may share it."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE_NAME
        self._lock = threading.Lock()
        self._segments: dict[int, memoryview] = {}
        self._descriptor = -1
        self._is_refused = False

    @property
    def is_there(self) -> bool:
        """Whether there is one: not where it cannot be made, on a full disk, say, or read."""
        return self._open() >= 0 and not self._is_refused

    def entry(self, key: int) -> Entry | None:
        """Return a tenant's record, a new and empty one if it has none; None where there is no schedule."""
        try:
            words = self._find(key)
            if words is None and self.is_there:
                with locked(self._path.parent):
                    words = self._find(key) or self._add(key)
        except OSError:
            logger.warning("a tenant gets no record in the schedule; the sweep finds its work", exc_info=True)
            return None
        return None if words is None else Entry(words, key)

    def drop(self, key: int) -> None:
        """Forget a tenant that is no more."""
        words = self._find(key)
        if words is not None:
            words[RUNG:] = memoryview(bytes(8 * (WORDS - 1))).cast("Q")
            words[KEY] = 0

    def records(self, slot: int) -> Iterator[Record]:
        """Yield the records of a slot."""
        for page in self._pages(slot):
            for number, key in enumerate(page[HEADER_WORDS::WORDS].tolist()):
                if key:
                    start = HEADER_WORDS + number * WORDS
                    yield Record(*page[start : start + CHECK].tolist())

    def slots(self) -> list[int]:
        """Return the slots that have records."""
        if not self.is_there:
            return []
        try:
            return [slot for slot, page in enumerate(self._directory().tolist()) if page]
        except OSError:
            self._give_up()
            return []

    def close(self) -> None:
        """Give the file up; the map goes with the last entry that somebody has."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            self._segments = {}
            self._is_refused = True
        if descriptor >= 0:
            os.close(descriptor)

    def after_fork(self) -> None:
        """Renew, in a child, what a thread of the parent may have held."""
        self._lock = threading.Lock()

    # The file

    def _find(self, key: int) -> memoryview | None:
        for page in self._pages(slot_of_key(key)):
            keys = page[HEADER_WORDS::WORDS].tolist()
            if key in keys:
                start = HEADER_WORDS + keys.index(key) * WORDS
                return page[start : start + WORDS]
        return None

    def _add(self, key: int) -> memoryview:
        slot = slot_of_key(key)
        last: memoryview | None = None
        for last in self._pages(slot):
            keys = last[HEADER_WORDS::WORDS].tolist()
            if 0 in keys:
                start = HEADER_WORDS + keys.index(0) * WORDS
                break
        else:
            number = self._add_page()
            link = self._directory()[slot : slot + 1] if last is None else last[:1]
            last, start = self._page(number), HEADER_WORDS
            link[0] = number
        last[start] = key
        return last[start : start + WORDS]

    def _add_page(self) -> int:
        """Take a page that is in no chain yet; one that a killed process took stays unused."""
        head = self._page(0)
        number = head[PAGES]
        if number % SEGMENT_PAGES == 0:
            # Given by the disk now: a write to a hole on a full one would end the process.
            os.posix_fallocate(self._descriptor, number // SEGMENT_PAGES * SEGMENT_BYTES, SEGMENT_BYTES)
        head[PAGES] = number + 1
        return int(number)

    def _pages(self, slot: int) -> Iterator[memoryview]:
        if not self.is_there:
            return
        try:
            number = self._directory()[slot]
            while number:
                page = self._page(number)
                yield page
                number = page[0]
        except OSError:
            self._give_up()

    def _directory(self) -> memoryview:
        start = DIRECTORY_PAGE * PAGE_WORDS
        return self._segment(0)[start : start + SLOTS]

    def _page(self, number: int) -> memoryview:
        start = number % SEGMENT_PAGES * PAGE_WORDS
        return self._segment(number // SEGMENT_PAGES)[start : start + PAGE_WORDS]

    def _segment(self, number: int) -> memoryview:
        """Map a part of the file. Raises OSError where it was cut short, or was closed by another thread."""
        segment = self._segments.get(number)
        if segment is None:
            with self._lock:
                if self._is_refused:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
                try:
                    mapped = mmap.mmap(self._descriptor, SEGMENT_BYTES, offset=number * SEGMENT_BYTES)
                except ValueError as exc:
                    raise OSError(errno.EIO, str(exc), str(self._path)) from exc
                segment = self._segments.setdefault(number, memoryview(mapped).cast("Q"))
        return segment

    def _give_up(self) -> None:
        if not self._is_refused:
            self._is_refused = True
            logger.warning("there is no schedule; the files are looked at", exc_info=True)

    def _open(self) -> int:
        if self._descriptor < 0 and not self._is_refused:
            with self._lock:
                if self._descriptor < 0:
                    try:
                        self._descriptor = open_file(self._path)
                    except OSError:
                        self._give_up()
        return self._descriptor
