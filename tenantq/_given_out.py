"""The ids that a tenant's file has given out: a file that takes its place gives none of them out again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tenantq._sqlite import Database, Row
from tenantq.errors import TenantqError
from tenantq.sqlfile import load_statements

__all__ = ["JUMP", "jump", "open_given_out", "raise_ids", "read_given_out"]

JUMP = 1_000_000_000_000
"""How far ids go on above those of a backup where nobody can tell what was given out since: more than a file
can have given out, and small enough for thousands of such restores below 2^53, where a JavaScript number
ends."""

_SQL = load_statements("tenantq", "restore.sql")
_QUEUE = load_statements("tenantq", "queue.sql")


def open_given_out(path: Path) -> Database | None:
    """Open a file that nobody else has open, without a lock on it; None where it cannot be read."""
    try:
        return Database(path, read_only=True, immutable=True, is_ours_alone=True)
    except TenantqError:
        return None


def read_given_out(database: Database) -> list[Row] | None:
    """Return (queue, highest id) of all that a file gave out; None where it cannot be read."""
    try:
        return database.execute(_SQL["ids_given_out"])
    except TenantqError:
        return None


def raise_ids(database: Database, given_out: Iterable[Row]) -> None:
    """Let new ids go on above those. Inside of a transaction."""
    for queue, last_id in given_out:
        database.run(_SQL["raise_last_id"], (queue, last_id))


def jump(database: Database) -> None:
    """Let new ids go on far above all that the file knows of. Inside of a transaction."""
    last_id = database.execute(_QUEUE["last_id"])[0][0]
    queues = database.execute("SELECT min(queue) FROM tenantq_depth")
    raise_ids(database, [(queues[0][0] or "default", last_id + JUMP)])
