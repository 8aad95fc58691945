"""The pages of a SQLite file that SQLite itself may not be able to read, with what its -wal has committed."""

from __future__ import annotations

import os
import struct
import sys
from array import array
from pathlib import Path

__all__ = ["MAGIC", "Pages"]

MAGIC = b"SQLite format 3\0"

PAGE_BYTES = 4096
"""Of our files, where the header that says so is lost."""

_WAL_HEADER, _FRAME_HEADER = struct.Struct(">8I"), struct.Struct(">6I")
_WAL_MAGIC = 0x377F0682
"""The last bit says in which order of bytes its checksums are."""


class Pages:
    """The pages of a closed file, by number from 1; nothing is written."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._in_wal: dict[int, bytes] = {}
        self.problems: list[str] = []
        """What is wrong beside the pages."""
        header = os.pread(self._descriptor, 100, 0)
        size = os.fstat(self._descriptor).st_size
        self.size = _page_size(header)
        if not self.size or self.size * int.from_bytes(header[28:32], "big") != size:
            self.size = PAGE_BYTES
        self.count = size // self.size
        self._read_wal(path.with_name(f"{path.name}-wal"))
        first = self.get(1) or b""
        self.has_header = first.startswith(MAGIC) and _page_size(first) == self.size
        self.usable = self.size  # no file of ours has reserved bytes in its pages
        said = int.from_bytes(first[28:32], "big") if self.has_header else self.count
        if size % self.size or said > self.count:
            self.problems.append(f"the file ends at byte {size}, in page {size // self.size + 1} of {said}")
        if not self.has_header:
            self.problems.append("its first page is damaged: tables are looked for where a new file has them")

    def get(self, number: int) -> bytes | None:
        """Return a page; None where there is none."""
        if number in self._in_wal:
            return self._in_wal[number]
        if not 0 < number <= self.count:
            return None
        page = os.pread(self._descriptor, self.size, (number - 1) * self.size)
        return page if len(page) == self.size else None

    def _read_wal(self, path: Path) -> None:
        """Take what was committed to the -wal, as far as its checksums hold."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        if not content:
            return
        if len(content) < _WAL_HEADER.size:
            self.problems.append("the -wal has no header")
            return
        magic, _version, size, _sequence, *salt, one, two = _WAL_HEADER.unpack_from(content)
        is_big = bool(magic & 1)
        sums = _add_up(content[:24], (0, 0), is_big=is_big)
        if magic & ~1 != _WAL_MAGIC or size != self.size or sums != (one, two):
            self.problems.append("the -wal cannot be read: its header is damaged")
            return
        pending: dict[int, bytes] = {}
        at = _WAL_HEADER.size
        while at + _FRAME_HEADER.size + size <= len(content):
            number, commit, *rest = _FRAME_HEADER.unpack_from(content, at)
            if rest[:2] != salt:
                return  # left over from before the -wal began anew
            page = content[at + _FRAME_HEADER.size : at + _FRAME_HEADER.size + size]
            sums = _add_up(content[at : at + 8] + page, sums, is_big=is_big)
            if sums != (rest[2], rest[3]):
                self.problems.append(f"the -wal is damaged at byte {at}: what was committed behind it is lost")
                return
            pending[number] = page
            if commit:
                self._in_wal |= pending
                self.count = commit
                pending = {}
            at += _FRAME_HEADER.size + size


def _page_size(header: bytes) -> int:
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    return size if size >= 512 and size & size - 1 == 0 else 0


def _add_up(data: bytes, sums: tuple[int, int], *, is_big: bool) -> tuple[int, int]:
    words = array("I", data)
    if is_big != (sys.byteorder == "big"):
        words.byteswap()
    one, two = sums
    for index in range(0, len(words), 2):
        one = one + words[index] + two & 0xFFFFFFFF
        two = two + words[index + 1] + one & 0xFFFFFFFF
    return one, two
