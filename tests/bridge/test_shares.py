"""Shared queues: tenants take turns, and no more than so many messages are under a lease."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import tenantq
from tenantq import LeaseLost, Message
from tenantq_bridge import Forwarder, Maintenance, PostgresQueue
from tenantq_bridge.errors import PostgresError
from tests.bridge.conftest import Sql

pytestmark = pytest.mark.postgres


def payloads(messages: list[Message[Any]]) -> list[object]:
    return [message.payload for message in messages]


def fill(queue: PostgresQueue) -> None:
    """Let a hundred thousand messages of one tenant wait, and behind them one of each of 99 others."""
    queue.enqueue_many("q", range(100_000), tenant="big")
    for number in range(99):
        queue.enqueue("q", number, tenant=f"small-{number}")


@pytest.mark.parametrize("shared_first", [True, False], ids=["shared at first", "shared behind a backlog"])
def test_small_tenants_are_served_in_the_first_claims_behind_a_backlog_of_another(
    postgres_queue: PostgresQueue, shared_first: bool
) -> None:
    if shared_first:
        postgres_queue.share("q")
    fill(postgres_queue)
    if not shared_first:
        postgres_queue.share("q")
    served = Counter(message.tenant for _ in range(11) for message in postgres_queue.claim("q", 10))
    assert len(served) == 100
    assert served["big"] == 11


def test_a_claim_reads_as_little_behind_any_backlog_of_another_tenant(
    postgres_queue: PostgresQueue, sql: Sql
) -> None:
    postgres_queue.share("q")

    def buffers() -> int:
        postgres_queue.enqueue("q", "probe", tenant="small")
        plan = sql(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
            b"SELECT * FROM tenantq.claim_messages('q', 2, interval '1 min', 1, 'w', true, 'small')"
        )[0][0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    for _ in range(3):
        empty = buffers()
    sql(
        b"INSERT INTO tenantq.waiting "
        b"(queue, tenant_hash, rank, seq, id, tenant, max_attempts, enqueued_at, visible_at, body) "
        b"SELECT 'q', tenantq.hash_tenant(t), 0, n + s, n + s, t, 5, now(), now(), '1' "
        b"FROM generate_series(1000000, 1050000) n, (VALUES ('big', 0), ('large', 100000)) l (t, s)"
    )
    sql(b"SET random_page_cost = 1e9")
    sql(b"SET cpu_index_tuple_cost = 1e9")
    sql(b"DISCARD PLANS")
    buffers()
    assert buffers() <= empty + 40


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_another_tenants_first_message_is_claimed_at_once_and_as_cheaply_behind_a_million(
    postgres_queue: PostgresQueue, sql: Sql, count: int
) -> None:
    postgres_queue.share("q")

    def fill_up(first: int, last: int) -> None:
        sql(
            b"INSERT INTO tenantq.waiting "
            b"(queue, tenant_hash, rank, seq, id, tenant, max_attempts, enqueued_at, visible_at, body) "
            b"SELECT 'q', tenantq.hash_tenant('big'), 0, n, n, 'big', 5, now(), now(), '1' "
            b"FROM generate_series(%(first)s::bigint, %(last)s::bigint) n",
            {"first": 10_000_000 + first, "last": 10_000_000 + last},
        )

    def buffers() -> int:
        postgres_queue.enqueue("q", "probe", tenant="small")
        plan = sql(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
            b"SELECT * FROM tenantq.claim_messages('q', 2, interval '1 min', 1, 'w', true, 'big')"
        )[0][0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    fill_up(1, 20)
    few = max(buffers() for _ in range(4))
    fill_up(21, count)
    buffers()
    assert buffers() <= few + 40
    postgres_queue.enqueue("q", "first", tenant="other")
    with PostgresQueue(sql_dsn(sql)) as fresh:
        claimed = [message.tenant for _ in range(2) for message in fresh.claim("q")]
    assert "other" in claimed


def sql_dsn(sql: Sql) -> str:
    """Return the way to the test's database."""
    [(name,)] = sql(b"SELECT current_database()")
    [(host,)] = sql(b"SHOW unix_socket_directories")
    return f"host={host} user=postgres dbname={name}"


def test_tenants_take_turns_and_each_keeps_its_order_and_priorities(postgres_queue: PostgresQueue) -> None:
    postgres_queue.share("q")
    for tenant in ("a", "b", "c"):
        postgres_queue.enqueue_many("q", [f"{tenant}{number}" for number in range(6)], tenant=tenant)
        postgres_queue.enqueue("q", f"{tenant} first", tenant=tenant, priority=1)
    rounds = [postgres_queue.claim("q", 3) for _ in range(7)]
    for messages in rounds:
        assert {message.tenant for message in messages} == {"a", "b", "c"}
    for tenant in ("a", "b", "c"):
        mine = [message.payload for messages in rounds for message in messages if message.tenant == tenant]
        assert mine == [f"{tenant} first", *(f"{tenant}{number}" for number in range(6))]
    assert postgres_queue.claim("q", 3) == []


