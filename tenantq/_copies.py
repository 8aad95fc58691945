"""A copy of a tenant's file on its way to its name: made under another, checked, synced."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tenantq import _schema
from tenantq._creation import temporary_file
from tenantq._sqlite import Database
from tenantq.errors import CorruptFile, DiskFull, TenantFileError

__all__ = ["check_sound", "copy_beside", "open_copy", "sync_file"]

CHECK_CACHE_KIB = 2048
"""A copy's pages are in memory, where the system keeps what was just written: a larger cache gains nothing."""


@contextlib.contextmanager
def copy_beside(target: Path) -> Iterator[Path]:
    """Give the name of an empty file beside `target`, removed at the end unless renamed."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with temporary_file(target.parent) as temporary:
            # Now, and not when it has its name: there SQLite's locks of this process would go with the descriptor.
            temporary.close()
            yield temporary.path
    except DiskFull as exc:
        raise DiskFull(f"no space is left for {target}", tenant=exc.tenant, path=str(target)) from exc
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space is left for {target}", path=str(target)) from exc
        raise TenantFileError(f"{target}: {exc}", path=str(target)) from exc


def check_sound(path: Path, tenant_id: str | None, *, sync: bool = False) -> None:
    """Raise CorruptFile unless a closed copy is a sound tenant file of ours; NotATenantFile, WrongTenant.

    sync: it goes to the disk meanwhile, and on return it survives power loss.
    """
    with contextlib.closing(open_copy(path, tenant_id)) as database, contextlib.ExitStack() as stack:
        if sync:
            # Who opens the copy counts its descriptors: this one comes behind, and goes before it has its name.
            pool = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="tenantq-sync"))
            stack.callback(pool.submit(sync_file, path).result)
        _schema.check_file(database, tenant_id)
        problems = [row[0] for row in database.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
    if problems:
        raise CorruptFile(f"the copy is damaged: {problems[0]}", tenant=tenant_id, path=str(path))


def open_copy(path: Path, tenant_id: str | None) -> Database:
    """Open a closed copy that has no name yet, to read all of it."""
    database = Database(
        path, read_only=True, immutable=True, is_ours_alone=True, tenant=tenant_id, cache_kib=CHECK_CACHE_KIB
    )
    database.execute(f"PRAGMA mmap_size = {2**40}")  # half of the time; nobody cuts our own copy short
    return database


def sync_file(path: Path) -> None:
    """Make a file's content survive power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
