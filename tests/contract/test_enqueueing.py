"""What an enqueue promises, on every layer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.contract.layers import Layer, Verbs

Advance = Callable[[float], None]


@pytest.mark.parametrize(
    "payload",
    [None, True, 0, -1.5, "", "naïve ☕ \u202eRTL", [], {"a": [1, {"b": None}]}, b"", b"\x00\xff", 2**53],
)
def test_a_payload_comes_back_equal(queue: Verbs, payload: Any) -> None:
    queue.enqueue("mail", payload)
    (message,) = queue.claim("mail")
    assert message.payload == payload
    assert type(message.payload) is type(payload)


def test_a_message_says_what_it_is(queue: Verbs) -> None:
    message_id = queue.enqueue("mail", "hello", priority=3, key="greeting", max_attempts=7)
    (message,) = queue.claim("mail", lease=60)
    assert (message.id, message.queue, message.priority) == (message_id, "mail", 3)
    assert (message.key, message.attempts, message.max_attempts) == ("greeting", 1, 7)
    assert message.settled is False
    assert message.enqueued_at.utcoffset() == message.visible_at.utcoffset() == timedelta(0)
    assert message.lease_expires_at is not None
    assert timedelta(seconds=59) < message.lease_expires_at - message.visible_at < timedelta(seconds=120)


def test_ids_only_grow(queue: Verbs) -> None:
    first = queue.enqueue("mail", 1)
    queue.ack(*queue.claim("mail"))
    second, third = queue.enqueue_many("mail", [2, 3])
    queue.purge("mail")
    fourth = queue.enqueue("other", 4)
    assert first < second < third < fourth


def test_many_are_enqueued_with_the_same_options(queue: Verbs) -> None:
    ids = queue.enqueue_many("mail", ("a", "b", "c"), priority=2, max_attempts=4)
    messages = queue.claim("mail", 10)
    assert sorted((message.id, message.payload) for message in messages) == list(zip(ids, "abc", strict=True))
    assert {(message.priority, message.max_attempts) for message in messages} == {(2, 4)}


def test_none_are_enqueued_of_none(queue: Verbs) -> None:
    assert queue.enqueue_many("mail", []) == []
    assert queue.stats().ready == 0


def test_a_delayed_message_is_claimable_when_its_delay_is_over(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", "later", delay=0.15)
    queue.enqueue("mail", "much later", delay=3600)
    assert queue.claim("mail") == []
    advance(0.15)
    assert [message.payload for message in queue.claim("mail", 10)] == ["later"]


def test_many_are_delayed_together(queue: Verbs, advance: Advance) -> None:
    queue.enqueue_many("mail", [1, 2, 3], delay=0.15)
    assert queue.claim("mail") == []
    advance(0.15)
    assert len(queue.claim("mail", 10)) == 3


def test_a_delay_moves_visible_at(queue: Verbs, advance: Advance) -> None:
    queue.enqueue("mail", 1, delay=0.1)
    advance(0.1)
    (message,) = queue.claim("mail")
    assert message.visible_at - message.enqueued_at == timedelta(seconds=0.1)


def test_a_message_at_a_moment_to_come_waits_for_it(queue: Verbs) -> None:
    queue.enqueue("mail", 1, at=datetime(2200, 1, 1, tzinfo=UTC))
    assert queue.claim("mail") == []
    assert queue.stats().scheduled == 1


def test_a_message_at_a_moment_in_the_past_is_claimable_now(queue: Verbs) -> None:
    queue.enqueue("mail", 1, at=datetime(2001, 1, 1, tzinfo=UTC))
    (message,) = queue.claim("mail")
    assert message.visible_at == datetime(2001, 1, 1, tzinfo=UTC)


def test_a_key_is_taken_while_its_message_waits(queue: Verbs) -> None:
    first = queue.enqueue("mail", "first", key="k")
    assert queue.enqueue("mail", "second", key="k") == first
    assert [message.payload for message in queue.claim("mail", 10)] == ["first"]


def test_a_key_is_taken_while_its_message_is_scheduled(queue: Verbs) -> None:
    first = queue.enqueue("mail", "first", key="k", delay=3600)
    assert queue.enqueue("mail", "second", key="k") == first
    assert queue.claim("mail") == []


def test_a_key_is_taken_while_its_message_is_claimed(queue: Verbs) -> None:
    first = queue.enqueue("mail", "first", key="k")
    queue.claim("mail")
    assert queue.enqueue("mail", "second", key="k") == first
    assert queue.claim("mail") == []


def test_a_key_is_taken_while_its_message_waits_for_another_attempt(queue: Verbs) -> None:
    first = queue.enqueue("mail", "first", key="k")
    (message,) = queue.claim("mail")
    message.nack(delay=3600)
    assert queue.enqueue("mail", "second", key="k") == first


def test_a_key_is_free_when_its_message_was_acked(queue: Verbs) -> None:
    first = queue.enqueue("mail", "first", key="k")
    queue.ack(*queue.claim("mail"))
    assert queue.enqueue("mail", "second", key="k") > first


def test_a_key_is_free_when_its_message_is_dead(queue: Verbs) -> None:
    first = queue.enqueue("mail", "first", key="k")
    queue.dead_letter(*queue.claim("mail"))
    assert queue.enqueue("mail", "second", key="k") > first


@pytest.mark.needs("purge")
def test_a_key_is_free_when_its_message_was_purged(queue: Verbs) -> None:
    first = queue.enqueue("mail", "first", key="k")
    queue.purge("mail")
    assert queue.enqueue("mail", "second", key="k") > first


def test_a_key_belongs_to_its_queue(queue: Verbs) -> None:
    assert queue.enqueue("mail", 1, key="k") != queue.enqueue("other", 1, key="k")


@pytest.mark.parametrize("name", ["a", "e-mail.welcome", "Ünïcode/..\\ queue", "*", "%_'\";--", "x" * 128])
def test_any_name_is_a_queue_of_its_own(queue: Verbs, name: str) -> None:
    queue.enqueue(name, name, key=name)
    queue.enqueue("other", "other")
    (message,) = queue.claim(name, 10, worker=name)
    assert (message.payload, message.queue, message.key) == (name, name, name)


def test_messages_wait_in_their_own_queue(layer: Layer) -> None:
    layer.queue.enqueue("mail", 1)
    assert layer.queue.claim("Mail") == []
    assert layer.queue.claim("mai") == []
    assert len(layer.queue.claim("mail", 10)) == 1
