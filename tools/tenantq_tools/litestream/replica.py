"""The replica itself: whether it can be restored from, and how far.

Litestream's own word is not enough. Where somebody has deleted files of the replica it goes on sending what comes
next and says that all is there, and nothing can be restored.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tenantq_tools.litestream.binary import Binary, said
from tenantq_tools.litestream.errors import NoBackup, ReplicaGap, replica_error

__all__ = ["download", "look_for", "reach_of"]

LOOK_TIMEOUT = 60.0
"""Seconds to list a tenant's replica."""

DOWNLOAD_TIMEOUT = 3600.0
"""Seconds to bring a tenant back."""

NOTHING = ("no matching backup files", "timestamp does not exist", "transaction not available")
"""What Litestream says where the replica has nothing to restore."""


class _Plan(msgspec.Struct):
    max_txid: str


def reach_of(binary: Binary, url: str, tenant: str, timestamp: str | None = None) -> int:
    """Return the transaction up to which a tenant can be restored. Raises NoBackup, ReplicaGap, ReplicaError."""
    wanted = [] if timestamp is None else ["-timestamp", timestamp]
    done = binary.run("restore", "-dry-run", "-json", "-o", "/nonexistent", *wanted, url, timeout=LOOK_TIMEOUT)
    if done.returncode == 0:
        return int(msgspec.json.decode(done.stdout, type=_Plan).max_txid, 16)
    raise _error(binary, said(done), url, tenant, timestamp)


def look_for(binary: Binary, url: str, tenant: str, txid: int) -> None:
    """Check that a tenant can be restored up to a transaction. Raises ReplicaGap, ReplicaError."""
    try:
        reached = reach_of(binary, url, tenant)
    except NoBackup as exc:
        raise ReplicaGap(f"the replica has nothing of tenant {tenant!r} any more", tenant=tenant) from exc
    if reached < txid:
        raise ReplicaGap(
            f"the replica of tenant {tenant!r} can be restored up to transaction {reached}, not {txid}",
            tenant=tenant,
        )


def download(binary: Binary, url: str, tenant: str, target: Path, timestamp: str | None) -> None:
    """Bring a tenant's file back as `target`, checked by SQLite; there is no file if it fails.

    Raises NoBackup, ReplicaGap, ReplicaError.
    """
    wanted = [] if timestamp is None else ["-timestamp", timestamp]
    arguments = ("restore", "-json", "-integrity-check", "quick", "-o", str(target), *wanted, url)
    done = binary.run(*arguments, timeout=DOWNLOAD_TIMEOUT)
    if done.returncode != 0 or not target.exists():
        raise _error(binary, said(done), url, tenant, timestamp)


def _error(binary: Binary, message: str, url: str, tenant: str, timestamp: str | None) -> Exception:
    if not any(words in message for words in NOTHING):
        return replica_error(message, tenant)
    if timestamp is not None:
        return NoBackup(f"the replica has nothing of tenant {tenant!r} as of {timestamp}", tenant=tenant)
    listing = binary.run("ltx", "-json", "-level", "all", url, timeout=LOOK_TIMEOUT)
    if listing.returncode == 0 and msgspec.json.decode(listing.stdout or "[]"):
        return ReplicaGap(f"the replica of tenant {tenant!r} has no beginning", tenant=tenant)
    return NoBackup(f"the replica has nothing of tenant {tenant!r}", tenant=tenant)
