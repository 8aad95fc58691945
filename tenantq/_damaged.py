"""A damaged tenant file: its tables, and what of them can be read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tenantq import _schema
from tenantq._btree import BTree, Damage, Entry, free_pages
from tenantq._checksums import checksum
from tenantq._pages import Pages
from tenantq._sqlite import Image, Row
from tenantq.sqlfile import load_statements

__all__ = ["SHAPES", "DamagedFile"]

_SQL = load_statements("tenantq", "salvage.sql")

_TYPES: dict[str, tuple[type, ...]] = {
    "I": (int,),
    "I?": (int, type(None)),
    "T": (str,),
    "T?": (str, type(None)),
    "R?": (float, int, type(None)),
    "B": (str, bytes),
}

SHAPES = {
    # id and claims, as they lie in the file: a row's id is kept beside it
    "queue": "id T I I I? T? I? I? I? I I I T? T? T? B I?",
    "tenantq_dead": "id T I I I I I I T? T? T? B I?",
    "tenantq_outbox": "id T T I I I? I I? I? T? B I?",
    "tenantq_undeliverable": "id T T I I I? I I T T? B I?",
    "tenantq_forwarded": "id I T? I I I",
    "tenantq_depth": "T I I I I I",
    "tenantq_meta": "T T",
    "tenantq_paused": "T I",
    "tenantq_bound": "T I",
    "tenantq_limit": "T I? I? I? I R?",
    "tenantq_periodic": "T I? I? I? I T T T T I I T? T? T? B",
}
"""What a row of each of our tables is made of."""

CHECKED = {"queue": -4, "tenantq_dead": -4, "tenantq_outbox": -3, "tenantq_undeliverable": -3}
"""The tables whose rows have a checksum, last of all behind the payload, and where the headers are."""


class DamagedFile:
    """The tables of a closed file that SQLite may not be able to open. `lost` is filled while they are read."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.lost: list[tuple[str, Damage]] = []
        """What could not be read, and of which table."""
        self._used: set[int] = set()
        self._roots: dict[str, int] = {}
        self.others: list[tuple[str, str, int, str]] = []
        """(type, name, root page, SQL) of what the application has in the file."""
        schema = BTree(pages, 1, self._used)
        if pages.has_header:
            for entry in schema.walk():
                self._learn(entry.values)
        self.is_schema_whole = pages.has_header and not schema.damage
        missing = set(SHAPES) - set(self._roots)
        if not self.is_schema_whole:
            # Every file begins with the same tables at the same pages.
            self._roots |= {name: root for name, root in usual_roots().items() if name in missing}

    def _learn(self, row: Row) -> None:
        if len(row) != 5 or not isinstance(row[1], str) or not isinstance(row[3], int):
            return
        kind, name, of, root, sql = row
        if kind == "table" and name in SHAPES:
            self._roots[name] = root
        elif kind == "index" and of in SHAPES:
            for _ in BTree(self.pages, root, self._used).walk():  # its pages are none that got lost
                pass
        elif isinstance(kind, str) and isinstance(sql, str):
            self.others.append((kind, name, root, sql))

    def is_foreign(self) -> bool:
        """Tell whether none of our tables is where it always is, in a file without a header."""
        return not any(
            BTree(self.pages, root, set()).kind() == ("table" if SHAPES[name].startswith("id") else "index")
            for name, root in self._roots.items()
        )

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the rows of one of our tables, each checked: with its id first, where the table has ids."""
        root = self._roots.get(table)
        types = SHAPES[table].split()
        if root is None:
            if self.is_schema_whole:
                return  # of an older schema
            self._lose(table, Damage(0, "the table cannot be found", None, None, is_row=False))
            return
        tree = BTree(self.pages, root, self._used)
        if tree.kind() != ("table" if types[0] == "id" else "index"):
            self._lose(table, Damage(root, "it is no page of this table", None, None, is_row=False))
            return
        for entry in tree.walk():
            row = _row_of(entry, table)
            if isinstance(row, str):
                self._lose(table, Damage(0, row, *_ids(entry, types), is_row=True))
            else:
                yield row
        for damage in tree.damage:
            self._lose(table, damage)

    def strays(self) -> Iterator[tuple[str, Row]]:
        """Yield the rows of pages that belong to no tree any more, by the ids that are missing. After all `rows`.

        A page that was given back may still have rows that are gone: without the list of those, none is taken.
        """
        gaps = [(table, one) for table, one in self.lost if not one.is_row and "id" in SHAPES.get(table, "")]
        free = free_pages(self.pages)
        if not gaps or free is None:
            return
        for number in range(2, self.pages.count + 1):
            if number in self._used or number in free:
                continue
            entries = BTree(self.pages, number, self._used).leaf(number)
            if not entries:
                continue
            for table, gap in gaps:
                if not _is_within(entries, gap):
                    continue
                found = [_row_of(entry, table) for entry in entries]
                if not any(isinstance(row, str) for row in found):
                    self._used.add(number)
                    yield from ((table, row) for row in found if not isinstance(row, str))
                    break

    def guest_rows(self, name: str, root: int) -> Iterator[tuple[int, Row]]:
        """Yield the (rowid, values) of a table of the application's."""
        tree = BTree(self.pages, root, self._used)
        if tree.kind() != "table":
            self._lose(name, Damage(root, "it is no page of a table with ids", None, None, is_row=False))
            return
        for entry in tree.walk():
            if entry.is_doubtful:
                self._lose(name, Damage(0, "a part of it is zeros", entry.rowid, entry.rowid, is_row=True))
            else:
                yield entry.rowid, entry.values
        for damage in tree.damage:
            self._lose(name, damage)

    def _lose(self, table: str, damage: Damage) -> None:
        self.lost.append((table, damage))


@cache
def usual_roots() -> dict[str, int]:
    """Return the first page of each table of a new file."""
    image = Image()
    _schema.write_schema(image, "")
    return dict(image.execute(_SQL["roots"]))


def _row_of(entry: Entry, table: str) -> Row | str:
    """Return the row of one of our tables, or what is wrong with it."""
    types = SHAPES[table].split()
    values = entry.values
    if table in CHECKED and len(values) == len(types) - 1:  # written before there were checksums
        values = (*values, None)
    if types[0] == "id":
        values = (entry.rowid, *values[1:])
    if len(values) != len(types):
        return "it has not the columns of this table"
    for value, kind in zip(values, types, strict=True):
        if kind != "id" and not isinstance(value, _TYPES[kind]):
            return "it has values that no row of this table has"
    if table in CHECKED and values[-1] is not None:
        if checksum(values[CHECKED[table]], values[-2]) != values[-1]:
            return "it is not what its checksum says"
    elif entry.is_doubtful:
        return "a part of it is zeros"
    return values


def _ids(entry: Entry, types: list[str]) -> tuple[int | None, int | None]:
    return (entry.rowid, entry.rowid) if types[0] == "id" else (None, None)


def _is_within(entries: list[Entry], gap: Damage) -> bool:
    first = gap.first if gap.first is not None else entries[0].rowid
    last = gap.last if gap.last is not None else entries[-1].rowid
    return first <= entries[0].rowid and entries[-1].rowid <= last
