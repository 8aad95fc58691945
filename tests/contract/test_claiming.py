"""What a claim promises, on every layer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from tenantq.errors import LeaseLost
from tenantq.message import Message
from tests.contract.layers import Layer, Verbs

Advance = Callable[[float], None]


def payloads(messages: list[Message[Any]]) -> list[Any]:
    return [message.payload for message in messages]


def test_an_unknown_queue_has_nothing(queue: Verbs) -> None:
    assert queue.claim("mail") == []


def test_one_message_is_claimed_by_default(queue: Verbs) -> None:
    queue.enqueue_many("mail", range(3))
    assert len(queue.claim("mail")) == 1


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_a_limit_is_never_exceeded(queue: Verbs, limit: int) -> None:
    queue.enqueue_many("mail", range(5))
    queue.enqueue_many("mail", range(2), priority=1)
    assert len(queue.claim("mail", limit)) == min(limit, 7)


def test_a_limit_counts_expired_leases_too(queue: Verbs, advance: Advance) -> None:
    queue.enqueue_many("mail", range(3))
    queue.claim("mail", 3, lease=0.1)
    advance(0.1)
    queue.enqueue_many("mail", range(3))
    assert len(queue.claim("mail", 4)) == 4
    assert len(queue.claim("mail", 4)) == 2


def test_a_claimed_message_is_claimed_by_nobody_else(queue: Verbs) -> None:
    queue.enqueue("mail", 1)
    assert len(queue.claim("mail", worker="ada")) == 1
    assert queue.claim("mail", worker="ada") == queue.claim("mail", worker="bob") == []


def test_a_higher_priority_goes_first(queue: Verbs) -> None:
    for priority in (0, 5, -3, 32_767, -32_767, 5):
        queue.enqueue("mail", priority, priority=priority)
    assert payloads(queue.claim("mail", 10)) == [32_767, 5, 5, 0, -3, -32_767]


def test_a_higher_priority_goes_first_one_by_one(queue: Verbs) -> None:
    for priority in (1, 3, 2):
        queue.enqueue("mail", priority, priority=priority)
    assert [payloads(queue.claim("mail")) for _ in range(3)] == [[3], [2], [1]]


def test_a_higher_priority_to_come_holds_nothing_up(queue: Verbs) -> None:
    queue.enqueue("mail", "to come", priority=9, delay=3600)
    queue.enqueue("mail", "here", priority=-9)
    assert payloads(queue.claim("mail", 2)) == ["here"]


def test_a_higher_priority_with_an_expired_lease_goes_first(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", "high", priority=1)
    queue.enqueue("mail", "low")
    queue.claim("mail", lease=0.1)
    advance(0.1)
    assert payloads(queue.claim("mail", 2)) == ["high", "low"]


def test_a_lower_priority_with_an_expired_lease_waits(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", "low")
    queue.claim("mail", lease=0.1)
    advance(0.1)
    queue.enqueue("mail", "high", priority=1)
    assert payloads(queue.claim("mail", 2)) == ["high", "low"]


def test_one_priority_goes_by_time_then_by_id(layer: Layer) -> None:
    if not layer.ordered:
        pytest.skip("this layer promises no order by time")
    layer.queue.enqueue("mail", "late", delay=0.1)
    layer.queue.enqueue("mail", "soon", delay=0.05)
    layer.queue.enqueue_many("mail", ["now 1", "now 2"])
    layer.advance(0.1)
    assert payloads(layer.queue.claim("mail", 10)) == ["now 1", "now 2", "soon", "late"]


def test_attempts_are_counted_at_the_claim(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", 1)
    for attempt in (1, 2, 3):
        (message,) = queue.claim("mail", lease=0.05)
        assert message.attempts == attempt
        advance(0.05)


def test_an_expired_lease_is_found_by_the_next_claim(queue: Verbs, advance: Advance) -> None:
    message_id = queue.enqueue("mail", 1)
    queue.claim("mail", lease=0.1)
    assert queue.claim("mail") == []
    advance(0.1)
    assert [message.id for message in queue.claim("mail")] == [message_id]


def test_a_claim_ends_only_the_expired_leases_that_it_takes(queue: Verbs, advance: Advance) -> None:
    queue.enqueue_many("mail", range(2))
    old = queue.claim("mail", 2, lease=0.1)
    advance(0.1)
    (taken,) = queue.claim("mail", 1)
    for message in old:
        if message.id == taken.id:
            with pytest.raises(LeaseLost):
                message.ack()
        else:
            message.ack()


def test_an_exhausted_message_is_dead_at_the_next_claim(queue: Verbs, advance: Advance) -> None:
    message_id = queue.enqueue("mail", "poison", max_attempts=2)
    for _ in range(2):
        assert len(queue.claim("mail", lease=0.05)) == 1
        advance(0.05)
    assert queue.claim("mail") == []
    (dead,) = queue.dead_letters("mail")
    assert (dead.id, dead.payload, dead.attempts) == (message_id, "poison", 2)
    assert (queue.stats().claimed, queue.stats().dead) == (0, 1)


def test_exhausted_messages_leave_room_in_a_claim(queue: Verbs, advance: Advance) -> None:
    queue.enqueue_many("mail", ["poison"] * 3, max_attempts=1)
    queue.claim("mail", 3, lease=0.1)
    advance(0.1)
    queue.enqueue("mail", "fine")
    assert payloads(queue.claim("mail", 1)) == ["fine"]
    assert queue.claim("mail", 10) == []
    assert queue.stats().dead == 3


def test_claims_of_many_threads_share_no_message(queue: Verbs) -> None:
    ids = queue.enqueue_many("mail", range(200))
    start = threading.Barrier(4)

    def claim_all() -> list[int]:
        start.wait()
        claimed = []
        while messages := queue.claim("mail", 7):
            claimed += [message.id for message in messages]
            queue.ack(*messages)
        return claimed

    with ThreadPoolExecutor(4) as pool:
        claims = [pool.submit(claim_all) for _ in range(4)]
    assert sorted(chain.from_iterable(claim.result() for claim in claims)) == ids


def test_a_wait_ends_when_its_time_is_over(queue: Verbs) -> None:
    assert queue.claim("mail", wait=0.05) == []


def test_a_wait_is_not_needed_when_something_is_there(queue: Verbs) -> None:
    queue.enqueue("mail", 1)
    assert len(queue.claim("mail", 10, wait=600)) == 1


@pytest.mark.parametrize("how", ["enqueue", "enqueue_many", "release", "nack", "resume"])
def test_a_waiting_claim_is_woken(layer: Layer, how: str) -> None:
    if how in layer.lacks:
        pytest.skip(f"this layer has no {how}")
    queue = layer.queue
    queue.enqueue("mail", 1)
    held = None if how == "resume" else queue.claim("mail")[0]
    if how == "resume":
        queue.pause("mail")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.claim, "mail", wait=30)
        assert not waiting.done()
        if how == "resume":
            queue.resume("mail")
        elif how == "enqueue":
            queue.enqueue("mail", 2)
        elif how == "enqueue_many":
            queue.enqueue_many("mail", [2, 3])
        elif held is not None:
            held.release() if how == "release" else held.nack(delay=0)
        assert len(waiting.result(timeout=10)) == 1
