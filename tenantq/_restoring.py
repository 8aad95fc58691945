"""Restore: a checked copy of a backup takes the place of a tenant's file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from tenantq import _foreign, _given_out, _migrations, _schema
from tenantq._copies import check_sound, copy_beside, open_copy, sync_file
from tenantq._detaching import detach
from tenantq._file import TenantFile
from tenantq._sqlite import Database, Durability, Row, identity_of
from tenantq.errors import TenantExists, TenantFileError, TenantInUse, TenantqError

__all__ = ["EVICTION_SECONDS", "copy_as", "no_other_process", "restore_file"]

LOCK_BYTES = (0x4000_0000, 512)
"""Where every SQLite connection to a file holds a lock for as long as it is open in WAL mode."""

LOOK_SECONDS = 0.02
"""Between two looks whether the last process has let go: a lock that is held tells nobody of its end."""

EVICTION_SECONDS = 2.0
"""How long processes that are asked to let go are waited for at least."""

SETTLE_TRIES = 3
"""How often a -wal may appear behind the back of who has cleared one."""


def restore_file(
    path: Path,
    source: Path,
    tenant_id: str,
    *,
    replace: bool,
    exclusive: Callable[[], AbstractContextManager[None]],
    migrate_at: int | None,
    wait: float = 0.0,
    ask: Callable[[], None] | None = None,
) -> None:
    """Put a checked copy of `source` in the place of a tenant's file.

    One of an older schema is migrated at the time `migrate_at`, or refused if that is None. The tenant is in use
    until the copy is ready; `exclusive` closes it in this process for the swap alone. Other processes that have it
    open are waited for: `wait` seconds, in which `ask` asks them to let go.
    """

    def refuse_existing() -> None:
        if path.exists() and not replace:
            raise TenantExists(f"tenant {tenant_id!r} exists", tenant=tenant_id, path=str(path))

    def swap(copy: Path) -> None:
        with exclusive(), _alone(path, tenant_id) as given_out:
            refuse_existing()
            _go_on_above(copy, tenant_id, given_out)
            sync_file(copy)
            _put_in_place(copy, path)

    refuse_existing()
    _check_place(source, path, tenant_id)
    with copy_beside(path) as copy:
        _take_copy(source, copy, tenant_id, migrate_at)
        _when_free(lambda: swap(copy), wait, ask)


def copy_as(
    path: Path,
    source: Path,
    tenant_id: str,
    new_id: str,
    *,
    exclusive: Callable[[], AbstractContextManager[None]],
    migrate_at: int | None,
    now: int,
) -> None:
    """Make a tenant `new_id` at `path` of a backup of another one, at rest: see `_detaching`. It replaces none."""

    def refuse_existing() -> None:
        if path.exists():
            raise TenantExists(f"tenant {new_id!r} exists", tenant=new_id, path=str(path))

    refuse_existing()
    _check_place(source, path, tenant_id)
    with copy_beside(path) as copy:
        _take_copy(source, copy, tenant_id, migrate_at)
        with _written(copy, tenant_id) as database:
            detach(database, new_id, now)
        sync_file(copy)
        with exclusive():
            refuse_existing()
            _put_in_place(copy, path)


def _check_place(source: Path, path: Path, tenant_id: str) -> None:
    if not source.is_file():
        raise TenantFileError(f"there is no backup at {source}", tenant=tenant_id, path=str(source))
    if path.exists() and source.samefile(path):
        raise TenantFileError("a tenant cannot be restored from its own file", tenant=tenant_id, path=str(path))


def _take_copy(source: Path, copy: Path, tenant_id: str, migrate_at: int | None) -> None:
    """Copy a backup, check the copy, bring it to this version's schema, and give back what is claimed in it."""
    with contextlib.closing(_schema.open_to_read(source, tenant_id)) as database:
        _schema.check_file(database, tenant_id)
        if migrate_at is None:
            _migrations.check_current(database)
        is_complete = _has_no_wal(source)
    if not (is_complete and _copy_closed(source, copy, tenant_id)):
        with contextlib.closing(_schema.open_to_read(source, tenant_id)) as database:
            database.copy_to(copy)
    held = _check(copy, tenant_id)
    with contextlib.closing(Database(copy, durability=Durability.FULL, tenant=tenant_id)) as database:
        database.execute("PRAGMA journal_mode = WAL")  # a copy by VACUUM INTO has another one
        if migrate_at is not None:
            _migrations.migrate(database, migrate_at)
        file = TenantFile(database, _schema.check_file(database, tenant_id), "")
        file.begin()
        file.give_back(held)
        file.commit()
    sync_file(copy)  # all but a page or two of it, before anybody has to wait


