"""Salvage: what can be read of a damaged tenant file is brought into a new one, and what could not is listed."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tenantq import _foreign, _given_out, _schema
from tenantq._btree import Damage
from tenantq._copies import check_sound, copy_beside, sync_file
from tenantq._damaged import SHAPES, DamagedFile
from tenantq._file import TenantFile
from tenantq._pages import MAGIC, Pages
from tenantq._restoring import no_other_process
from tenantq._sqlite import Database, Durability, Row, identity_of
from tenantq.errors import (
    CorruptFile,
    NewerFile,
    NotATenantFile,
    StatementFailed,
    TenantFileError,
    TenantInUse,
    UnknownTenant,
    WrongTenant,
)
from tenantq.naming import check_tenant_id
from tenantq.sqlfile import load_statements

__all__ = ["LostRows", "SalvageReport", "SalvagedQueue", "salvage"]

_SQL = load_statements("tenantq", "salvage.sql")

BATCH = 10_000
"""Rows of a transaction: not a -wal as long as the file."""

ORDER = (
    "tenantq_meta",
    "tenantq_depth",
    "queue",
    "tenantq_dead",
    "tenantq_outbox",
    "tenantq_undeliverable",
    "tenantq_forwarded",
    "tenantq_paused",
    "tenantq_bound",
    "tenantq_limit",
    "tenantq_periodic",
)

_COPIED_KINDS = ("table", "index", "view")
"""What of an application's own is made again. A trigger would run on what is put in."""


class LostRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one table that could not be read."""

    table: str
    first_id: int | None = None
    """They have ids from this one on; None where that cannot be told."""
    last_id: int | None = None
    """The last id that they may have; None where that cannot be told."""
    is_range: bool
    """Whether it is all that lay between the two, and not one row."""
    reason: str


class SalvagedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of one queue."""

    queue: str
    messages: int = 0
    """Ready, scheduled and claimed ones."""
    dead: int = 0
    missing: int | None = None
    """How many more the file was said to hold; None where it does not say."""


class SalvageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was brought into a new file, and what was not."""

    source: str
    dest: str
    tenant: str
    messages: int
    dead: int
    outbox: int
    """Events that Postgres is not known to have."""
    undeliverable: int
    queues: tuple[SalvagedQueue, ...]
    lost: tuple[LostRows, ...]
    problems: tuple[str, ...]
    """What is wrong beside rows that are lost, one sentence each."""

    @property
    def is_complete(self) -> bool:
        """Whether everything that the file held was read."""
        return not self.lost and not self.problems and not any(queue.missing for queue in self.queues)


def salvage(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    tenant: str | None = None,
) -> SalvageReport:
    """Bring what can be read of a damaged tenant file, and of the -wal beside it, into a new file at `dest`.

    Messages, dead letters, events, settings, and the application's own tables; what is claimed is given back.
    The new file passes `verify` and can be given to `Store.restore`. The source is only read. `tenant` is the
    id, where the file cannot tell it any more.

    Raises UnknownTenant where there is no source, TenantFileError where `dest` exists or cannot be written,
    TenantInUse while a process has the source open, NotATenantFile, NewerFile, WrongTenant; CorruptFile where
    nothing of a tenant is left, or no id.
    """
    path, target = Path(source), Path(dest)
    if tenant is not None:
        check_tenant_id(tenant)
    if not path.is_file():
        raise UnknownTenant(f"there is no file at {path}", path=str(path))
    if target.exists():
        raise TenantFileError(f"{target} exists", hint="give the name of a new file", path=str(target))
    with _unused(path) as descriptor, copy_beside(target) as copy:
        damaged = DamagedFile(Pages(descriptor, path))
        _check_ours(damaged, path)
        report = _Salvage(damaged, path, copy, tenant).run(target)
        check_sound(copy, report.tenant)
        sync_file(copy)
        _schema.remove_sidecars(target)
        copy.replace(target)
        _schema.sync_directory(target.parent)
    return report


@contextlib.contextmanager
def _unused(path: Path) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        if not stack.enter_context(_foreign.reading(identity_of(path))):
            raise TenantInUse(f"this process has {path} open", path=str(path))
        if os.access(path, os.W_OK):
            yield stack.enter_context(no_other_process(path, str(path)))
            return
        descriptor = os.open(path, os.O_RDONLY)  # nobody is to be kept out
        stack.callback(os.close, descriptor)
        yield descriptor


def _check_ours(damaged: DamagedFile, path: Path) -> None:
    first = damaged.pages.get(1) or b""
    if not damaged.pages.has_header:
        if not first.startswith(MAGIC) and damaged.is_foreign():
            raise NotATenantFile(f"{path} has nothing of a tenantq tenant file", path=str(path))
        return
    version = int.from_bytes(first[60:64], "big")
    if int.from_bytes(first[68:72], "big") != _schema.APPLICATION_ID:
        raise NotATenantFile(f"{path} is not a tenantq tenant file", path=str(path))
    if version > _schema.SCHEMA_VERSION:
        text = f"{path} has schema version {version}, this tenantq knows up to {_schema.SCHEMA_VERSION}"
        raise NewerFile(text, path=str(path))


class _Salvage:
    """One damaged file on its way into a new one."""

    def __init__(self, damaged: DamagedFile, path: Path, copy: Path, tenant: str | None) -> None:
        self._damaged = damaged
        self._path = path
        self._copy = copy
        self._meta = {str(name): str(value) for name, value in damaged.rows("tenantq_meta")}
        self._tenant = self._check_tenant(tenant)
        self._said: dict[str, int] = {}
        self._lost: list[LostRows] = []
        self._problems = list(damaged.pages.problems)
        self._pending = 0

    def _check_tenant(self, tenant: str | None) -> str:
        path, named = str(self._path), self._meta.get("tenant_id")
        if named is not None and tenant is not None and named != tenant:
            raise WrongTenant(f"{path} belongs to tenant {named!r}, not {tenant!r}", path=path, tenant=tenant)
        found = tenant if named is None else named
        if found is None:
            hint = "say whose it is: tenant=... or --tenant"
            raise CorruptFile(f"{path} does not tell its tenant any more", hint=hint, path=path)
        return found

    def run(self, target: Path) -> SalvageReport:
        """Write the new file and tell of it."""
        _schema.write_empty(self._copy, self._tenant)
        with contextlib.closing(Database(self._copy, durability=Durability.NORMAL, tenant=self._tenant)) as to:
            to.begin()
            for name, value in self._meta.items():
                to.run(_SQL["tenantq_meta"], (name, value))
            for table in ORDER[1:]:
                for row in self._damaged.rows(table):
                    self._put(to, table, row)
            self._copy_guests(to)
            for table, row in self._damaged.strays():
                self._put(to, table, row)
            return self._finish(to, target)

    def _put(self, to: Database, table: str, row: Row) -> None:
        if table == "tenantq_depth":
            self._said[row[0]] = sum(row[2:])
        try:
            to.run(_SQL[table], row)
        except StatementFailed as exc:  # two rows of one key, say
            row_id = row[0] if SHAPES[table].startswith("id") else None
            self._lost.append(
                LostRows(table=table, first_id=row_id, last_id=row_id, is_range=False, reason=exc.message)
            )
            return
        self._step(to)

    def _step(self, to: Database) -> None:
        self._pending += 1
        if self._pending == BATCH:
            to.commit()
            to.begin()
            self._pending = 0

    def _copy_guests(self, to: Database) -> None:
        """Make the application's own tables again. Their SQL may be damaged as well: only one statement is run."""
        for wanted in _COPIED_KINDS:
            for kind, name, root, sql in self._damaged.others:
                if kind != wanted or name.startswith("sqlite_"):
                    continue
                if ";" in sql or not sql.upper().startswith("CREATE ") or (kind == "table" and not root):
                    self._problems.append(f"{kind} {name!r} was not made again")
                    continue
                try:
                    to.run(sql)
                except StatementFailed as exc:
                    self._problems.append(f"{kind} {name!r} was not made again: {exc.message}")
                    continue
                if kind == "table":
                    self._copy_guest_rows(to, name, root)
        for kind, name, _root, _sql in self._damaged.others:
            if kind not in _COPIED_KINDS:
                self._problems.append(f"{kind} {name!r} was not made again")

    def _copy_guest_rows(self, to: Database, name: str, root: int) -> None:
        quoted = '"' + name.replace('"', '""') + '"'
        columns = to.execute("SELECT name, type, pk FROM pragma_table_info(?)", (name,))
        keys = [column for column in columns if column[2]]
        alias = keys[0][0] if len(keys) == 1 and keys[0][1].upper() == "INTEGER" else None
        names = ["rowid", *(column[0] for column in columns if column[0] != alias)]
        listed = ", ".join('"' + one.replace('"', '""') + '"' for one in names)
        places = ", ".join("?" * len(names))
        insert = f"INSERT INTO {quoted} ({listed}) VALUES ({places})"  # noqa: S608 - names are quoted
        for rowid, found in self._damaged.guest_rows(name, root):
            padded = (*found, *[None] * (len(columns) - len(found)))
            values = [value for value, column in zip(padded, columns, strict=False) if column[0] != alias]
            try:
                to.run(insert, (rowid, *values))
            except StatementFailed as exc:
                lost = LostRows(table=name, first_id=rowid, last_id=rowid, is_range=False, reason=exc.message)
                self._lost.append(lost)
            else:
                self._step(to)

    def _finish(self, to: Database, target: Path) -> SalvageReport:
        if "file_id" not in self._meta:
            _schema.write_meta(to, "file_id", str(uuid.uuid4()))
        _schema.write_meta(to, "tenant_id", self._tenant)
        for name in ("count_depths", "count_events", "keep_places", "raise_places"):
            to.run(_SQL[name])
        if any(table == "tenantq_depth" for table, _damage in self._damaged.lost):
            _given_out.jump(to)
        to.commit()
        file = TenantFile(to, _schema.check_file(to, self._tenant), "")
        file.begin()
        file.give_back(file.find_held())
        file.commit()
        depths = file.depths()
        pending, undeliverable = file.outbox_position()[3:]
        return SalvageReport(
            source=str(self._path),
            dest=str(target),
            tenant=self._tenant,
            messages=sum(sum(row[1:4]) for row in depths),
            dead=sum(row[4] for row in depths),
            outbox=pending,
            undeliverable=undeliverable,
            queues=tuple(self._queue(*row) for row in depths),
            lost=(*(_lost(table, damage) for table, damage in self._damaged.lost), *self._lost),
            problems=tuple(self._problems),
        )

    def _queue(self, queue: str, ready: int, scheduled: int, claimed: int, dead: int) -> SalvagedQueue:
        said = self._said.get(queue)
        count = ready + scheduled + claimed
        missing = None if said is None else max(0, said - count - dead)
        return SalvagedQueue(queue=queue, messages=count, dead=dead, missing=missing)


def _lost(table: str, damage: Damage) -> LostRows:
    where = f"page {damage.page}: " if damage.page else ""
    return LostRows(
        table=table,
        first_id=damage.first,
        last_id=damage.last,
        is_range=not damage.is_row,
        reason=f"{where}{damage.reason}",
    )
