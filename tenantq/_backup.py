"""Backup of one tenant's file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tenantq import _schema
from tenantq._copies import check_sound, copy_beside
from tenantq._sqlite import Database

__all__ = ["backup_file", "opened_for_backup", "put_in_place"]


def backup_file(database: Database, target: Path) -> None:
    """Copy all that is committed to `target`: under another name, checked, synced, renamed."""
    with copy_beside(target) as temporary:
        database.copy_to(temporary)
        check_sound(temporary, database.tenant, sync=True)
        put_in_place(temporary, target)


def put_in_place(temporary: Path, target: Path) -> None:
    """Give a copy its name, at once and for good."""
    _schema.remove_sidecars(target)  # those of an older file there would be replayed onto this one
    temporary.replace(target)
    _schema.sync_directory(target.parent)


@contextlib.contextmanager
def opened_for_backup(path: Path, tenant_id: str, busy_timeout: float) -> Iterator[Database]:
    """Give a tenant's file, open beside its handle, not migrated; raises as `check_file` does."""
    with contextlib.closing(_schema.open_to_read(path, tenant_id)) as looked_at:
        _schema.check_file(looked_at, tenant_id)
    database = _schema.open_database(path, tenant_id, busy_timeout)
    try:
        yield database
    finally:
        if database.was_replaced():  # a restore or a deletion did not wait for the copy
            database.abandon_replaced()
        else:
            database.close()
