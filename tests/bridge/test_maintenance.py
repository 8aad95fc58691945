"""What the elected worker does, and that nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tenantq import InvalidArgument
from tenantq_bridge import Maintenance, PostgresQueue
from tests.bridge.conftest import Sql

pytestmark = pytest.mark.postgres


@pytest.fixture
def maintenance(postgres_queue: PostgresQueue) -> Iterator[Maintenance]:
    made = Maintenance(postgres_queue)
    yield made
    made.stop()


@pytest.fixture
def floor(sql: Sql) -> Callable[[], int]:
    def run() -> int:
        return int(sql(b"SELECT max(floor) FROM tenantq.lanes WHERE queue = 'q'")[0][0])

    return run


def open_day(sql: Sql, age: int) -> None:
    """Make the day that was so many days ago."""
    sql(
        b"DO $$ BEGIN EXECUTE format('CREATE TABLE tenantq.seen_%s PARTITION OF tenantq.seen FOR VALUES IN (%L)', "
        b"to_char(current_date - AGE, 'YYYYMMDD'), current_date - AGE); END $$".replace(b"AGE", str(age).encode())
    )


def test_due_messages_are_promoted(
    postgres_queue: PostgresQueue, maintenance: Maintenance, expire: Callable[[], None], sql: Sql
) -> None:
    postgres_queue.enqueue_many("q", ["a", "b"], delay=60)
    assert maintenance.promote() == 0
    expire()
    assert maintenance.run_once() == 2
    assert sql(b"SELECT count(*) FROM tenantq.ready") == [(2,)]


def test_exhausted_messages_of_queues_that_nobody_claims_are_buried(
    postgres_queue: PostgresQueue, maintenance: Maintenance, expire: Callable[[], None]
) -> None:
    postgres_queue.enqueue("q", 1, max_attempts=1)
    postgres_queue.enqueue("q", 2)
    _exhausted, other = postgres_queue.claim("q", 2)
    expire()
    assert maintenance.bury() == 1
    assert [dead.payload for dead in postgres_queue.dead_letters()] == [1]
    other.ack()  # only claims, people and the reaper take a lease that is over


def test_a_way_past_the_pooler_that_is_none_is_told_at_once(postgres_queue: PostgresQueue) -> None:
    with pytest.raises(InvalidArgument):
        Maintenance(postgres_queue, direct_dsn="no dsn")


def test_only_the_elected_one_works(
    postgres_queue: PostgresQueue, maintenance: Maintenance, expire: Callable[[], None], migrated_dsn: str
) -> None:
    postgres_queue.enqueue("q", 1, delay=60)
    expire()
    with psycopg.connect(migrated_dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtextextended('tenantq.maintenance', 0))")
        assert maintenance.run_once() == 0
    assert maintenance.promote() == 1


def test_floors_move_on_behind_what_is_gone(
    postgres_queue: PostgresQueue, maintenance: Maintenance, floor: Callable[[], int]
) -> None:
    ids = postgres_queue.enqueue_many("q", range(3_000))
    postgres_queue.ack(*postgres_queue.claim("q", 2_500))
    maintenance.advance_floors()
    assert floor() == ids[2_500]
    assert [message.payload for message in postgres_queue.claim("q", 1)] == [2_500]


def test_a_row_that_commits_late_is_never_left_below_a_floor(
    postgres_queue: PostgresQueue, maintenance: Maintenance, floor: Callable[[], int], migrated_dsn: str
) -> None:
    postgres_queue.enqueue("q", "first")
    postgres_queue.purge("q")
    with psycopg.connect(migrated_dsn) as late:
        late.execute(
            "SELECT tenantq.enqueue_messages('q', 0::smallint, '0', NULL, NULL, 5, NULL, NULL, ARRAY['\"late\"'], "
            "ARRAY[NULL]::bytea[])"
        )
        postgres_queue.enqueue_many("q", range(3_000))
        postgres_queue.ack(*postgres_queue.claim("q", 3_000))
        for _ in range(3):
            maintenance.advance_floors()
        assert floor() == 0
    assert [message.payload for message in postgres_queue.claim("q", 5)] == ["late"]
    for _ in range(2):
        maintenance.advance_floors()
    assert floor() <= 2
    postgres_queue.purge("q")
    for _ in range(2):
        maintenance.advance_floors()
    assert floor() > 3_000


def test_a_snapshot_held_by_somebody_else_does_not_hold_the_floors(
    postgres_queue: PostgresQueue, maintenance: Maintenance, floor: Callable[[], int], migrated_dsn: str, sql: Sql
) -> None:
    with psycopg.connect(migrated_dsn) as idle:
        idle.execute("CREATE TABLE public.held (x int)")  # has a transaction id, and keeps vacuum away
        for _ in range(3):
            postgres_queue.enqueue_many("q", range(2_000))
            postgres_queue.ack(*postgres_queue.claim("q", 2_000))
            maintenance.advance_floors()
        assert floor() >= 6_000
        with_floor = read_by_a_claim(postgres_queue, sql)
        sql(b"UPDATE tenantq.lanes SET floor = 0")
        without_floor = read_by_a_claim(postgres_queue, sql)
    assert with_floor < 60
    assert without_floor > 5 * with_floor


def read_by_a_claim(queue: PostgresQueue, sql: Sql) -> int:
    """Return how many pages a claim of one message reads, once the session knows the catalog."""
    pages = 0
    for _ in range(2):
        queue.enqueue("q", 1)
        plan = sql(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
            b"SELECT * FROM tenantq.claim_messages('q', 1, interval '1 min', 1, 'w', false)"
        )[0][0][0]["Plan"]
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return pages


def test_messages_come_back_above_the_floor(
    postgres_queue: PostgresQueue, maintenance: Maintenance, expire: Callable[[], None], floor: Callable[[], int]
) -> None:
    postgres_queue.enqueue("q", "released")
    retried = postgres_queue.enqueue("q", "retried")
    first, second = postgres_queue.claim("q", 2)
    second.nack(delay=60)
    dead = postgres_queue.enqueue("q", "dead")
    postgres_queue.claim("q")[0].dead_letter()
    postgres_queue.enqueue_many("q", range(2_000))
    postgres_queue.ack(*postgres_queue.claim("q", 2_000))
    maintenance.advance_floors()
    assert floor() <= first.id
    first.ack()
    maintenance.advance_floors()
    assert floor() > 2_000
    expire()
    postgres_queue.redrive(dead)
    assert {message.id for message in postgres_queue.claim("q", 5)} == {retried, dead}


def test_days_are_opened_ahead_and_dropped_when_they_are_old(maintenance: Maintenance, sql: Sql) -> None:
    days = b"SELECT relname FROM pg_class WHERE relname ~ '^seen_[0-9]+$' AND relkind = 'r' ORDER BY 1"
    assert maintenance.turn_days() == 0
    assert len(sql(days)) == 2
    for age in (9, 8, 7):
        open_day(sql, age)
    assert maintenance.turn_days() == 1
    assert len(sql(days)) == 4
    assert sql(b"SELECT current_date - dropped_through FROM tenantq.seen_window") == [(9,)]


def test_a_day_that_somebody_reads_is_dropped_later(maintenance: Maintenance, sql: Sql, migrated_dsn: str) -> None:
    open_day(sql, 20)
    with psycopg.connect(migrated_dsn) as reader:
        reader.execute("SELECT * FROM tenantq.seen")
        assert maintenance.turn_days() == 0
        assert sql(b"SELECT dropped_through = '-infinity' FROM tenantq.seen_window") == [(True,)]
    assert maintenance.turn_days() == 1
