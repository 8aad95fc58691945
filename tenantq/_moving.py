"""Move: a tenant leaves one store in an export, a file of its own, and enters another by an import, once.

The export: the file is sealed where it is, and answers no call from then on; a sealed copy is written to
`FILE.partial`, checked and synced; the tombstone is put down; the file is removed; and only then `FILE` gets its
name. So while the tenant's file is there, no export of it can have been carried away, and undoing is safe; when it
is not, the copy is complete and the store refuses the tenant. A process that is killed leaves the rest to the same
export given again.

The import marks the export as taken before the tenant's file gets its name: the same export enters one store.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import structs

from tenantq import _migrations, _schema, naming
from tenantq._copies import copy_beside, sync_file
from tenantq._deleting import refuse_existing
from tenantq._file import TenantFile
from tenantq._sealing import change_seal, is_sealed, opened, read_seal, seal, unseal
from tenantq._sqlite import Database
from tenantq._tombstones import Seal, Tombstone, Went, reached
from tenantq.errors import (
    CorruptFile,
    InvalidArgument,
    TenantExists,
    TenantFileError,
    TenantMoved,
    UnknownTenant,
)

__all__ = ["export_file", "import_file", "refuse_moved", "tenant_of", "undo_export"]

PARTIAL = ".partial"

Exclusive = Callable[[], AbstractContextManager[None]]


def export_file(
    path: Path,
    tenant_id: str,
    target: Path,
    *,
    at: str,
    now: int,
    root: Path,
    exclusive: Exclusive,
    busy_timeout: float,
) -> Path:
    """Move a tenant out of a store, into `target`; durable on return. One that was begun so is finished."""
    target = target.absolute()
    partial = target.with_name(target.name + PARTIAL)
    if target.resolve().is_relative_to(root.resolve()):
        raise InvalidArgument(f"{target} lies in the store: an export goes elsewhere")
    if target.exists():
        raise TenantFileError(f"{target} exists; an export replaces nothing", tenant=tenant_id, path=str(target))
    if not target.parent.is_dir():
        raise TenantFileError(f"there is no directory {target.parent}", tenant=tenant_id, path=str(target))
    with exclusive():
        if path.exists():
            with opened(path, tenant_id, busy_timeout) as database:
                mark = _seal(database, tenant_id, target, at=at, now=now)
                reached("sealed")
                try:
                    _copy(database, partial)
                    reached("copied")
                    _bury(database, mark, tenant_id)
                    reached("buried")
                except BaseException:  # a full disk, an interrupt: the tenant is as it was
                    _take_back(database, partial)
                    raise
            path.unlink()
            _schema.remove_sidecars(path)
            _schema.sync_directory(path.parent)
            reached("removed")
        else:
            found = Tombstone.read(path)
            if found is None:
                raise UnknownTenant(f"the store has no tenant {tenant_id!r}", tenant=tenant_id)
            if found.to != str(target) or not partial.exists():
                raise found.error(tenant_id, str(path))
        partial.rename(target)  # not a link: not every file system that things are carried on has them
        _schema.sync_directory(target.parent)
    return target


def _seal(database: Database, tenant_id: str, target: Path, *, at: str, now: int) -> Seal:
    if is_sealed(database):
        mark = read_seal(database)
        if mark.went is Went.MOVED and mark.to == str(target):
            return mark  # by an export that was killed
        raise mark.error(tenant_id, str(database.path))
    _schema.check_file(database, tenant_id)
    _migrations.migrate(database, now)
    mark = Seal(went=Went.MOVED, at=at, to=str(target), transit=str(uuid.uuid4()))
    seal(database, mark, check=lambda _contents: None)
    return mark


def _bury(database: Database, mark: Seal, tenant_id: str) -> None:
    meta = _schema.read_meta(database)
    fields = structs.asdict(mark)
    stone = Tombstone(**fields, tenant=tenant_id, file_id=meta["file_id"], came_by=meta.get("came_by"))
    stone.write(database.path)
    _schema.sync_directory(database.path.parent)


def _take_back(database: Database, partial: Path) -> None:
    """End an export while the tenant's file is in its place: first the copy, so that nobody finishes it."""
    with contextlib.suppress(IsADirectoryError):
        partial.unlink(missing_ok=True)
        _schema.remove_sidecars(partial)
    Tombstone.remove(database.path)
    _schema.sync_directory(database.path.parent)
    reached("partial removed")
    unseal(database)


def _copy(database: Database, partial: Path) -> None:
    try:
        partial.unlink(missing_ok=True)
        _schema.remove_sidecars(partial)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        database.copy_to(partial)
        _check(partial, database.tenant)
        sync_file(partial)
        _schema.sync_directory(partial.parent)
    except OSError as exc:
        raise TenantFileError(f"{partial}: {exc}", tenant=database.tenant, path=str(partial)) from exc


