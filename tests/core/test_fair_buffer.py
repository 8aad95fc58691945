"""Whose turn it is: shares by handler time and weight, places for those who come, what is not kept waiting."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest

import tenantq
from tenantq._fair_buffer import MOST_IDLE, STUCK, FairBuffer
from tenantq.message import Message

PLENTY = 100_000


class Simulation:
    """Threads that handle what a buffer gives out, in a time of their own."""

    def __init__(self, messages: Callable[[str], Message[Any]], *, threads: int, most: int | None = None) -> None:
        self.now = 0.0
        self.buffer = FairBuffer(threads=threads, most=most, monotonic=lambda: self.now)
        self.threads = threads
        self.seconds: dict[str, float] = {}
        """What each tenant's handlers take; inf: they hang."""
        self.left: dict[str, int] = {}
        """What is in each tenant's file."""
        self.spent: Counter[str] = Counter()
        self.handled: list[tuple[float, str]] = []
        """What was begun, and when."""
        self.running: list[tuple[float, float, Message[Any]]] = []
        self._message_of = messages

    def add(self, tenant: str, count: int, seconds: float) -> None:
        self.left[tenant] = self.left.get(tenant, 0) + count
        self.seconds[tenant] = seconds
        self.buffer.queue_up(tenant)

    def claim(self) -> None:
        while (turn := self.buffer.next_to_claim(64, 8)) is not None:
            tenant, count = turn
            claimed = min(count, self.left[tenant])
            self.left[tenant] -= claimed
            if claimed:
                self.buffer.put(tenant, [self._message_of(tenant) for _ in range(claimed)])
            if claimed == count:
                self.buffer.queue_up(tenant)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            self.claim()
            while len(self.running) < self.threads and (message := self.buffer.take()) is not None:
                tenant = message.tenant or ""
                self.handled.append((self.now, tenant))
                self.running.append((self.now + self.seconds[tenant], self.now, message))
                self.claim()
            ends = min((end for end, _began, _message in self.running), default=until)
            self.now = min(ends, until)
            for ended in [one for one in self.running if one[0] <= self.now]:
                self.running.remove(ended)
                self.spent[ended[2].tenant or ""] += round((ended[0] - ended[1]) * 1e6)
                self.buffer.ended(ended[2])
            if self.now >= until:
                return

    def wait_of(self, tenant: str, since: float) -> float:
        return next(at for at, whose in self.handled if whose == tenant and at >= since) - since


@pytest.fixture
def message_of(store: tenantq.Store) -> Callable[[str], Message[Any]]:
    made: dict[str, deque[Message[Any]]] = {}

    def make(tenant_id: str) -> Message[Any]:
        if not made.get(tenant_id):
            tenant = store.tenant(tenant_id)
            tenant.enqueue_many("mail", range(200))
            made[tenant_id] = deque(tenant.claim("mail", 200))
        return made[tenant_id].popleft()

    return make


MakeMessage = Callable[[str], Message[Any]]


@pytest.mark.parametrize("threads", [1, 4])
def test_slow_handlers_get_no_more_time_than_fast_ones(message_of: MakeMessage, threads: int) -> None:
    simulation = Simulation(message_of, threads=threads)
    simulation.add("slow", PLENTY, 0.5)
    simulation.add("fast", PLENTY, 0.005)
    simulation.run(60)
    assert simulation.spent["slow"] == pytest.approx(simulation.spent["fast"], rel=0.1)


def test_time_is_shared_by_weight(message_of: MakeMessage) -> None:
    simulation = Simulation(message_of, threads=4)
    for tenant, weight in (("one", 1.0), ("three", 3.0)):
        simulation.add(tenant, PLENTY, 0.01)
        simulation.claim()
        simulation.buffer.weigh(tenant, weight)
    simulation.run(20)
    assert simulation.spent["three"] / simulation.spent["one"] == pytest.approx(3, rel=0.1)


def test_a_tenant_that_comes_is_next_whatever_is_claimed_ahead(message_of: MakeMessage) -> None:
    simulation = Simulation(message_of, threads=4)
    simulation.add("noisy", PLENTY, 0.005)
    simulation.run(10)
    for number in range(20):
        simulation.add(f"small-{number}", 1, 0.005)
        came = simulation.now
        simulation.run(0.0123)
        assert simulation.wait_of(f"small-{number}", came) <= 0.005


