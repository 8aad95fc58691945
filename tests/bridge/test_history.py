"""What was acked in recorded queues: kept for its time, in tables that never grow or hold up work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

import tenantq
from tenantq import LeaseLost
from tenantq_bridge import Maintenance, PostgresQueue
from tests.bridge.conftest import Sql

pytestmark = pytest.mark.postgres


@pytest.fixture
def maintenance(postgres_queue: PostgresQueue) -> Iterator[Maintenance]:
    made = Maintenance(postgres_queue, history_hours=3)
    yield made
    made.stop()


@pytest.fixture
def pass_hours(sql: Sql) -> Callable[[int], None]:
    """Let hours pass for the turns of the history."""

    def run(hours: int) -> None:
        sql(b"UPDATE tenantq.history_turn SET turned_at = turned_at - %d * interval '1 hour'" % hours)

    return run


def work(queue: PostgresQueue, *payloads: object) -> None:
    queue.enqueue_many("q", payloads, tenant="acme", headers={"a": "b"})
    queue.ack(*queue.claim("q", len(payloads), worker="w1"))


def kept(queue: PostgresQueue) -> list[object]:
    return [acked.message.payload for acked in queue.history("q")]


def test_nothing_is_kept_unless_the_queue_is_recorded(postgres_queue: PostgresQueue, sql: Sql) -> None:
    work(postgres_queue, 1)
    postgres_queue.record("other")
    work(postgres_queue, 2)
    assert postgres_queue.history() == []
    assert sql(b"SELECT count(*) FROM tenantq.history") == [(0,)]


def test_what_is_acked_is_kept_as_it_was_and_nothing_else(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    postgres_queue.record("q")
    postgres_queue.record("q")
    assert postgres_queue.recorded() == ["q"]
    postgres_queue.enqueue("q", "bytes", key="k", priority=3, max_attempts=7)
    [lost] = postgres_queue.claim("q")
    expire()
    [held] = postgres_queue.claim("q", worker="w2")
    with pytest.raises(LeaseLost):
        lost.ack()
    held.ack()
    work(postgres_queue, b"\0\xff", {"a": [1]})
    postgres_queue.enqueue("q", "dead")
    postgres_queue.claim("q")[0].dead_letter()
    postgres_queue.enqueue("other", 1)
    postgres_queue.claim("other")[0].ack()
    latest, *_, first = postgres_queue.history()
    assert kept(postgres_queue) == [{"a": [1]}, b"\0\xff", "bytes"]
    assert (latest.message.tenant, latest.worker, latest.message.headers) == ("acme", "w1", {"a": "b"})
    assert (first.message.id, first.message.key, first.message.priority) == (held.id, "k", 3)
    assert (first.message.attempts, first.message.max_attempts, first.worker) == (2, 7, "w2")
    assert first.message.enqueued_at < first.acked_at
    with pytest.raises(LeaseLost):
        first.message.ack()
    assert postgres_queue.enqueue("q", "again", key="k") > held.id
    assert [acked.message.payload for acked in postgres_queue.history(tenant="acme", limit=1)] == [{"a": [1]}]
    postgres_queue.unrecord("q")
    postgres_queue.purge("q")
    work(postgres_queue, "not kept")
    assert len(kept(postgres_queue)) == 3


def test_what_is_kept_is_there_for_its_time_and_then_gone(
    postgres_queue: PostgresQueue, maintenance: Maintenance, pass_hours: Callable[[int], None], sql: Sql
) -> None:
    postgres_queue.record("q")
    for hour in range(8):
        work(postgres_queue, hour)
        assert maintenance.turn_history() == 0
        pass_hours(1)
        assert maintenance.turn_history() == 1
        assert kept(postgres_queue) == list(range(hour, max(hour - 3, -1), -1))
    tables = sql(
        b"SELECT count(*), max(pg_relation_size(c.oid)) FROM pg_class c WHERE c.relname ~ '^history_[0-9]$'"
    )
    assert tables == [(4, 8192)]
    indexes = sql(b"SELECT indexname FROM pg_indexes WHERE tablename LIKE 'history%'")
    assert indexes == []


def test_a_reader_puts_the_turn_off_and_holds_up_no_ack(
    postgres_queue: PostgresQueue,
    maintenance: Maintenance,
    pass_hours: Callable[[int], None],
    migrated_dsn: str,
) -> None:
    postgres_queue.record("q")
    work(postgres_queue, 1)
    pass_hours(1)
    with psycopg.connect(migrated_dsn) as reader:
        reader.execute("SELECT * FROM tenantq.history")
        assert maintenance.turn_history() == 0
        work(postgres_queue, 2)
    assert maintenance.turn_history() == 1
    work(postgres_queue, 3)
    assert kept(postgres_queue) == [3, 2, 1]


def test_a_worker_that_owns_nothing_records_and_turns(migrated_dsn: str, sql: Sql) -> None:
    sql(b"DROP ROLE IF EXISTS tq_recorder")
    sql(b"CREATE ROLE tq_recorder LOGIN")
    sql(b"GRANT USAGE ON SCHEMA tenantq TO tq_recorder")
    sql(b"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenantq TO tq_recorder")
    sql(b"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA tenantq TO tq_recorder")
    try:
        with PostgresQueue(migrated_dsn.replace("postgres@", "tq_recorder@")) as queue:
            queue.record("q")
            queue.share("q", max_claimed=9)
            work(queue, 1)
            queue.unshare("q")
            maintenance = Maintenance(queue, history_hours=0)
            maintenance.run_once()
            assert kept(queue) == [1]
            maintenance.stop()
    finally:
        sql(b"DROP OWNED BY tq_recorder")
        sql(b"DROP ROLE tq_recorder")


def test_history_checks_its_arguments(postgres_queue: PostgresQueue) -> None:
    for refused in (
        lambda: postgres_queue.record(""),
        lambda: postgres_queue.history(limit=0),
        lambda: postgres_queue.history(tenant=""),
        lambda: Maintenance(postgres_queue, history_hours=-1),
    ):
        with pytest.raises(tenantq.InvalidArgument):
            refused()
