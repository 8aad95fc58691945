"""One run of a backup directory: the tenants that changed are copied, and old generations go."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tenantq import _schema, naming
from tenantq._backup import opened_for_backup, put_in_place
from tenantq._copies import check_sound, copy_beside
from tenantq._looks import Look, list_looks
from tenantq._manifest import Backup, Entry, Generation, Log, Manifest, Note, digest_of, generation_name, place_of
from tenantq.clock import to_datetime
from tenantq.errors import TenantFileError, TenantqError

if TYPE_CHECKING:
    from tenantq.store import Store

__all__ = ["BackupResult", "BackupSummary", "Run"]

AHEAD = 50
"""Tenants for each job that are handed out before their results are told."""


class BackupResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one tenant in a run."""

    tenant: str | None
    """None for a file in the store that no tenant's id leads to."""
    backup: Backup | None = None
    """The new generation; None where the newest one has the same content, and for a failure."""
    error: TenantqError | None = None


class BackupSummary(msgspec.Struct, kw_only=True):
    """What a run did."""

    tenants: int = 0
    taken: int = 0
    """Tenants with a new generation."""
    same: int = 0
    """Tenants that were copied, and have in their newest generation what they have now."""
    unchanged: int = 0
    """Tenants that were not opened."""
    failed: int = 0
    left: int = 0
    """Tenants not reached before the run was stopped."""
    deleted: int = 0
    """Tenants that are gone from the store, and have generations still."""
    removed: int = 0
    """Old generations that were removed."""
    bytes: int = 0
    """Of the new generations."""


