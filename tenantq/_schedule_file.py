"""The file of a schedule: how it is laid out, made, and taken over from the boot before.

A page with what it is, a directory with the first page of each slot of tenants, and pages of records, those of a
slot in a chain. After a crash of the host any page may be older than the others, so of another boot's file only
those records are taken that say themselves that they are whole, and whose tenants' files were closed; whether the
files still look as the records say is asked of every record anyway.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

from tenantq._doorbell import SLOTS, slot_of_key
from tenantq.clock import SystemClock

__all__ = [
    "CHECK",
    "DIRECTORY_PAGE",
    "DUE",
    "FLAGS",
    "HEADER_WORDS",
    "KEY",
    "LEASED",
    "PAGES",
    "PAGE_WORDS",
    "RUNG",
    "SEGMENT_BYTES",
    "SEGMENT_PAGES",
    "SIGNATURE",
    "WORDS",
    "check_of",
    "locked",
    "open_file",
]

LAYOUT = 2
"""Of the file. Another one's is not read: it is begun anew, and the files are looked at."""

KEY, RUNG, DUE, LEASED, FLAGS, SIGNATURE, CHECK = range(7)
WORDS = 8
"""Of eight bytes, in a record: it lies in one sector of the disk."""

PAGE_WORDS = 512
HEADER_WORDS = 8
"""Of a page; the first is the number of the slot's next page."""

DIRECTORY_PAGE = 1
FIRST_PAGE = DIRECTORY_PAGE + SLOTS // PAGE_WORDS
SEGMENT_PAGES = 256
SEGMENT_BYTES = SEGMENT_PAGES * PAGE_WORDS * 8
"""The file grows, and is mapped, in pieces of a MiB."""

IDENTITY, PAGES, BOOT = 0, 1, 2
"""Words of the first page: what the file is, how many pages are in use, and the boot that it is of."""

Words = Sequence[int]


def check_of(record: Words) -> int:
    """Return what a record's last word is where all the others were written together."""
    return hash((record[KEY], *record[DUE:CHECK])) & 0xFFFF_FFFF_FFFF_FFFF or 1


def open_file(path: Path) -> int:
    """Open the schedule of this boot; make it, all at once, where there is none or another boot's."""
    identity, boot = _word_of(f"tenantq schedule {LAYOUT}"), _word_of(SystemClock().boot_id())
    with locked(path.parent):
        found: list[Words] = []
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            size = os.fstat(descriptor).st_size
            head = memoryview(os.pread(descriptor, 24, 0)).cast("Q") if size >= SEGMENT_BYTES else [0, 0, 0]
            if head[IDENTITY] == identity:
                if head[BOOT] == boot:
                    return descriptor
                found = _trusted(memoryview(os.pread(descriptor, size, 0)[: size // 8 * 8]).cast("Q"))
            os.close(descriptor)
        image = _image(identity, boot, found)
        # Under another name first: who has the old one mapped must not find it cut short.
        made = path.with_name(f"{path.name}.new")
        descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, len(image))
            written = 0
            while written < len(image):
                written += os.pwrite(descriptor, image[written:], written)
            made.replace(path)
        except BaseException:
            os.close(descriptor)
            made.unlink(missing_ok=True)
            raise
        return descriptor


def _trusted(words: memoryview) -> list[Words]:
    """Return, of another boot's file, the records that are whole and of closed files, as they are in this boot."""
    found: dict[int, list[Words]] = {}
    for start in range(FIRST_PAGE * PAGE_WORDS, len(words) - PAGE_WORDS + 1, PAGE_WORDS):
        page = words[start : start + PAGE_WORDS]
        for place in range(HEADER_WORDS, PAGE_WORDS, WORDS):
            if page[place] == 0:
                continue
            record = page[place : place + WORDS].tolist()
            if record[SIGNATURE] and record[CHECK] == check_of(record):
                record[RUNG] = 0
                record[LEASED] = min(record[LEASED], 1)  # of another boot: it is over
                record[CHECK] = check_of(record)
                found.setdefault(record[KEY], []).append(record)
    return [some[0] for some in found.values() if len(some) == 1]


def _image(identity: int, boot: int, records: Sequence[Words]) -> memoryview:
    """Return the content of a new file with these records."""
    by_slot: dict[int, list[Words]] = {}
    for record in records:
        by_slot.setdefault(slot_of_key(record[KEY]), []).append(record)
    in_page = (PAGE_WORDS - HEADER_WORDS) // WORDS
    pages = FIRST_PAGE + sum(-(-len(some) // in_page) for some in by_slot.values())
    image = memoryview(bytearray(-(-pages // SEGMENT_PAGES) * SEGMENT_BYTES)).cast("Q")
    image[IDENTITY], image[PAGES], image[BOOT] = identity, pages, boot
    number = FIRST_PAGE
    for slot, some in by_slot.items():
        link = DIRECTORY_PAGE * PAGE_WORDS + slot
        for first in range(0, len(some), in_page):
            image[link] = number
            link = number * PAGE_WORDS
            for place, record in enumerate(some[first : first + in_page]):
                start = link + HEADER_WORDS + place * WORDS
                image[start : start + WORDS] = memoryview(array("Q", record))
            number += 1
    return image.cast("B")


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep other threads and processes from adding to the schedule, or from making one."""
    descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # A fork shares the descriptor, and with it the lock: closing ours would not end it.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _word_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], sys.byteorder)
