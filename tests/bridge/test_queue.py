"""Enqueue, keys, subscriptions and what an operator needs, on a real Postgres."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

import tenantq
from tenantq_bridge import PostgresQueue
from tests.bridge.conftest import Sql

pytestmark = pytest.mark.postgres

LONG_NAME = "Rechnungen/Größe→" + "Ä" * 111
"""128 characters, 239 bytes: far beyond what an identifier may have."""


def test_a_message_comes_back_as_it_went_in(postgres_queue: PostgresQueue) -> None:
    headers = {"trace": "ä-1", "quote": '"'}
    message_id = postgres_queue.enqueue(
        LONG_NAME, {"text": "\0 and \u2028"}, priority=-3, max_attempts=7, tenant="Acme GmbH", headers=headers
    )
    [message] = postgres_queue.claim(LONG_NAME)
    assert (message.id, message.tenant, message.queue) == (message_id, "Acme GmbH", LONG_NAME)
    assert message.payload == {"text": "\0 and \u2028"}
    assert (message.priority, message.attempts, message.max_attempts) == (-3, 1, 7)
    assert message.headers == headers
    assert message.enqueued_at.tzinfo is UTC
    assert message.lease_expires_at is not None
    assert message.lease_expires_at > message.enqueued_at


def test_bytes_stay_bytes(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue_many("q", [b"\0\xff", "text", b""])
    assert [message.payload for message in postgres_queue.claim("q", 3)] == [b"\0\xff", "text", b""]


def test_names_that_differ_in_case_are_different_queues(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("Mail", 1)
    assert postgres_queue.claim("mail") == []
    assert len(postgres_queue.claim("Mail")) == 1


def test_higher_priority_first_then_arrival(postgres_queue: PostgresQueue) -> None:
    for payload, priority in [("low", -1), ("a", 0), ("high", 32_767), ("b", 0), ("lowest", -32_767)]:
        postgres_queue.enqueue("q", payload, priority=priority)
    claimed = [message.payload for message in postgres_queue.claim("q", 10)]
    assert claimed == ["high", "a", "b", "low", "lowest"]


def test_enqueue_many_returns_ids_in_the_order_of_the_payloads(postgres_queue: PostgresQueue) -> None:
    ids = postgres_queue.enqueue_many("q", range(12_000))  # more than one statement carries
    assert len(set(ids)) == 12_000
    assert ids == sorted(ids)
    claimed = postgres_queue.claim("q", 12_000)
    assert [(message.id, message.payload) for message in claimed] == list(zip(ids, range(12_000), strict=True))


def test_enqueue_many_is_all_or_nothing(postgres_queue: PostgresQueue, sql: Sql) -> None:
    sql(b"ALTER TABLE tenantq.ready ADD CHECK (body <> '11999')")
    with pytest.raises(tenantq.TenantqError):
        postgres_queue.enqueue_many("q", range(12_000))
    assert postgres_queue.stats("q").ready == 0


def test_a_delayed_message_is_claimable_when_its_time_has_come(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    delayed = postgres_queue.enqueue("q", "later", delay=3600)
    at = postgres_queue.enqueue("q", "at", at=datetime.now(UTC) + timedelta(hours=1), priority=1)
    assert postgres_queue.claim("q", 10) == []
    expire()
    assert [message.id for message in postgres_queue.claim("q", 10)] == [at, delayed]


def test_a_time_in_the_past_is_claimable_at_once(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("q", 1, at=datetime(2001, 1, 1, tzinfo=UTC))
    assert len(postgres_queue.claim("q")) == 1


def test_a_key_gives_one_message_while_it_waits_or_is_claimed(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    first = postgres_queue.enqueue("q", 1, key="K", delay=60)
    assert postgres_queue.enqueue("q", 2, key="K") == first
    assert postgres_queue.enqueue("other", 2, key="K") != first
    assert postgres_queue.enqueue("q", 2, key="k") != first
    expire()
    claimed = {message.id: message for message in postgres_queue.claim("q", 5)}
    assert claimed[first].key == "K"
    assert postgres_queue.enqueue("q", 3, key="K") == first
    claimed[first].nack(delay=60)
    assert postgres_queue.enqueue("q", 3, key="K") == first


def test_a_key_is_free_after_ack_dead_letter_and_purge(postgres_queue: PostgresQueue) -> None:
    ids = [postgres_queue.enqueue("q", 1, key="k")]
    postgres_queue.claim("q")[0].ack()
    ids.append(postgres_queue.enqueue("q", 1, key="k"))
    postgres_queue.claim("q")[0].dead_letter(error="no")
    ids.append(postgres_queue.enqueue("q", 1, key="k"))
    assert postgres_queue.purge("q") == 1
    ids.append(postgres_queue.enqueue("q", 1, key="k", delay=9))
    assert postgres_queue.purge("q") == 1
    ids.append(postgres_queue.enqueue("q", 1, key="k"))
    assert len(set(ids)) == 5


def test_racing_enqueues_of_one_key_give_one_message(postgres_queue: PostgresQueue) -> None:
    gate = threading.Barrier(8)

    def enqueue(number: int) -> int:
        gate.wait()
        return postgres_queue.enqueue("q", number, key=f"k{number // 8}")

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(enqueue, range(80)))
    assert len(set(ids)) == 10
    assert {message.id for message in postgres_queue.claim("q", 100)} == set(ids)


def test_a_key_whose_enqueue_rolls_back_goes_to_the_one_that_waited(
    postgres_queue: PostgresQueue, migrated_dsn: str
) -> None:
    import psycopg  # noqa: PLC0415

    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(migrated_dsn) as other:
            other.execute("INSERT INTO tenantq.keys VALUES ('q', 'k', 4711)")
            waiting = pool.submit(postgres_queue.enqueue, "q", 1, key="k")
            other.execute("SELECT 1")
            other.rollback()
        assert waiting.result(10) != 4711
    assert len(postgres_queue.claim("q", 2)) == 1


def test_ids_beyond_32_bits_work_everywhere(postgres_queue: PostgresQueue, sql: Sql) -> None:
    sql(b"SELECT setval('tenantq.message_seq', 9000000000)")
    first = postgres_queue.enqueue("q", 1, key="k", max_attempts=1)
    assert first > 2**33
    [message] = postgres_queue.claim("q")
    message.nack(error="x")
    assert [dead.id for dead in postgres_queue.dead_letters("q")] == [first]
    assert postgres_queue.redrive(first) == 1
    postgres_queue.claim("q")[0].ack()
    ids = postgres_queue.enqueue_many("q", [1, 2])
    postgres_queue.release(*postgres_queue.claim("q", 2))
    postgres_queue.ack(*postgres_queue.claim("q", 2))
    assert min(ids) > 2**33
    assert postgres_queue.stats().queues == ()


def test_redrive_gives_dead_letters_another_life(postgres_queue: PostgresQueue) -> None:
    ids = [*postgres_queue.enqueue_many("q", [1, 2, 3]), postgres_queue.enqueue("other", 4)]
    for message in postgres_queue.claim("q", 3) + postgres_queue.claim("other"):
        message.dead_letter(error=f"e{message.payload}")
    dead = postgres_queue.dead_letters()
    assert [(letter.id, letter.error) for letter in dead] == list(zip(ids, ["e1", "e2", "e3", "e4"], strict=True))
    assert postgres_queue.redrive(ids[0], ids[3], queue="q") == 1
    [message] = postgres_queue.claim("q")
    assert (message.id, message.attempts, message.error) == (ids[0], 1, "e1")
    assert postgres_queue.redrive(queue="q") == 2
    assert postgres_queue.redrive() == 1
    assert postgres_queue.stats().dead == 0


def test_a_dead_letter_whose_key_is_taken_stays_dead(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("q", "old", key="k")
    postgres_queue.claim("q")[0].dead_letter()
    new = postgres_queue.enqueue("q", "new", key="k")
    assert postgres_queue.redrive() == 0
    postgres_queue.claim("q")[0].ack()
    assert postgres_queue.redrive() == 1
    assert postgres_queue.enqueue("q", "again", key="k") < new


def test_a_paused_queue_gives_nothing_until_it_is_resumed(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("q", 1)
    postgres_queue.pause("q")
    postgres_queue.pause("q")
    assert postgres_queue.claim("q") == []
    assert postgres_queue.stats("q").queues[0].is_paused
    postgres_queue.resume("q")
    assert len(postgres_queue.claim("q")) == 1


def test_stats_count_each_state(postgres_queue: PostgresQueue, expire: Callable[[], None]) -> None:
    postgres_queue.enqueue_many("q", range(5))
    postgres_queue.enqueue("q", 1, delay=60)
    postgres_queue.claim("q", 2)
    postgres_queue.claim("q")[0].dead_letter()
    postgres_queue.enqueue("other", 1)
    stats = postgres_queue.stats("q")
    assert (stats.ready, stats.scheduled, stats.claimed, stats.dead) == (2, 1, 2, 1)
    assert stats.oldest_age is not None
    assert 0 <= stats.oldest_age < 60
    expire()
    stats = postgres_queue.stats()
    assert (stats.ready, stats.scheduled, stats.claimed, stats.dead) == (6, 0, 0, 1)
    assert [queue.queue for queue in stats.queues] == ["other", "q"]


def test_peek_shows_what_waits_in_order_and_takes_nothing(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("q", "later", delay=60, priority=9)
    postgres_queue.enqueue_many("q", ["a", "b", "c"])
    postgres_queue.claim("q")
    assert [message.payload for message in postgres_queue.peek("q")] == ["b", "c", "later"]
    assert [message.payload for message in postgres_queue.peek("q", 1)] == ["b"]
    with pytest.raises(tenantq.LeaseLost):
        postgres_queue.peek("q")[0].ack()


def test_purge_takes_what_waits_and_is_claimed_and_leaves_the_dead(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue_many("q", range(4))
    postgres_queue.enqueue("q", 1, delay=60)
    postgres_queue.enqueue("other", 1)
    postgres_queue.claim("q")[0].dead_letter()
    [held] = postgres_queue.claim("q")
    assert postgres_queue.purge("q") == 4
    with pytest.raises(tenantq.LeaseLost):
        held.ack()
    assert (postgres_queue.stats("q").dead, postgres_queue.stats().ready) == (1, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "a\0b"},
        {"queue": ""},
        {"queue": "x" * 129},
        {"key": "a\nb"},
        {"tenant": "\ud800"},
        {"headers": {"a": "b\0"}},
        {"headers": {"a": "\ud800"}},
        {"headers": {"a": 1}},
        {"payload": "\ud800"},
        {"payload": float("nan")},
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": 1e18},
        {"at": datetime(2030, 1, 1)},
        {"priority": 32_768},
        {"max_attempts": 0},
    ],
    ids=str,
)
def test_what_postgres_would_refuse_is_refused_before_it_is_sent(options: dict[str, object]) -> None:
    arguments: dict[str, object] = {"queue": "q", "payload": 1} | options
    queue = PostgresQueue("host=/nowhere dbname=none")
    with pytest.raises(tenantq.InvalidArgument):
        queue.enqueue(**arguments)  # type: ignore[arg-type]


def test_subscriptions_are_listed_and_idempotent(postgres_queue: PostgresQueue) -> None:
    for _ in range(2):
        postgres_queue.subscribe("invoices", "billing.*")
        postgres_queue.subscribe("audit", "*")
    listed = [(each.queue, each.pattern) for each in postgres_queue.subscriptions()]
    assert listed == [("audit", "*"), ("invoices", "billing.*")]
    postgres_queue.unsubscribe("audit", "*")
    postgres_queue.unsubscribe("audit", "*")
    assert [each.queue for each in postgres_queue.subscriptions()] == ["invoices"]


def test_declared_types_come_back_as_themselves(postgres_queue: PostgresQueue) -> None:
    import msgspec  # noqa: PLC0415

    @tenantq.message("bridge.test.parcel", cross_host=True)
    class Parcel(msgspec.Struct):
        weight: int

    postgres_queue.enqueue("bridge.test.parcel", Parcel(weight=3))
    [message] = postgres_queue.claim("bridge.test.parcel")
    assert message.payload == Parcel(weight=3)
