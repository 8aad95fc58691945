"""A tenant out of its replica: into the store again, or into a file to look at."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tenantq import Store, verify
from tenantq.errors import CorruptFile, InvalidArgument, TenantExists, WrongTenant
from tenantq_tools.litestream.binary import Binary
from tenantq_tools.litestream.replica import download
from tenantq_tools.litestream.settings import Settings, directory_of

__all__ = ["restore_tenant", "save_tenant", "timestamp_of"]


def restore_tenant(
    store: Store, settings: Settings, binary: Binary, tenant_id: str, *, timestamp: str | None = None
) -> None:
    """Put the replica of a tenant, as of now or of a time, in the place of its file; durable on return.

    It is `Store.restore` with what the replica has: refused while another process has the tenant open, and the
    tenant is as it was if anything fails. Litestream lets the old file go, and the new one goes on in the same
    replica. Raises NoBackup, ReplicaError, ReplicaGap, TenantInUse, CorruptFile.
    """
    settings.check(store.root)
    with _downloaded(store, settings, binary, tenant_id, timestamp) as file:
        store.restore(tenant_id, file, replace=True)


def save_tenant(
    store: Store, settings: Settings, binary: Binary, tenant_id: str, target: Path, *, timestamp: str | None = None
) -> None:
    """Write what the replica of a tenant has into a file of its own; the store is left alone.

    Raises TenantExists if there is a file, and NoBackup, ReplicaError, ReplicaGap, CorruptFile.
    """
    settings.check(store.root)
    if target.exists():
        raise TenantExists(f"there is a file {target}", path=str(target), hint="give another name, or remove it")
    with _downloaded(store, settings, binary, tenant_id, timestamp) as file:
        report = verify(file)
        if not report.ok:
            raise CorruptFile(f"what the replica has is damaged: {report.problems[0]}", tenant=tenant_id)
        if report.tenant != tenant_id:
            raise WrongTenant(f"the replica has a file of tenant {report.tenant!r}", tenant=tenant_id)
        shutil.move(file, target)


def timestamp_of(text: str) -> str:
    """Return a time as Litestream takes it. Raises InvalidArgument; a time without a zone is one of UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidArgument(f"the time {text!r} is none: {exc}", hint="such as 2026-11-30T08:00:00Z") from exc
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).isoformat().replace("+00:00", "Z")


@contextmanager
def _downloaded(
    store: Store, settings: Settings, binary: Binary, tenant_id: str, timestamp: str | None
) -> Iterator[Path]:
    path = store.tenant(tenant_id).path
    directory = directory_of(store.root) / f"restore-{secrets.token_hex(6)}"
    directory.mkdir(mode=0o700)
    try:
        file = directory / path.name
        download(binary, settings.url_of(path), tenant_id, file, timestamp)
        yield file
    finally:
        shutil.rmtree(directory, ignore_errors=True)