def _check(copy: Path, tenant_id: str | None) -> None:
    with contextlib.closing(Database(copy, read_only=True, immutable=True, tenant=tenant_id)) as database:
        problems = [row[0] for row in database.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
    if problems:
        raise CorruptFile(f"the copy is damaged: {problems[0]}", tenant=tenant_id, path=str(copy))


def tenant_of(source: Path) -> str:
    """Return whose export a file is. Raises TenantFileError, NotATenantFile, NewerFile."""
    if not source.is_file():
        raise TenantFileError(f"there is no export at {source}", path=str(source))
    if source.name.endswith(PARTIAL):
        hint = "give the same export again, which finishes it, or undo it"
        raise TenantFileError(f"{source} is of an export that has not ended", hint=hint, path=str(source))
    with contextlib.closing(_schema.open_to_read(source)) as database:
        mark = read_seal(database)
        tenant_id = _schema.read_meta(database)["tenant_id"]
        if mark.went is Went.DELETED:
            raise mark.error(tenant_id, str(source))
    return naming.check_tenant_id(tenant_id)


def import_file(
    path: Path,
    tenant_id: str,
    source: Path,
    *,
    store_name: str,
    exclusive: Exclusive,
    busy_timeout: float,
    now: int,
) -> None:
    """Put an export in the place of a tenant, which must not be there; durable on return.

    Raises TenantExists, TenantMoved where it was imported before, CorruptFile; the export is as it was then.
    """
    with contextlib.closing(_schema.open_to_read(source)) as database:
        mark = read_seal(database)
    _refuse_taken(mark, tenant_id, source, store_name)
    _refuse_imported(path, tenant_id, mark, source)
    with copy_beside(path) as copy:
        with contextlib.closing(_schema.open_to_read(source)) as database:
            database.copy_to(copy)
        _check(copy, tenant_id)
        with opened(copy, tenant_id, busy_timeout) as database:
            unseal(database, came_by=mark.transit or "")
            _migrations.migrate(database, now)
            file = TenantFile(database, _schema.check_file(database, tenant_id), "")
            file.begin()
            file.give_back(file.find_held())
            file.commit()
        sync_file(copy)
        reached("copied")
        with exclusive():
            _refuse_imported(path, tenant_id, mark, source)
            # Until it is in its place no late call makes another one there, whatever becomes of this process.
            arriving = Tombstone(went=Went.MOVED, at=mark.at, to=str(source), tenant=tenant_id)
            arriving.write(path)
            _schema.sync_directory(path.parent)
            reached("announced")
            with opened(source, None, busy_timeout) as database:
                change_seal(database, lambda found: _taken(found, tenant_id, source, store_name))
            reached("taken")
            _schema.remove_sidecars(path)
            os.link(copy, path)
            _schema.sync_directory(path.parent)
            reached("placed")
            Tombstone.remove(path)
            _schema.sync_directory(path.parent)


def _taken(mark: Seal, tenant_id: str, source: Path, store_name: str) -> Seal:
    _refuse_taken(mark, tenant_id, source, store_name)
    return structs.replace(mark, taken_by=store_name)


def _refuse_taken(mark: Seal, tenant_id: str, source: Path, store_name: str) -> None:
    # One that this store took may have been killed before the tenant was in its place.
    if mark.taken_by not in (None, store_name):
        raise TenantMoved(
            f"tenant {tenant_id!r} was imported from {source} into {mark.taken_by}",
            hint="use that store; an export is imported once",
            at=mark.at,
            to=mark.taken_by,
            tenant=tenant_id,
            path=str(source),
        )


def _refuse_imported(path: Path, tenant_id: str, mark: Seal, source: Path) -> None:
    if path.exists():
        raise TenantExists(
            f"tenant {tenant_id!r} exists, so {source} is not imported",
            hint="an export is imported once, and replaces no tenant",
            tenant=tenant_id,
            path=str(path),
        )
    stone = Tombstone.read(path)
    if stone is not None and stone.came_by and stone.came_by == mark.transit:
        raise stone.error(tenant_id, str(path))  # it was here by this export, and went


def undo_export(
    path: Path,
    tenant_id: str,
    *,
    exclusive: Exclusive,
    busy_timeout: float,
    take_back: Callable[[Path], object],
) -> None:
    """Make a tenant this store's again whose export nobody has imported. Raises TenantMoved, TenantExists."""
    with exclusive():
        stone = Tombstone.read(path)
        if path.exists():
            with opened(path, tenant_id, busy_timeout) as database:
                if not is_sealed(database):
                    refuse_existing(path, tenant_id)
                mark = read_seal(database)
                if mark.went is not Went.MOVED:
                    raise mark.error(tenant_id, str(path))
                _take_back(database, Path(f"{mark.to}{PARTIAL}"))
            return
        if stone is None:
            raise UnknownTenant(f"the store has no tenant {tenant_id!r}", tenant=tenant_id)
        if stone.went is not Went.MOVED or stone.to is None:
            raise stone.error(tenant_id, str(path))
        target, partial = Path(stone.to), Path(stone.to + PARTIAL)
        if partial.exists():
            partial.rename(target)
            _schema.sync_directory(target.parent)
        if not target.exists():
            raise TenantMoved(
                f"{stone.error(tenant_id, '').message}, and the export is not there any more",
                hint=f"bring it back to {target}, or import it from where it is",
                at=stone.at,
                to=stone.to,
                tenant=tenant_id,
                path=str(path),
            )
    take_back(target)


def refuse_moved(path: Path, tenant_id: str) -> None:
    """Raise TenantMoved where a backup would be a second tenant beside the one that moved away."""
    stone = None if path.exists() else Tombstone.read(path)
    if stone is not None and stone.went is Went.MOVED:
        raise stone.error(tenant_id, str(path))
