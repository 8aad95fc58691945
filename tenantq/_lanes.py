"""All the named queues of the memory layer under one bound: what each verb changes, and whom it wakes.

Nothing here locks: the MemoryQueue does, around every call.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import chain, count, islice
from threading import get_ident

import msgspec

from tenantq._lane import Entry, Lane
from tenantq._sleepers import Sleepers
from tenantq.clock import Clock, nanoseconds

__all__ = ["Lanes", "MemoryStats"]


class MemoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages of the memory layer are in which state."""

    ready: int
    scheduled: int
    claimed: int
    """Held by a delivery; one whose lease has run out counts until another claim takes it."""
    dead: int
    dead_dropped: int
    """Dead letters that made room for later ones."""


class Lanes:
    """The lanes by name, how deep they are together, and who waits for room in them."""

    def __init__(self, *, max_depth: int, lifo: bool, clock: Clock) -> None:
        self.max_depth = max_depth
        self.depth = 0
        """Messages that wait or are claimed."""
        self.producers = Sleepers()
        self.changed = False
        """Whether something has become claimable, or was scheduled, since this was last set to False."""
        self._lifo = lifo
        self._clock = clock
        self._by_name: dict[str, Lane] = {}
        self._ids = count(1)
        # Tokens start anywhere, so that a message of another queue never fits by accident.
        self._tokens = count(secrets.randbits(48))

    def __contains__(self, queue: str) -> bool:
        return queue in self._by_name

    def lane(self, queue: str) -> Lane:
        """Return a queue's lane, which is made if there is none."""
        lane = self._by_name.get(queue)
        if lane is None:
            lane = self._by_name[queue] = Lane(queue, lifo=self._lifo)
        return lane

    def up_to_date(self, queues: Iterable[str] | None, now: int | None = None) -> list[Lane]:
        """Return the lanes of these queues that exist, or of all, with what is due by now made ready."""
        lanes = self._existing(queues)
        if now is None:
            now = self.now()
        for lane in lanes:
            if lane.advance(now):
                self.changed = True
        return lanes

    def now(self) -> int:
        """Return the monotonic time in nanoseconds. As whole numbers, deadlines compare exactly."""
        return nanoseconds(self._clock.monotonic())

    def admit(self, queue: str, entries: Sequence[Entry]) -> list[int]:
        """Let messages in and return their ids, or the id that has the key of the one; [] without room."""
        lane = self.lane(queue)
        twin = lane.with_key(entries[0].tenant, entries[0].key)
        if twin is not None:
            return [twin.id]
        if len(entries) > self.max_depth - self.depth:
            return []
        self.depth += len(entries)
        for entry in entries:
            entry.id = next(self._ids)
            self.wait(lane, entry)
        self.rouse_producers()
        return [entry.id for entry in entries]

    def wait(self, lane: Lane, entry: Entry) -> None:
        """Let a message wait in this thread's deque until it is due."""
        entry.owner = get_ident()
        lane.add(entry)
        self.changed = True
        if entry.due is None:
            lane.sleepers.rouse(1)
        else:
            lane.sleepers.rouse_late(entry.due)

    def take(self, queues: Iterable[str], limit: int, lease_ns: int) -> list[Entry]:
        """Claim up to `limit` messages for this thread, and bury the exhausted ones that it meets."""
        owner = get_ident()
        now = self.now()
        lanes = self.up_to_date(queues, now)
        deadline = now + lease_ns
        taken: list[Entry] = []
        while len(taken) < limit and (lane := _next_lane(lanes, owner)) is not None:
            entry = lane.take(owner)
            if entry.attempts >= entry.max_attempts:
                self._bury_exhausted(lane, entry)
                continue
            entry.attempts += 1
            entry.token = next(self._tokens)
            lane.lease(entry, deadline)
            taken.append(entry)
        for lane in lanes:
            if lane.sleepers:
                lane.sleepers.rouse_late(deadline)
                if lane.top() is not None:
                    lane.sleepers.rouse(1)
        return taken

    def held(self, queue: str, message_id: int, token: int | None) -> tuple[Lane, Entry] | None:
        """Return the message, and its lane, that the delivery of this token still holds."""
        lane = self._by_name.get(queue)
        entry = None if lane is None else lane.held(message_id, token)
        return None if lane is None or entry is None else (lane, entry)

    def extend(self, lane: Lane, entry: Entry, lease_ns: int) -> None:
        """Move the end of a lease."""
        deadline = self.now() + lease_ns
        lane.lease(entry, deadline)
        lane.sleepers.rouse_late(deadline)

    def give_back(self, lane: Lane, entry: Entry, owner: int) -> None:
        """Let a message be what the owner takes next."""
        entry.owner = owner
        lane.ready.give_back(entry.priority, owner, entry)
        self._tell(lane)

    def remove(self, lane: Lane, entry: Entry) -> None:
        """Forget a message that is neither claimed nor waiting any longer."""
        lane.forget_key(entry)
        self.depth -= 1
        self.rouse_producers()

    def bury(self, lane: Lane, entry: Entry) -> None:
        """Move a message that is neither claimed nor waiting any longer to the dead letters."""
        self.remove(lane, entry)
        lane.bury(entry, keep=self.max_depth)

    def redrive(self, ids: Sequence[int], queues: Iterable[str] | None) -> tuple[int, int]:
        """Let dead messages wait again; return how many do, and how many found no room."""
        moved = refused = 0
        for lane in self._existing(queues):
            for entry in _dead(lane, ids):
                if lane.with_key(entry.tenant, entry.key) is not None:
                    continue
                if self.depth >= self.max_depth:
                    refused += 1
                    continue
                del lane.dead[entry.id]
                entry.attempts = 0
                entry.error = None
                entry.visible_ns = self._clock.now_ns()
                entry.due = None
                self.depth += 1
                self.wait(lane, entry)
                moved += 1
        return moved, refused

    def purge(self, queue: str) -> int:
        """Remove what waits and is claimed in a queue; return how many that were."""
        lane = self._by_name.get(queue)
        if lane is None:
            return 0
        purged = len(lane)
        lane.clear()
        self.depth -= purged
        self.rouse_producers()
        return purged

    def resume(self, queue: str) -> None:
        """Let a queue's messages be claimed again."""
        lane = self.lane(queue)
        lane.paused = False
        self._tell(lane)

    def reap(self) -> int:
        """End all leases that have run out; return how many. Forget the lanes that hold nothing."""
        reaped = 0
        for lane in self.up_to_date(None):
            for entry in lane.expired():
                reaped += 1
                lane.end_lease(entry)
                if entry.exhausted:
                    self._bury_exhausted(lane, entry)
                else:
                    self.give_back(lane, entry, entry.owner)
            if lane.idle:
                del self._by_name[lane.name]
        return reaped

    def stats(self, queues: Iterable[str] | None) -> MemoryStats:
        """Count the messages of these queues, or of all."""
        lanes = self.up_to_date(queues)
        return MemoryStats(
            ready=sum(len(lane.ready) for lane in lanes),
            scheduled=sum(len(lane.scheduled) for lane in lanes),
            claimed=sum(len(lane.claimed) for lane in lanes),
            dead=sum(len(lane.dead) for lane in lanes),
            dead_dropped=sum(lane.dead_dropped for lane in lanes),
        )

    def waiting(self, queue: str, limit: int) -> list[Entry]:
        """Return what waits in a queue: as this thread would claim it, then what is scheduled."""
        for lane in self.up_to_date((queue,)):
            ready = list(islice(lane.ready.in_order(get_ident()), limit))
            later = nsmallest(limit - len(ready), lane.scheduled)
            return ready + [entry for _, _, entry in later]
        return []

    def dead(self, queues: Iterable[str] | None, limit: int) -> list[Entry]:
        """Return dead messages, those of each queue in the order of their deaths."""
        lanes = self._existing(queues)
        return list(islice(chain.from_iterable(lane.dead.values() for lane in lanes), limit))

    def next_due(self, queues: Iterable[str] | None) -> int | None:
        """Return when the next scheduled message is due or the next lease runs out; None without any.

        What is due by now is made ready after that: the answer is in the past once, not for as long as
        nobody claims it.
        """
        due = [lane.next_due() for lane in self._existing(queues)]
        self.up_to_date(queues)
        return min((time for time in due if time is not None), default=None)

    def rouse_producers(self) -> None:
        """Wake those who wait for room, as far as there is room."""
        self.producers.rouse(self.max_depth - self.depth)

    def _existing(self, queues: Iterable[str] | None) -> list[Lane]:
        if queues is None:
            return list(self._by_name.values())
        return [self._by_name[queue] for queue in queues if queue in self._by_name]

    def _bury_exhausted(self, lane: Lane, entry: Entry) -> None:
        entry.error = f"the lease of attempt {entry.attempts} of {entry.max_attempts} ran out"
        self.bury(lane, entry)

    def _tell(self, lane: Lane) -> None:
        self.changed = True
        lane.sleepers.rouse(1)


def _next_lane(lanes: list[Lane], owner: int) -> Lane | None:
    if len(lanes) == 1:
        return None if lanes[0].top() is None else lanes[0]
    best = None
    best_rank = (0, False)
    for lane in lanes:
        top = lane.top()
        if top is not None:
            rank = (top, lane.ready.owns_top(owner))
            if best is None or rank > best_rank:
                best, best_rank = lane, rank
    return best


def _dead(lane: Lane, ids: Sequence[int]) -> Iterator[Entry]:
    for message_id in dict.fromkeys(ids) if ids else list(lane.dead):
        if message_id in lane.dead:
            yield lane.dead[message_id]