def test_one_tenants_handlers_that_hang_leave_a_thread_to_the_others(message_of: MakeMessage) -> None:
    simulation = Simulation(message_of, threads=4)
    simulation.add("other", 1, 0.005)
    simulation.add("hangs", PLENTY, 0.005)
    simulation.run(1)
    simulation.seconds["hangs"] = 1_000_000
    simulation.run(1)
    for number in range(20):
        simulation.add(f"small-{number}", 3, 0.005)
        came = simulation.now
        simulation.run(0.1)
        assert simulation.wait_of(f"small-{number}", came) <= 0.005


def test_a_tenant_alone_has_all_threads_and_more_in_hand_than_they_do_at_once(message_of: MakeMessage) -> None:
    simulation = Simulation(message_of, threads=4)
    simulation.add("only", PLENTY, 0.005)
    simulation.run(2)
    assert simulation.spent["only"] == pytest.approx(8e6, rel=0.05)
    assert 20 < len(simulation.buffer.messages()) < 60


def test_slow_handlers_have_next_to_nothing_claimed_ahead_and_leave_no_thread_idle(
    message_of: MakeMessage,
) -> None:
    simulation = Simulation(message_of, threads=4, most=4)
    for tenant in ("a", "b", "c"):
        simulation.add(tenant, PLENTY, 2.0)
    simulation.run(20)
    simulation.run(0.1)
    assert len(simulation.running) == 4
    assert len(simulation.buffer.messages()) <= 2


def test_a_tenant_never_has_more_threads_than_its_cap(message_of: MakeMessage) -> None:
    simulation = Simulation(message_of, threads=4, most=2)
    simulation.add("only", PLENTY, 1.0)
    simulation.run(5.5)
    assert len(simulation.running) == 2


def test_one_long_handler_does_not_keep_its_tenant_waiting_for_as_long(message_of: MakeMessage) -> None:
    simulation = Simulation(message_of, threads=2)
    simulation.add("noisy", PLENTY, 0.005)
    simulation.add("once", 100, 0.005)
    simulation.run(5)
    simulation.add("once", 1, 60)
    simulation.run(60.1)
    simulation.add("once", 1, 0.005)
    came = simulation.now
    simulation.run(30)
    assert simulation.wait_of("once", came) < 10


def test_ten_thousand_tenants_are_each_served_once_before_one_is_served_twice() -> None:
    buffer = FairBuffer(threads=4, most=None, monotonic=time.monotonic)
    for number in range(10_000):
        buffer.queue_up(f"t{number}")
    served: list[str] = []
    while (turn := buffer.next_to_claim(64, 8)) is not None:
        tenant, _count = turn
        message: Any = Claimed(tenant)
        buffer.put(tenant, [message])
        taken: Any = buffer.take()
        assert taken is message
        buffer.ended(taken)
        served.append(tenant)
    assert len(set(served)) == len(served) == 10_000
    assert len(buffer._accounts) <= MOST_IDLE + 1


class Claimed:
    """As much of a message as a buffer looks at."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant


def test_what_no_thread_comes_to_is_given_back_and_not_claimed_again(message_of: MakeMessage) -> None:
    simulation = Simulation(message_of, threads=2, most=2)
    simulation.add("hangs", PLENTY, 0.005)
    simulation.run(1)
    simulation.seconds["hangs"] = 1_000_000
    simulation.run(0.1)
    in_hand = len(simulation.buffer.messages())
    assert in_hand
    assert simulation.buffer.remove_stuck() == []
    simulation.run(STUCK + 0.1)
    assert len(simulation.buffer.remove_stuck()) >= in_hand
    simulation.add("small", 1, 0.005)
    simulation.run(1)
    assert simulation.buffer.messages() == []
    assert not simulation.buffer.is_behind(64, 8)
    simulation.buffer.ended(simulation.running.pop()[2])
    simulation.run(0.1)
    assert simulation.handled[-1][1] == "small"


def test_a_dropped_message_is_not_taken(message_of: MakeMessage) -> None:
    buffer = FairBuffer(threads=2, most=None, monotonic=time.monotonic)
    first, second = message_of("acme"), message_of("acme")
    buffer.queue_up("acme")
    buffer.put("acme", [first, second])
    assert buffer.drop(first)
    assert not buffer.drop(first)
    assert buffer.take() is second
    assert not buffer.drop(second)
    assert buffer.take() is None


def test_shares_hold_for_any_mix_of_handlers(message_of: MakeMessage) -> None:
    simulation = Simulation(message_of, threads=4)
    pace = itertools.cycle([0.001, 0.01, 0.1])
    tenants = [f"t{number}" for number in range(9)]
    for tenant in tenants:
        simulation.add(tenant, PLENTY, next(pace))
    simulation.run(20)
    shares = [simulation.spent[tenant] for tenant in tenants]
    assert max(shares) < 1.3 * min(shares)
