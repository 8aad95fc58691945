"""Delete: a tenant's file, and on demand its copies elsewhere, in steps that a killed process leaves to the next.

The file is sealed, the tombstone is put down, what is elsewhere goes, and then the file. Wherever that ends, the
tenant is whole (before the seal) or answers no call any more, and a second delete does the rest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from tenantq import _schema
from tenantq._sealing import Contents, contents_of, is_sealed, opened, read_seal, seal
from tenantq._tombstones import Seal, Tombstone, Went, reached, tombstone_path
from tenantq.backups import BackupDirectory
from tenantq.errors import (
    CorruptFile,
    EventsWaiting,
    InvalidArgument,
    NewerFile,
    NotATenantFile,
    StatementFailed,
    TenantExists,
    TenantFileError,
    TenantMoved,
)

__all__ = ["Deletion", "RemovedFile", "check_backups", "check_events", "delete_file"]

EVENTS = ("refuse", "forward", "drop")


class RemovedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a deletion removed."""

    path: str
    bytes: int


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """What a deletion removed. False where there was no file of the tenant."""

    tenant: str
    deleted: bool
    """Whether its file was there."""
    at: str
    """When (ISO 8601, UTC)."""
    files: list[RemovedFile] = []
    """What was removed: the file, what lay beside it, and its backups."""
    replicas: list[str] = []
    """What was removed of its replica."""
    messages: int | None = None
    """Messages in its queues. None, as the next ones, where the file could not be read."""
    dead: int | None = None
    pending: int | None = None
    """Events that Postgres had not got, as far as the file knew: dropped."""
    undeliverable: int | None = None
    """Events that Postgres had refused: dropped."""

    def __bool__(self) -> bool:
        return self.deleted


def check_events(events: str) -> str:
    """Return what is to become of events, or raise InvalidArgument."""
    if events not in EVENTS:
        raise InvalidArgument(f"events is {events!r}, not one of {', '.join(EVENTS)}")
    return events


def check_backups(backups: Iterable[str | os.PathLike[str]], root: Path) -> list[Path]:
    """Return directories of backups, or raise InvalidArgument."""
    found = [Path(backup) for backup in ([backups] if isinstance(backups, str | os.PathLike) else backups)]
    for directory in found:
        if not directory.is_dir():
            raise InvalidArgument(f"{directory} is no directory of backups")
        if directory.resolve().is_relative_to(root.resolve()):
            raise InvalidArgument(f"{directory} lies in the store: its files are no backups")
    return found


def delete_file(
    path: Path,
    tenant_id: str,
    *,
    at: str,
    drop: bool,
    backups: Sequence[Path],
    replica: Callable[[str], Iterable[str]] | None,
    exclusive: Callable[[], AbstractContextManager[None]],
    busy_timeout: float,
) -> Deletion:
    """Delete a tenant. Raises EventsWaiting unless its events may be dropped, TenantBusy; it is as it was then."""
    with exclusive():
        was_there = path.exists()
        contents = None
        if was_there:
            contents = _bury(path, tenant_id, at=at, drop=drop, busy_timeout=busy_timeout)
        stone = Tombstone.read(path) if tombstone_path(path).exists() else None
        was_deleted = stone is not None and stone.went is Went.DELETED
        if stone is not None and not was_deleted:
            raise stone.error(tenant_id, str(path))
        replicas = list(replica(tenant_id)) if replica is not None else []
        reached("replica removed")
        removed = [file for backup in backups for file in _remove_backups(backup, path, tenant_id)]
        reached("backups removed")
        if was_there or was_deleted:
            # The file first: without it nobody opens what lies beside it.
            removed = [*_remove(path, then=lambda: reached("file removed")), *removed]
        if path.parent.is_dir():
            _schema.sync_directory(path.parent)
    return Deletion(
        tenant=tenant_id,
        deleted=was_there,
        at=at,
        files=removed,
        replicas=replicas,
        messages=None if contents is None else contents.messages,
        dead=None if contents is None else contents.dead,
        pending=None if contents is None else contents.pending,
        undeliverable=None if contents is None else contents.undeliverable,
    )


def _bury(path: Path, tenant_id: str, *, at: str, drop: bool, busy_timeout: float) -> Contents | None:
    """Seal a tenant's file and put down its tombstone; return what it held, None where it cannot be read."""

    def check(contents: Contents) -> None:
        if not drop and (contents.pending or contents.undeliverable):
            raise waiting(tenant_id, contents, str(path))

    file_id = came_by = contents = None
    # One that is damaged, or not ours, has nothing that anybody could forward, and acknowledges nothing.
    unreadable = (CorruptFile, NotATenantFile, StatementFailed, *((NewerFile,) if drop else ()))
    with contextlib.suppress(*unreadable), opened(path, tenant_id, busy_timeout) as database:
        is_begun = is_sealed(database)
        if is_begun:
            _refuse_moving(read_seal(database), tenant_id, str(path))
        else:
            _schema.check_header(database, tenant_id)
        meta = _schema.read_meta(database)
        if meta.get("tenant_id") == tenant_id:
            file_id, came_by = meta.get("file_id"), meta.get("came_by")
        if is_begun:
            contents = contents_of(database)
        else:
            contents = seal(database, Seal(went=Went.DELETED, at=at), check=check)
    reached("sealed")
    stone = Tombstone(went=Went.DELETED, at=at, tenant=tenant_id, file_id=file_id, came_by=came_by)
    stone.write(path)
    _schema.sync_directory(path.parent)
    reached("buried")
    return contents


def _refuse_moving(mark: Seal, tenant_id: str, path: str) -> None:
    if mark.went is Went.MOVED:
        raise TenantMoved(
            f"tenant {tenant_id!r} is being exported to {mark.to} since {mark.at}",
            hint="finish the export or undo it, then delete the tenant where it is",
            at=mark.at,
            to=mark.to,
            tenant=tenant_id,
            path=path,
        )


def waiting(tenant_id: str, contents: Contents, path: str) -> EventsWaiting:
    """Return the error of a tenant whose events nobody said to drop."""
    return EventsWaiting(
        f"tenant {tenant_id!r} has {contents.pending} events that Postgres has not got, "
        f"and {contents.undeliverable} that it refused",
        pending=contents.pending,
        undeliverable=contents.undeliverable,
        tenant=tenant_id,
        path=path,
    )


def _remove_backups(directory: Path, path: Path, tenant_id: str) -> list[RemovedFile]:
    """Remove a tenant's generations in a directory of `backup --all`, and a copy under its file's own name."""
    removed = _remove(directory / path.name)
    kept = BackupDirectory(directory)
    if kept.is_begun:
        generations = kept.backups(tenant_id)
        kept.forget(tenant_id)
        removed += [RemovedFile(path=str(one.path), bytes=one.bytes) for one in generations]
    return removed


def _remove(path: Path, *, then: Callable[[], None] = lambda: None) -> list[RemovedFile]:
    """Remove a file and what SQLite keeps beside it; return what was there."""
    removed = []
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
        file = path.with_name(name)
        try:
            size = file.stat().st_size
            file.unlink()
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise TenantFileError(f"{file} cannot be removed: {exc}", path=str(file)) from exc
        removed.append(RemovedFile(path=str(file), bytes=size))
        if name == path.name:
            then()
    return removed


def refuse_existing(path: Path, tenant_id: str) -> None:
    """Raise TenantExists if a tenant's file is there."""
    if path.exists():
        raise TenantExists(f"tenant {tenant_id!r} exists", tenant=tenant_id, path=str(path))
