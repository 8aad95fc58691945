"""Verification of one tenant's file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from tenantq import _schema
from tenantq._file import TenantFile
from tenantq._undeliverable import recount
from tenantq.errors import CorruptFile, TenantqError, UnknownTenant

__all__ = ["VerifyReport", "verify"]


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a tenant's file found."""

    path: str
    tenant: str
    problems: tuple[str, ...] = ()
    """What is wrong, one sentence each."""
    schema_version: int = 0
    """Of the file; one of an older schema is as sound as any. 0 where it cannot be read."""
    ready: int = 0
    scheduled: int = 0
    claimed: int = 0
    dead: int = 0
    outbox: int = 0

    @property
    def is_older(self) -> bool:
        """Whether the file is to be migrated when it is opened."""
        return 0 < self.schema_version < _schema.SCHEMA_VERSION

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(path: str | os.PathLike[str], *, quick: bool = False) -> VerifyReport:
    """Check a tenant's file, open or closed: SQLite's own check (every row against every index unless
    `quick`), our schema, and the depths against the rows. A file of an older schema is not migrated.

    Damage is in the report's `problems`. Raises UnknownTenant if there is no such file, NotATenantFile
    and NewerFile if it is not ours to check.
    """
    file = Path(path)
    if not file.is_file():
        raise UnknownTenant(f"there is no tenant file at {file}", path=str(file))
    with contextlib.ExitStack() as stack:
        try:
            database = stack.enter_context(contextlib.closing(_schema.open_to_read(file)))
            meta = _schema.check_file(database, None)
            version = _schema.version_of(database)
        except CorruptFile as exc:
            return VerifyReport(path=str(file), tenant="", problems=(exc.message,))
        problems: list[str] = []
        counts: dict[str, int] = {}
        try:
            check = "quick_check" if quick else "integrity_check"
            problems += [row[0] for row in database.execute(f"PRAGMA {check}(20)") if row[0] != "ok"]
            opened = TenantFile(database, meta, "")
            database.execute("BEGIN")
            problems += _miscounts(opened)
            depths = opened.depths()
            problems += _lost_events(opened)
            for index, state in enumerate(("ready", "scheduled", "claimed", "dead"), 1):
                counts[state] = sum(row[index] for row in depths)
            counts["outbox"] = opened.outbox_position()[3]
        except TenantqError as exc:
            problems.append(exc.message)
        return VerifyReport(
            path=str(file),
            tenant=meta["tenant_id"],
            problems=tuple(problems),
            schema_version=version,
            **counts,
        )


def _miscounts(file: TenantFile) -> list[str]:
    nothing = (0, 0, 0, 0)
    counted = {row[0]: row[1:] for row in file.recount()}
    kept = {row[0]: row[1:] for row in file.depths()}
    return [
        f"queue {queue!r} is said to hold {kept.get(queue, nothing)} "
        f"(ready, scheduled, claimed, dead) and holds {counted.get(queue, nothing)}"
        for queue in sorted(counted.keys() | kept.keys())
        if kept.get(queue, nothing) != counted.get(queue, nothing)
    ]


def _lost_events(file: TenantFile) -> list[str]:
    *_places, pending, undeliverable = file.outbox_position()
    counts = [
        ("the outbox", pending, file.count_pending()),
        ("the table of undeliverable events", undeliverable, recount(file)),
    ]
    return [
        f"{what} is said to hold {said} events and holds {counted}"
        for what, said, counted in counts
        if said != counted
    ]
