"""What an operator looks at and does, on every layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.layers import Verbs

Advance = Callable[[float], None]


def counts(queue: Verbs) -> tuple[int, int, int, int]:
    stats = queue.stats()
    return stats.ready, stats.scheduled, stats.claimed, stats.dead


def bury(queue: Verbs, name: str = "mail", *, key: str | None = None) -> int:
    message_id = queue.enqueue(name, "poison", key=key, priority=100)
    queue.dead_letter(*queue.claim(name), error="hopeless")
    return message_id


def test_stats_count_each_state(queue: Verbs) -> None:
    assert counts(queue) == (0, 0, 0, 0)
    queue.enqueue_many("mail", range(10))
    queue.enqueue_many("other", range(2), delay=3600)
    queue.claim("mail", 4)
    queue.dead_letter(*queue.claim("mail"))
    assert counts(queue) == (5, 2, 4, 1)


def test_stats_count_what_has_become_due_as_ready(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", 1, delay=0.1)
    assert counts(queue) == (0, 1, 0, 0)
    advance(0.1)
    assert counts(queue) == (1, 0, 0, 0)


@pytest.mark.needs("peek")
def test_peek_shows_and_does_not_claim(queue: Verbs) -> None:
    ids = queue.enqueue_many("mail", ["a", "b", "c"])
    queue.enqueue("other", "d")
    seen = queue.peek("mail", 10)
    assert sorted((message.id, message.payload) for message in seen) == list(zip(ids, "abc", strict=True))
    assert {(message.attempts, message.lease_expires_at) for message in seen} == {(0, None)}
    assert counts(queue) == (4, 0, 0, 0)
    assert [message.attempts for message in queue.claim("mail", 10)] == [1, 1, 1]


@pytest.mark.needs("peek")
def test_peek_shows_what_is_claimed_next(queue: Verbs) -> None:
    for priority in (0, 2, 1):
        queue.enqueue("mail", priority, priority=priority)
    assert [message.payload for message in queue.peek("mail", 2)] == [2, 1]
    assert queue.peek("empty") == []


def test_dead_letters_are_those_of_a_queue_or_of_all(queue: Verbs) -> None:
    mail, other = bury(queue), bury(queue, "other")
    assert [message.id for message in queue.dead_letters("mail")] == [mail]
    assert sorted(message.id for message in queue.dead_letters()) == [mail, other]
    assert {message.queue for message in queue.dead_letters("other")} == {"other"}
    assert len(queue.dead_letters(limit=1)) == 1


def test_a_redriven_message_keeps_its_id_and_gets_all_attempts(queue: Verbs) -> None:
    message_id = queue.enqueue("mail", "again", max_attempts=1)
    queue.nack(*queue.claim("mail"), error="no")
    assert queue.redrive(message_id) == 1
    assert queue.dead_letters("mail") == []
    (message,) = queue.claim("mail")
    assert (message.id, message.payload, message.attempts) == (message_id, "again", 1)
    message.release()
    assert counts(queue) == (1, 0, 0, 0)


def test_redrive_takes_only_the_ids_it_is_given(queue: Verbs) -> None:
    first, second, third = (bury(queue) for _ in range(3))
    assert queue.redrive(first, third) == 2
    assert [message.id for message in queue.dead_letters()] == [second]
    assert sorted(message.id for message in queue.claim("mail", 10)) == [first, third]


def test_redrive_takes_all_of_a_queue(queue: Verbs) -> None:
    bury(queue)
    bury(queue)
    other = bury(queue, "other")
    assert queue.redrive(queue="mail") == 2
    assert [message.id for message in queue.dead_letters()] == [other]


def test_redrive_without_ids_or_a_queue_takes_all(queue: Verbs) -> None:
    for name in ("mail", "report"):
        queue.enqueue(name, 1)
        queue.claim(name)[0].dead_letter()
    assert queue.redrive() == 2
    assert queue.dead_letters() == []


def test_redrive_counts_only_what_was_dead(queue: Verbs) -> None:
    waiting = queue.enqueue("mail", 1)
    assert queue.redrive(waiting, 10**9) == 0
    assert queue.redrive(queue="mail") == 0
    assert counts(queue) == (1, 0, 0, 0)


def test_a_dead_message_whose_key_is_taken_is_not_redriven(queue: Verbs) -> None:
    dead = bury(queue, key="k")
    live = queue.enqueue("mail", "live", key="k")
    assert queue.redrive(dead) == 0
    assert queue.redrive(queue="mail") == 0
    assert [message.id for message in queue.dead_letters("mail")] == [dead]
    assert [message.id for message in queue.claim("mail", 10)] == [live]


def test_a_dead_message_whose_key_is_free_again_is_redriven(queue: Verbs) -> None:
    dead = bury(queue, key="k")
    queue.enqueue("mail", "live", key="k")
    queue.ack(*queue.claim("mail"))
    assert queue.redrive(dead) == 1
    assert queue.enqueue("mail", "third", key="k") == dead


def test_of_two_dead_messages_with_one_key_one_is_redriven(queue: Verbs) -> None:
    bury(queue, key="k")
    bury(queue, key="k")
    assert queue.redrive(queue="mail") == 1
    assert counts(queue) == (1, 0, 0, 1)


@pytest.mark.needs("purge")
def test_purge_removes_what_waits_and_is_claimed_and_says_how_many(queue: Verbs) -> None:
    bury(queue)
    queue.enqueue_many("mail", range(3))
    queue.enqueue_many("mail", range(2), delay=3600)
    queue.claim("mail")
    queue.enqueue("other", 1)
    assert queue.purge("mail") == 5
    assert counts(queue) == (1, 0, 0, 1)
    assert queue.claim("mail", 10) == []
    assert queue.purge("mail") == 0


@pytest.mark.needs("pause", "resume")
def test_a_paused_queue_gives_nothing_and_takes_everything(queue: Verbs) -> None:
    queue.enqueue("mail", 1)
    (held,) = queue.claim("mail")
    queue.pause("mail")
    queue.enqueue_many("mail", range(2))
    queue.enqueue("other", 1)
    assert queue.claim("mail", 10) == []
    assert len(queue.claim("other")) == 1
    held.ack()
    queue.resume("mail")
    assert len(queue.claim("mail", 10)) == 2


@pytest.mark.needs("pause", "resume")
def test_a_queue_is_paused_before_its_first_message(queue: Verbs) -> None:
    queue.pause("mail")
    queue.pause("mail")
    queue.enqueue("mail", 1)
    assert queue.claim("mail") == []
    queue.resume("mail")
    queue.resume("mail")
    assert len(queue.claim("mail")) == 1


@pytest.mark.needs("reap")
def test_reap_ends_the_leases_that_are_over(queue: Verbs, advance: Advance) -> None:
    queue.enqueue_many("mail", range(2))
    queue.enqueue("other", "poison", max_attempts=1)
    queue.enqueue("mail", "held", priority=1)
    (held,) = queue.claim("mail", lease=3600)
    queue.claim("mail", 2, lease=0.2)
    queue.claim("other", lease=0.2)
    assert queue.reap() == 0
    advance(0.2)
    assert queue.reap() == 3
    assert counts(queue) == (2, 0, 1, 1)
    assert queue.reap() == 0
    held.ack()
    assert [message.attempts for message in queue.claim("mail", 10)] == [2, 2]