def test_one_tenant_alone_gets_all_that_is_claimed(postgres_queue: PostgresQueue) -> None:
    postgres_queue.share("q")
    postgres_queue.enqueue_many("q", range(50), tenant="a")
    postgres_queue.enqueue("q", "b", tenant="b")
    assert sorted(map(str, payloads(postgres_queue.claim("q", 40)))) == sorted([*map(str, range(39)), "b"])


def test_claims_one_at_a_time_come_round_to_every_tenant(postgres_queue: PostgresQueue) -> None:
    postgres_queue.share("q")
    for tenant in range(10):
        postgres_queue.enqueue_many("q", range(20), tenant=f"t{tenant}")
    served = Counter(message.tenant for _ in range(100) for message in postgres_queue.claim("q"))
    assert set(served.values()) == {10}


def test_no_more_than_the_limit_is_claimed_by_fifty_claimers(postgres_queue: PostgresQueue, sql: Sql) -> None:
    """What pgqueuer's #761, #774 and #777 were about: SKIP LOCKED slides past the rows that are counted."""
    postgres_queue.share("q", max_claimed=3)
    ids = postgres_queue.enqueue_many("q", range(200))
    gate = threading.Barrier(50)
    lock = threading.Lock()
    most = held = 0
    done: list[int] = []

    def work(_: int) -> None:
        nonlocal most, held
        gate.wait()
        for _turn in range(1_000):
            messages = postgres_queue.claim("q", 2)
            with lock:
                held += len(messages)
                most = max(most, held)
                done.extend(message.id for message in messages)
                finished = len(done) == len(ids)
                # Before the ack: what it frees may be claimed at once.
                held -= len(messages)
            postgres_queue.ack(*messages)
            if finished:
                return

    watching = threading.Event()
    counts: list[int] = []

    def watch(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not watching.wait(0.002):
                row = connection.execute(
                    "SELECT count(*) FROM tenantq.ready WHERE leased_until IS NOT NULL"
                ).fetchone()
                assert row is not None
                counts.append(row[0])

    dsn = sql(b"SELECT current_database()")[0][0]
    host = sql(b"SHOW unix_socket_directories")[0][0]
    watcher = threading.Thread(target=watch, args=(f"host={host} user=postgres dbname={dsn}",))
    watcher.start()
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(work, range(50)))
    watching.set()
    watcher.join()
    assert sorted(done) == ids
    assert most <= 3
    assert max(counts) == 3


def test_fifty_claims_at_once_get_the_limit_between_them(postgres_queue: PostgresQueue) -> None:
    postgres_queue.share("q", max_claimed=3)
    postgres_queue.enqueue_many("q", range(100))
    gate = threading.Barrier(50)

    def claim(_: int) -> int:
        gate.wait()
        return len(postgres_queue.claim("q", 2))

    with ThreadPoolExecutor(50) as pool:
        assert sum(pool.map(claim, range(50))) == 3
    assert postgres_queue.stats("q").claimed == 3


