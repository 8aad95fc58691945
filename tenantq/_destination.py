"""Where a backup may go: a place with nothing in it but an older backup of the same tenant."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from tenantq import _foreign, _schema, naming
from tenantq._doorbell import FILE_NAME as DOORBELL
from tenantq._restoring import LOCK_BYTES
from tenantq._sqlite import identity_of
from tenantq.errors import CorruptFile, NotATenantFile, TenantFileError, TenantInUse, WrongTenant

__all__ = ["check_destination"]

OTHER_NAME = "give another name, or remove the file if nobody needs it"


def check_destination(target: Path, tenant_id: str, root: Path) -> None:
    """Raise unless a backup of a tenant of the store `root` may take the name `target`; nothing is changed.

    TenantFileError for a place in a store, a directory and a file that is not ours to write; TenantInUse for a
    file that somebody has open; WrongTenant and NotATenantFile for one that holds something else.
    """
    resolved = target.resolve()
    if resolved.is_relative_to(root.resolve()) or _lies_in_a_store(resolved):
        raise TenantFileError(
            f"{target} lies in a store: a backup does not go there",
            hint="give a place outside of every store",
            tenant=tenant_id,
            path=str(target),
        )
    try:
        if not target.exists():
            return
        if not target.is_file():
            raise TenantFileError(f"{target} is no file", hint=OTHER_NAME, tenant=tenant_id, path=str(target))
        _check_unused(target, tenant_id)
        if target.stat().st_size:
            _check_owner(target, tenant_id)
    except OSError as exc:
        raise TenantFileError(f"{target}: {exc}", tenant=tenant_id, path=str(target)) from exc


def _lies_in_a_store(path: Path) -> bool:
    """Tell whether a path is that of a tenant's file in any store: there it would be the tenant from now on."""
    shard = path.parent
    if not naming.is_shard(shard.name) or not (shard.parent / DOORBELL).exists():
        return False
    key = naming.key_of_file(path.name)
    return key is not None and f"{key >> 56:02x}" == shard.name


def _check_unused(path: Path, tenant_id: str) -> None:
    # A file that this process has open is not opened here: closing it would drop the process's locks on it.
    is_used = _foreign.is_open(identity_of(path))
    if not is_used:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            start, length = LOCK_BYTES
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
        except (BlockingIOError, PermissionError):
            is_used = True
        finally:
            os.close(descriptor)
    if is_used:
        raise TenantInUse(f"{path} is in use", hint="give another name", tenant=tenant_id, path=str(path))


def _check_owner(path: Path, tenant_id: str) -> None:
    try:
        with contextlib.closing(_schema.open_to_read(path)) as database:
            owner = _schema.check_file(database, None)["tenant_id"]
    except (NotATenantFile, CorruptFile) as exc:
        raise NotATenantFile(
            f"{path} is there, and is no backup: {exc.message}", hint=OTHER_NAME, tenant=tenant_id, path=str(path)
        ) from exc
    if owner != tenant_id:
        raise WrongTenant(
            f"{path} is a backup of tenant {owner!r}", hint=OTHER_NAME, tenant=tenant_id, path=str(path)
        )
