"""What a tenant's file is made of: its schema, and how it is told from other files."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from tenantq import naming
from tenantq._sqlite import Database, Image
from tenantq._tombstones import Seal
from tenantq.errors import NewerFile, NotATenantFile, StatementFailed, WrongTenant
from tenantq.sqlfile import load_statements

__all__ = [
    "APPLICATION_ID",
    "SCHEMA_VERSION",
    "check_file",
    "check_header",
    "check_version",
    "read_meta",
    "take_step",
    "version_of",
]

APPLICATION_ID = 0x746E7471
"""The bytes "tntq": `file` and `sqlite3` tell a tenant's file by it."""

SCHEMA_VERSION = 2
"""Of the files that this version works on. Version 1 is `create_schema`; migrations.sql leads from there."""

SEALED = 0x5451_0000
"""Added to the version of a file that is no tenant any more: any tenantq that opens it refuses it."""

_SQL = load_statements("tenantq", "schema.sql")
_MIGRATIONS = load_statements("tenantq", "migrations.sql")


def write_schema(database: Database | Image, tenant_id: str) -> None:
    """Write the schema and the file's identity into an empty database."""
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(_SQL["create_schema"])
    for version in range(2, SCHEMA_VERSION + 1):
        take_step(database, version)
    write_meta(database, "tenant_id", tenant_id)
    write_meta(database, "file_id", str(uuid.uuid4()))


def write_empty(path: Path, tenant_id: str) -> None:
    """Make an empty file at the path that of a tenant without messages."""
    image = Image()
    write_schema(image, tenant_id)
    path.write_bytes(image.to_bytes())


def take_step(database: Database | Image, version: int) -> None:
    """Give a file the schema of a version, if it has that of the one before. Inside of a transaction."""
    database.execute(_MIGRATIONS[f"to_{version}"])
    database.execute(f"PRAGMA user_version = {version}")


def check_file(database: Database, tenant_id: str | None) -> dict[str, str]:
    """Return the file's identity, or raise NotATenantFile, NewerFile or WrongTenant; nothing is written.

    An older file is one of ours too: `_migrations` has what becomes of it.
    """
    path = str(database.path)
    check_header(database, tenant_id)
    try:
        meta = read_meta(database)
        named = meta["tenant_id"]
    except (StatementFailed, KeyError) as exc:
        raise NotATenantFile(f"{path} has no tenantq schema: {exc}", path=path, tenant=tenant_id) from exc
    if tenant_id is not None and named != tenant_id:
        raise WrongTenant(f"{path} belongs to tenant {named!r}, not {tenant_id!r}", path=path, tenant=tenant_id)
    return meta


def check_header(database: Database, tenant_id: str | None) -> None:
    """Raise NotATenantFile or NewerFile by the file's first page alone: what costs least to know of it."""
    application_id = database.execute("PRAGMA application_id")[0][0]
    if application_id != APPLICATION_ID:
        path = str(database.path)
        raise NotATenantFile(f"{path} is not a tenantq tenant file", path=path, tenant=tenant_id)
    check_version(database, tenant_id)


def version_of(database: Database) -> int:
    """Return the version of a file's schema."""
    version: int = database.execute("PRAGMA user_version")[0][0]
    return version


def check_version(database: Database, tenant_id: str | None) -> None:
    """Raise NewerFile if the file's schema is of a version that is not known here, TenantGone if it is sealed."""
    version = version_of(database)
    if version > SCHEMA_VERSION:
        path = str(database.path)
        if SEALED < version <= SEALED + SCHEMA_VERSION:
            raise Seal.of(read_meta(database)).error(tenant_id, path)
        raise NewerFile(
            f"{path} has schema version {version}, this tenantq knows up to {SCHEMA_VERSION}",
            path=path,
            tenant=tenant_id,
        )


def read_meta(database: Database) -> dict[str, str]:
    """Return what the file knows of itself: tenant_id, file_id, and the boot_id of its leases."""
    return dict(database.execute(_SQL["read_meta"]))


def write_meta(database: Database | Image, name: str, value: str) -> None:
    """Keep a fact about the file."""
    database.execute(_SQL["write_meta"], (name, value))


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive power loss."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def path_of(root: Path, tenant_id: str) -> Path:
    """Return where a tenant's file lies in a store."""
    return root.joinpath(f"{naming.shard_name(tenant_id)}/{naming.file_name(tenant_id)}")


def open_database(path: Path, tenant_id: str, busy_timeout: float) -> Database:
    """Open a tenant's file beside its handle, for work that must not hold the handle's turn."""
    return Database(path, busy_timeout=busy_timeout, tenant=tenant_id)


def open_to_read(path: Path, tenant_id: str | None = None) -> Database:
    """Open a file to read. Without a -wal it is complete and nobody has it open: nothing is put beside it."""
    is_alone = not path.with_name(path.name + "-wal").exists()
    return Database(path, read_only=True, immutable=is_alone, tenant=tenant_id)


def remove_sidecars(path: Path) -> None:
    """Remove a -wal and -shm that belong to no file any more."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
