"""An older tenant file is brought to this version's schema: one transaction a version, so whole or not at all.

What a step writes under the file's write lock is little, however many messages there are. What it must read of all
of them it reads before, on a snapshot that keeps nobody waiting. A process that is killed leaves the file at one
version or the next, and whoever opens it then goes on from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from tenantq import _schema
from tenantq._schema import version_of
from tenantq._sqlite import Database, Durability, Row
from tenantq.errors import CorruptFile, OlderFile
from tenantq.sqlfile import load_statements

__all__ = ["check_current", "migrate", "migrate_file"]

_SQL = load_statements("tenantq", "migrations.sql")


def check_current(database: Database) -> None:
    """Raise OlderFile if the file has to be migrated; nothing is written."""
    version = version_of(database)
    if version < _schema.SCHEMA_VERSION:
        path = str(database.path)
        raise OlderFile(
            f"{path} has schema version {version}, this tenantq works on {_schema.SCHEMA_VERSION}",
            path=path,
            tenant=database.tenant,
        )


def migrate(database: Database, now: int) -> int | None:
    """Bring a file to SCHEMA_VERSION; return the version that it had, or None where nothing was to be done.

    Of several processes one does each step. Raises TenantBusy, DiskFull; and NewerFile if another process goes on
    to a version that is not known here.
    """
    found = None
    while (version := version_of(database)) < _schema.SCHEMA_VERSION:
        if _take_step(database, version, now) and found is None:
            found = version
    _schema.check_version(database, database.tenant)
    return found


def migrate_file(
    path: Path, tenant_id: str, *, durability: Durability, busy_timeout: float, now: int
) -> int | None:
    """Migrate a file that this process has not open; one that is current is read only. See `migrate`."""
    # A file without a -wal is read without a lock: one that seems damaged may be in the middle of a checkpoint.
    with contextlib.suppress(CorruptFile), contextlib.closing(_schema.open_to_read(path, tenant_id)) as database:
        _schema.check_header(database, tenant_id)
        if version_of(database) == _schema.SCHEMA_VERSION:
            return None
    database = Database(path, durability=durability, busy_timeout=busy_timeout, tenant=tenant_id)
    with contextlib.closing(database):
        _schema.check_file(database, tenant_id)
        return migrate(database, now)


def _take_step(database: Database, version: int, now: int) -> bool:
    """Make the next version of a file; False if another process was faster."""
    prepare, complete = _WITH_DATA.get(version + 1, (_nothing, _write_nothing))
    prepared = prepare(database)
    database.begin()
    try:
        is_ours = version_of(database) == version
        if is_ours:
            complete(database, prepared)
            _schema.take_step(database, version + 1)
            _schema.write_meta(database, f"migrated_to_{version + 1}", str(now))
        database.commit()
    except BaseException:
        database.rollback()
        raise
    return is_ours


def _nothing(_database: Database) -> Sequence[Row]:
    return ()


def _write_nothing(_database: Database, _rows: Sequence[Row]) -> None:
    pass


def _find_miscounts(database: Database) -> Sequence[Row]:
    return database.execute(_SQL["find_miscounts"])


def _correct_depths(database: Database, miscounts: Sequence[Row]) -> None:
    for row in miscounts:
        database.run(_SQL["correct_depth"], row)


_WITH_DATA: dict[int, tuple[Callable[[Database], Sequence[Row]], Callable[[Database, Sequence[Row]], None]]] = {
    2: (_find_miscounts, _correct_depths),
}
"""What a version changes in the rows: what it reads before the lock, and what it writes under it."""
