"""What the memory layer promises beyond the contract of all layers (tests/contract)."""

from __future__ import annotations

import gc
import os
import random
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Literal, TypeVar

import pytest

from tenantq._sleepers import Sleeper
from tenantq.errors import InvalidArgument, InvalidTenantId, LeaseLost, QueueFull
from tenantq.memory import MemoryQueue
from tenantq.message import Message
from tenantq.testing import ManualClock

T = TypeVar("T")


def in_thread(call: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(timeout=10)


def payloads(messages: list[Message[Any]]) -> list[Any]:
    return [message.payload for message in messages]


def test_a_payload_is_the_object_itself() -> None:
    queue, payload = MemoryQueue(), object()
    queue.enqueue("mail", payload)
    assert queue.peek("mail")[0].payload is payload
    assert queue.claim("mail")[0].payload is payload


def test_an_acked_payload_is_let_go() -> None:
    class Payload:
        pass

    queue, payload = MemoryQueue(), Payload()
    gone = weakref.ref(payload)
    queue.enqueue("mail", payload)
    queue.ack(*queue.claim("mail"))
    del payload
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(("order", "expected"), [("lifo", [3, 2, 1]), ("fifo", [1, 2, 3])])
def test_a_thread_claims_its_own_in_the_order_chosen(order: Literal["lifo", "fifo"], expected: list[int]) -> None:
    queue = MemoryQueue(order=order)
    queue.enqueue_many("mail", [1, 2, 3])
    assert payloads(queue.peek("mail")) == expected
    assert payloads(queue.claim("mail", 3)) == expected


@pytest.mark.parametrize(("order", "expected"), [("lifo", [1, 2, 3]), ("fifo", [3, 2, 1])])
def test_a_thread_steals_from_the_other_end(order: Literal["lifo", "fifo"], expected: list[int]) -> None:
    queue = MemoryQueue(order=order)
    queue.enqueue_many("mail", [1, 2, 3])
    assert in_thread(lambda: payloads(queue.peek("mail"))) == expected
    assert in_thread(lambda: payloads(queue.claim("mail", 3))) == expected


@pytest.mark.parametrize("order", ["lifo", "fifo"])
def test_messages_released_together_come_back_in_their_order(order: Literal["lifo", "fifo"]) -> None:
    queue = MemoryQueue(order=order)
    queue.enqueue_many("mail", range(5))
    claimed = queue.claim("mail", 3)
    queue.release(*claimed)
    assert payloads(queue.claim("mail", 3)) == payloads(claimed)


def test_a_thread_takes_its_own_before_it_steals() -> None:
    queue = MemoryQueue()
    queue.enqueue("mail", "other's")

    def own_then_stolen() -> list[Any]:
        queue.enqueue("mail", "own")
        return payloads(queue.claim("mail")) + payloads(queue.claim("mail"))

    assert in_thread(own_then_stolen) == ["own", "other's"]


def test_a_higher_priority_is_stolen_first() -> None:
    queue = MemoryQueue()
    queue.enqueue("mail", "stolen", priority=1)

    def both() -> list[Any]:
        queue.enqueue("mail", "own")
        return payloads(queue.claim("mail", 2))

    assert in_thread(both) == ["stolen", "own"]


def test_a_thread_that_died_strands_nothing() -> None:
    clock = ManualClock()
    queue = MemoryQueue(clock=clock)

    def die() -> None:
        queue.enqueue_many("mail", ["claimed", "waiting"])
        queue.enqueue("mail", "scheduled", delay=10)
        queue.claim("mail", lease=10)

    in_thread(die)
    clock.advance(10)
    assert sorted(payloads(queue.claim("mail", 10))) == ["claimed", "scheduled", "waiting"]


def test_claim_any_takes_from_all_of_its_queues() -> None:
    queue = MemoryQueue(order="fifo")
    for name in ("a", "b", "c"):
        queue.enqueue_many(name, [name + "1", name + "2"])
    assert payloads(queue.claim_any(["b", "a", "nothing"], 3)) == ["b1", "b2", "a1"]
    assert payloads(queue.claim_any(["a", "b"], 9)) == ["a2"]


def test_claim_any_takes_the_highest_priority_of_all_queues() -> None:
    queue = MemoryQueue()
    queue.enqueue("a", "low")
    queue.enqueue("b", "high", priority=1)
    assert payloads(queue.claim_any(["a", "b"], 2)) == ["high", "low"]


def test_claim_any_takes_the_own_of_any_queue_before_it_steals() -> None:
    queue = MemoryQueue()
    queue.enqueue("a", "stolen")

    def both() -> list[Any]:
        queue.enqueue("b", "own")
        return payloads(queue.claim_any(["a", "b"], 2))

    assert in_thread(both) == ["own", "stolen"]


def test_claim_any_skips_a_paused_queue() -> None:
    queue = MemoryQueue()
    queue.enqueue("a", "paused", priority=9)
    queue.enqueue("b", "not")
    queue.pause("a")
    assert payloads(queue.claim_any(["a", "b"], 2)) == ["not"]


@pytest.mark.parametrize("queues", [[], (), "mail"])
def test_claim_any_takes_a_sequence_of_names(queues: Any) -> None:
    with pytest.raises(InvalidArgument):
        MemoryQueue().claim_any(queues)


def test_a_key_is_its_tenants_own() -> None:
    queue = MemoryQueue()
    acme = queue.enqueue("mail", "acme's", key="k", tenant="acme")
    other = queue.enqueue("mail", "other's", key="k", tenant="other")
    assert acme != other
    assert queue.enqueue("mail", "again", key="k", tenant="acme") == acme


def test_a_message_has_its_tenant_and_headers() -> None:
    queue, headers = MemoryQueue(), {"trace": "1"}
    queue.enqueue_many("mail", [1], tenant="acme", headers=headers)
    headers.clear()
    (message,) = queue.claim("mail")
    assert (message.tenant, message.headers, message.body) == ("acme", {"trace": "1"}, b"")


def test_what_is_no_tenant_id_or_header_is_refused() -> None:
    queue = MemoryQueue()
    with pytest.raises(InvalidTenantId):
        queue.enqueue("mail", 1, tenant="")
    with pytest.raises(InvalidArgument):
        queue.enqueue("mail", 1, headers={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidArgument):
        queue.enqueue("mail", 1, wait=-1)
    assert len(queue) == 0


@pytest.mark.parametrize("options", [{"max_depth": 0}, {"max_depth": 1.5}, {"order": "random"}])
def test_what_is_no_queue_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        MemoryQueue(**options)


def test_a_full_queue_refuses_another_message() -> None:
    queue = MemoryQueue(max_depth=3)
    queue.enqueue("mail", 1)
    queue.enqueue("other", 2, delay=3600)
    queue.enqueue("mail", 3)
    queue.claim("mail")
    with pytest.raises(QueueFull) as caught:
        queue.enqueue("mail", 4)
    assert caught.value.queue == "mail"
    assert len(queue) == 3


def test_a_batch_enters_whole_or_not_at_all() -> None:
    queue = MemoryQueue(max_depth=3)
    queue.enqueue_many("mail", [1, 2])
    with pytest.raises(QueueFull):
        queue.enqueue_many("mail", [3, 4])
    assert len(queue) == 2
    assert len(queue.enqueue_many("mail", [3])) == 1


def test_a_batch_that_can_never_fit_is_refused_without_waiting() -> None:
    queue = MemoryQueue(max_depth=3)
    with pytest.raises(QueueFull):
        queue.enqueue_many("mail", range(4), wait=600)


def test_a_key_that_is_there_needs_no_room() -> None:
    queue = MemoryQueue(max_depth=1)
    first = queue.enqueue("mail", 1, key="k")
    assert queue.enqueue("mail", 2, key="k") == first


def test_a_wait_for_room_ends_when_its_time_is_over() -> None:
    queue = MemoryQueue(max_depth=1)
    queue.enqueue("mail", 1)
    with pytest.raises(QueueFull):
        queue.enqueue("mail", 2, wait=0.02)


@pytest.mark.parametrize("how", ["ack", "dead_letter", "purge"])
def test_a_wait_for_room_ends_with_room(how: str) -> None:
    queue = MemoryQueue(max_depth=1)
    queue.enqueue("mail", 1)
    (held,) = queue.claim("mail")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.enqueue, "mail", 2, wait=30)
        if how == "purge":
            queue.purge("mail")
        else:
            getattr(held, how)()
        assert waiting.result(timeout=10) == 2
    assert len(queue) == 1


def test_who_gives_up_waiting_for_much_room_makes_way_for_who_needs_little() -> None:
    queue = MemoryQueue(max_depth=4)
    queue.enqueue_many("mail", range(3))
    with ThreadPoolExecutor(1) as pool:
        giving_up = pool.submit(queue.enqueue_many, "mail", range(2), wait=0.05)
        assert queue.enqueue("mail", "small", wait=30) > 0
        with pytest.raises(QueueFull):
            giving_up.result(timeout=10)


def test_who_is_refused_wakes_those_who_need_less() -> None:
    queue = MemoryQueue(max_depth=2)
    queue.enqueue("mail", 1)
    sleeper = Sleeper(until=0, need=1)
    queue._lanes.producers.join(sleeper)
    with pytest.raises(QueueFull):
        queue.enqueue_many("mail", range(2))
    assert not sleeper._bell.locked()


def test_an_expired_lease_goes_before_what_is_ready() -> None:
    clock = ManualClock()
    queue = MemoryQueue(clock=clock)
    queue.enqueue("mail", "expired")
    queue.claim("mail", lease=1)
    clock.advance(1)
    queue.enqueue("mail", "ready")
    assert payloads(queue.claim("mail", 2)) == ["expired", "ready"]


def test_dead_letters_take_no_room_and_the_oldest_make_way() -> None:
    queue = MemoryQueue(max_depth=2)
    for number in range(5):
        queue.enqueue("mail", number)
        queue.dead_letter(*queue.claim("mail"))
    assert len(queue) == 0
    assert payloads(queue.dead_letters()) == [3, 4]
    stats = queue.stats()
    assert (stats.dead, stats.dead_dropped) == (2, 3)


def test_dead_letters_without_room_stay_dead() -> None:
    queue = MemoryQueue(max_depth=2)
    queue.enqueue_many("mail", [1, 2])
    for message in queue.claim("mail", 2):
        message.dead_letter()
    queue.enqueue("mail", 3)
    assert queue.redrive(queue="mail") == 1
    with pytest.raises(QueueFull):
        queue.redrive(queue="mail")
    assert queue.stats() == queue.stats("mail")
    assert (queue.stats().ready, queue.stats().dead) == (2, 1)


def test_an_exhausted_message_says_why_it_is_dead() -> None:
    clock = ManualClock()
    queue = MemoryQueue(clock=clock)
    queue.enqueue("mail", 1, max_attempts=1)
    queue.claim("mail", lease=1)
    clock.advance(1)
    queue.reap()
    assert queue.dead_letters()[0].error == "the lease of attempt 1 of 1 ran out"


def test_peek_shows_what_is_scheduled_last() -> None:
    queue = MemoryQueue()
    queue.enqueue("mail", "late", delay=20, priority=9)
    queue.enqueue("mail", "soon", delay=10)
    queue.enqueue("mail", "now")
    assert payloads(queue.peek("mail")) == ["now", "soon", "late"]
    assert payloads(queue.peek("mail", 2)) == ["now", "soon"]
    assert payloads(queue.peek("mail", 1)) == ["now"]


def test_stats_are_of_one_queue_or_of_all() -> None:
    queue = MemoryQueue()
    queue.enqueue_many("a", range(2))
    queue.enqueue("b", 1)
    assert (queue.stats("a").ready, queue.stats("nothing").ready, queue.stats().ready) == (2, 0, 3)


def test_an_empty_queue_is_still_true() -> None:
    assert MemoryQueue()


def test_a_message_of_another_queue_is_not_held() -> None:
    one, other = MemoryQueue(), MemoryQueue()
    for queue in (one, other):
        queue.enqueue("mail", 1)
    (message,) = one.claim("mail")
    other.claim("mail")
    with pytest.raises(LeaseLost):
        other.ack(message)
    assert len(other) == 1


def test_a_jump_of_the_wall_clock_moves_nothing() -> None:
    clock = ManualClock()
    queue = MemoryQueue(clock=clock)
    queue.enqueue("mail", "leased")
    queue.claim("mail", lease=60)
    queue.enqueue("mail", "scheduled", delay=60)
    for jump in (86_400, -172_800):
        clock.jump(jump)
        assert queue.claim("mail") == []
        queue.enqueue("mail", "now")
        assert payloads(queue.claim("mail", 10)) == ["now"]
    clock.advance(60)
    assert sorted(payloads(queue.claim("mail", 10))) == ["leased", "now", "now", "scheduled"]


def test_next_due_is_the_next_thing_that_time_brings() -> None:
    clock = ManualClock()
    queue = MemoryQueue(clock=clock)
    assert queue.next_due() is None
    queue.enqueue("mail", 1)
    assert queue.next_due() is None
    (message,) = queue.claim("mail", lease=50)
    queue.enqueue("other", 1, delay=70)
    assert (queue.next_due(), queue.next_due("other"), queue.next_due("mail", "other")) == (50, 70, 50)
    message.extend(90)
    clock.advance(1)
    assert (queue.next_due("mail"), queue.next_due()) == (89, 69)
    message.ack()
    assert queue.next_due("mail") is None
    queue.pause("other")
    assert queue.next_due() is None


def test_a_subscriber_hears_of_all_that_becomes_claimable() -> None:
    clock = ManualClock()
    queue = MemoryQueue(clock=clock)
    heard: list[int] = []
    unsubscribe = queue.subscribe(lambda: heard.append(len(queue)))  # takes the lock: called outside of it

    def hears(change: Callable[[], object]) -> bool:
        heard.clear()
        change()
        return bool(heard)

    def claim() -> Message[Any]:
        return queue.claim("mail", lease=10)[0]

    assert hears(lambda: queue.enqueue("mail", 1, max_attempts=9))
    assert not hears(lambda: claim().ack())
    assert hears(lambda: queue.enqueue_many("mail", [1]))
    assert hears(lambda: claim().nack(delay=0))
    assert hears(lambda: claim().nack(delay=5))
    assert hears(lambda: queue.enqueue("mail", 2, delay=5))
    clock.advance(5)
    assert hears(lambda: claim().release())
    assert not hears(lambda: claim().dead_letter())
    assert hears(lambda: queue.redrive(queue="mail"))
    assert not hears(lambda: queue.pause("mail"))
    assert hears(lambda: queue.resume("mail"))
    claim()
    clock.advance(10)
    assert hears(queue.reap)
    assert not hears(queue.reap)
    unsubscribe()
    unsubscribe()
    assert not hears(lambda: queue.enqueue("mail", 1))


def test_what_becomes_due_between_a_claim_and_next_due_is_not_overlooked() -> None:
    clock = ManualClock()
    queue = MemoryQueue(clock=clock)
    heard: list[int] = []
    queue.enqueue("mail", 1, delay=1)
    queue.subscribe(lambda: heard.append(1))
    assert queue.claim("mail") == []
    clock.advance(1)
    assert (queue.next_due(), queue.next_due()) == (0, None)
    assert heard == [1]


@pytest.mark.parametrize("look", ["stats", "peek"])
def test_whoever_notices_that_something_is_due_tells_the_subscribers(look: str) -> None:
    clock = ManualClock()
    queue = MemoryQueue(clock=clock)
    heard: list[int] = []
    queue.enqueue_many("mail", [1], delay=1)
    queue.subscribe(lambda: heard.append(1))
    getattr(queue, look)("mail")
    assert heard == []
    clock.advance(1)
    getattr(queue, look)("mail")
    assert heard == [1]


def test_one_callback_subscribed_twice_is_unsubscribed_once() -> None:
    queue, heard = MemoryQueue(), threading.Semaphore(0)
    queue.subscribe(heard.release)
    queue.subscribe(heard.release)()
    queue.enqueue("mail", 1)
    assert heard.acquire(blocking=False)
    assert not heard.acquire(blocking=False)


def test_a_failing_subscriber_fails_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    queue, heard = MemoryQueue(), threading.Event()

    def fail() -> None:
        raise RuntimeError("broken")

    queue.subscribe(fail)
    queue.subscribe(heard.set)
    assert queue.enqueue("mail", 1) == 1
    assert heard.is_set()
    assert "a subscriber failed" in caplog.text


def test_a_waiting_claim_finds_what_becomes_due() -> None:
    queue = MemoryQueue()
    queue.enqueue("mail", 1, delay=0.02)
    assert len(queue.claim("mail", wait=30)) == 1


def test_a_waiting_claim_finds_a_lease_that_runs_out() -> None:
    queue = MemoryQueue()
    queue.enqueue("mail", 1)
    queue.claim("mail", lease=0.02)
    assert queue.claim("mail", wait=30)[0].attempts == 2


@pytest.mark.parametrize("how", ["schedule", "claim", "extend"])
def test_a_waiting_claim_hears_of_what_will_be_due_sooner(how: str) -> None:
    queue = MemoryQueue()
    queue.enqueue("mail", 1)
    held = queue.claim("mail", lease=3600)[0] if how == "extend" else None
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(queue.claim_any, ["other", "mail"], wait=30)
        if held is not None:
            held.extend(0.02)
        elif how == "schedule":
            queue.enqueue("mail", 2, delay=0.02)
        else:
            queue.enqueue("mail", 2)
            queue.claim("mail", 10, lease=0.02)
        assert len(waiting.result(timeout=10)) == 1


def test_every_waiting_claim_gets_one_of_a_batch() -> None:
    queue = MemoryQueue()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(queue.claim_any, ["a", name], wait=30) for name in "abcd"]
        queue.enqueue_many("a", range(2))
        queue.enqueue("a", 2)
        queue.enqueue("a", 3)
        found = [payloads(claim.result(timeout=10)) for claim in waiting]
    assert sorted(chain.from_iterable(found)) == [0, 1, 2, 3]


