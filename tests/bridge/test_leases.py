"""Claims, leases and fencing, on a real Postgres and with real concurrency."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import tenantq
from tenantq import Backoff, LeaseLost
from tenantq_bridge import PostgresQueue
from tests.bridge.conftest import Sql

pytestmark = pytest.mark.postgres


def test_a_claimed_message_is_nobody_elses(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("q", 1)
    assert len(postgres_queue.claim("q")) == 1
    assert postgres_queue.claim("q") == []


def test_ack_removes_and_settles(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("q", 1)
    [message] = postgres_queue.claim("q")
    message.ack()
    assert message.settled
    assert postgres_queue.stats().queues == ()
    with pytest.raises(LeaseLost) as lost:
        message.ack()
    assert lost.value.lost == (message.id,)


def test_a_lease_that_is_over_holds_until_somebody_takes_the_message(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    postgres_queue.enqueue_many("q", [1, 2])
    first, second = postgres_queue.claim("q", 2)
    expire()
    first.ack()
    second.extend(30)
    assert postgres_queue.claim("q") == []
    second.ack()


def test_an_expired_lease_is_found_by_the_next_claim_without_a_reaper(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    message_id = postgres_queue.enqueue("q", 1)
    [old] = postgres_queue.claim("q", worker="w")
    expire()
    [new] = postgres_queue.claim("q", worker="w")
    assert (new.id, new.attempts) == (message_id, 2)
    for end in (old.ack, old.nack, old.release, old.dead_letter, lambda: old.extend(5)):
        with pytest.raises(LeaseLost):
            end()
    assert not old.settled
    new.ack()


def test_a_batch_ends_what_is_held_and_names_what_was_lost(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    postgres_queue.enqueue_many("q", range(5))
    old = postgres_queue.claim("q", 5)
    expire()
    [taken] = postgres_queue.claim("q", 1)
    with pytest.raises(LeaseLost) as lost:
        postgres_queue.ack(*old)
    assert lost.value.lost == (taken.id,)
    assert [message.settled for message in old] == [False, True, True, True, True]
    taken.ack()
    assert postgres_queue.stats().queues == ()


def test_release_gives_back_the_place_and_the_attempt(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue_many("q", range(3))
    first, second = postgres_queue.claim("q", 2)
    postgres_queue.release(second, first)
    claimed = postgres_queue.claim("q", 3)
    assert [(message.payload, message.attempts) for message in claimed] == [(0, 1), (1, 1), (2, 1)]


def test_release_with_a_delay_counts_no_attempt_even_the_last(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    postgres_queue.enqueue("q", 1, max_attempts=1)
    [message] = postgres_queue.claim("q")
    postgres_queue.release(message, delay=60)
    assert message.settled
    assert postgres_queue.stats("q").scheduled == 1
    expire()
    [again] = postgres_queue.claim("q")
    assert (again.id, again.attempts) == (message.id, 1)


def test_nack_waits_for_the_delay_and_keeps_the_error(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    postgres_queue.enqueue("q", 1, priority=4, headers={"a": "b"})
    [message] = postgres_queue.claim("q")
    message.nack(delay=60, error="broken \0 \ud800")
    assert postgres_queue.claim("q") == []
    expire()
    [again] = postgres_queue.claim("q")
    assert (again.id, again.attempts, again.priority, again.headers) == (message.id, 2, 4, {"a": "b"})
    assert again.error == "broken \N{SYMBOL FOR NULL} ?"


def test_nack_without_a_delay_takes_the_backoff(migrated_dsn: str) -> None:
    backoff = Backoff(base=1000.0, factor=1.0, jitter=0.0)
    with PostgresQueue(migrated_dsn, backoff=backoff) as queue:
        queue.enqueue("q", 1)
        queue.claim("q")[0].nack()
        [waiting] = queue.peek("q")
        assert waiting.visible_at.timestamp() == pytest.approx(time.time() + 1000, abs=60)


def test_nack_with_no_delay_is_claimable_at_once_behind_the_others(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue_many("q", ["a", "b"])
    postgres_queue.claim("q")[0].nack(delay=0)
    assert [message.payload for message in postgres_queue.claim("q", 2)] == ["b", "a"]


def test_the_last_attempt_that_fails_is_a_dead_letter(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("q", 1, max_attempts=2)
    postgres_queue.claim("q")[0].nack(delay=0, error="one")
    postgres_queue.claim("q")[0].nack(delay=0, error="two")
    [dead] = postgres_queue.dead_letters("q")
    assert (dead.attempts, dead.error) == (2, "two")
    assert postgres_queue.claim("q") == []


def test_a_message_that_kills_its_workers_dies_at_claim(
    postgres_queue: PostgresQueue, expire: Callable[[], None]
) -> None:
    poison = [postgres_queue.enqueue("q", "poison", max_attempts=1, priority=1) for _ in range(3)]
    healthy = postgres_queue.enqueue("q", "healthy")
    postgres_queue.claim("q", 3)
    expire()
    [message] = postgres_queue.claim("q", 1)
    assert message.id == healthy
    dead = postgres_queue.dead_letters("q")
    assert [letter.id for letter in dead] == poison
    assert {letter.attempts for letter in dead} == {1}
    assert "lease" in (dead[0].error or "")


def test_reap_takes_back_and_buries(postgres_queue: PostgresQueue, expire: Callable[[], None]) -> None:
    postgres_queue.enqueue("q", 1, max_attempts=1)
    postgres_queue.enqueue("q", 2)
    exhausted, other = postgres_queue.claim("q", 2)
    assert postgres_queue.reap() == 0
    expire()
    assert postgres_queue.reap() == 2
    assert [dead.id for dead in postgres_queue.dead_letters()] == [exhausted.id]
    with pytest.raises(LeaseLost):
        other.ack()
    assert postgres_queue.claim("q")[0].attempts == 2


def test_extend_moves_the_end_of_the_lease(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("q", 1)
    [message] = postgres_queue.claim("q", lease=1)
    before = message.lease_expires_at
    message.extend(3600)
    assert message.lease_expires_at is not None
    assert before is not None
    assert (message.lease_expires_at - before).total_seconds() > 3500
    assert not message.settled


def test_eight_claimers_never_share_a_message_nor_exceed_their_limit(postgres_queue: PostgresQueue) -> None:
    total, workers = 2_000, 8
    ids = postgres_queue.enqueue_many("q", range(total))
    gate = threading.Barrier(workers)

    def work(_worker: int) -> list[int]:
        mine: list[int] = []
        gate.wait()
        while messages := postgres_queue.claim("q", 7, worker="same-name"):
            assert len(messages) <= 7
            mine += [message.id for message in messages]
            postgres_queue.ack(*messages)
        return mine

    with ThreadPoolExecutor(workers) as pool:
        shares = list(pool.map(work, range(workers)))
    claimed = [message_id for share in shares for message_id in share]
    assert len(claimed) == len(set(claimed))
    # A claim may come back short beside a racing one, so what is left is claimed here.
    rest = [message.id for message in postgres_queue.claim("q", total)]
    assert sorted(claimed + rest) == ids


def test_batches_that_share_messages_do_not_deadlock(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue_many("q", range(300))
    messages = postgres_queue.claim("q", 300)
    gate = threading.Barrier(4)

    def release(turn: int) -> int:
        gate.wait()
        try:
            postgres_queue.ack(*(messages if turn % 2 else reversed(messages)))
        except LeaseLost as lost:
            return 300 - len(lost.lost)
        return 300

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(release, range(4))) == 300


def test_a_waiting_claim_is_woken_by_an_enqueue_of_another_process(
    postgres_queue: PostgresQueue, migrated_dsn: str
) -> None:
    postgres_queue.claim("q", wait=0.01)
    with ThreadPoolExecutor(1) as pool, PostgresQueue(migrated_dsn) as other:
        waiting = pool.submit(postgres_queue.claim, "q", wait=30.0)
        other.enqueue("q", "now")
        assert [message.payload for message in waiting.result(20)] == ["now"]


def test_a_waiting_claim_without_notifications_polls(migrated_dsn: str) -> None:
    with (
        PostgresQueue(migrated_dsn, listen=False) as queue,
        PostgresQueue(migrated_dsn) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(queue.claim, "q", wait=30.0)
        other.enqueue("q", "now")
        assert [message.payload for message in waiting.result(20)] == ["now"]


def test_a_waiting_claim_gives_up_in_time(postgres_queue: PostgresQueue) -> None:
    started = time.monotonic()
    assert postgres_queue.claim("q", wait=0.2) == []
    assert 0.2 <= time.monotonic() - started < 5


def test_a_waiting_claim_gets_a_message_whose_delay_ends(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("q", "soon", delay=0.1)
    assert [message.payload for message in postgres_queue.claim("q", wait=10.0)] == ["soon"]


def test_notifications_arrive_for_long_mixed_case_names(postgres_queue: PostgresQueue, migrated_dsn: str) -> None:
    from tenantq_bridge._bell import CHANNEL  # noqa: PLC0415

    name = "Große Warteschlange/" + "Ö" * 100
    with PostgresQueue(migrated_dsn) as other:
        heard = other.database.notifications(CHANNEL)
        for _ in range(5):
            postgres_queue.enqueue(name, 1)
        assert set(heard.wait(20)) == {name}
        heard.close()


def test_only_the_databases_clock_decides(postgres_queue: PostgresQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    postgres_queue.enqueue("q", 1, delay=3600)
    postgres_queue.enqueue("q", 2)
    assert [message.payload for message in postgres_queue.claim("q", 5, lease=60)] == [2]
    assert postgres_queue.claim("q", 5) == []


def test_a_message_of_another_layer_is_refused(postgres_queue: PostgresQueue, store: tenantq.Store) -> None:
    tenant = store.tenant("acme")
    tenant.enqueue("q", 1)
    [message] = tenant.claim("q")
    with pytest.raises(tenantq.InvalidArgument):
        postgres_queue.ack(message)


def test_a_claim_reads_as_little_behind_any_backlog(postgres_queue: PostgresQueue, sql: Sql) -> None:
    def buffers() -> int:
        postgres_queue.enqueue("q", "probe", priority=1)
        plan = sql(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
            b"SELECT * FROM tenantq.claim_messages('q', 1, interval '1 min', 1, 'w', true)"
        )[0][0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    buffers()  # fills the caches of the catalog
    empty = buffers()
    sql(
        b"INSERT INTO tenantq.ready (queue, rank, seq, id, max_attempts, enqueued_at, visible_at, body) "
        b"SELECT q, r, n, n, 5, now(), now(), '1' FROM generate_series(1000000, 1020000) n, "
        b"(VALUES ('q', 0), ('q', 7), ('p', 0)) l (q, r)"
    )
    sql(
        b"INSERT INTO tenantq.delayed (queue, visible_at, id, rank, max_attempts, enqueued_at, body) "
        b"SELECT 'q', now() + interval '1 day', n, -1, 5, now(), '1' FROM generate_series(1, 30000) n"
    )
    sql(b"INSERT INTO tenantq.lanes (queue, rank) VALUES ('q', 7), ('q', 0) ON CONFLICT DO NOTHING")
    # As wrong as the planner can be: statistics of an empty table are what a queue often has.
    sql(b"SET random_page_cost = 1e9")
    sql(b"SET cpu_index_tuple_cost = 1e9")
    sql(b"DISCARD PLANS")
    assert buffers() <= empty + 20
