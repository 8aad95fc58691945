"""One tenant's file: one method a statement, all inside a transaction that the caller began."""

from __future__ import annotations

from collections.abc import Sequence

from tenantq._bounds import Admitted
from tenantq._checksums import checksum
from tenantq._file_outbox import FileOutbox
from tenantq._file_transaction import STEP
from tenantq._file_upkeep import FileUpkeep
from tenantq._schedule import Work, signature_of
from tenantq._sqlite import Row
from tenantq.sqlfile import load_statements

__all__ = ["STEP", "TenantFile"]

_QUEUE = load_statements("tenantq", "queue.sql")
_STATS = load_statements("tenantq", "stats.sql")
_DEAD = load_statements("tenantq", "dead.sql")

FIND_CLAIMABLE = _QUEUE["find_claimable"]
CLAIM_MESSAGE = _QUEUE["claim_message"]
ACK_MESSAGE = _QUEUE["ack_message"]
PROBE_QUEUE = _QUEUE["probe_queue"]
FIND_KEY = _QUEUE["find_key"]

MOST_ROWS = 64
"""Messages that one INSERT takes at most."""

Fence = tuple[int, int | None]
"""A message's id and the token of one delivery: what every verb on a lease must match."""


def _insert_of(count: int, statement: str) -> str:
    """Return the INSERT of so many messages: one statement for many takes half as long as one for each.

    Its parameters are those of the first row. The ids count on from there, and each row has its own payload; the
    checksums, if there are any, come behind all payloads.
    """
    head, row = _QUEUE[statement].split(" VALUES ")
    names = row.strip("();").split(", ")
    first, end = names.index(":payload") + 1, len(names) + 1
    shared = ", ".join(f"?{number}" for number in range(2, first))
    rows = []
    for number in range(count):
        own = ", ".join(f"?{first + number + place * count}" for place in range(end - first))
        rows.append(f"(?1 + {number}, {shared}, {own})")
    return f"{head} VALUES {', '.join(rows)};"


_INSERTS, _CHECKED_INSERTS = (
    {1 << power: _insert_of(1 << power, statement) for power in range(MOST_ROWS.bit_length())}
    for statement in ("insert_message", "insert_checked_message")
)


