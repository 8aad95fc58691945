"""Verification of one tenant's file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from tenantq import _schema
from tenantq._checksums import checksum
from tenantq._file import TenantFile
from tenantq._undeliverable import recount
from tenantq.errors import CorruptFile, TenantqError, UnknownTenant
from tenantq.sqlfile import load_statements

__all__ = ["VerifyReport", "verify"]

_SQL = load_statements("tenantq", "verify.sql")

CHECKSUMS_SINCE = 2
"""The version of the schema that has a place for them."""

CHECKED_TABLES = (
    ("message", "queue"),
    ("dead letter", "tenantq_dead"),
    ("event", "tenantq_outbox"),
    ("undeliverable event", "tenantq_undeliverable"),
)

PAGE_ROWS = 500
"""Rows that are looked at in one go: they may be long."""


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
    checked: int = 0
    """Messages and events whose checksum was compared: those that a store with `checksums` wrote."""

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
    `quick`), our schema, the depths against the rows, and unless `quick` each checksum against its message. A file
    of an older schema is not migrated.

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
            if not quick and version >= CHECKSUMS_SINCE:
                counts["checked"] = _compare_checksums(opened, problems)
        except TenantqError as exc:
            problems.append(exc.message)
        return VerifyReport(
            path=str(file),
            tenant=meta["tenant_id"],
            problems=tuple(problems),
            schema_version=version,
            **counts,
        )


def _compare_checksums(file: TenantFile, problems: list[str]) -> int:
    """Compare every message and event that has a checksum with it; return how many."""
    count = 0
    for what, table in CHECKED_TABLES:
        after = -(2**63)
        while rows := file.database.execute(_SQL[f"checked_{table}"], (after, PAGE_ROWS)):
            after = rows[-1][0]
            for row_id, kept, headers, body in rows:
                if kept is None:
                    continue
                count += 1
                if checksum(headers, body) != kept:
                    problems.append(f"{what} {row_id} is not what its checksum says")
    return count


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