class Run:
    """One run over a store's tenants."""

    def __init__(self, directory: Path, store: Store, manifest: Manifest, log: Log, stop: threading.Event) -> None:
        self._directory = directory
        self._store = store
        self._manifest = manifest
        self._log = log
        self._stop = stop
        self._new_shards: set[Path] = set()
        self.summary = BackupSummary()

    def copy_changed(
        self, jobs: int, on_plan: Callable[[int], object], on_result: Callable[[BackupResult], object]
    ) -> None:
        """Copy the tenants that changed, several at once, and tell of each."""
        found, strays = self._list()
        changed = [(tenant_id, look) for tenant_id, look in found.items() if self._has_changed(tenant_id, look)]
        summary = self.summary
        summary.tenants, summary.left = len(found), len(changed)
        summary.unchanged, summary.failed = len(found) - len(changed), len(strays)
        if found:  # a store without any is more likely one whose disk is not mounted
            now = to_datetime(self._store.clock.now_ns())
            for tenant_id in self._manifest.tenants.keys() - found.keys():
                entry = self._manifest.tenants[tenant_id]
                entry.look, entry.deleted_at = None, entry.deleted_at or now
        on_plan(len(changed))
        for stray in strays:
            error = TenantFileError(f"{stray} is no tenant's file, or cannot be read", path=str(stray))
            on_result(BackupResult(tenant=None, error=error))
        waiting = iter(changed)
        with ThreadPoolExecutor(jobs, thread_name_prefix="tenantq-backup") as pool:
            while some := list(itertools.islice(waiting, jobs * AHEAD)):
                for (tenant_id, _look), done in zip(some, pool.map(self._copy, some), strict=True):
                    if done is not None:
                        on_result(self._count(tenant_id, done))

    def prune(self, keep: int | None, keep_days: float | None) -> list[str]:
        """Take old generations out of the manifest, and return where they lie."""
        entries = self._manifest.tenants
        self.summary.deleted = sum(entry.deleted_at is not None for entry in entries.values())
        if keep is None and keep_days is None:
            return []
        now = to_datetime(self._store.clock.now_ns())
        since = None if keep_days is None else now - timedelta(days=keep_days)
        doomed: list[str] = []
        for tenant_id, entry in list(entries.items()):
            kept = set(_kept(entry, keep, since))
            doomed += [f"{entry.directory}/{one.name}" for one in entry.generations if one.name not in kept]
            entry.generations = [one for one in entry.generations if one.name in kept]
            if entry.deleted_at is not None and not entry.generations:
                del entries[tenant_id]
        self.summary.removed = len(doomed)
        return doomed

    def _list(self) -> tuple[dict[str, Look], list[Path]]:
        """Return the tenants of the store, and files that no id leads to."""
        known = {entry.directory: tenant_id for tenant_id, entry in self._manifest.tenants.items()}
        found: dict[str, Look] = {}
        strays: list[Path] = []
        for look in list_looks(self._store.root):
            tenant_id = known.get(look.directory) or naming.tenant_id_of(look.path.name)
            if tenant_id is None and naming.is_hashed(look.path.name):
                tenant_id = self._store._read_id(look.path)
            if tenant_id is not None and _schema.path_of(self._store.root, tenant_id) == look.path:
                found[tenant_id] = look
            elif look.path.exists():
                strays.append(look.path)
        return found, strays

    def _has_changed(self, tenant_id: str, look: Look) -> bool:
        entry = self._manifest.tenants.get(tenant_id)
        if entry is None or not entry.generations or look.facts is None or entry.look != look.facts:
            return True
        newest = entry.generations[-1]
        try:
            return place_of(self._directory, entry, newest.name).stat().st_size != newest.bytes
        except OSError:
            return True  # somebody removed it

    def _copy(self, task: tuple[str, Look]) -> Note | TenantqError | None:
        if self._stop.is_set():
            return None
        tenant_id, look = task
        try:
            return self._copy_one(tenant_id, look)
        except TenantqError as exc:
            return exc
        except OSError as exc:
            return TenantFileError(f"{self._directory}: {exc}", tenant=tenant_id, path=str(look.path))

    def _copy_one(self, tenant_id: str, look: Look) -> Note:
        entry = self._manifest.tenants.get(tenant_id)
        latest = entry.generations[-1] if entry is not None and entry.generations else None
        taken_at = to_datetime(self._store.clock.now_ns())
        if latest is not None:  # the clock may have been set back
            taken_at = max(taken_at, latest.taken_at + timedelta(microseconds=1))
        name = generation_name(taken_at)
        target = self._directory / look.directory / f"{name}{naming.SUFFIX}"
        if latest is None:
            self._new_shards.add(target.parent.parent)
            target.parent.parent.mkdir(mode=0o700, exist_ok=True)
        note = Note(tenant=tenant_id, directory=look.directory, look=look.facts)
        with _directory_for(target), copy_beside(target) as temporary:
            with opened_for_backup(look.path, tenant_id, self._store.config.busy_timeout) as database:
                database.copy_to(temporary)
            digest = digest_of(temporary)
            is_known = latest is not None and digest == latest.sha256
            if not is_known or latest is None or not target.with_name(f"{latest.name}{naming.SUFFIX}").exists():
                check_sound(temporary, tenant_id, sync=True)
                size = temporary.stat().st_size
                put_in_place(temporary, target)
                note.generation = Generation(name=name, taken_at=taken_at, bytes=size, sha256=digest)
        try:
            self._log.add(note)
        except OSError:
            if note.generation is not None:
                target.unlink(missing_ok=True)
            raise
        return note

    def _count(self, tenant_id: str, done: Note | TenantqError) -> BackupResult:
        self.summary.left -= 1
        if isinstance(done, TenantqError):
            self.summary.failed += 1
            return BackupResult(tenant=tenant_id, error=done)
        done.apply(self._manifest)
        if done.generation is None:
            self.summary.same += 1
            return BackupResult(tenant=tenant_id)
        self.summary.taken += 1
        self.summary.bytes += done.generation.bytes
        entry = self._manifest.tenants[tenant_id]
        backup = Backup.of(self._directory, tenant_id, entry, done.generation)
        return BackupResult(tenant=tenant_id, backup=backup)

    def sync_directories(self) -> None:
        """Make the names of new tenants' directories survive power loss; their files' names do already."""
        for shard in self._new_shards:
            _schema.sync_directory(shard)


@contextlib.contextmanager
def _directory_for(target: Path) -> Iterator[None]:
    """Leave no empty directory behind where a tenant's first copy fails."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            target.parent.rmdir()
        raise


def _kept(entry: Entry, keep: int | None, since: datetime | None) -> Iterator[str]:
    """Yield the names of the generations that stay."""
    is_counted = entry.deleted_at is None or since is None  # a deleted tenant's go by their age, the newest too
    count = len(entry.generations)
    ends = [*(one.taken_at for one in entry.generations[1:]), entry.deleted_at]  # when each was the newest no more
    for place, (one, end) in enumerate(zip(entry.generations, ends, strict=True)):
        is_recent = since is not None and (end is None or end >= since)
        if is_recent or (is_counted and place >= count - (keep or 1)):
            yield one.name
