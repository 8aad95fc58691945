"""The events of a file that Postgres refused: kept with its words, sent again or discarded."""

from __future__ import annotations

from collections.abc import Sequence

from tenantq._file import TenantFile
from tenantq._sqlite import Row
from tenantq.sqlfile import load_statements

__all__ = ["discard", "find_undeliverable", "keep_undeliverable", "list_undeliverable", "recount", "resend"]

_SQL = load_statements("tenantq", "undeliverable.sql")


def keep_undeliverable(file: TenantFile, seq: int, event_id: str, *, now: int, error: str) -> bool:
    """Take an event out of the way and keep it with its error; False if it is not at this place any more."""
    file.database.run(_SQL["keep_undeliverable"], (now, error, seq, event_id))
    if not file.database.changed:
        return False
    file.database.run(_SQL["empty_event"], (now, seq))
    file.database.run(_SQL["count_undeliverable"], (1,))
    return True


def list_undeliverable(file: TenantFile, limit: int, *, after: int = 0, through: int = 2**63 - 1) -> list[Row]:
    """Return what is kept of the places between two, in their order."""
    return file.database.execute(_SQL["list_undeliverable"], (after, through, limit))


def find_undeliverable(file: TenantFile, seqs: Sequence[int]) -> list[Row]:
    """Return what is kept of these places."""
    return [row for seq in sorted(set(seqs)) for row in file.database.execute(_SQL["find_undeliverable"], (seq,))]


def resend(file: TenantFile, rows: Sequence[Row], *, now: int) -> int:
    """Emit events once more, under the ids that they have; return how many."""
    for seq, event_id, topic, body, headers, priority, max_attempts, visible_at, *_rest in rows:
        place = file.emit(
            event_id,
            topic,
            body,
            now=now,
            visible_at=visible_at,
            priority=priority,
            max_attempts=max_attempts,
            headers=headers,
        )
        file.database.run(_SQL["mark_resent"], (now, place))
        file.database.run(_SQL["delete_undeliverable"], (seq,))
    file.database.run(_SQL["count_undeliverable"], (-len(rows),))
    return len(rows)


def discard(file: TenantFile, rows: Sequence[Row]) -> int:
    """Remove events for good; return how many."""
    for row in rows:
        file.database.run(_SQL["delete_undeliverable"], (row[0],))
    file.database.run(_SQL["count_undeliverable"], (-len(rows),))
    return len(rows)


def recount(file: TenantFile) -> int:
    """Count the events one by one."""
    return int(file.database.execute(_SQL["recount_undeliverable"])[0][0])
