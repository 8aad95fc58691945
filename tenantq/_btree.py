"""The rows of a SQLite b-tree, page by page: damage costs the rows of its page, and is told of.

SQLite stops at the first damaged page that it meets. Here each page is checked by itself: that it is a page of
this kind, that its cells lie in it, and that its keys are those that the pages above it say. (The format is
documented at sqlite.org/fileformat2.html.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tenantq._pages import Pages
from tenantq._sqlite import Row

__all__ = ["BTree", "Damage", "Entry", "free_pages"]

INDEX_INTERIOR, TABLE_INTERIOR, INDEX_LEAF, TABLE_LEAF = 2, 5, 10, 13

LOWEST, HIGHEST = -(2**63), 2**63 - 1

MAX_DEPTH = 30
"""No tree is deeper: one with a billion pages is not."""

_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)


class DamagedPageError(Exception):
    """A page, a cell or a record is not what it should be."""


class Entry(NamedTuple):
    """A row of a table, or what an index has for one."""

    rowid: int
    """0 in an index."""
    values: Row
    is_doubtful: bool
    """Whether a part of it comes from a page that is all zeros."""


class Damage(NamedTuple):
    """What could not be read."""

    page: int
    reason: str
    first: int | None
    """The ids that may be lost with it; None where there is no such bound."""
    last: int | None
    is_row: bool
    """Whether it is one row, or all of a page and what lies below it."""


class BTree:
    """One b-tree of a file. `damage` is filled while `walk` goes on."""

    def __init__(self, pages: Pages, root: int, used: set[int]) -> None:
        self._pages = pages
        self._root = root
        self._used = used
        self.damage: list[Damage] = []

    def kind(self) -> str:
        """Return what the root says that it is: "table", "index", or "" for neither."""
        page = self._pages.get(self._root)
        if page is None:
            return ""
        flags = page[100 if self._root == 1 else 0]
        return {5: "table", 13: "table", 2: "index", 10: "index"}.get(flags, "")

    def walk(self) -> Iterator[Entry]:
        """Yield all that can be read, in order."""
        yield from self._walk(self._root, LOWEST, HIGHEST, MAX_DEPTH)

    def leaf(self, number: int) -> list[Entry] | None:
        """Return the rows of a page that no page leads to; None if it is no sound leaf of a table."""
        page = self._pages.get(number)
        if page is None or page[0] != TABLE_LEAF:
            return None
        try:
            entries = [self._table_cell(page, at) for at in self._cells(page, 0, 8)]
        except DamagedPageError:
            return None
        ids = [entry.rowid for entry in entries]
        return entries if ids == sorted(set(ids)) else None

    def _walk(self, number: int, low: int, high: int, depth: int) -> Iterator[Entry]:
        start = 100 if number == 1 else 0
        try:
            page = self._take(number)
            flags = page[start]
            if not depth or flags not in {INDEX_INTERIOR, TABLE_INTERIOR, INDEX_LEAF, TABLE_LEAF}:
                raise DamagedPageError("it is no page of a table")
            is_interior = flags in {INDEX_INTERIOR, TABLE_INTERIOR}
            cells = self._cells(page, start, 12 if is_interior else 8)
        except DamagedPageError as exc:
            self._lose(number, str(exc), low, high)
            return
        if not is_interior:
            yield from self._leaf_entries(number, page, cells, low, high)
            return
        last = low
        for at in cells:
            child = int.from_bytes(page[at : at + 4], "big")
            try:
                if flags == TABLE_INTERIOR:
                    key = _signed(_varint(page, at + 4)[0])
                    if not last <= key <= high:
                        raise DamagedPageError("its keys are not in order")
                    yield from self._walk(child, last, key, depth - 1)
                    last = key
                else:
                    yield from self._walk(child, low, high, depth - 1)
                    yield self._index_cell(page, at + 4)
            except DamagedPageError as exc:
                self._lose(number, str(exc), last, high)
                return
        yield from self._walk(int.from_bytes(page[start + 8 : start + 12], "big"), last, high, depth - 1)

    def _leaf_entries(self, number: int, page: bytes, cells: list[int], low: int, high: int) -> Iterator[Entry]:
        is_table = page[100 if number == 1 else 0] == TABLE_LEAF
        last = low
        for at in cells:
            rowid = None
            try:
                if not is_table:
                    yield self._index_cell(page, at)
                    continue
                rowid = self._rowid(page, at)
                if not (last < rowid or rowid == last == LOWEST) or rowid > high:
                    rowid = None
                    raise DamagedPageError("its id is not where it should be")
                last = rowid
                yield self._table_cell(page, at)
            except DamagedPageError as exc:
                ids = (rowid, rowid) if rowid is not None else (_bound(low, 1), _bound(high, 0))
                self.damage.append(Damage(number, str(exc), *ids, is_row=True))

    def _lose(self, number: int, reason: str, low: int, high: int) -> None:
        self.damage.append(Damage(number, reason, _bound(low, 1), _bound(high, 0), is_row=False))

    def _take(self, number: int) -> bytes:
        page = self._pages.get(number)
        if page is None:
            raise DamagedPageError("there is no such page")
        if number in self._used:
            raise DamagedPageError("another page leads to it too")
        self._used.add(number)
        return page

    def _cells(self, page: bytes, start: int, header: int) -> list[int]:
        (count,) = struct.unpack_from(">H", page, start + 3)
        first = start + header
        if first + 2 * count > self._pages.usable:
            raise DamagedPageError("it has more cells than fit")
        cells = list(struct.unpack_from(f">{count}H", page, first))
        if any(not first + 2 * count <= at <= self._pages.usable - 4 for at in cells):
            raise DamagedPageError("its cells lie outside of it")
        return cells

    def _rowid(self, page: bytes, at: int) -> int:
        return _signed(_varint(page, _varint(page, at)[1])[0])

    def _table_cell(self, page: bytes, at: int) -> Entry:
        size, at = _varint(page, at)
        rowid, at = _varint(page, at)
        record, is_doubtful = self._payload(page, at, size, self._pages.usable - 35)
        return Entry(_signed(rowid), _values(record), is_doubtful)

    def _index_cell(self, page: bytes, at: int) -> Entry:
        size, at = _varint(page, at)
        record, is_doubtful = self._payload(page, at, size, (self._pages.usable - 12) * 64 // 255 - 23)
        return Entry(0, _values(record), is_doubtful)

    def _payload(self, page: bytes, at: int, size: int, most: int) -> tuple[bytes, bool]:
        usable = self._pages.usable
        if size > usable * self._pages.count:
            raise DamagedPageError("it is longer than the file")
        if size <= most:
            local = size
        else:
            least = (usable - 12) * 32 // 255 - 23
            local = least + (size - least) % (usable - 4)
            local = local if local <= most else least
        if at + local + (4 if local < size else 0) > usable:
            raise DamagedPageError("it does not fit into its page")
        parts = [page[at : at + local]]
        left = size - local
        next_page = int.from_bytes(page[at + local : at + local + 4], "big") if left else 0
        is_doubtful = False
        while left:
            overflow = self._take(next_page)
            is_doubtful = is_doubtful or not any(overflow)
            part = overflow[4 : 4 + min(left, usable - 4)]
            parts.append(part)
            left -= len(part)
            next_page = int.from_bytes(overflow[:4], "big")
        if next_page:
            raise DamagedPageError("its last page is not its last")
        return b"".join(parts), is_doubtful


def free_pages(pages: Pages) -> set[int] | None:
    """Return the pages that are in no tree; None where the list of them is damaged."""
    first = pages.get(1)
    if first is None or not pages.has_header:
        return None
    trunk, count = struct.unpack_from(">2I", first, 32)
    found: set[int] = set()
    while trunk:
        page = pages.get(trunk)
        if page is None or trunk in found:
            return None
        found.add(trunk)
        trunk, leaves = struct.unpack_from(">2I", page)
        if leaves > pages.usable // 4 - 2:
            return None
        found.update(struct.unpack_from(f">{leaves}I", page, 8))
    return found if len(found) == count else None


def _bound(key: int, step: int) -> int | None:
    return None if key in {LOWEST, HIGHEST} else key + step


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(at, at + 8):
        if index >= len(data):
            raise DamagedPageError("a number is cut off")
        value = value << 7 | data[index] & 0x7F
        if data[index] < 0x80:
            return value, index + 1
    if at + 8 >= len(data):
        raise DamagedPageError("a number is cut off")
    return value << 8 | data[at + 8], at + 9


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _values(record: bytes) -> Row:
    """Return the values of a record. Raises DamagedPageError unless it is one from its first byte to its last."""
    end, at = _varint(record, 0)
    if end > len(record):
        raise DamagedPageError("its header is longer than it")
    values: list[object] = []
    body = end
    while at < end:
        kind, at = _varint(record, at)
        value, body = _value(record, kind, body)
        values.append(value)
    if at != end or body != len(record):
        raise DamagedPageError("its length is not that of its values")
    return tuple(values)


def _value(record: bytes, kind: int, at: int) -> tuple[object, int]:
    if kind == 0:
        return None, at
    if kind in {8, 9}:
        return kind - 8, at
    if kind in {10, 11}:
        raise DamagedPageError("a value is of no known type")
    size = 8 if kind == 7 else _INTEGER_BYTES[kind] if kind < 7 else (kind - 12) // 2
    data = record[at : at + size]
    if len(data) < size:
        raise DamagedPageError("a value is cut off")
    if kind < 7:
        return int.from_bytes(data, "big", signed=True), at + size
    if kind == 7:
        return struct.unpack(">d", data)[0], at + size
    if kind % 2 == 0:
        return data, at + size
    try:
        return data.decode(), at + size
    except UnicodeDecodeError:
        raise DamagedPageError("a text is no UTF-8") from None
