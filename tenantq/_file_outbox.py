"""The outbox in a tenant's file: one method a statement."""

from __future__ import annotations

from tenantq._checksums import checksum
from tenantq._file_transaction import STEP, FileTransaction
from tenantq._sqlite import Row
from tenantq.sqlfile import load_statements

__all__ = ["FileOutbox"]

_OUTBOX = load_statements("tenantq", "outbox.sql")


class FileOutbox(FileTransaction):
    """The events of one open file, and how far they are known to be in Postgres."""

    def emit(
        self,
        event_id: str,
        topic: str,
        body: str | bytes,
        *,
        now: int,
        visible_at: int | None,
        priority: int,
        max_attempts: int,
        headers: str | None,
    ) -> int:
        """Insert an event; return its place in the outbox."""
        kept = checksum(headers, body) if self.checksums else None
        row = (event_id, topic, priority, max_attempts, visible_at, now, headers, body, kept)
        self._last_seq = int(self._execute(_OUTBOX["insert_event"], row)[0][0])
        self._emitted += 1
        self.news = True
        return self._last_seq

    def outbox_position(self) -> Row:
        """Return (forwarded seq, its event id, last seq, pending, undeliverable)."""
        return self._execute(_OUTBOX["outbox_position"])[0]

    def pending(self) -> int:
        """Return how many events are not known to be in Postgres, with those that this transaction emits."""
        return int(self.outbox_position()[3]) + self._emitted

    def count_pending(self) -> int:
        """Count the events behind the last forwarded one, one by one."""
        return int(self._execute(_OUTBOX["count_pending"])[0][0])

    def read_events(self, after: int, limit: int) -> list[Row]:
        """Return events behind a place in the outbox, in their order."""
        return self._execute(_OUTBOX["read_events"], (after, limit))

    def event_id_at(self, seq: int) -> str | None:
        """Return the id of the event at a place in the outbox; None where none is kept."""
        rows = self._execute(_OUTBOX["event_id_at"], (seq,))
        return rows[0][0] if rows else None

    def mark_forwarded(self, seq: int, event_id: str | None) -> None:
        """Keep how far the events are known to be in Postgres."""
        self._execute(_OUTBOX["mark_forwarded"], (seq, event_id))

    def confirm_forwarded(self, seq: int, event_id: str) -> bool:
        """Keep that the events up to this one are in Postgres; False if it is not here, or known already."""
        self._run(_OUTBOX["confirm_forwarded"], (seq, event_id))
        return bool(self.database.changed)

    def oldest_event(self) -> int | None:
        """Return when the first event that is kept was emitted (Unix nanoseconds)."""
        rows = self._execute(_OUTBOX["oldest_event"])
        return rows[0][0] if rows else None

    def prune_events(self, before: int) -> int:
        """Delete up to STEP forwarded events emitted before a time, never the last forwarded one."""
        self._execute(_OUTBOX["prune_events"], (STEP, before))
        return self.database.changed
