"""Effects exactly once: the mark of an event and its effect in one transaction of the application."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import rows

import tenantq
from tenantq import Message
from tenantq_bridge import EventTooOld, Forwarder, Maintenance, PostgresQueue
from tests.bridge.conftest import Sql
from tests.children import Child

pytestmark = pytest.mark.postgres


@pytest.fixture
def connect(migrated_dsn: str, sql: Sql) -> Callable[[], psycopg.Connection[Any]]:
    """Connect as an application does, whose effects are the rows of a table."""
    sql(b"CREATE TABLE public.effects (event_id uuid)")
    return lambda: psycopg.connect(migrated_dsn)


@pytest.fixture
def event(postgres_queue: PostgresQueue, store: tenantq.Store, forwarder: Forwarder) -> Message[Any]:
    postgres_queue.subscribe("q", "*")
    postgres_queue.subscribe("other", "*")
    store.tenant("acme").emit("t", 1)
    assert forwarder.run_once() == 1
    [message] = postgres_queue.claim("q")
    return message


EXPIRE = b"UPDATE tenantq.ready SET leased_until = clock_timestamp() WHERE leased_until IS NOT NULL"


def apply(queue: PostgresQueue, connection: psycopg.Connection[Any], message: Message[Any]) -> bool:
    """Do what an application does; the caller commits."""
    if not queue.apply_once(connection, message):
        return False
    connection.execute("INSERT INTO public.effects VALUES (%s)", (message.event_id,))
    return True


def effects(sql: Sql) -> int:
    return int(sql(b"SELECT count(*) FROM public.effects")[0][0])


def test_an_event_is_applied_once_whichever_way_the_connection_is_set(
    postgres_queue: PostgresQueue, event: Message[Any], connect: Callable[[], psycopg.Connection[Any]], sql: Sql
) -> None:
    with connect() as connection:
        assert apply(postgres_queue, connection, event)
        assert not apply(postgres_queue, connection, event)
    with connect() as connection:
        connection.autocommit = True
        connection.row_factory = rows.dict_row
        connection.cursor_factory = psycopg.RawCursor
        with connection.transaction():
            assert not apply(postgres_queue, connection, event)
    assert effects(sql) == 1


def test_a_mark_is_gone_when_its_transaction_is(
    postgres_queue: PostgresQueue, event: Message[Any], connect: Callable[[], psycopg.Connection[Any]], sql: Sql
) -> None:
    with connect() as connection:
        assert apply(postgres_queue, connection, event)
        connection.rollback()
        assert apply(postgres_queue, connection, event)
    assert effects(sql) == 1


@pytest.mark.parametrize("isolation", list(psycopg.IsolationLevel), ids=str)
def test_workers_that_apply_one_event_at_once_have_one_effect(
    postgres_queue: PostgresQueue,
    event: Message[Any],
    connect: Callable[[], psycopg.Connection[Any]],
    sql: Sql,
    isolation: psycopg.IsolationLevel,
) -> None:
    gate = threading.Barrier(4)

    def work(_: int) -> bool:
        with connect() as connection:
            connection.isolation_level = isolation
            connection.execute("SELECT 1 FROM public.effects")  # the snapshot is from before the others
            gate.wait()
            try:
                return apply(postgres_queue, connection, event)
            except psycopg.errors.SerializationFailure:
                connection.rollback()
                return apply(postgres_queue, connection, event)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(work, range(4))) == [False, False, False, True]
    assert effects(sql) == 1


def test_a_worker_that_dies_between_the_effect_and_the_ack_leaves_one_effect(
    postgres_queue: PostgresQueue,
    event: Message[Any],
    connect: Callable[[], psycopg.Connection[Any]],
    sql: Sql,
    migrated_dsn: str,
) -> None:
    sql(EXPIRE)
    with Child(
        """
        import psycopg
        from tenantq_bridge import PostgresQueue

        queue = PostgresQueue(sys.argv[1])
        [message] = queue.claim("q")
        with psycopg.connect(sys.argv[1]) as connection:
            assert queue.apply_once(connection, message)
            connection.execute("INSERT INTO public.effects VALUES (%s)", (message.event_id,))
        stop_here("committed")
        """,
        migrated_dsn,
    ) as child:
        assert child.heard() == "committed"
        child.kill()
    sql(EXPIRE)
    [again] = postgres_queue.claim("q")
    assert (again.event_id, again.attempts) == (event.event_id, 3)
    with connect() as connection:
        assert not apply(postgres_queue, connection, again)
    again.ack()
    assert effects(sql) == 1


def test_an_event_that_is_sent_again_after_a_loss_has_no_second_effect(
    postgres_queue: PostgresQueue,
    event: Message[Any],
    connect: Callable[[], psycopg.Connection[Any]],
    sql: Sql,
    store: tenantq.Store,
) -> None:
    with connect() as connection:
        assert apply(postgres_queue, connection, event)
    event.ack()
    # A restore of the database's older half: what was forwarded is not known any more.
    sql(b"DELETE FROM tenantq.forwarding")
    sql(b"DELETE FROM tenantq.seen")
    forwarder = Forwarder(store, postgres_queue)
    assert forwarder.run_once() == 1
    forwarder.stop()
    [again] = postgres_queue.claim("q")
    assert again.id != event.id
    with connect() as connection:
        assert not apply(postgres_queue, connection, again)


def test_each_queue_that_gets_an_event_applies_it(
    postgres_queue: PostgresQueue, event: Message[Any], connect: Callable[[], psycopg.Connection[Any]], sql: Sql
) -> None:
    [other] = postgres_queue.claim("other")
    assert other.event_id == event.event_id
    with connect() as connection:
        assert apply(postgres_queue, connection, event)
        assert apply(postgres_queue, connection, other)
    assert effects(sql) == 2


def test_what_cannot_be_applied_once_is_refused(
    postgres_queue: PostgresQueue, event: Message[Any], connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    with connect() as connection:
        connection.autocommit = True
        with pytest.raises(tenantq.InvalidArgument, match="commits each"):
            postgres_queue.apply_once(connection, event)
        with pytest.raises(tenantq.InvalidArgument, match="psycopg"):
            postgres_queue.apply_once(object(), event)
        postgres_queue.enqueue("direct", 1, tenant="acme")
        with pytest.raises(tenantq.InvalidArgument, match="no event"):
            postgres_queue.apply_once(connection, postgres_queue.claim("direct")[0])


def test_marks_are_dropped_after_their_days_and_older_events_are_refused_then(
    postgres_queue: PostgresQueue, event: Message[Any], connect: Callable[[], psycopg.Connection[Any]], sql: Sql
) -> None:
    maintenance = Maintenance(postgres_queue, applied_days=3)
    days = b"SELECT count(*) FROM pg_inherits WHERE inhparent = 'tenantq.applied'::regclass"
    assert maintenance.turn_days() == 0
    assert sql(days) == [(2,)]

    def emitted(age: int) -> Message[Any]:
        sql(b"UPDATE tenantq.ready SET leased_until = NULL, enqueued_at = now() - %d * interval '1 day'" % age)
        return postgres_queue.claim("q")[0]

    fresh = Maintenance(postgres_queue, applied_days=30)
    fresh.turn_days()
    with connect() as connection:
        assert apply(postgres_queue, connection, emitted(4))
    with connect() as connection:
        assert not apply(postgres_queue, connection, emitted(4))
        assert maintenance.turn_days() == 0  # a transaction that applies holds the days
    assert sql(days) == [(3,)]
    with connect() as connection:
        old = emitted(5)
        assert maintenance.turn_days() == 0
        with pytest.raises(EventTooOld):
            postgres_queue.apply_once(connection, old)
        assert not apply(postgres_queue, connection, emitted(4))  # the refusal left the transaction whole
    assert sql(days) == [(3,)]
    assert effects(sql) == 1
