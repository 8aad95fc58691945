"""One tenant's file: one method a statement, all inside a transaction that the caller began."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenantq import _schema
from tenantq._bounds import Admitted, Bounds
from tenantq._sqlite import Database, Parameters, Row
from tenantq.sqlfile import load_statements

__all__ = ["STEP", "TenantFile"]

STEP = 1000
"""Rows that one maintenance statement moves before other writers get their turn."""

_QUEUE = load_statements("tenantq", "queue.sql")
_DEAD = load_statements("tenantq", "dead.sql")
_OUTBOX = load_statements("tenantq", "outbox.sql")
_STATS = load_statements("tenantq", "stats.sql")

FIND_CLAIMABLE = _QUEUE["find_claimable"]
CLAIM_MESSAGE = _QUEUE["claim_message"]
ACK_MESSAGE = _QUEUE["ack_message"]
PROBE_QUEUE = _QUEUE["probe_queue"]
FIND_KEY = _QUEUE["find_key"]
ADD_DEPTH = _STATS["add_depth"]

MOST_ROWS = 64
"""Messages that one INSERT takes at most."""

Fence = tuple[int, int | None]
"""A message's id and the token of one delivery: what every verb on a lease must match."""


def _insert_of(count: int) -> str:
    """Return the INSERT of so many messages: one statement for many takes half as long as one for each.

    Its parameters are those of the first row. The ids count on from there, and each row has its own payload.
    """
    head, row = _QUEUE["insert_message"].split(" VALUES ")
    names = row.strip("();").split(", ")
    shared = ", ".join(f"?{number}" for number in range(2, len(names)))
    rows = (f"(?1 + {number}, {shared}, ?{len(names) + number})" for number in range(count))
    return f"{head} VALUES {', '.join(rows)};"


_INSERTS = {1 << power: _insert_of(1 << power) for power in range(MOST_ROWS.bit_length())}


