"""What an operator asks of a tenant's file: one method a statement."""

from __future__ import annotations

from collections.abc import Sequence

from tenantq import _schema
from tenantq._file_transaction import STEP, FileTransaction
from tenantq._limits import Unchanged
from tenantq._sqlite import Row
from tenantq.sqlfile import load_statements

__all__ = ["FileUpkeep"]

_QUEUE = load_statements("tenantq", "queue.sql")
_DEAD = load_statements("tenantq", "dead.sql")
_STATS = load_statements("tenantq", "stats.sql")


class FileUpkeep(FileTransaction):
    """The queues and dead letters of one open file, to look at and to set right."""

    def peek(self, queue: str, limit: int) -> list[Row]:
        """Return what waits in a queue: first what is ready, in the order of the claims, then by time."""
        rows = self._execute(_QUEUE["peek_ready"], (queue, limit))
        if len(rows) < limit:
            rows += self._execute(_QUEUE["peek_scheduled"], (queue, limit - len(rows)))
        return rows

    def purge(self, queue: str) -> int:
        """Delete up to STEP messages of a queue, waiting or claimed; return how many."""
        count = 0
        for depth, statement in ((1, "find_ready"), (2, "find_scheduled"), (3, "find_claimed")):
            rows = self._execute(_QUEUE[statement], (queue, STEP - count)) if count < STEP else []
            for (message_id,) in rows:
                self._execute(_QUEUE["delete_message"], (message_id,))
            self._depth(queue)[depth] -= len(rows)
            count += len(rows)
        return count

    def pause(self, queue: str, now: int) -> None:
        """Let no claim find the messages of a queue."""
        self._run(_QUEUE["pause_queue"], (queue, now))
        self.limits.forget()

    def resume(self, queue: str) -> None:
        """Let claims find the messages of a queue again."""
        self._run(_QUEUE["resume_queue"], (queue,))
        self.limits.forget()
        self.news = True

    def limit(
        self,
        queue: str | None,
        boottime: int,
        *,
        max_claimed: int | Unchanged | None,
        rate: tuple[int, int] | Unchanged | None,
        weight: float | Unchanged | None,
    ) -> None:
        """Change what claims of a queue obey, or with None those of all together."""
        if not self._is_of_this_boot:
            self._enter_boot()
        self.limits.set(queue, boottime, max_claimed=max_claimed, rate=rate, weight=weight)
        self.news = True

    def bound(self, queue: str | None, max_depth: int | None) -> None:
        """Change what a queue may hold, or with None all together."""
        self.bounds.set(queue, max_depth)
        self._has_room = True

    def _enter_boot(self) -> None:
        """Make sure, before a lease is written, that all leases in the file are of this boot."""
        if _schema.read_meta(self.database).get("boot_id") != self.boot_id:
            self._execute(_QUEUE["end_leases"])
            self.limits.refill()
            _schema.write_meta(self.database, "boot_id", self.boot_id)
        self._is_of_this_boot = True

    def paused(self) -> list[Row]:
        """Return the (queue,) of each that is paused."""
        return self._execute(_QUEUE["list_paused"])

    def find_held(self) -> list[int]:
        """Return the ids of all messages that some delivery may still act on; reads every row."""
        return [row[0] for row in self._execute(_QUEUE["find_held"])]

    def give_back(self, held: Sequence[int]) -> None:
        """Give back what is claimed, its attempt not counted, and end the leases: `held` is all that `find_held`
        finds."""
        self._execute(_QUEUE["give_back_held"], (str(list(held)),))
        self._execute(_QUEUE["count_given_back"])

    # Dead letters

    def list_dead(self, queue: str | None, limit: int) -> list[Row]:
        """Return dead letters, the oldest message first."""
        if queue is None:
            return self._execute(_DEAD["list_dead"], (limit,))
        return self._execute(_DEAD["list_dead_of_queue"], (queue, limit))

    def find_dead(self, queue: str | None, after: int) -> list[Row]:
        """Return (id, queue, key) of up to STEP dead letters with higher ids."""
        if queue is None:
            return self._execute(_DEAD["find_dead_after"], (after, STEP))
        return self._execute(_DEAD["find_dead_of_queue_after"], (queue, after, STEP))

    def find_dead_message(self, message_id: int) -> list[Row]:
        """Return (id, queue, key) of a dead letter, or nothing."""
        return self._execute(_DEAD["find_dead_message"], (message_id,))

    def redrive(self, message_id: int, queue: str, key: str | None, *, now: int) -> bool:
        """Make a dead letter ready again under its id; False while its key belongs to a live message."""
        if key is not None and self._execute(_QUEUE["find_key"], (queue, key)):
            return False
        self._execute(_DEAD["revive_message"], (now, message_id))
        self._execute(_DEAD["delete_dead"], (message_id,))
        depths = self._depth(queue)
        depths[4] -= 1
        depths[1] += 1
        self.news = True
        return True

    def purge_dead(self, queue: str | None) -> int:
        """Delete up to STEP dead letters; return how many."""
        rows = self.find_dead(queue, -(2**63))
        for message_id, of_queue, _key in rows:
            self._execute(_DEAD["delete_dead"], (message_id,))
            self._depth(of_queue)[4] -= 1
        return len(rows)

    # Stats

    def depths(self) -> list[Row]:
        """Return (queue, ready, scheduled, claimed, dead) of every queue."""
        return self._execute(_STATS["read_depths"])

    def count_due(self, now: int, boottime: int) -> list[Row]:
        """Return (queue, was claimed, count) of what is due and not yet moved."""
        return self._execute(_STATS["count_due"], (now, boottime))

    def oldest_ready(self, queue: str) -> int | None:
        """Return since when the oldest ready message of a queue is claimable (Unix nanoseconds)."""
        oldest: int | None = self._execute(_STATS["oldest_ready"], (queue,))[0][0]
        return oldest

    def recount(self) -> list[Row]:
        """Count the rows of every queue one by one: (queue, ready, scheduled, claimed, dead)."""
        return self._execute(_STATS["recount_depths"])
