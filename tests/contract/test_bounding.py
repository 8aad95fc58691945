"""What a bound promises, on the layers that have one: all queues of the layer together hold so much."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenantq.errors import InvalidArgument, QueueFull
from tests.contract.layers import BoundedVerbs

Bounded = Callable[[int], BoundedVerbs]

PATIENCE = 30.0


def test_what_waits_and_is_claimed_counts(bounded: Bounded) -> None:
    queue = bounded(3)
    queue.enqueue("mail", 1)
    queue.enqueue("other", 2, delay=3600)
    queue.enqueue("mail", 3)
    queue.claim("mail")
    with pytest.raises(QueueFull) as caught:
        queue.enqueue("mail", 4)
    assert (caught.value.queue, caught.value.depth, caught.value.max_depth) == ("mail", 3, 3)
    stats = queue.stats()
    assert (stats.ready, stats.scheduled, stats.claimed) == (1, 1, 1)


@pytest.mark.parametrize("how", ["ack", "dead_letter", "purge"])
def test_a_message_that_leaves_makes_room(bounded: Bounded, how: str) -> None:
    queue = bounded(1)
    queue.enqueue("mail", 1)
    (held,) = queue.claim("mail")
    if how == "purge":
        queue.purge("mail")
    else:
        getattr(held, how)()
    queue.enqueue("mail", 2)


@pytest.mark.parametrize("how", ["nack", "release"])
def test_a_message_that_comes_back_is_never_refused_and_makes_no_room(bounded: Bounded, how: str) -> None:
    queue = bounded(1)
    queue.enqueue("mail", 1)
    (held,) = queue.claim("mail")
    getattr(held, how)()
    with pytest.raises(QueueFull):
        queue.enqueue("mail", 2)


def test_a_batch_enters_whole_or_not_at_all(bounded: Bounded) -> None:
    queue = bounded(3)
    queue.enqueue_many("mail", [1, 2])
    with pytest.raises(QueueFull):
        queue.enqueue_many("mail", [3, 4])
    assert queue.stats().ready == 2
    assert len(queue.enqueue_many("mail", [3])) == 1


def test_a_batch_that_can_never_fit_is_refused_without_waiting(bounded: Bounded) -> None:
    queue = bounded(3)
    with pytest.raises(QueueFull):
        queue.enqueue_many("mail", range(4), wait=600)
    assert queue.stats().ready == 0


def test_a_key_that_is_there_needs_no_room(bounded: Bounded) -> None:
    queue = bounded(1)
    first = queue.enqueue("mail", 1, key="k")
    assert queue.enqueue("mail", 2, key="k") == first
    assert queue.enqueue("mail", 2, key="k", wait=600) == first


def test_a_wait_for_room_ends_when_its_time_is_over(bounded: Bounded) -> None:
    queue = bounded(1)
    queue.enqueue("mail", 1)
    with pytest.raises(QueueFull):
        queue.enqueue("mail", 2, wait=0.02)


@pytest.mark.parametrize("how", ["ack", "dead_letter", "purge"])
def test_a_wait_for_room_ends_with_room(bounded: Bounded, how: str) -> None:
    queue = bounded(1)
    first = queue.enqueue("mail", 1)
    (held,) = queue.claim("mail")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.enqueue, "mail", 2, wait=PATIENCE)
        if how == "purge":
            queue.purge("mail")
        else:
            getattr(held, how)()
        assert waiting.result(timeout=PATIENCE) > first
    assert queue.stats().ready == 1


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), "1"])
def test_a_wait_is_refused(bounded: Bounded, wait: float) -> None:
    queue = bounded(1)
    with pytest.raises(InvalidArgument):
        queue.enqueue("mail", 1, wait=wait)
    with pytest.raises(InvalidArgument):
        queue.enqueue_many("mail", [1], wait=wait)
    assert queue.stats().ready == 0