def test_a_lease_that_ends_makes_room_whichever_way(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    postgres_queue.share("q", max_claimed=2)
    postgres_queue.enqueue_many("q", range(9))

    def both() -> tuple[Message[Any], Message[Any]]:
        first, second = postgres_queue.claim("q", 5)
        assert postgres_queue.claim("q", 5) == []
        return first, second

    first, second = both()
    first.ack()
    second.nack(delay=60)
    first, second = both()
    first.dead_letter()
    second.release()
    first, second = both()
    assert first.payload == 3  # the one that was released kept its place
    expire()
    again = both()
    assert {3, 4} & {message.payload for message in again}
    for message in (first, second):
        with pytest.raises(LeaseLost):
            message.ack()
    assert postgres_queue.purge("q") == 7
    postgres_queue.enqueue_many("q", range(5))
    both()


def test_a_lease_that_is_over_can_be_extended_until_a_claim_wants_its_room(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    postgres_queue.share("q", max_claimed=1)
    postgres_queue.enqueue_many("q", range(3))
    [held] = postgres_queue.claim("q")
    expire()
    held.extend(60)
    assert postgres_queue.claim("q") == []
    expire()
    assert len(postgres_queue.claim("q")) == 1
    with pytest.raises(LeaseLost):
        held.extend(60)


def test_each_tenant_has_its_own_limit(postgres_queue: PostgresQueue) -> None:
    postgres_queue.share("q", max_claimed=5, max_claimed_per_tenant=2)
    for tenant in ("a", "b", "c", None):
        postgres_queue.enqueue_many("q", range(10), tenant=tenant)
    claimed = postgres_queue.claim("q", 100)
    held = Counter(message.tenant for message in claimed)
    assert sorted(held.values()) == [1, 2, 2] or sorted(held.values()) == [1, 1, 1, 2]
    postgres_queue.share("q", max_claimed_per_tenant=2)
    claimed += postgres_queue.claim("q", 100)
    assert Counter(message.tenant for message in claimed) == {"a": 2, "b": 2, "c": 2, None: 2}
    mine = [message for message in claimed if message.tenant == "b"]
    postgres_queue.ack(mine[0])
    assert [(message.tenant, message.payload) for message in postgres_queue.claim("q", 100)] == [("b", 2)]


def test_a_message_that_kills_its_workers_dies_in_a_shared_queue_too(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    postgres_queue.share("q", max_claimed=2)
    poison = postgres_queue.enqueue("q", "poison", max_attempts=1, key="k")
    healthy = postgres_queue.enqueue("q", "healthy")
    assert len(postgres_queue.claim("q")) == 1
    expire()
    assert [message.id for message in postgres_queue.claim("q", 5)] == [healthy]
    assert [(dead.id, dead.attempts) for dead in postgres_queue.dead_letters("q")] == [(poison, 1)]
    assert postgres_queue.enqueue("q", "again", key="k") > healthy


def test_events_reach_a_shared_queue_and_its_tenants_take_turns(
    postgres_queue: PostgresQueue, store: tenantq.Store
) -> None:
    postgres_queue.share("q")
    postgres_queue.subscribe("q", "*")
    postgres_queue.subscribe("ordinary", "*")
    for number in range(100):
        store.tenant("big").emit("t", number)
    store.tenant("small").emit("t", "small")
    forwarder = Forwarder(store, postgres_queue)
    while forwarder.run_once():
        pass
    forwarder.stop()
    assert {message.tenant for message in postgres_queue.claim("q", 2)} == {"big", "small"}
    rest = postgres_queue.claim("q", 200)
    assert [message.payload for message in rest] == list(range(1, 100))
    assert len(postgres_queue.claim("ordinary", 200)) == 101


def test_what_is_delayed_retried_or_redriven_comes_back_to_its_tenant(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    postgres_queue.share("q", max_claimed_per_tenant=1)
    postgres_queue.enqueue("q", "delayed", tenant="a", delay=60)
    postgres_queue.enqueue("q", "dead", tenant="b")
    postgres_queue.enqueue("q", "retried", tenant="c")
    claimed = {message.tenant: message for message in postgres_queue.claim("q", 9)}
    claimed["b"].dead_letter()
    claimed["c"].nack(delay=0)
    expire()
    postgres_queue.redrive(queue="q")
    assert sorted(message.payload for message in postgres_queue.claim("q", 9)) == ["dead", "delayed", "retried"]
    assert postgres_queue.claim("q", 9) == []


def test_stats_and_peek_see_what_waits_in_a_shared_queue(postgres_queue: PostgresQueue) -> None:
    postgres_queue.share("q", max_claimed=1)
    postgres_queue.enqueue_many("q", range(4), tenant="a")
    postgres_queue.enqueue("q", "later", delay=60)
    postgres_queue.claim("q")
    stats = postgres_queue.stats("q")
    assert (stats.ready, stats.claimed, stats.scheduled) == (3, 1, 1)
    assert stats.oldest_age is not None
    assert payloads(postgres_queue.peek("q")) == [1, 2, 3, "later"]
    postgres_queue.pause("q")
    postgres_queue.share("q")
    assert postgres_queue.claim("q") == []


def test_nothing_is_lost_or_out_of_order_by_changes_of_kind_under_load(
    postgres_queue: PostgresQueue, migrated_dsn: str
) -> None:
    tenants, each = ["a", "b", "c"], 400
    got: dict[str, list[int]] = {tenant: [] for tenant in tenants}
    stopping = threading.Event()

    def produce(tenant: str) -> None:
        with PostgresQueue(migrated_dsn) as queue:
            for number in range(0, each, 4):
                queue.enqueue_many("q", range(number, number + 4), tenant=tenant)

    def consume() -> None:
        # One claimer, so that the order of the claims is known.
        with PostgresQueue(migrated_dsn) as queue:
            while sum(map(len, got.values())) < len(tenants) * each and not stopping.is_set():
                messages = queue.claim("q", 7, wait=0.05)
                for message in messages:
                    got[message.tenant or ""].append(message.payload)
                queue.ack(*messages)

    with ThreadPoolExecutor(4) as pool:
        producers = [pool.submit(produce, tenant) for tenant in tenants]
        consumer = pool.submit(consume)
        try:
            with Maintenance(postgres_queue, interval=0.01):
                while not all(producer.done() for producer in producers):
                    postgres_queue.share("q", max_claimed=50)
                    postgres_queue.unshare("q")
            consumer.result(60)
        finally:
            stopping.set()
    for tenant in tenants:
        assert got[tenant] == list(range(each))
    postgres_queue.unshare("q")
    assert postgres_queue.shares() == []
    assert postgres_queue.stats().queues == ()


def test_a_claim_that_began_before_a_limit_counts(postgres_queue: PostgresQueue, migrated_dsn: str) -> None:
    postgres_queue.enqueue_many("q", range(9))
    with ThreadPoolExecutor(2) as pool, psycopg.connect(migrated_dsn) as before:
        before.execute("SELECT * FROM tenantq.claim_messages('q', 2, '1 min', 1, 'w', true)")
        sharing = pool.submit(postgres_queue.share, "q", max_claimed=3)
        with psycopg.connect(migrated_dsn, autocommit=True) as watcher:
            waiting = "SELECT FROM pg_locks WHERE relation = 'tenantq.shared_queues'::regclass AND NOT granted"
            while not watcher.execute(waiting).fetchall():
                assert not sharing.done()
        after = pool.submit(postgres_queue.claim, "q", 9)
        before.commit()
        sharing.result(30)
        assert len(after.result(30)) + len(postgres_queue.claim("q", 9)) == 1
    assert postgres_queue.stats("q").claimed == 3


def test_an_ended_limit_holds_nothing_back(postgres_queue: PostgresQueue) -> None:
    postgres_queue.share("q", max_claimed=1)
    ids = postgres_queue.enqueue_many("q", range(20))
    assert len(postgres_queue.claim("q", 9)) == 1
    postgres_queue.unshare("q")
    assert [(share.queue, share.max_claimed, share.is_ending) for share in postgres_queue.shares()] == [
        ("q", None, True)
    ]
    assert [message.id for message in postgres_queue.claim("q", 30)] == ids[1:]
    assert Maintenance(postgres_queue).tend_shared() == 1
    assert postgres_queue.shares() == []


def test_a_floor_never_passes_what_waits_in_a_shared_queue(
    postgres_queue: PostgresQueue, expire: Callable[[], None], sql: Sql
) -> None:
    maintenance = Maintenance(postgres_queue)
    postgres_queue.share("q")
    ids = postgres_queue.enqueue_many("q", range(3_000), tenant="a")
    postgres_queue.enqueue_many("other", range(3_000))
    for _ in range(2):
        maintenance.advance_floors()
    postgres_queue.claim("q", 3_000)
    postgres_queue.unshare("q")
    for _ in range(2):
        maintenance.advance_floors()
    expire()
    assert [message.id for message in postgres_queue.claim("q", 3_000)] == ids
    maintenance.stop()


def test_a_sorting_whose_caller_is_gone_is_ended_by_maintenance(postgres_queue: PostgresQueue, sql: Sql) -> None:
    postgres_queue.enqueue_many("q", range(1_500), tenant="a")
    sql(b"SELECT tenantq.share_queue('q', NULL, NULL)")  # and then the caller dies
    ids = postgres_queue.enqueue_many("q", range(10), tenant="b")
    assert postgres_queue.claim("q", 1)[0].payload == 0
    maintenance = Maintenance(postgres_queue)
    for _ in range(3):
        maintenance.tend_shared()
    assert sql(b"SELECT state FROM tenantq.shared_queues") == [("open",)]
    assert {message.tenant for message in postgres_queue.claim("q", 2)} == {"a", "b"}
    assert ids
    maintenance.stop()


def test_a_limit_is_refused_where_a_count_would_be_an_old_one(migrated_dsn: str) -> None:
    strict = f"{migrated_dsn}&options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"
    with PostgresQueue(strict) as queue:
        queue.share("q", max_claimed=1)
        with pytest.raises(PostgresError, match="read committed"):
            queue.claim("q")


def test_limits_are_checked(postgres_queue: PostgresQueue) -> None:
    with pytest.raises(tenantq.InvalidArgument):
        postgres_queue.share("q", max_claimed=0)
    with pytest.raises(tenantq.InvalidArgument):
        postgres_queue.share("q", max_claimed_per_tenant=-1)
    with pytest.raises(tenantq.InvalidArgument):
        postgres_queue.share("a\0b")
