"""Restore: a checked copy of a backup takes the place of a tenant's file."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tenantq import _foreign, _migrations, _schema
from tenantq._copies import check_sound, copy_beside, sync_file
from tenantq._file import TenantFile
from tenantq._sqlite import Database, Durability, identity_of
from tenantq.errors import TenantExists, TenantFileError, TenantInUse

__all__ = ["no_other_process", "restore_file"]

LOCK_BYTES = (0x4000_0000, 512)
"""Where every SQLite connection to a file holds a lock for as long as it is open in WAL mode."""


def restore_file(
    path: Path,
    source: Path,
    tenant_id: str,
    *,
    replace: bool,
    exclusive: Callable[[], AbstractContextManager[None]],
    migrate_at: int | None,
) -> None:
    """Put a checked copy of `source` in the place of a tenant's file.

    One of an older schema is migrated at the time `migrate_at`, or refused if that is None.
    The tenant is in use until the copy is ready; `exclusive` closes it in this process for the swap alone.
    """

    def refuse_existing() -> None:
        if path.exists() and not replace:
            raise TenantExists(f"tenant {tenant_id!r} exists", tenant=tenant_id, path=str(path))

    refuse_existing()
    if not source.is_file():
        raise TenantFileError(f"there is no backup at {source}", tenant=tenant_id, path=str(source))
    if path.exists() and source.samefile(path):
        raise TenantFileError("a tenant cannot be restored from its own file", tenant=tenant_id, path=str(path))
    with copy_beside(path) as temporary:
        with contextlib.closing(_schema.open_to_read(source, tenant_id)) as database:
            _schema.check_file(database, tenant_id)
            if migrate_at is None:
                _migrations.check_current(database)
            database.copy_to(temporary)
        check_sound(temporary, tenant_id)
        _make_ready(temporary, tenant_id, migrate_at)
        sync_file(temporary)
        with exclusive(), no_other_process(path, tenant_id):
            refuse_existing()
            # The sidecars first: a -wal beside a file that it does not belong to is replayed onto it. A
            # crash in between leaves the old file as of its last checkpoint, which is being replaced.
            _schema.remove_sidecars(path)
            temporary.replace(path)
            _schema.sync_directory(path.parent)


def _make_ready(path: Path, tenant_id: str, migrate_at: int | None) -> None:
    """Bring a copy to this version's schema, and give back what is claimed in it."""
    with contextlib.closing(Database(path, durability=Durability.FULL, tenant=tenant_id)) as database:
        if migrate_at is not None:
            _migrations.migrate(database, migrate_at)
        file = TenantFile(database, _schema.check_file(database, tenant_id), "")
        file.begin()
        file.give_back_claims()
        file.commit()


@contextlib.contextmanager
def no_other_process(path: Path, tenant_id: str) -> Iterator[None]:
    """Hold SQLite's lock on a file, which works on a damaged one too; raise TenantInUse if it is held.

    And if this process has it open: its own locks are not in the way of this one, and would go with it.
    """
    identity = identity_of(path)
    _foreign.check_alone(identity, str(path), tenant_id)
    if _foreign.is_open(identity):
        raise TenantInUse(
            f"this process has tenant {tenant_id!r} open in another store, or reads it",
            hint="close that store first, and try again",
            tenant=tenant_id,
            path=str(path),
        )
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield
        return
    try:
        start, length = LOCK_BYTES
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except OSError as exc:
        os.close(descriptor)
        raise TenantInUse(
            f"another process has tenant {tenant_id!r} open",
            tenant=tenant_id,
            path=str(path),
        ) from exc
    try:
        yield
    finally:
        os.close(descriptor)
