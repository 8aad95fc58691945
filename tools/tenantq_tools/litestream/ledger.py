"""How far each tenant is replicated: the position of its file that is known to be in the replica.

A position is what the kernel says of the file and its -wal: every commit changes it. The ledger outlives its
supervisor, so that a start registers only the tenants that changed meanwhile, and anybody can compare. It is a
hint: a line that a crash took away has its tenant replicated once more.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Self

import msgspec

from tenantq.errors import TenantFileError
from tenantq_tools.litestream.settings import write_text

__all__ = ["Entry", "Ledger", "has_wal", "inode_of", "position_of"]

LEDGER_FILE = "ledger.jsonl"

SPARE_LINES = 1_000
"""Beyond two lines for each tenant the file is written anew."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one tenant."""

    tenant: str
    position: str = ""
    """Of the file, as it is in the replica; empty if it never was."""
    txid: int = 0
    """Litestream's own count there."""
    confirmed_at: float = 0.0
    """When, in Unix seconds."""
    behind_since: float = 0.0
    """When a change was seen that is not in the replica; 0 for none."""
    error: str = ""
    """Why it is not."""
    is_broken: bool = False
    """Whether the replica cannot be restored from: Litestream itself does not notice."""
    snapshot_at: float = 0.0
    """When all of the file was sent as a snapshot last, or it was sent at all for the first time."""
    is_gone: bool = False


class Ledger:
    """The entries of a store, written by one process at a time: the one that holds the lock of the replication."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / LEDGER_FILE
        self.entries: dict[str, Entry] = {}
        self._lines = 0
        self._descriptor = -1

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Return the ledger of a store, empty if there is none."""
        ledger = cls(directory)
        try:
            lines = ledger.path.read_bytes().splitlines()
        except FileNotFoundError:
            return ledger
        except OSError as exc:
            raise TenantFileError(f"{ledger.path} cannot be read: {exc}", path=str(ledger.path)) from exc
        decoder = msgspec.json.Decoder(Entry)
        for line in lines:
            try:
                entry = decoder.decode(line)
            except msgspec.MsgspecError:
                continue  # torn by a crash
            ledger._keep(entry)
        ledger._lines = len(lines)
        return ledger

    def of(self, tenant: str) -> Entry:
        """Return what is known of a tenant."""
        return self.entries.get(tenant) or Entry(tenant=tenant)

    def confirm(self, tenant: str, position: str, txid: int, *, has_snapshot: bool = False) -> None:
        """Say that a file was in the replica as it was at a position, and whether a snapshot was sent."""
        now = time.time()
        snapshot_at = now if has_snapshot else self.of(tenant).snapshot_at or now
        self._write(Entry(tenant=tenant, position=position, txid=txid, confirmed_at=now, snapshot_at=snapshot_at))

    def fall_behind(self, tenant: str) -> None:
        """Say that a tenant has changes that are not known to be in the replica."""
        entry = self.of(tenant)
        if not entry.behind_since:
            self._write(msgspec.structs.replace(entry, behind_since=time.time()))

    def fail(self, tenant: str, error: str, *, is_broken: bool) -> bool:
        """Say why a tenant's changes are not in the replica; False if that was known."""
        entry = self.of(tenant)
        since = entry.behind_since or time.time()
        failed = msgspec.structs.replace(entry, behind_since=since, error=error, is_broken=is_broken)
        if failed == entry:
            return False
        self._write(failed)
        return True

    def forget(self, tenant: str) -> None:
        """Say that there is no such tenant any more."""
        if tenant in self.entries:
            self._write(Entry(tenant=tenant, is_gone=True))

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _keep(self, entry: Entry) -> None:
        if entry.is_gone:
            self.entries.pop(entry.tenant, None)
        else:
            self.entries[entry.tenant] = entry

    def _write(self, entry: Entry) -> None:
        self._keep(entry)
        self._lines += 1
        if self._lines > 2 * len(self.entries) + SPARE_LINES:
            self.close()
            text = b"".join(msgspec.json.encode(kept) + b"\n" for kept in self.entries.values())
            write_text(self.path, text.decode())
            self._lines = len(self.entries)
            return
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            os.write(self._descriptor, msgspec.json.encode(entry) + b"\n")
        except OSError as exc:
            raise TenantFileError(f"{self.path} cannot be written: {exc}", path=str(self.path)) from exc


def position_of(path: Path) -> str:
    """Return what every commit to a file changes; empty if there is no file."""
    try:
        file = path.stat()
    except OSError:
        return ""
    position = f"{file.st_ino:x}.{file.st_size:x}.{file.st_mtime_ns:x}"
    try:
        wal = path.with_name(f"{path.name}-wal").stat()
    except OSError:
        return position
    if not wal.st_size:  # it holds nothing, and comes and goes with readers
        return position
    return f"{position}-{wal.st_ino:x}.{wal.st_size:x}.{wal.st_mtime_ns:x}"


def inode_of(position: str) -> str:
    """Return what names the file itself, whatever is in it; empty if there is none."""
    return position.partition(".")[0]


def has_wal(position: str) -> bool:
    """Whether there was something in the -wal."""
    return "-" in position
