"""Backup, restore and verification of one tenant's file."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from tenantq import _foreign, _migrations, _schema
from tenantq._creation import temporary_file
from tenantq._file import TenantFile
from tenantq._sqlite import Database, Durability, identity_of
from tenantq._undeliverable import recount
from tenantq.errors import (
    CorruptFile,
    TenantExists,
    TenantFileError,
    TenantInUse,
    TenantqError,
    UnknownTenant,
)

__all__ = ["VerifyReport", "backup_file", "restore_file", "verify"]

LOCK_BYTES = (0x4000_0000, 512)
"""Where every SQLite connection to a file holds a lock for as long as it is open in WAL mode."""


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a tenant's file found."""

    path: str
    tenant: str
    problems: tuple[str, ...] = ()
    """What is wrong, one sentence each."""
    schema_version: int = 0
    """Of the file; one of an older schema is as sound as any. 0 where it cannot be read."""
    ready: int = 0
    scheduled: int = 0
    claimed: int = 0
    dead: int = 0
    outbox: int = 0

    @property
    def is_older(self) -> bool:
        """Whether the file is to be migrated when it is opened."""
        return 0 < self.schema_version < _schema.SCHEMA_VERSION

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(path: str | os.PathLike[str], *, quick: bool = False) -> VerifyReport:
    """Check a tenant's file, open or closed: SQLite's own check (every row against every index unless
    `quick`), our schema, and the depths against the rows. A file of an older schema is not migrated.

    Damage is in the report's `problems`. Raises UnknownTenant if there is no such file, NotATenantFile
    and NewerFile if it is not ours to check.
    """
    file = Path(path)
    if not file.is_file():
        raise UnknownTenant(f"there is no tenant file at {file}", path=str(file))
    with contextlib.ExitStack() as stack:
        try:
            database = stack.enter_context(contextlib.closing(_schema.open_to_read(file)))
            meta = _schema.check_file(database, None)
            version = _schema.version_of(database)
        except CorruptFile as exc:
            return VerifyReport(path=str(file), tenant="", problems=(exc.message,))
        problems: list[str] = []
        counts: dict[str, int] = {}
        try:
            check = "quick_check" if quick else "integrity_check"
            problems += [row[0] for row in database.execute(f"PRAGMA {check}(20)") if row[0] != "ok"]
            opened = TenantFile(database, meta, "")
            database.execute("BEGIN")
            problems += _miscounts(opened)
            depths = opened.depths()
            problems += _lost_events(opened)
            for index, state in enumerate(("ready", "scheduled", "claimed", "dead"), 1):
                counts[state] = sum(row[index] for row in depths)
            counts["outbox"] = opened.outbox_position()[3]
        except TenantqError as exc:
            problems.append(exc.message)
        return VerifyReport(
            path=str(file),
            tenant=meta["tenant_id"],
            problems=tuple(problems),
            schema_version=version,
            **counts,
        )


def backup_file(database: Database, target: Path) -> None:
    """Copy all that is committed to `target`: under another name, checked, synced, renamed."""
    with _temporary(target) as temporary:
        database.copy_to(temporary)
        _check_sound(temporary, database.tenant)
        _sync(temporary)
        _schema.remove_sidecars(target)  # those of an older file there would be replayed onto this one
        temporary.replace(target)
        _schema.sync_directory(target.parent)


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
    with _temporary(path) as temporary:
        with contextlib.closing(_schema.open_to_read(source, tenant_id)) as database:
            _schema.check_file(database, tenant_id)
            if migrate_at is None:
                _migrations.check_current(database)
            database.copy_to(temporary)
        _check_sound(temporary, tenant_id)
        _make_ready(temporary, tenant_id, migrate_at)
        _sync(temporary)
        with exclusive(), _no_other_process(path, tenant_id):
            refuse_existing()
            # The sidecars first: a -wal beside a file that it does not belong to is replayed onto it. A
            # crash in between leaves the old file as of its last checkpoint, which is being replaced.
            _schema.remove_sidecars(path)
            temporary.replace(path)
            _schema.sync_directory(path.parent)


def _check_sound(path: Path, tenant_id: str | None) -> None:
    with contextlib.closing(Database(path, read_only=True, immutable=True, tenant=tenant_id)) as database:
        _schema.check_file(database, tenant_id)
        problems = [row[0] for row in database.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
    if problems:
        raise CorruptFile(f"the copy is damaged: {problems[0]}", tenant=tenant_id, path=str(path))


def _make_ready(path: Path, tenant_id: str, migrate_at: int | None) -> None:
    """Bring a copy to this version's schema, and give back what is claimed in it."""
    with contextlib.closing(Database(path, durability=Durability.FULL, tenant=tenant_id)) as database:
        if migrate_at is not None:
            _migrations.migrate(database, migrate_at)
        file = TenantFile(database, _schema.check_file(database, tenant_id), "")
        file.begin()
        file.give_back_claims()
        file.commit()


def _miscounts(file: TenantFile) -> list[str]:
    nothing = (0, 0, 0, 0)
    counted = {row[0]: row[1:] for row in file.recount()}
    kept = {row[0]: row[1:] for row in file.depths()}
    return [
        f"queue {queue!r} is said to hold {kept.get(queue, nothing)} "
        f"(ready, scheduled, claimed, dead) and holds {counted.get(queue, nothing)}"
        for queue in sorted(counted.keys() | kept.keys())
        if kept.get(queue, nothing) != counted.get(queue, nothing)
    ]


def _lost_events(file: TenantFile) -> list[str]:
    *_places, pending, undeliverable = file.outbox_position()
    counts = [
        ("the outbox", pending, file.count_pending()),
        ("the table of undeliverable events", undeliverable, recount(file)),
    ]
    return [
        f"{what} is said to hold {said} events and holds {counted}"
        for what, said, counted in counts
        if said != counted
    ]


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with temporary_file(target.parent) as temporary:
            # Now, and not when it has its name: there SQLite's locks of this process would go with the descriptor.
            temporary.close()
            yield temporary.path
    except OSError as exc:
        raise TenantFileError(f"{target}: {exc}", path=str(target)) from exc


@contextlib.contextmanager
def _no_other_process(path: Path, tenant_id: str) -> Iterator[None]:
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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
