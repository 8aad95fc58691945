"""Sealing: from one commit on, no process acknowledges anything more on a tenant's file, whoever has it open.

The mark is in the file itself, written under its write lock. Every connection notices the change inside of its
next transaction, before it writes, and refuses: what was acknowledged before is in the file, nothing afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tenantq import _schema
from tenantq._sqlite import Database, Durability
from tenantq._tombstones import Seal
from tenantq.errors import NotATenantFile, TenantFileError
from tenantq.sqlfile import load_statements

__all__ = ["Contents", "contents_of", "opened", "read_seal", "seal", "unseal"]

_STATS = load_statements("tenantq", "stats.sql")
_OUTBOX = load_statements("tenantq", "outbox.sql")
_SCHEMA = load_statements("tenantq", "schema.sql")


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's file holds."""

    messages: int
    """Ready, scheduled and claimed."""
    dead: int
    pending: int
    """Events that Postgres has not got, as far as the file knows."""
    undeliverable: int


@contextlib.contextmanager
def opened(path: Path, tenant_id: str | None, busy_timeout: float) -> Iterator[Database]:
    """Open a file beside its handle; what is committed survives power loss."""
    database = Database(path, durability=Durability.FULL, busy_timeout=busy_timeout, tenant=tenant_id)
    try:
        yield database
    finally:
        database.close()


def contents_of(database: Database) -> Contents:
    """Count what a file holds, of any version; cheap at a million messages."""
    depths = database.execute(_STATS["read_depths"])
    _seq, _id, _last, pending, undeliverable = database.execute(_OUTBOX["outbox_position"])[0]
    return Contents(
        messages=sum(sum(row[1:4]) for row in depths),
        dead=sum(row[4] for row in depths),
        pending=pending,
        undeliverable=undeliverable,
    )


def seal(database: Database, mark: Seal, *, check: Callable[[Contents], None]) -> Contents:
    """Seal a file, unless `check` of what it holds raises; durable on return. Raises TenantGone."""
    database.begin()
    try:
        _schema.check_header(database, database.tenant)
        contents = contents_of(database)
        check(contents)
        _mark(database, _schema.version_of(database) + _schema.SEALED, mark)
        database.commit()
    except BaseException:
        database.rollback()
        raise
    return contents


def unseal(database: Database, **meta: str) -> None:
    """Make a sealed file a tenant's again, with facts for its meta; durable on return."""
    database.begin()
    try:
        version = _schema.version_of(database) - _schema.SEALED
        database.execute(_SCHEMA["remove_meta"], ("sealed",))
        for name, value in meta.items():
            _schema.write_meta(database, name, value)
        database.execute(f"PRAGMA user_version = {version}")
        database.commit()
    except BaseException:
        database.rollback()
        raise


def change_seal(database: Database, change: Callable[[Seal], Seal]) -> None:
    """Change what a sealed file says; durable on return."""
    database.begin()
    try:
        _mark(database, _schema.version_of(database), change(read_seal(database)))
        database.commit()
    except BaseException:
        database.rollback()
        raise


def read_seal(database: Database) -> Seal:
    """Return a sealed file's mark. Raises NotATenantFile, TenantFileError where it is not sealed."""
    path = str(database.path)
    if database.execute("PRAGMA application_id")[0][0] != _schema.APPLICATION_ID:
        raise NotATenantFile(f"{path} is not a tenantq tenant file", path=path, tenant=database.tenant)
    if not is_sealed(database):
        _schema.check_version(database, database.tenant)
        hint = "`tenantq restore` takes a backup; an import takes what `tenantq export` wrote"
        raise TenantFileError(f"{path} is no export", hint=hint, path=path, tenant=database.tenant)
    return Seal.of(_schema.read_meta(database))


def is_sealed(database: Database) -> bool:
    """Tell whether a file is sealed, by a version that is known here."""
    return _schema.SEALED < _schema.version_of(database) <= _schema.SEALED + _schema.SCHEMA_VERSION


def _mark(database: Database, version: int, mark: Seal) -> None:
    _schema.write_meta(database, "sealed", msgspec.json.encode(mark).decode())
    database.execute(f"PRAGMA user_version = {version}")
