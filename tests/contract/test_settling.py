"""How a delivery ends, on every layer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tenantq.errors import LeaseLost
from tenantq.message import Message
from tests.contract.layers import Verbs

Advance = Callable[[float], None]
Ending = Callable[[Message[Any]], None]

ENDINGS: dict[str, Ending] = {
    "ack": lambda message: message.ack(),
    "nack": lambda message: message.nack(delay=0),
    "release": lambda message: message.release(),
    "dead_letter": lambda message: message.dead_letter(),
}
every_ending = pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
every_verb = pytest.mark.parametrize(
    "verb",
    [*ENDINGS.values(), lambda message: message.extend(60)],
    ids=[*ENDINGS, "extend"],
)


def counts(queue: Verbs) -> tuple[int, int, int, int]:
    stats = queue.stats()
    return stats.ready, stats.scheduled, stats.claimed, stats.dead


def test_an_acked_message_is_gone(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", 1)
    queue.ack(*queue.claim("mail", lease=0.1))
    advance(0.1)
    assert queue.claim("mail") == []
    assert counts(queue) == (0, 0, 0, 0)


def test_an_empty_batch_is_fine(queue: Verbs) -> None:
    queue.ack()
    queue.release()


@every_ending
def test_an_ending_settles_the_delivery(queue: Verbs, end: Ending) -> None:
    queue.enqueue("mail", 1)
    (message,) = queue.claim("mail")
    end(message)
    assert message.settled is True


@every_ending
def test_an_ended_delivery_can_change_nothing_more(queue: Verbs, end: Ending) -> None:
    message_id = queue.enqueue("mail", 1)
    (message,) = queue.claim("mail")
    end(message)
    before = counts(queue)
    for again in ENDINGS.values():
        with pytest.raises(LeaseLost) as caught:
            again(message)
        assert caught.value.lost == (message_id,)
    with pytest.raises(LeaseLost):
        message.extend(60)
    assert counts(queue) == before


@every_verb
def test_a_delivery_whose_message_was_claimed_again_changes_nothing(
    queue: Verbs, advance: Advance, verb: Ending
) -> None:
    message_id = queue.enqueue("mail", 1)
    (old,) = queue.claim("mail", lease=0.1, worker="the same")
    advance(0.1)
    (new,) = queue.claim("mail", lease=60, worker="the same")
    with pytest.raises(LeaseLost) as caught:
        verb(old)
    assert caught.value.lost == (message_id,)
    assert old.settled is False
    assert counts(queue) == (0, 0, 1, 0)
    new.ack()
    assert counts(queue) == (0, 0, 0, 0)


@pytest.mark.needs("reap")
@every_verb
def test_a_delivery_whose_message_was_reaped_changes_nothing(queue: Verbs, advance: Advance, verb: Ending) -> None:
    queue.enqueue("mail", 1)
    (old,) = queue.claim("mail", lease=0.1)
    advance(0.1)
    assert queue.reap() == 1
    with pytest.raises(LeaseLost):
        verb(old)
    assert counts(queue) == (1, 0, 0, 0)


@pytest.mark.needs("purge")
@every_verb
def test_a_delivery_whose_message_was_purged_changes_nothing(queue: Verbs, verb: Ending) -> None:
    queue.enqueue("mail", 1)
    (old,) = queue.claim("mail")
    queue.purge("mail")
    with pytest.raises(LeaseLost):
        verb(old)
    assert counts(queue) == (0, 0, 0, 0)


@every_ending
def test_a_lease_is_not_lost_by_time_alone(queue: Verbs, advance: Advance, end: Ending) -> None:
    queue.enqueue("mail", 1)
    (message,) = queue.claim("mail", lease=0.05)
    advance(0.1)
    end(message)
    assert message.settled is True


@pytest.mark.parametrize("verb", ["ack", "release"])
def test_a_batch_takes_effect_for_the_held_ones(queue: Verbs, advance: Advance, verb: str) -> None:
    queue.enqueue_many("mail", range(4))
    short = queue.claim("mail", 2, lease=0.2)
    long = queue.claim("mail", 2, lease=3600)
    advance(0.2)
    taken = queue.claim("mail", 2)
    batch = [short[0], long[0], short[1], long[1]]
    with pytest.raises(LeaseLost) as caught:
        getattr(queue, verb)(*batch)
    assert sorted(caught.value.lost) == sorted(message.id for message in short)
    assert [message.settled for message in batch] == [False, True, False, True]
    assert counts(queue) == ((2 if verb == "release" else 0), 0, 2, 0)
    queue.ack(*taken)


def test_a_message_that_was_only_read_holds_no_lease(queue: Verbs) -> None:
    queue.enqueue("mail", 1)
    queue.dead_letter(*queue.claim("mail"))
    (dead,) = queue.dead_letters("mail")
    with pytest.raises(LeaseLost):
        dead.ack()


def test_a_failed_attempt_waits_by_the_backoff(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", 1)
    (message,) = queue.claim("mail")
    message.nack()
    assert counts(queue) == (0, 1, 0, 0)
    assert queue.claim("mail") == []
    advance(0.1)
    (again,) = queue.claim("mail")
    assert again.attempts == 2


def test_a_failed_attempt_waits_as_told(queue: Verbs, advance: Advance) -> None:
    queue.enqueue_many("mail", range(2))
    first, second = queue.claim("mail", 2)
    first.nack(delay=0.15)
    second.nack(delay=3600)
    assert queue.claim("mail") == []
    advance(0.15)
    assert [message.id for message in queue.claim("mail", 2)] == [first.id]


def test_a_failed_attempt_without_delay_is_claimable_at_once(queue: Verbs) -> None:
    queue.enqueue("mail", 1)
    queue.nack(*queue.claim("mail"), delay=0)
    (again,) = queue.claim("mail")
    assert again.attempts == 2


def test_a_message_is_dead_after_its_last_attempt(queue: Verbs) -> None:
    message_id = queue.enqueue("mail", "poison", max_attempts=2)
    queue.nack(*queue.claim("mail"), delay=0)
    queue.nack(*queue.claim("mail"), delay=0, error="no such address")
    assert queue.claim("mail") == []
    (dead,) = queue.dead_letters("mail")
    assert (dead.id, dead.payload, dead.attempts, dead.error) == (
        message_id,
        "poison",
        2,
        "no such address",
    )
    assert counts(queue) == (0, 0, 0, 1)


def test_a_message_can_be_dead_lettered_before_its_last_attempt(queue: Verbs) -> None:
    message_id = queue.enqueue("mail", 1, max_attempts=25)
    queue.dead_letter(*queue.claim("mail"), error="hopeless")
    (dead,) = queue.dead_letters("mail")
    assert (dead.id, dead.attempts, dead.error) == (message_id, 1, "hopeless")


def test_a_released_attempt_is_not_counted(queue: Verbs) -> None:
    queue.enqueue("mail", 1, max_attempts=1)
    for _ in range(3):
        (message,) = queue.claim("mail")
        assert message.attempts == 1
        message.release()
    assert counts(queue) == (1, 0, 0, 0)


def test_several_are_released_together(queue: Verbs) -> None:
    queue.enqueue_many("mail", range(3))
    queue.release(*queue.claim("mail", 3))
    assert counts(queue) == (3, 0, 0, 0)


def test_an_extended_lease_lasts_longer(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", 1)
    (message,) = queue.claim("mail", lease=0.1)
    before = message.lease_expires_at
    message.extend(3600)
    advance(0.1)
    assert queue.claim("mail") == []
    assert before is not None
    assert message.lease_expires_at is not None
    assert message.lease_expires_at - before > timedelta(seconds=3500)
    assert message.settled is False
    message.ack()


def test_an_extension_counts_from_now(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", 1)
    (message,) = queue.claim("mail", lease=3600)
    message.extend(0.1)
    advance(0.1)
    assert len(queue.claim("mail")) == 1


def test_a_lease_that_is_over_can_still_be_extended(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", 1)
    (message,) = queue.claim("mail", lease=0.05)
    advance(0.1)
    message.extend(3600)
    assert queue.claim("mail") == []
    message.ack()


def test_a_message_released_for_later_waits_and_its_attempt_is_not_counted(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", 1)
    queue.release(*queue.claim("mail"), delay=0.15)
    assert queue.claim("mail") == []
    assert (queue.stats().ready, queue.stats().scheduled, queue.stats().claimed) == (0, 1, 0)
    advance(0.15)
    (message,) = queue.claim("mail")
    assert message.attempts == 1