class TenantFile:
    """The statements of one open file, and what they add to the depths of its queues.

    Not for two threads at once. `begin` and `commit` enclose all that changes the file.
    """

    def __init__(
        self,
        database: Database,
        meta: dict[str, str],
        boot_id: str,
        *,
        max_depth: int | None = None,
        tell_of_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.database = database
        self.tenant_id = meta["tenant_id"]
        self.file_id = meta["file_id"]
        self.boot_id = boot_id
        self.commits = 0
        self.news = False
        """Whether the transaction made something claimable or emitted an event."""
        self.is_committed = False
        """Whether the transaction is durable, even if an interrupt came before `commit` could return."""
        self.ready: dict[str, int] = {}
        """How many messages were ready in a queue when we last changed it. A hint: others may have them by now."""
        self.bounds = Bounds(database, max_depth)
        self._tell_of_room = tell_of_room
        self._has_room = False
        self._execute = database.execute
        self._run = database.run
        self._depths: dict[str, list[int]] = {}
        self._emitted = 0
        self._last_seq = 0
        self._is_of_this_boot = meta.get("boot_id") == boot_id
        self._version = -1
        self._forget()

    # The transaction

    def begin(self) -> None:
        """Begin a write transaction."""
        if self._depths or self._emitted:
            self._reset()
        self.news = self.is_committed = self._has_room = False
        self.database.begin()
        if self.database.version() != self._version:
            self._forget()

    def commit(self) -> None:
        """Write the depths and commit; durable on return. A failure leaves nothing of the transaction."""
        ready = {}
        try:
            for queue, depths in self._depths.items():
                row = (*depths, queue)
                add = ADD_DEPTH if self.bounds.are_none else _STATS["add_bounded_depth"]
                found = self._execute(add, row) or self._execute(_STATS["begin_depth"], row)
                ready[queue] = found[0][0]
                if not self.bounds.are_none:
                    _ready, depth, are_bounds = found[0]
                    self.bounds.learn(are_bounds)
                    if self.bounds.are_set and self.bounds.move(queue, depth, depths):
                        self._has_room = True
            if self._emitted:
                self._run(_OUTBOX["count_events"], (self._last_seq, self._emitted))
            self.database.commit()
        except Exception:
            self.rollback()
            raise
        except BaseException:
            # SQLite waits for the disk in COMMIT, so this is where an interrupt arrives: mostly behind it.
            self.is_committed = not self.database.in_transaction
            if not self.is_committed:
                self.rollback()
            raise
        self.is_committed = True
        self._version = self.database.version()
        self.ready.update(ready)
        self.commits += 1
        if self._has_room:
            self._tell_of_room()

    def rollback(self) -> None:
        """Undo the transaction."""
        self._forget()
        self._reset()
        self.database.rollback()

    def _forget(self) -> None:
        """Forget what the file said of itself: it has been changed by others, or by what was undone."""
        self._last_id = -1
        self._is_due_known = False
        self._due_at: int | None = None
        self._leased_until: int | None = None
        self._paused: set[str] | None = None
        self.bounds.forget()
        self.ready.clear()

    def savepoint(self) -> tuple[object, ...]:
        """Begin a part of the transaction that can be undone alone."""
        self._execute("SAVEPOINT operation")
        depths = {queue: list(counts) for queue, counts in self._depths.items()}
        return depths, self._emitted, self._last_seq, self.news

    def release_savepoint(self) -> None:
        """Keep the part."""
        self._execute("RELEASE operation")

    def undo_savepoint(self, saved: tuple[object, ...]) -> None:
        """Undo the part, and what it added to the depths."""
        self._execute("ROLLBACK TO operation")
        self._execute("RELEASE operation")
        self._depths, self._emitted, self._last_seq, self.news = saved  # type: ignore[assignment]
        self._forget()

    def _reset(self) -> None:
        self._depths = {}
        self._emitted = 0
        self.news = False
        self._has_room = False
        self.is_committed = False

    def execute_guest(self, sql: str, parameters: Parameters) -> list[Row]:
        """Run SQL of the application, which may have inserted into our tables too."""
        self._forget()
        return self.database.execute_guest(sql, parameters)

    def _depth(self, queue: str) -> list[int]:
        """Return what the transaction adds: [last_id, ready, scheduled, claimed, dead]."""
        depths = self._depths.get(queue)
        if depths is None:
            depths = self._depths[queue] = [0, 0, 0, 0, 0]
        return depths

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
        leased_until: int,
        lease_token: int,
    ) -> list[Row]:
        """Claim what is ready, in the order of priority, time and id."""
        if not self._is_of_this_boot:
            self._enter_boot()
        if self._is_paused(queue):
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
        without, only a claim of its message loses it.
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
        self.news = self.news or bool(expired or due)
        self._is_due_known = False
        return len(expired) + len(due), len(expired)

    def is_due(self, now: int, boottime: int) -> bool:
        """Tell whether there is something to settle; asks the file only after somebody else has changed it."""
        if not self._is_due_known:
            self._due_at, self._leased_until = self.next_due()
            self._is_due_known = True
        return (self._due_at is not None and self._due_at <= now) or (
            self._leased_until is not None and self._leased_until <= boottime
        )

    def _expect(self, due_at: int) -> None:
        """Remember that something will be due, and no later than this."""
        if self._due_at is None or due_at < self._due_at:
            self._due_at = due_at

    def next_due(self) -> tuple[int | None, int | None]:
        """Return when time alone will next change something: wall time, and time since the boot."""
        due_at, leased_until = self._execute(_QUEUE["next_due"])[0]
        return due_at, leased_until

    def has_leases(self) -> bool:
        """Tell whether anything is claimed."""
        return self.next_due()[1] is not None

    def _enter_boot(self) -> None:
        """Make sure, before a lease is written, that all leases in the file are of this boot."""
        if _schema.read_meta(self.database).get("boot_id") != self.boot_id:
            self._execute(_QUEUE["end_leases"])
            _schema.write_meta(self.database, "boot_id", self.boot_id)
        self._is_of_this_boot = True

    def end_leases_of_another_boot(self) -> None:
        """End the leases of processes that a boot has ended, or that are on another host."""
        if not self._is_of_this_boot and self.has_leases():
            self.begin()
            self._enter_boot()
            self.commit()

    # What an operator needs

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
        self._paused = None

    def resume(self, queue: str) -> None:
        """Let claims find the messages of a queue again."""
        self._run(_QUEUE["resume_queue"], (queue,))
        self._paused = None
        self.news = True

    def limit(self, queue: str | None, max_depth: int | None) -> None:
        """Change what a queue may hold, or with None all together."""
        self.bounds.set(queue, max_depth)
        self._has_room = True

    def _is_paused(self, queue: str) -> bool:
        if self._paused is None:
            self._paused = {row[0] for row in self.paused()}
        return queue in self._paused

    def paused(self) -> list[Row]:
        """Return the (queue,) of each that is paused."""
        return self._execute(_QUEUE["list_paused"])

    def give_back_claims(self) -> int:
        """Give every claimed message back, its attempt not counted; return how many."""
        self._execute(_QUEUE["give_back_claims"])
        count = self.database.changed
        self._execute(_QUEUE["forget_leases"])
        self._execute(_QUEUE["count_given_back"])
        return count

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
        if key is not None and self._execute(FIND_KEY, (queue, key)):
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

    # The outbox

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
        row = (event_id, topic, priority, max_attempts, visible_at, now, headers, body)
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