def _copy_closed(source: Path, copy: Path, tenant_id: str) -> bool:
    """Copy a file as `cp` does, in a quarter of the time that SQLite takes; False if somebody may have it open."""
    with contextlib.ExitStack() as stack:
        try:
            if not stack.enter_context(_foreign.reading(identity_of(source))):
                return False
            descriptor = stack.enter_context(no_other_process(source, tenant_id))
            if not _has_no_wal(source) or source.with_name(f"{source.name}-journal").exists():
                return False
            with copy.open("wb", buffering=0) as target:
                _copy_bytes(descriptor, target.fileno())
        except (OSError, TenantFileError):
            os.truncate(copy, 0)  # SQLite tries, and says what is wrong
            return False
    return True


def _check(copy: Path, tenant_id: str) -> list[int]:
    """Check that a copy is sound and put it onto the disk; return the ids of what is claimed in it.

    Each of the three takes about as long as the copying itself, so they go on at once.
    """
    with ThreadPoolExecutor(2, thread_name_prefix="tenantq-restore") as pool:
        syncing = pool.submit(sync_file, copy)
        finding = pool.submit(_find_held, copy, tenant_id)
        check_sound(copy, tenant_id)
        syncing.result()
        return finding.result()


def _find_held(copy: Path, tenant_id: str) -> list[int]:
    with contextlib.closing(open_copy(copy, tenant_id)) as database:
        return TenantFile(database, _schema.check_file(database, tenant_id), "").find_held()


def _when_free(swap: Callable[[], None], wait: float, ask: Callable[[], None] | None) -> None:
    deadline = time.monotonic() + wait
    while True:
        try:
            return swap()
        except TenantInUse as exc:
            if time.monotonic() >= deadline:
                if ask is None:
                    raise
                hint = "one that makes no calls and does not listen keeps it: stop that process, then try again"
                text = f"{exc.message}, and it did not let go"
                raise TenantInUse(text, hint=hint, tenant=exc.tenant, path=exc.path) from exc
        if ask is not None:
            ask()
        time.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def _alone(path: Path, tenant_id: str) -> Iterator[Sequence[Row] | None]:
    """Keep every process out of a file that is to be replaced; yield which ids it gave out, None if nobody knows.

    Raises TenantInUse.
    """
    for _ in range(SETTLE_TRIES):
        with contextlib.ExitStack() as stack:
            stack.enter_context(no_other_process(path, tenant_id))
            is_readable = _has_no_wal(path) or not path.exists()
            if is_readable:
                # Closed behind the swap: the first descriptor of a file that is closed takes all locks with it.
                database = _given_out.open_given_out(path)
                if database is not None:
                    stack.callback(database.close)
                yield None if database is None else _given_out.read_given_out(database)
                return
        if not _settle(path):
            break
    with no_other_process(path, tenant_id):
        yield None


def _has_no_wal(path: Path) -> bool:
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size == 0
    except FileNotFoundError:
        return True


def _settle(path: Path) -> bool:
    """Bring what a killed process left in the -wal into the file; False where it cannot be read."""
    try:
        with contextlib.closing(Database(path)) as database:
            _schema.read_meta(database)
    except TenantqError:
        return False
    return True


def _go_on_above(copy: Path, tenant_id: str, given_out: Sequence[Row] | None) -> None:
    with _written(copy, tenant_id) as database:
        if given_out is None:
            _given_out.jump(database)
        else:
            _given_out.raise_ids(database, given_out)


@contextlib.contextmanager
def _written(copy: Path, tenant_id: str) -> Iterator[Database]:
    """Open a copy that has no name yet for one transaction."""
    with contextlib.closing(Database(copy, durability=Durability.FULL, tenant=tenant_id)) as database:
        database.begin()
        yield database
        database.commit()


def _put_in_place(copy: Path, path: Path) -> None:
    # The sidecars first: a -wal beside a file that it does not belong to is replayed onto it. What was in it is in
    # the old file by now, where that could be read.
    _schema.remove_sidecars(path)
    copy.replace(path)
    _schema.sync_directory(path.parent)


def _copy_bytes(source: int, target: int) -> None:
    """Copy a file inside of the kernel. Raises OSError, also where the system cannot do that."""
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    left = os.fstat(source).st_size
    while left:
        copied = os.copy_file_range(source, target, left)
        if not copied:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        left -= copied


@contextlib.contextmanager
def no_other_process(path: Path, tenant_id: str) -> Iterator[int]:
    """Hold SQLite's lock on a file, which works on a damaged one too; raise TenantInUse if it is held.

    Yield the descriptor that holds it, -1 where there is no file: another one would end the lock when it is
    closed.

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
        yield -1
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
        yield descriptor
    finally:
        os.close(descriptor)
