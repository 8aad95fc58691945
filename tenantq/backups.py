"""A directory of backups: copies of the tenants that changed, run after run, and older generations beside them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tenantq import naming
from tenantq._backup_run import BackupResult, BackupSummary, Run
from tenantq._creation import TEMPORARY_PREFIX
from tenantq._manifest import GENERATION, LOG, MANIFEST, Backup, Log, Manifest, Note, generation_name, load, save
from tenantq.arguments import check_limit, check_seconds
from tenantq.clock import to_datetime
from tenantq.errors import BackupNotFound, DiskFull, TenantFileError

if TYPE_CHECKING:
    from tenantq.store import Store

__all__ = ["Backup", "BackupDirectory", "BackupResult", "BackupSummary"]


class BackupDirectory:
    """Backups of one store's tenants: for each a directory with a file for each generation, and one manifest."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    @property
    def is_begun(self) -> bool:
        """Whether a run has ever begun here."""
        return any((self.path / name).exists() for name in (MANIFEST, LOG))

    def tenants(self) -> dict[str, datetime | None]:
        """Return the ids of the tenants that have backups, and when each was found to be gone from the store."""
        manifest, _ = load(self.path)
        return {tenant_id: entry.deleted_at for tenant_id, entry in manifest.tenants.items() if entry.generations}

    def backups(self, tenant_id: str) -> list[Backup]:
        """Return a tenant's generations, from old to new; those of a run that is under way too."""
        manifest, _ = load(self.path)
        entry = manifest.tenants.get(tenant_id)
        return [] if entry is None else [Backup.of(self.path, tenant_id, entry, one) for one in entry.generations]

    def find(self, tenant_id: str, *, at: datetime | None = None, generation: str | None = None) -> Backup:
        """Return the generation of that name, or the newest that was taken no later than `at`, or the newest.

        Raises BackupNotFound; TenantFileError where the manifest cannot be read.
        """
        found = self.backups(tenant_id)
        if generation is not None:
            chosen = [one for one in found if one.generation == generation]
        else:
            chosen = [one for one in found if at is None or one.taken_at <= at]
        if not chosen:
            there = f"it has {found[0].generation} to {found[-1].generation}" if found else ""
            text = f"{self.path} has no such backup of tenant {tenant_id!r}"
            raise BackupNotFound(text, hint=there, tenant=tenant_id, path=str(self.path))
        return chosen[-1]

    def update(
        self,
        store: Store,
        *,
        jobs: int = 4,
        keep: int | None = None,
        keep_days: float | None = None,
        moved: bool = False,
        stop: threading.Event | None = None,
        on_plan: Callable[[int], object] | None = None,
        on_result: Callable[[BackupResult], object] | None = None,
    ) -> BackupSummary:
        """Take a new generation of each tenant that changed since the last run; no other one's file is opened.

        A tenant that fails does not stop the others. Where a run was killed the next one goes on. After a boot of
        the host each tenant is looked into once, since a crash may have taken back the files' times.

        jobs: tenants at once.
        keep, keep_days: generations kept of a tenant: so many of the newest, and those that were the newest at any
        time in so many days; without either, all. Those of a deleted tenant go by `keep_days` alone.
        moved: the store is the one that these are backups of, at another place.
        stop: when it is set, no further tenant is begun.
        on_plan: called with the number of tenants that are to be copied; on_result: for each of them.

        Raises TenantFileError where the directory cannot be used: in the store, another store's, another run's.
        """
        check_limit(jobs, "jobs")
        if keep is not None:
            check_limit(keep, "keep")
        if keep_days is not None:
            check_seconds(keep_days, "keep_days")
        stop = stop or threading.Event()
        root = store.root.resolve()
        if self.path.resolve().is_relative_to(root):
            raise self._refused(f"{self.path} lies in the store: backups do not go there")
        with self._locked() as manifest:
            if manifest.store and manifest.store != str(root) and not moved:
                raise self._refused(
                    f"{self.path} has backups of the store {manifest.store}, not of {root}",
                    hint="give another directory; or say that the store was moved",
                )
            with self._logged() as log:
                name = generation_name(to_datetime(store.clock.now_ns()))
                begun = Note(started=name, store=str(root), boot=store.clock.boot_id())
                with self._as_ours():
                    log.add(begun)
                begun.apply(manifest)
                run = Run(self.path, store, manifest, log, stop)
                run.copy_changed(jobs, on_plan or _ignore, on_result or _ignore)
                doomed = run.prune(keep, keep_days)
                manifest.finished_at = to_datetime(store.clock.now_ns())
                with self._as_ours():
                    run.sync_directories()
                    self._commit(manifest, log, doomed)
            return run.summary

    def forget(self, tenant_id: str) -> int:
        """Remove all of a tenant's generations, and every mention of it; return how many there were."""
        with self._locked() as manifest:
            entry = manifest.tenants.pop(tenant_id, None)
            if entry is None:
                return 0
            with self._as_ours(), self._logged() as log:
                self._commit(manifest, log, [f"{entry.directory}/{one.name}" for one in entry.generations])
            return len(entry.generations)

    def __repr__(self) -> str:
        return f"BackupDirectory({str(self.path)!r})"

    def _commit(self, manifest: Manifest, log: Log, doomed: list[str]) -> None:
        """Make a manifest the one that counts, and remove generations that are no longer in it."""
        if doomed:
            log.add(Note(removing=doomed))
        save(self.path, manifest)
        self._remove(doomed)
        log.remove()

    def _remove(self, doomed: Iterable[str]) -> None:
        for place in doomed:
            path = self.path / f"{place}{naming.SUFFIX}"
            if GENERATION.fullmatch(path.stem):
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # not empty
                    path.parent.rmdir()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Manifest]:
        """Give the manifest to the one run at a time, with what a run that was cut short had done."""
        with self._as_ours():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise self._refused(f"another run is at work on {self.path}", hint="wait for its end") from exc
            manifest, notes = load(self.path)
            if (self.path / LOG).exists():
                with self._as_ours():
                    self._clear_up(manifest, notes)
            yield manifest
        finally:
            # A fork shares the descriptor, and with it the lock: closing ours would not end it.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    @contextlib.contextmanager
    def _logged(self) -> Iterator[Log]:
        with self._as_ours():
            log = Log(self.path)
        try:
            yield log
        finally:
            log.close()

    @contextlib.contextmanager
    def _as_ours(self) -> Iterator[None]:
        """Raise what the system refuses in our own words."""
        try:
            yield
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no space is left for {self.path}", path=str(self.path)) from exc
            raise self._refused(f"{self.path}: {exc}") from exc

    def _clear_up(self, manifest: Manifest, notes: list[Note]) -> None:
        """Bring what a run that was cut short left to an end."""
        save(self.path, manifest)
        listed = {
            f"{entry.directory}/{one.name}" for entry in manifest.tenants.values() for one in entry.generations
        }
        self._remove(place for note in notes for place in note.removing if place not in listed)
        began = next((note.started for note in notes if note.started), None)
        if began is not None:
            for directory in self.path.glob("[0-9a-f][0-9a-f]/*/"):
                for path in directory.iterdir():
                    place = f"{directory.parent.name}/{directory.name}/{path.stem}"
                    is_ours = GENERATION.fullmatch(path.stem) and path.suffix == naming.SUFFIX
                    is_unlisted = is_ours and path.stem >= began and place not in listed
                    if is_unlisted or path.name.startswith(TEMPORARY_PREFIX):
                        path.unlink(missing_ok=True)
        (self.path / LOG).unlink()

    def _refused(self, text: str, *, hint: str = "") -> TenantFileError:
        return TenantFileError(text, hint=hint, path=str(self.path))


def _ignore(_: object) -> None:
    pass
