"""One named queue of the memory layer: what is ready, scheduled, claimed and dead in it.

A lane neither locks nor reads a clock: the MemoryQueue does both. Times are monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from tenantq._deques import PriorityDeques
from tenantq._sleepers import Sleepers

__all__ = ["Entry", "Lane"]

STALE_LEASES = 64
"""Leases that may have ended and still be listed, beside as many as there are live ones."""


class Entry:
    """A message as the memory layer keeps it."""

    __slots__ = (
        "attempts",
        "deadline",
        "due",
        "enqueued_ns",
        "error",
        "headers",
        "id",
        "key",
        "max_attempts",
        "owner",
        "payload",
        "priority",
        "queue",
        "tenant",
        "token",
        "visible_ns",
    )

    def __init__(
        self,
        payload: object,
        *,
        queue: str,
        tenant: str | None,
        priority: int,
        key: str | None,
        max_attempts: int,
        headers: dict[str, str] | None,
        enqueued_ns: int,
        visible_ns: int,
        due: int | None,
    ) -> None:
        self.id = 0
        self.payload = payload
        self.queue = queue
        self.tenant = tenant
        self.priority = priority
        self.key = key
        self.max_attempts = max_attempts
        self.headers = headers
        self.enqueued_ns = enqueued_ns
        self.visible_ns = visible_ns
        self.due = due
        """When it becomes claimable, by the monotonic clock; None: at once."""
        self.owner = 0
        """The thread whose deque it goes to."""
        self.attempts = 0
        self.error: str | None = None
        self.token: int | None = None
        """Names the delivery that holds the lease; None while it is not claimed."""
        self.deadline = 0
        """When the lease runs out."""

    @property
    def exhausted(self) -> bool:
        """Whether all attempts are used up."""
        return self.attempts >= self.max_attempts


class Lane:
    """The messages of one queue, each in exactly one of ready, scheduled, claimed and dead."""

    __slots__ = (
        "_expired",
        "_leases",
        "claimed",
        "dead",
        "dead_dropped",
        "keys",
        "name",
        "paused",
        "ready",
        "scheduled",
        "sleepers",
    )

    def __init__(self, name: str, *, lifo: bool) -> None:
        self.name = name
        self.paused = False
        self.ready: PriorityDeques[Entry] = PriorityDeques(lifo=lifo)
        self.scheduled: list[tuple[int, int, Entry]] = []
        """A heap of (when it is due, id, message)."""
        self.claimed: dict[int, Entry] = {}
        self.dead: dict[int, Entry] = {}
        """By id, in the order of their deaths."""
        self.dead_dropped = 0
        self.keys: dict[tuple[str | None, str], Entry] = {}
        """What waits or is claimed with a key: no tenant's key hides another tenant's message."""
        self.sleepers = Sleepers()
        # A lease that ends early stays listed until its time or the next _list_leases: it is told from a
        # live one by its deadline. The expired are still held by their deliveries, until a claim takes them.
        self._leases: list[tuple[int, int]] = []
        self._expired: list[tuple[int, int, int, int]] = []

    def __len__(self) -> int:
        return len(self.ready) + len(self.scheduled) + len(self.claimed)

    @property
    def idle(self) -> bool:
        """Whether nothing would be missed if the lane were forgotten."""
        return not (len(self) or self.dead or self.dead_dropped or self.paused or self.sleepers)

    def with_key(self, tenant: str | None, key: str | None) -> Entry | None:
        """Return the waiting or claimed message that has this key."""
        return None if key is None else self.keys.get((tenant, key))

    def add(self, entry: Entry) -> None:
        """Let a message wait until it is due."""
        if entry.key is not None:
            self.keys[entry.tenant, entry.key] = entry
        if entry.due is None:
            self.ready.push(entry.priority, entry.owner, entry)
        else:
            heappush(self.scheduled, (entry.due, entry.id, entry))

    def advance(self, now: int) -> bool:
        """Make ready what is due and list the leases that have run out; tell whether there was any."""
        found = False
        scheduled = self.scheduled
        while scheduled and scheduled[0][0] <= now:
            entry = heappop(scheduled)[2]
            self.ready.push(entry.priority, entry.owner, entry)
            found = True
        leases = self._leases
        while leases and leases[0][0] <= now:
            deadline, message_id = heappop(leases)
            if self._is_live(message_id, deadline):
                held = self.claimed[message_id]
                heappush(self._expired, (-held.priority, held.visible_ns, message_id, deadline))
                found = True
        return found

    def top(self) -> int | None:
        """Return the highest priority that a claim would find; None if it would find nothing."""
        if self.paused:
            return None
        ready = self.ready.top
        expired = self._first_expired() if self._expired else None
        if expired is None:
            return ready
        return expired.priority if ready is None else max(ready, expired.priority)

    def take(self, owner: int) -> Entry:
        """Remove and return what this thread claims next. There must be something: `top` says so.

        Of one priority, expired leases go first: they have waited longest. Such a message may be exhausted.
        """
        ready = self.ready.top
        expired = self._first_expired() if self._expired else None
        if expired is not None and (ready is None or expired.priority >= ready):
            heappop(self._expired)
            self.end_lease(expired)
            return expired
        return self.ready.take(owner)

    def lease(self, entry: Entry, deadline: int) -> None:
        """Keep a message as claimed until `deadline`; called again, move the deadline."""
        entry.deadline = deadline
        self.claimed[entry.id] = entry
        heappush(self._leases, (deadline, entry.id))
        if len(self._leases) + len(self._expired) > 2 * len(self.claimed) + STALE_LEASES:
            self._list_leases()

    def held(self, message_id: int, token: int | None) -> Entry | None:
        """Return the message if the delivery of this token still holds its lease."""
        entry = self.claimed.get(message_id)
        return entry if entry is not None and entry.token == token else None

    def end_lease(self, entry: Entry) -> None:
        """Take a message away from the delivery that holds it."""
        del self.claimed[entry.id]
        entry.token = None

    def forget_key(self, entry: Entry) -> None:
        """Let another message have the key: this one neither waits nor is claimed any longer."""
        if entry.key is not None:
            del self.keys[entry.tenant, entry.key]

    def bury(self, entry: Entry, keep: int) -> None:
        """Keep a message as dead, and drop the oldest dead ones beyond `keep`."""
        self.dead[entry.id] = entry
        while len(self.dead) > keep:
            del self.dead[next(iter(self.dead))]
            self.dead_dropped += 1

    def expired(self) -> Iterator[Entry]:
        """Yield the claimed messages whose leases have run out, as known since the last `advance`."""
        for _, _, message_id, deadline in sorted(self._expired):
            if self._is_live(message_id, deadline):
                yield self.claimed[message_id]

    def next_due(self) -> int | None:
        """Return when the next scheduled message is due or the next lease runs out; None without any."""
        if self.paused:
            return None
        leases = self._leases
        while leases and not self._is_live(leases[0][1], leases[0][0]):
            heappop(leases)
        times = [heap[0][0] for heap in (self.scheduled, leases) if heap]
        return min(times, default=None)

    def clear(self) -> None:
        """Remove everything that waits or is claimed."""
        self.ready.clear()
        self.scheduled.clear()
        self.claimed.clear()
        self.keys.clear()
        self._list_leases()

    def _first_expired(self) -> Entry | None:
        while self._expired:
            _, _, message_id, deadline = self._expired[0]
            if self._is_live(message_id, deadline):
                return self.claimed[message_id]
            heappop(self._expired)
        return None

    def _is_live(self, message_id: int, deadline: int) -> bool:
        entry = self.claimed.get(message_id)
        return entry is not None and entry.deadline == deadline

    def _list_leases(self) -> None:
        self._expired = [item for item in self._expired if self._is_live(*item[2:])]
        heapify(self._expired)
        known = {message_id for _, _, message_id, _ in self._expired}
        self._leases = [(entry.deadline, entry.id) for entry in self.claimed.values() if entry.id not in known]
        heapify(self._leases)
