"""PgBouncer in transaction mode between the queue and Postgres: every verb, the forwarder, and its restart."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import tenantq
from tenantq import LeaseLost
from tenantq_bridge import Forwarder, Maintenance, PostgresQueue, PostgresUnavailable
from tests.pgbouncer import PgBouncer, find_pgbouncer
from tests.postgres import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def pooler(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    program = find_pgbouncer()
    if program is None:
        pytest.skip("pgbouncer is not installed, or there is no user to run it as")
    pooler = PgBouncer(program, postgres_server)
    yield pooler
    pooler.close()


@pytest.fixture
def pooled(pooler: PgBouncer, migrated_dsn: str) -> Iterator[PostgresQueue]:
    """A queue with many more connections than the pooler has sessions for."""
    with PostgresQueue(pooler.behind(migrated_dsn), listen=False) as queue:
        yield queue


def test_the_tables_are_made_through_the_pooler(pooler: PgBouncer, postgres_dsn: str) -> None:
    with PostgresQueue(pooler.behind(postgres_dsn), listen=False) as queue:
        queue.migrate()
        queue.enqueue("q", 1)
        assert len(queue.claim("q")) == 1


def test_every_verb_works_through_the_pooler(pooled: PostgresQueue) -> None:
    pooled.enqueue_many("q", range(12_000))
    assert pooled.enqueue("q", "keyed", key="k", priority=1) == pooled.enqueue("q", "again", key="k")
    first, *others = pooled.claim("q", 200)
    assert (first.payload, others[-1].payload) == ("keyed", 198)
    first.extend(600)
    pooled.ack(first, *others[:100])
    pooled.release(*others[100:110])
    pooled.release(others[110], delay=60)
    others[111].nack(delay=60, error="no")
    others[112].dead_letter(error="never")
    with pytest.raises(LeaseLost):
        others[112].ack()
    stats = pooled.stats("q")
    assert (stats.ready, stats.scheduled, stats.claimed, stats.dead) == (11_811, 2, 86, 1)
    assert [message.payload for message in pooled.peek("q", 1)] == [100]
    assert [dead.error for dead in pooled.dead_letters("q")] == ["never"]
    assert pooled.redrive(queue="q") == 1
    pooled.pause("q")
    assert pooled.claim("q") == []
    pooled.resume("q")
    assert pooled.reap() == 0
    assert pooled.purge("q") == 11_900


def test_threads_that_share_few_sessions_share_no_message(pooled: PostgresQueue) -> None:
    ids = pooled.enqueue_many("q", range(600))

    def work(_: int) -> list[int]:
        mine: list[int] = []
        while messages := pooled.claim("q", 7):
            mine += [message.id for message in messages]
            pooled.ack(*messages)
        return mine

    with ThreadPoolExecutor(8) as pool:
        claimed = [message_id for share in pool.map(work, range(8)) for message_id in share]
    claimed += work(0)  # a claim may come back short beside a racing one
    assert sorted(claimed) == ids


def test_events_are_forwarded_and_maintained_through_the_pooler(
    pooled: PostgresQueue, store: tenantq.Store
) -> None:
    pooled.subscribe("audit", "*")
    pooled.subscribe("invoices", "billing.*")
    for number in range(20):
        store.tenant(f"tenant-{number % 4}").emit("billing.order", number)
    forwarder, maintenance = Forwarder(store, pooled), Maintenance(pooled)
    assert forwarder.run_once() == 20
    assert forwarder.run_once() == 0
    maintenance.run_once()
    assert sorted(message.payload for message in pooled.claim("audit", 50)) == list(range(20))
    assert len(pooled.claim("invoices", 50)) == 20
    forwarder.stop()


def test_a_waiting_claim_polls_and_says_why_it_cannot_listen(
    pooler: PgBouncer, migrated_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "tenantq.bridge"),
        PostgresQueue(pooler.behind(migrated_dsn)) as queue,
        PostgresQueue(migrated_dsn) as direct,
        ThreadPoolExecutor(1) as pool,
    ):
        queue.claim("q", wait=0.01)
        assert queue._bell._listener is not None
        queue._bell._listener.join(30)
        waiting = pool.submit(queue.claim, "q", wait=30.0)
        direct.enqueue("q", "now")
        assert [message.payload for message in waiting.result(20)] == ["now"]
        listening = direct.database.run(b"SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%'")
    assert listening == [(0,)]  # no session of the pooler was left listening
    assert [record.message for record in caplog.records if "pooler" in record.message]


def test_a_pooler_that_restarts_is_survived_by_the_next_call(
    pooler: PgBouncer, pooled: PostgresQueue, store: tenantq.Store
) -> None:
    pooled.subscribe("q", "*")
    store.tenant("acme").emit("t", "before")
    forwarder = Forwarder(store, pooled)
    assert forwarder.run_once() == 1
    [message] = pooled.claim("q")
    pooler.stop()
    try:
        with pytest.raises(PostgresUnavailable):
            pooled.claim("q")
        store.tenant("acme").emit("t", "after")
        with pytest.raises(PostgresUnavailable):
            forwarder.run_once()
    finally:
        pooler.start()
    message.ack()
    assert forwarder.run_once() == 1
    assert [other.payload for other in pooled.claim("q", 5)] == ["after"]
    forwarder.stop()