def test_a_forked_child_starts_empty() -> None:
    queue = MemoryQueue()
    queue.enqueue("mail", "the parent's")
    (held,) = queue.claim("mail")
    queue.enqueue("mail", "the parent's too")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(LeaseLost):
                held.ack()
            if len(queue) == 0 and queue.claim("mail") == [] and queue.enqueue("mail", "own"):
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.ack()
    assert len(queue) == 1


@pytest.mark.parametrize("order", ["lifo", "fifo"])
def test_eight_threads_lose_nothing_and_handle_nothing_twice(order: Literal["lifo", "fifo"]) -> None:
    threads, each = 8, 400
    queue = MemoryQueue(max_depth=200, order=order)
    names = ["a", "b", "c"]
    holding: set[int] = set()
    handled: Counter[int] = Counter()
    guard = threading.Lock()
    done = threading.Event()
    start = threading.Barrier(threads)

    def handle(message: Message[Any], dice: random.Random) -> None:
        with guard:
            assert message.id not in holding, "held twice"
            holding.add(message.id)
        fate = dice.random()
        with guard:
            holding.remove(message.id)
            if fate >= 0.3:
                handled[message.payload] += 1
                if sum(handled.values()) == threads * each:
                    done.set()
        if fate < 0.1:
            message.release()
        elif fate < 0.3:
            message.nack(delay=dice.choice([0, 0.001]))
        else:
            message.ack()

    def drain(dice: random.Random, wait: float) -> None:
        for message in queue.claim_any(names, dice.randint(1, 5), wait=wait):
            handle(message, dice)

    def enqueue(batch: list[int], dice: random.Random) -> bool:
        try:
            queue.enqueue_many(dice.choice(names), batch, priority=dice.randint(-1, 1), max_attempts=1000)
        except QueueFull:
            return False
        return True

    def work(number: int) -> None:
        dice = random.Random(number)
        mine = list(range(number * each, (number + 1) * each))
        start.wait()
        while not done.is_set():
            size = dice.randint(1, 5)
            if mine and enqueue(mine[:size], dice):
                del mine[:size]
            drain(dice, wait=0 if mine else 0.01)

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(work, number) for number in range(threads)]:
            future.result(timeout=60)
    assert handled == Counter(range(threads * each))
    assert len(queue) == 0
    stats = queue.stats()
    assert (stats.ready, stats.scheduled, stats.claimed, stats.dead) == (0, 0, 0, 0)


def test_blocked_producers_and_consumers_all_come_to_an_end() -> None:
    queue = MemoryQueue(max_depth=3)
    count = 1000

    def produce() -> None:
        for number in range(count):
            queue.enqueue("mail", number, wait=30)

    def consume() -> list[int]:
        found = []
        while (message := queue.claim("mail", wait=30)[0]).payload is not None:
            found.append(message.payload)
            message.ack()
        message.ack()
        return found

    with ThreadPoolExecutor(8) as pool:
        consumers = [pool.submit(consume) for _ in range(4)]
        for producer in [pool.submit(produce) for _ in range(4)]:
            producer.result(timeout=60)
        for _ in consumers:
            queue.enqueue("mail", None, priority=-1, wait=30)
        found = [consumer.result(timeout=60) for consumer in consumers]
    assert Counter(chain.from_iterable(found)) == Counter(dict.fromkeys(range(count), 4))
