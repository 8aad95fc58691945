"""What a tenant's file is made of: its schema, how it is told from other files, and how a new one is made."""

from __future__ import annotations

import contextlib
import os
import secrets
import uuid
from pathlib import Path

from tenantq import naming
from tenantq._sqlite import Database, Durability
from tenantq.errors import NewerFile, NotATenantFile, StatementFailed, WrongTenant
from tenantq.sqlfile import load_statements

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "check_file", "create_file", "read_meta"]

APPLICATION_ID = 0x746E7471
"""The bytes "tntq": `file` and `sqlite3` tell a tenant's file by it."""

SCHEMA_VERSION = 2

TEMPORARY_PREFIX = ".new-"

_SQL = load_statements("tenantq", "schema.sql")
_MIGRATIONS = load_statements("tenantq", "migrations.sql")


def create_file(path: Path, tenant_id: str) -> None:
    """Make a tenant's file, whole or not at all; another process may do the same at the same time.

    The file is built under another name and linked to its own: nobody sees one without its schema, and
    the first link wins.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        database = Database(temporary, durability=Durability.FULL, tenant=tenant_id)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.begin()
            write_schema(database, tenant_id)
            database.commit()
        finally:
            database.close()
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        sync_directory(path.parent)
    finally:
        temporary.unlink()


def write_schema(database: Database, tenant_id: str) -> None:
    """Write the schema and the file's identity into an empty database."""
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    database.execute(_SQL["create_schema"])
    database.execute(_MIGRATIONS["to_2"])
    write_meta(database, "tenant_id", tenant_id)
    write_meta(database, "file_id", str(uuid.uuid4()))


def check_file(database: Database, tenant_id: str | None) -> dict[str, str]:
    """Return the file's identity, or raise NotATenantFile, NewerFile or WrongTenant; nothing is written."""
    path = str(database.path)
    application_id = database.execute("PRAGMA application_id")[0][0]
    if application_id != APPLICATION_ID:
        raise NotATenantFile(f"{path} is not a tenantq tenant file", path=path, tenant=tenant_id)
    version = database.execute("PRAGMA user_version")[0][0]
    if version > SCHEMA_VERSION:
        raise NewerFile(
            f"{path} has schema version {version}, this tenantq knows up to {SCHEMA_VERSION}",
            path=path,
            tenant=tenant_id,
        )
    try:
        meta = read_meta(database)
        named = meta["tenant_id"]
    except (StatementFailed, KeyError) as exc:
        raise NotATenantFile(f"{path} has no tenantq schema: {exc}", path=path, tenant=tenant_id) from exc
    if tenant_id is not None and named != tenant_id:
        raise WrongTenant(f"{path} belongs to tenant {named!r}, not {tenant_id!r}", path=path, tenant=tenant_id)
    return meta


def read_meta(database: Database) -> dict[str, str]:
    """Return what the file knows of itself: tenant_id, file_id, and the boot_id of its leases."""
    return dict(database.execute(_SQL["read_meta"]))


def write_meta(database: Database, name: str, value: str) -> None:
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
    return root / naming.shard_name(tenant_id) / naming.file_name(tenant_id)


def open_database(path: Path, tenant_id: str, busy_timeout: float) -> Database:
    """Open a tenant's file beside its handle, for work that must not hold the handle's turn."""
    return Database(path, busy_timeout=busy_timeout, tenant=tenant_id)


def remove_sidecars(path: Path) -> None:
    """Remove a -wal and -shm that belong to no file any more."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
