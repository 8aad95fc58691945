"""Whose turn it is: messages of many tenants, claimed ahead, and taken so that each gets its share of the time.

Tenants share by start-time fair queueing, which gives the shares of deficit round robin without its rounds: each
tenant has a tag, the handler time that it has had divided by its weight, and the lowest tag is next. A heap finds
it, however much the tenants' handlers differ, where rounds of ten milliseconds would pass a tenant whose handlers
take a minute six thousand times. What a message costs is the time that its handler takes, by the tenant's average
when it is taken and as it was when it has ended: a tenant with slow handlers gets fewer of them, not more of the
threads. One that had nothing to do begins at the tag that is being served: it is next, and has saved nothing up.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from tenantq._sources import AHEAD, MOST_AHEAD, PACE_WEIGHT
from tenantq.message import Message

__all__ = ["FairBuffer"]

FIRST_PACE = AHEAD / 2
"""Seconds that a handler is taken to need before one has ended."""

LEAST_COST = 0.00005
"""Seconds that a message costs at least: claiming it and acking it takes time too."""

STUCK = 1.0
"""Seconds without a free thread after which no more is claimed, and messages go back to their files."""

MOST_IDLE = 1024
"""Tenants without work whose averages and debts are remembered."""

Entry = tuple[float, int, "Account"]


class Account:
    """What one tenant has claimed and what it has had."""

    __slots__ = (
        "cost",
        "id",
        "in_claims",
        "in_takes",
        "is_waiting",
        "messages",
        "moved_at",
        "pace",
        "running",
        "samples",
        "tag",
        "weight",
    )

    def __init__(self, tenant_id: str) -> None:
        self.id = tenant_id
        self.tag = 0.0
        self.weight = 1.0
        self.pace = self.cost = FIRST_PACE
        self.samples = 0
        self.messages: list[Message[Any]] = []  # few: a deque takes as much memory as all the rest of a tenant
        self.moved_at = 0.0
        """When a message of it was last claimed into an empty buffer, taken, or ended."""
        self.running: dict[int, tuple[float, float]] = {}
        """Since when each of its messages is handled, and what it was charged."""
        self.is_waiting = False
        """Whether its file may have something to claim."""
        self.in_claims = False
        self.in_takes = False

    def learn(self, seconds: float) -> None:
        """Take over how long a handler took."""
        self.samples += 1
        weight = 1 / self.samples if self.samples < 1 / PACE_WEIGHT else PACE_WEIGHT
        self.pace += (seconds - self.pace) * weight
        self.cost = (self.pace if self.pace > LEAST_COST else LEAST_COST) / self.weight

    @property
    def held(self) -> int:
        """What is claimed and has not ended."""
        return len(self.messages) + len(self.running)

    @property
    def is_active(self) -> bool:
        """Whether it takes part."""
        return self.is_waiting or bool(self.messages) or bool(self.running)


class FairBuffer:
    """The messages that a source has claimed ahead, and the tenants that it may claim from. Threads share it."""

    def __init__(self, *, threads: int, most: int | None, monotonic: Callable[[], float]) -> None:
        """Share so many threads; `most` of them at once may handle one tenant's messages.

        By default that is all but one, as soon as there is a second tenant: it is there for a tenant that comes
        when another one's handlers hang.
        """
        self._threads = threads
        self._most = most
        self._cap = min(threads, most or threads)
        self._first: str | None = None
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._accounts: dict[str, Account] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._weights = 0.0
        self._served = 0.0
        """The tag of what is being served: where a tenant begins that had nothing to do."""
        self._claims: list[Entry] = []
        self._takes: list[Entry] = []
        self._ended: deque[tuple[Message[Any], float]] = deque()
        self._order = 0
        self._taken_at = monotonic()
        self._buffered = 0
        self._running = 0

    # For the thread that claims

    def queue_up(self, tenant_id: str) -> None:
        """Say that a tenant may have something to claim."""
        with self._lock:
            if self._first is None:
                self._first = tenant_id
            elif self._most is None and tenant_id != self._first:
                self._cap = max(1, self._threads - 1)
            account = self._activate(tenant_id)
            account.is_waiting = True
            self._want(account)

    def next_to_claim(self, room: int, reserve: int) -> tuple[str, int] | None:
        """Return the tenant whose turn it is to be claimed from, and how many messages; None if no one's.

        `room` is what may still be claimed. Of a tenant that has nothing in hand, one message may be claimed
        beyond it, as long as there is reserve. It waits no more: whoever finds that there may be more says so.
        """
        with self._lock:
            self._charge_ended()
            while self._claims and not self._is_stuck():
                tag, _order, account = self._claims[0]
                if account.is_waiting and account.tag > tag:
                    heapq.heapreplace(self._claims, self._entry(account))
                    continue
                count = self._count(account, room) if account.is_waiting else 0
                if count <= 0 and account.is_waiting and not account.held:
                    if room <= -reserve:
                        return None  # until something has ended
                    count = 1
                heapq.heappop(self._claims)
                account.in_claims = False
                if count > 0:
                    account.is_waiting = False
                    self._rest(account)
                    return account.id, count
                # Else it has enough in hand: it comes back when something of that is taken or has ended.
            return None

    def wanted(self, tenant_id: str, room: int) -> int:
        """Return how many messages more a tenant should have in hand, of as many as there is room for."""
        with self._lock:
            self._charge_ended()
            account = self._accounts.get(tenant_id)
            return 0 if account is None else max(0, self._count(account, room))

    def put(self, tenant_id: str, messages: list[Message[Any]]) -> None:
        """Add what was claimed of a tenant, one message or more."""
        with self._lock:
            account = self._activate(tenant_id)
            if not account.messages:
                account.moved_at = self._monotonic()
            account.messages.extend(messages)
            self._buffered += len(messages)
            self._offer(account)

    def weigh(self, tenant_id: str, weight: float) -> None:
        """Say what a tenant's share weighs beside those of the others."""
        account = self._accounts.get(tenant_id)
        if account is None or account.weight == weight:
            return
        with self._lock:
            if account.id not in self._idle:
                self._weights += weight - account.weight
            account.cost *= account.weight / weight
            account.weight = weight

    def is_behind(self, room: int, reserve: int) -> bool:
        """Tell whether there is a tenant to claim from now."""
        with self._lock:
            self._charge_ended()
            return bool(self._claims) and room > -reserve and not self._is_stuck()

    def remove_stuck(self) -> list[Message[Any]]:
        """Take out the messages of tenants of which none was taken for long: another process may have threads."""
        stuck: list[Message[Any]] = []
        with self._lock:
            self._charge_ended()
            if not self._buffered:
                return stuck
            long_ago = self._monotonic() - STUCK
            for account in [one for one in self._accounts.values() if one.messages and one.moved_at < long_ago]:
                stuck += account.messages
                self._buffered -= len(account.messages)
                account.messages.clear()
                account.is_waiting = True
                self._want(account)
        return stuck

    # For those that handle

    def take(self) -> Message[Any] | None:
        """Return the next message of the tenant whose turn it is."""
        takes = self._takes
        with self._lock:
            if self._ended:
                self._charge_ended()
            while takes:
                tag, _order, account = takes[0]
                if not account.messages or len(account.running) >= self._cap:
                    heapq.heappop(takes)
                    account.in_takes = False
                    continue
                if account.tag > tag and len(takes) > 1:  # it had something since this was noted
                    heapq.heapreplace(takes, self._entry(account))
                    continue
                message = account.messages.pop(0)
                self._buffered -= 1
                self._running += 1
                self._served = max(self._served, account.tag)
                account.tag += account.cost
                now = account.moved_at = self._taken_at = self._monotonic()
                account.running[id(message)] = now, account.cost
                if account.is_waiting and not account.in_claims:
                    self._want(account)
                return message
            return None

    def ended(self, message: Message[Any]) -> None:
        """Say that a message's handler has ended now; a second call changes nothing.

        Its tenant is charged by whoever has the lock next: a handler's thread takes it once a message, not twice.
        """
        self._ended.append((message, self._monotonic()))

    def drop(self, message: Message[Any]) -> bool:
        """Forget a message; False if a thread has taken it."""
        with self._lock:
            account = self._accounts.get(message.tenant or "")
            if account is None or message not in account.messages:
                return False
            account.messages.remove(message)
            self._buffered -= 1
            self._want(account)
            self._rest(account)
            return True

    def drain(self) -> list[Message[Any]]:
        """Take out all messages."""
        with self._lock:
            left = self._all()
            for account in self._accounts.values():
                account.messages.clear()
            self._buffered = 0
            return left

    def messages(self) -> list[Message[Any]]:
        """Return what nobody has taken."""
        with self._lock:
            return self._all()

    # Inside of the lock

    def _charge_ended(self) -> None:
        """Charge the tenants of what has ended for the time that it took."""
        ended = self._ended
        while ended:
            message, now = ended.popleft()
            account = self._accounts.get(message.tenant or "")
            taken = None if account is None else account.running.pop(id(message), None)
            if account is None or taken is None:
                continue
            self._running -= 1
            account.moved_at = now
            taken_at, charged = taken
            seconds = now - taken_at
            account.learn(seconds)
            account.tag += (seconds if seconds > LEAST_COST else LEAST_COST) / account.weight - charged
            # No more debt than its usual messages make: one that took a minute, once, does not keep the tenant
            # waiting for a minute of everybody's time.
            most = self._served + account.cost * (1 + len(account.running))
            account.tag = min(account.tag, most)
            if account.messages:
                if not account.in_takes:
                    self._offer(account)
            elif not account.running:
                self._rest(account)
            if account.is_waiting and not account.in_claims:
                self._want(account)

    def _all(self) -> list[Message[Any]]:
        return [message for account in self._accounts.values() for message in account.messages]

    def _count(self, account: Account, room: int) -> int:
        """Return how many messages to claim: its share of the threads, and what they do in a while.

        Handlers that take longer than that while have nothing claimed ahead: it would only lie here while
        another process has nothing to do. Threads that have nothing to do are not kept waiting by shares.
        """
        weights = self._weights + (0 if account.is_active else account.weight)
        share = min(float(self._cap), self._threads * account.weight / weights)
        stalled = self._monotonic() - account.moved_at if account.running else 0.0
        pace = max(account.pace, LEAST_COST, stalled)
        wanted = max(1, math.floor(share * (1 + min(MOST_AHEAD, AHEAD / pace)))) - account.held
        spare = min(self._threads - self._running - self._buffered, self._cap - account.held)
        return min(max(wanted, spare), room)

    def _is_stuck(self) -> bool:
        """Tell whether no thread has been free for long: another process should have what there is."""
        return self._running >= self._threads and self._monotonic() - self._taken_at > STUCK

    def _activate(self, tenant_id: str) -> Account:
        account = self._accounts.get(tenant_id)
        if account is None:
            account = self._accounts[tenant_id] = Account(tenant_id)
        elif account.is_active:
            return account
        self._idle.pop(tenant_id, None)
        self._weights += account.weight
        account.tag = max(account.tag, self._served)
        return account

    def _rest(self, account: Account) -> None:
        """Remember a tenant without work for a while, as long as there are not too many."""
        if account.is_active or account.id in self._idle:
            return
        self._weights = max(0.0, self._weights - account.weight)
        self._idle[account.id] = None
        if len(self._idle) > MOST_IDLE:
            forgotten, _ = self._idle.popitem(last=False)
            del self._accounts[forgotten]

    def _want(self, account: Account) -> None:
        if account.is_waiting and not account.in_claims:
            account.in_claims = True
            heapq.heappush(self._claims, self._entry(account))

    def _offer(self, account: Account) -> None:
        if account.messages and not account.in_takes and len(account.running) < self._cap:
            account.in_takes = True
            heapq.heappush(self._takes, self._entry(account))

    def _entry(self, account: Account) -> Entry:
        self._order += 1  # of those with one tag, the first one first
        return account.tag, self._order, account
