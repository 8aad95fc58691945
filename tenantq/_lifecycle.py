"""What is done with whole tenants of a store: made, brought back, copied, moved and deleted."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from tenantq import _schema, naming
from tenantq._creation import create_file
from tenantq._deleting import Deletion, check_backups, check_events, delete_file, refuse_existing
from tenantq._doorbell import slot_of
from tenantq._moving import export_file, import_file, refuse_moved, tenant_of, undo_export
from tenantq._open_files import OpenFiles
from tenantq._quiet import quiet
from tenantq._restoring import EVICTION_SECONDS, copy_as, restore_file
from tenantq._sqlite import identity_of
from tenantq._tombstones import Tombstone, moment, tombstones_in
from tenantq._turns import Turn
from tenantq.arguments import check_seconds
from tenantq.errors import (
    EventsWaiting,
    UnknownTenant,
)
from tenantq.tenant import Tenant
from tenantq.watch import list_names, list_shards

__all__ = ["FORWARD_SECONDS", "Lifecycle"]

FORWARD_SECONDS = 30.0
"""Seconds that a deletion waits for a forwarder to take the tenant's events."""

FORWARD_LOOK_SECONDS = 0.05
"""Between two looks whether it has: what another process marks in the file tells nobody."""


class Lifecycle(OpenFiles, ABC):
    """How the tenants of a store come and go."""

    @abstractmethod
    def tenant(self, tenant_id: str, *, create: bool = True) -> Tenant:
        """Return a tenant; its file appears at the first write. Raises InvalidTenantId, UnknownTenant."""

    def create(self, tenant_id: str) -> Tenant:
        """Make a tenant that is not there, one that was deleted or moved away too; durable on return.

        It begins anew: nothing of what it had comes back. Raises TenantExists.
        """
        tenant = self.tenant(tenant_id)
        with self.exclusive(tenant_id):
            refuse_existing(tenant.path, tenant_id)
            _schema.remove_sidecars(tenant.path)
            create_file(tenant.path, tenant_id, survives_power_loss=True)
            Tombstone.remove(tenant.path)  # it counts no more; one that is left is in nobody's way
        return tenant

    def deleted(self) -> list[Tombstone]:
        """Return the tenants that were deleted or moved away and have not come again, by id."""
        self._check_open()
        found = [stone for shard in list_shards(self.root) for stone in tombstones_in(shard, list_names(shard))]
        return sorted(found, key=lambda stone: stone.tenant)

    def delete(
        self,
        tenant_id: str,
        *,
        events: str = "refuse",
        wait: float = FORWARD_SECONDS,
        forward: Callable[[], object] | None = None,
        backups: Iterable[str | os.PathLike[str]] = (),
        replica: Callable[[str], Iterable[str]] | None = None,
    ) -> Deletion:
        """Delete a tenant's file with all that is in it, and say what that was; false if there was none.

        Durable on return. A tombstone stays: no call of any process makes the tenant again or is acknowledged, but
        raises TenantDeleted, until `create`, `restore` or `import_` brings it back.

        events: what becomes of events that Postgres has not got. "refuse": raise EventsWaiting. "forward": wait up
        to `wait` seconds until a forwarder has taken them, and call `forward`, such as a Forwarder's `run_once`,
        for it to be done here. "drop": they are lost. backups: directories of `tenantq backup --all`, whose copies
        of the tenant go too. replica: removes what a replication has of it, and returns the names. Raises
        TenantBusy.
        """
        path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))
        self._check_open()
        directories = check_backups(backups, self.root)
        deadline = time.monotonic() + check_seconds(wait, "wait")
        is_forwarding = check_events(events) == "forward"
        while True:
            try:
                deletion = delete_file(
                    path,
                    tenant_id,
                    at=moment(self.clock.now_ns()),
                    drop=events == "drop",
                    backups=directories,
                    replica=replica,
                    exclusive=lambda: self.exclusive(tenant_id),
                    busy_timeout=self.config.busy_timeout,
                )
                break
            except EventsWaiting as exc:
                if not is_forwarding or not exc.pending or time.monotonic() >= deadline:
                    raise
            if forward is None or not forward():
                time.sleep(FORWARD_LOOK_SECONDS)
        self._schedule.drop(naming.key_of(tenant_id))
        self.failing_tenants.clear(tenant_id)
        return deletion

    def export(self, tenant_id: str, target: str | os.PathLike[str]) -> Path:
        """Move a tenant out of this store into a file, for `import_` of another one; durable on return.

        From its beginning on what would write to the tenant raises TenantMoved, in every process. All goes along:
        messages, events and how far they are forwarded, ids, the application's tables; claims are given back. An
        export that was killed is finished by the same call, or undone by `undo_export`. Raises UnknownTenant,
        TenantBusy, DiskFull.
        """
        path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))
        self._check_open()
        now = self.clock.now_ns()
        written = export_file(
            path,
            tenant_id,
            Path(target),
            at=moment(now),
            now=now,
            root=self.root,
            exclusive=lambda: self.exclusive(tenant_id),
            busy_timeout=self.config.busy_timeout,
        )
        self._schedule.drop(naming.key_of(tenant_id))
        self.failing_tenants.clear(tenant_id)
        return written

    def import_(self, source: str | os.PathLike[str]) -> Tenant:
        """Take a tenant that another store exported; durable on return. Return it.

        The export is taken once, and says so from then on: it may be removed. Raises TenantExists, TenantMoved if
        it was imported before, TenantFileError for what is no export.
        """
        self._check_open()
        tenant_id = tenant_of(Path(source))
        tenant = self.tenant(tenant_id)
        import_file(
            tenant.path,
            tenant_id,
            Path(source).absolute(),
            store_name=f"{socket.gethostname()}:{self.root}",
            exclusive=lambda: self.exclusive(tenant_id),
            busy_timeout=self.config.busy_timeout,
            now=self.clock.now_ns(),
        )
        self.announce(tenant_id)
        return tenant

    def undo_export(self, tenant_id: str) -> Tenant:
        """Make a tenant this store's again whose export nobody has imported, or that was killed.

        Durable on return. The export is taken from where it was written. Raises TenantMoved if it is not there, or
        was imported; TenantExists.
        """
        tenant = self.tenant(tenant_id)
        undo_export(
            tenant.path,
            tenant_id,
            exclusive=lambda: self.exclusive(tenant_id),
            busy_timeout=self.config.busy_timeout,
            take_back=self.import_,
        )
        self.announce(tenant_id)
        return tenant

    def restore(
        self,
        tenant_id: str,
        source: str | os.PathLike[str],
        *,
        replace: bool = True,
        wait: float = 0.0,
        evict: bool = False,
        as_: str | None = None,
    ) -> None:
        """Put a backup in the place of a tenant's file; durable on return.

        The source is checked first: ours, not newer, sound, and of this tenant. What it held claimed is
        ready again, one of an older schema is migrated on the way, and new ids go on above all that the
        replaced file gave out; where nobody can tell what it gave out, far above those of the backup.

        wait: seconds that other processes which have the tenant open are waited for.
        evict: they are asked to let go of it, and waited for 2 s at least. A process that listens for messages
        does so at once, another one at its next call on the tenant; one that does neither keeps it.
        as_: the id of a new tenant that is to be a copy, for a look. Nothing in it happens by itself: its queues
        are paused, its own periodic messages do not fire, and its events are not forwarded but `undeliverable`.

        Raises TenantInUse while another process has the tenant open, TenantExists with replace=False or for
        `as_`, NotATenantFile, NewerFile, OlderFile (of a store with migrate=False), CorruptFile, WrongTenant,
        DiskFull; the tenant is as it was then.
        """
        self._check_open()
        naming.check_tenant_id(tenant_id)
        check_seconds(wait, "wait")
        refuse_moved(_schema.path_of(self.root, as_ or tenant_id), tenant_id)
        now = self.clock.now_ns()
        migrate_at = now if self.config.migrate else None
        if as_ is not None:
            path = _schema.path_of(self.root, naming.check_tenant_id(as_))
            exclusive = partial(self._replacing, as_, path)
            copy_as(path, Path(source), tenant_id, as_, exclusive=exclusive, migrate_at=migrate_at, now=now)
            self.announce(as_)
            return
        try:
            restore_file(
                _schema.path_of(self.root, tenant_id),
                Path(source),
                tenant_id,
                replace=replace,
                exclusive=partial(self._replacing, tenant_id, _schema.path_of(self.root, tenant_id)),
                migrate_at=migrate_at,
                wait=max(wait, EVICTION_SECONDS) if evict else wait,
                ask=partial(self._ask_for, tenant_id) if evict else None,
            )
        finally:
            self._departures.withdraw(naming.key_of(tenant_id))
        self.announce(tenant_id)

    @contextlib.contextmanager
    def _replacing(self, tenant_id: str, path: Path) -> Iterator[None]:
        with self.exclusive(tenant_id):
            refuse_moved(path, tenant_id)  # it may have gone while the copy was made
            yield
            if path.exists():
                Tombstone.remove(path)

    def prepare(self, tenant_id: str) -> Path:
        """Make sure that a tenant's file is there, of this version's schema, and closed in this process.

        Return its path, for an application that opens it by a library of its own, with `tenantq.statements`: it
        calls this first, each time. Raises OlderFile (of a store with migrate=False), NewerFile, TenantBusy, and
        ForeignHandle where the file was opened without it.
        """
        path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))
        with self.exclusive(tenant_id):
            if not path.exists():
                self._make_file(tenant_id, path)
            # A file is looked at once: later the application's library may have it open.
            elif self._prepared.get(tenant_id) != identity_of(path):
                self._bring_file_to_schema(tenant_id, path)
            self._prepared[tenant_id] = identity_of(path)
        return path

    @contextlib.contextmanager
    def quiesce(self, tenant_id: str) -> Iterator[Path]:
        """Keep a tenant's file complete and unchanged until the block ends, and give its path.

        It is for tools that must copy the file themselves: a process of its own (`cp`, `rsync`, a snapshot of the
        disk) may read it and nothing else. This process must not open it by any means: closing it would drop
        SQLite's locks. Nobody writes to it meanwhile, not this process either: writers wait as long as their
        busy timeout and raise TenantBusy then, so be quick. Readers go on.

        It is quiet within this store's `busy_timeout`, or TenantBusy is raised. Raises UnknownTenant, and
        FileReplaced at the end if the file is another one by then.
        """
        path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))
        self._check_open()
        place = self._board.slot(slot_of(tenant_id))
        turn = None if place is None else Turn(place)
        with quiet(path, tenant_id, timeout=self.config.busy_timeout, turn=turn):
            yield path

    def migrate(self, tenant_id: str) -> int | None:
        """Bring a tenant's file to this version's schema; return the version that it had, None if it was current.

        Whatever `migrate` the store was opened with; the tenant is not kept open. A file that is current is only
        looked at. Raises UnknownTenant, NewerFile, TenantBusy, DiskFull; the file is as it was then.
        """
        path = _schema.path_of(self.root, naming.check_tenant_id(tenant_id))
        self._check_open()
        with self._gate(tenant_id):
            if not path.exists():
                raise UnknownTenant(f"the store has no tenant {tenant_id!r}", tenant=tenant_id)
            return self._migrate(tenant_id, path)
