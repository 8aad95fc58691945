"""Keeping a tenant's file quiet and complete on the disk, for a tool that must copy it by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenantq import _schema
from tenantq._sqlite import Database
from tenantq._turns import Turn
from tenantq.errors import FileReplaced, TenantBusy, UnknownTenant

__all__ = ["quiet"]

PAUSE_SECONDS = 0.002
"""Between two tries, for a reader that keeps some of the -wal from being copied."""


@contextmanager
def quiet(path: Path, tenant_id: str, *, timeout: float, turn: Turn | None) -> Iterator[None]:
    """Hold a file's write lock with all that is committed in the file itself; raise TenantBusy after `timeout` s.

    What a -wal beside it still holds is in the file too: with it or without it, a copy is the same.
    """
    if not path.exists():
        raise UnknownTenant(f"the store has no tenant {tenant_id!r}", tenant=tenant_id)
    with _opened(path, tenant_id, timeout, turn) as writer:
        _schema.check_file(writer, tenant_id)
        with _opened(path, tenant_id, timeout, None) as copier:
            _empty_wal(writer, copier, timeout)
        try:
            yield
        finally:
            writer.rollback()
        if writer.was_replaced():
            raise FileReplaced(f"{path} was replaced while it was kept quiet", tenant=tenant_id, path=str(path))


def _empty_wal(writer: Database, copier: Database, timeout: float) -> None:
    """Begin a transaction with nothing left in the -wal that is not in the file."""
    deadline = time.monotonic() + timeout
    while True:
        copier.checkpoint()  # beside the writers: they wait for the rest only
        writer.busy_timeout = max(0.0, deadline - time.monotonic())
        writer.begin()
        try:
            left = copier.checkpoint()
        except BaseException:
            writer.rollback()
            raise
        if not left:
            return
        writer.rollback()
        if time.monotonic() >= deadline:
            raise TenantBusy(
                f"a reader kept the -wal of tenant {writer.tenant!r} from being copied for {timeout:g} s",
                tenant=writer.tenant,
                path=str(writer.path),
            )
        time.sleep(PAUSE_SECONDS)


@contextmanager
def _opened(path: Path, tenant_id: str, timeout: float, turn: Turn | None) -> Iterator[Database]:
    database = Database(path, busy_timeout=timeout, tenant=tenant_id, turn=turn)
    try:
        yield database
    finally:
        if database.was_replaced():
            database.abandon_replaced()
        else:
            database.close()