class TenantFile(FileUpkeep, FileOutbox):
    """The statements of one open file, and what they add to the depths of its queues.

    Not for two threads at once. `begin` and `commit` enclose all that changes the file.
    """

    # Enqueue

    def enqueue(
        self,
        queue: str,
        bodies: Sequence[str | bytes],
        *,
        now: int,
        visible_at: int,
        priority: int,
        max_attempts: int,
        key: str | None,
        headers: str | None,
    ) -> Admitted:
        """Insert messages; with a key that a live message of the queue has, return that one's id."""
        if key is not None:
            found = self._execute(FIND_KEY, (queue, key))
            if found:
                return [found[0][0]]
        first = (self._last_id if self._last_id >= 0 else self._read_last_id()) + 1
        if self.bounds.are_set:
            full = self.bounds.refuse(queue, len(bodies), self._depths)
            if full is not None:
                return full
        due_at = visible_at if visible_at > now else None
        count, done = len(bodies), 0
        while done < count:
            some = min(1 << (count - done).bit_length() - 1, MOST_ROWS)
            shared = (first + done, queue, priority, visible_at, due_at, max_attempts, now, key, headers)
            if self.checksums:
                sums = [checksum(headers, body) for body in bodies[done : done + some]]
                self._run(_CHECKED_INSERTS[some], (*shared, *bodies[done : done + some], *sums))
            else:
                self._run(_INSERTS[some], (*shared, *bodies[done : done + some]))
            done += some
        self._last_id = first + count - 1
        depths = self._depth(queue)
        depths[0] = self._last_id
        if due_at is None:
            depths[1] += count
        else:
            depths[2] += count
            self._expect(due_at)
        self.news = True
        return list(range(first, first + count))

    def _read_last_id(self) -> int:
        given_out = (depths[0] for depths in self._depths.values())  # by this transaction, and not written yet
        kept, are_bounds = self._execute(_QUEUE["last_id"])[0]
        self.bounds.learn(are_bounds)
        return max(int(kept), *given_out, 0)

    def foresee(self, queue: str, count: int, key: str | None) -> Admitted | None:
        """Return what an enqueue comes to that room does not decide: a key is there, or it is too large."""
        found = [] if key is None else self._execute(FIND_KEY, (queue, key))
        if found:
            return [found[0][0]]
        self.bounds.forget()  # this reads what others wrote
        full = self.bounds.refuse(queue, count, {})
        return full if full is not None and full.is_for_good else None

    # Claim, and the ends of a delivery

    def probe(self, queue: str, now: int, boottime: int) -> tuple[bool, bool, bool]:
        """Tell whether something is ready, something is due, and the queue is paused; takes no lock."""
        ready, due, paused = self._execute(PROBE_QUEUE, (queue, now, boottime))[0]
        return bool(ready), bool(due), bool(paused)

    def claim(
        self,
        queue: str,
        limit: int,
        *,
        worker: str,
        now: int,
        boottime: int,
        leased_until: int,
        lease_token: int,
    ) -> list[Row]:
        """Claim what is ready, in the order of priority, time and id, as far as the limits let it go."""
        if not self._is_of_this_boot:
            self._enter_boot()
        if self.limits.is_paused(queue):
            return []
        limit = self.limits.allowed(queue, limit, boottime, self._depths)
        if not limit:
            return []
        rows = self._execute(FIND_CLAIMABLE, (queue, limit))
        if rows:
            claim = (worker, now, leased_until, lease_token)
            if len(rows) == 1:
                self._run(CLAIM_MESSAGE, (*claim, rows[0][0]))
            else:
                self._run(_QUEUE["claim_messages"], (*claim, str([row[0] for row in rows])))
            if self._leased_until is None or leased_until < self._leased_until:
                self._leased_until = leased_until
            depths = self._depth(queue)
            depths[1] -= len(rows)
            depths[3] += len(rows)
            self.limits.spend(queue, len(rows), boottime)
        return rows

    def ack(self, queue: str, fences: Sequence[Fence]) -> list[int]:
        """Delete the messages whose leases are held; return the ids of the others."""
        if len(fences) == 1:
            return self._ack_each(queue, fences)
        by_token: dict[int | None, list[Fence]] = {}
        if len({token for _id, token in fences}) == 1:
            by_token[fences[0][1]] = list(fences)
        else:
            for fence in fences:
                by_token.setdefault(fence[1], []).append(fence)
        lost: list[int] = []
        for some in by_token.values():
            if len(some) == 1 or not self._ack_all(queue, some):
                lost += self._ack_each(queue, some)
        return lost

    def _ack_all(self, queue: str, fences: Sequence[Fence]) -> bool:
        """Delete messages of one claim, if all of them are claimed by it still."""
        self._execute("SAVEPOINT ack")
        self._run(_QUEUE["ack_messages"], (str([fence[0] for fence in fences]), fences[0][1]))
        is_whole = self.database.changed == len(fences)
        if not is_whole:  # which ones are missing, a DELETE that tells would take half as long again
            self._execute("ROLLBACK TO ack")
        self._execute("RELEASE ack")
        if is_whole:
            self._depth(queue)[3] -= len(fences)
        return is_whole

    def _ack_each(self, queue: str, fences: Sequence[Fence]) -> list[int]:
        lost = []
        for fence in fences:
            self._run(ACK_MESSAGE, fence)
            if self.database.changed:
                self._depth(queue)[3] -= 1
                continue
            self._run(_QUEUE["ack_ready_message"], fence)
            if self.database.changed:
                self._depth(queue)[1] -= 1
            else:
                lost.append(fence[0])
        return lost

    def retry(self, queue: str, fence: Fence, *, now: int, visible_at: int, error: str | None) -> bool:
        """Let a failed message wait for its next attempt; False if its lease is lost."""
        due_at = visible_at if visible_at > now else None
        return self._give_back(queue, fence, due_at, "retry_message", (visible_at, due_at, error))

    def release(self, queue: str, fence: Fence) -> bool:
        """Give a message back as it was; False if its lease is lost."""
        return self._give_back(queue, fence, None, "release_message", ())

    def snooze(self, queue: str, fence: Fence, *, visible_at: int) -> bool:
        """Give a message back for later, the attempt not counted; False if its lease is lost."""
        return self._give_back(queue, fence, visible_at, "snooze_message", (visible_at,))

    def _give_back(
        self,
        queue: str,
        fence: Fence,
        due_at: int | None,
        statement: str,
        values: tuple[object, ...],
    ) -> bool:
        found = self._execute(_QUEUE["find_lease"], fence)
        if not found:
            return False
        self._run(_QUEUE[statement], (*values, *fence))
        depths = self._depth(queue)
        depths[3 if found[0][0] else 1] -= 1
        if due_at is None:
            depths[1] += 1
        else:
            depths[2] += 1
            self._expect(due_at)
        self.news = True
        return True

    def extend(self, queue: str, fence: Fence, *, leased_until: int, worker: str) -> bool:
        """Move the end of a lease; False if it is lost."""
        found = self._execute(_QUEUE["find_lease"], fence)
        if not found:
            return False
        self._run(_QUEUE["extend_lease"], (leased_until, worker, *fence))
        if self._leased_until is None or leased_until < self._leased_until:
            self._leased_until = leased_until
        if not found[0][0]:
            depths = self._depth(queue)
            depths[1] -= 1
            depths[3] += 1
        return True

    def dead_letter(self, queue: str, fence: Fence, *, now: int, error: str | None) -> bool:
        """Move a claimed message to the dead letters; False if its lease is lost."""
        found = self._execute(_QUEUE["find_lease"], fence)
        if not found:
            return False
        self._bury(queue, fence[0], 3 if found[0][0] else 1, now=now, error=error)
        return True

    def _bury(self, queue: str, message_id: int, from_depth: int, *, now: int, error: str | None) -> None:
        self._execute(_DEAD["bury_message"], (now, error, message_id))
        self._execute(_QUEUE["delete_message"], (message_id,))
        depths = self._depth(queue)
        depths[from_depth] -= 1
        depths[4] += 1

    # What time changes

    def settle_due(self, now: int, boottime: int, *, forget: bool = False) -> tuple[int, int]:
        """Free up to STEP messages that became due; return how many, and how many leases were among them.

        A scheduled message becomes ready. A message whose lease ended becomes ready too, or dead when its
        attempts are used up: whoever worked it is taken for gone. With `forget` a lease that ended is lost;
        without, only a claim of its message loses it. Periodic messages that are due fire; they do not count.
        """
        expired = self._execute(_QUEUE["find_expired"], (boottime, STEP))
        for message_id, queue, is_exhausted in expired:
            if is_exhausted:
                self._bury(queue, message_id, 3, now=now, error="the lease of the last attempt expired")
                continue
            self._execute(_QUEUE["free_message"], (message_id,))
            if forget:
                self._execute(_QUEUE["forget_lease"], (message_id,))
            depths = self._depth(queue)
            depths[3] -= 1
            depths[1] += 1
        due = self._execute(_QUEUE["find_due"], (now, STEP - len(expired)))
        for message_id, queue in due:
            self._execute(_QUEUE["free_message"], (message_id,))
            depths = self._depth(queue)
            depths[2] -= 1
            depths[1] += 1
        self.periods.fire_due(self.enqueue, now)
        self.news = self.news or bool(expired or due)
        self._learn_due()
        return len(expired) + len(due), len(expired)

    def is_due(self, now: int, boottime: int) -> bool:
        """Tell whether there is something to settle; asks the file only after somebody else has changed it."""
        if not self._is_due_known:
            self._learn_due()
        return (self._due_at is not None and self._due_at <= now) or (
            self._leased_until is not None and self._leased_until <= boottime
        )

    def _learn_due(self) -> None:
        self._due_at, self._leased_until = self.next_due()
        self._is_due_known = True

    def _expect(self, due_at: int) -> None:
        """Remember that something will be due, and no later than this."""
        if self._due_at is None or due_at < self._due_at:
            self._due_at = due_at

    def next_due(self) -> tuple[int | None, int | None]:
        """Return when time alone will next change something: wall time, and time since the boot."""
        due_at, leased_until, fire_at = self._execute(_QUEUE["next_due"])[0]
        if fire_at is not None:
            fire_at = self.periods.unless_blind(fire_at)
            due_at = min((moment for moment in (due_at, fire_at) if moment is not None), default=None)
        return due_at, leased_until

    def settle_schedule(self) -> int:
        """Write into the store's schedule all that the file has; return its signature, 0 while another one writes.

        Outside of a transaction. Until the file changes again, nobody has to open it to know.
        """
        if self.entry is None or not self.database.try_begin():
            return 0
        try:
            signature = signature_of(self.database.path)
            (are_ready, are_events) = self._execute(_STATS["what_waits"])[0]
            work = (Work.MESSAGES if are_ready else 0) | (Work.EVENTS if are_events else 0)
            self.entry.settle(work, *self.next_due())
        finally:
            self.database.rollback()
        return signature

    def has_leases(self) -> bool:
        """Tell whether anything is claimed."""
        return self.next_due()[1] is not None

    def end_leases_of_another_boot(self) -> None:
        """End the leases of processes that a boot has ended, or that are on another host."""
        if not self._is_of_this_boot and self.has_leases():
            self.begin()
            self._enter_boot()
            self.commit()
