"""Sizes, snapshots and settings as a real Postgres has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import tenantq
from tenantq_bridge import (
    Forwarder,
    HealthVerdict,
    HolderKind,
    Maintenance,
    MissingRights,
    PostgresQueue,
    read_health,
    take_sample,
)
from tests.bridge.conftest import Sql
from tests.conftest import start_server
from tests.postgres import PostgresServer, fresh_database

pytestmark = pytest.mark.postgres

INTERVAL = 0.001


@pytest.fixture
def maintenance(postgres_queue: PostgresQueue) -> Iterator[Maintenance]:
    made = Maintenance(postgres_queue)
    yield made
    made.stop()


@pytest.fixture
def watcher_dsn(postgres_server: PostgresServer, migrated_dsn: str, sql: Sql) -> Iterator[str]:
    """A role that may use the tables, and sees of other roles' sessions only what everyone does."""
    sql(b"CREATE ROLE watcher LOGIN")
    sql(b"GRANT USAGE ON SCHEMA tenantq TO watcher")
    sql(b"GRANT SELECT ON ALL TABLES IN SCHEMA tenantq TO watcher")
    yield migrated_dsn.replace("postgres@", "watcher@")
    sql(b"DROP OWNED BY watcher")
    sql(b"DROP ROLE watcher")


def test_leaves_toast_and_indexes_are_sampled_each_alone(
    postgres_queue: PostgresQueue, store: tenantq.Store, forwarder: Forwarder, sql: Sql
) -> None:
    postgres_queue.subscribe("q", "*")
    store.tenant("acme").emit("a", "x")
    forwarder.run_once()
    sql(b"UPDATE tenantq.ready SET body = (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 900) AS n)")
    assert take_sample(postgres_queue, interval=INTERVAL)
    (day,) = sql(
        b"SELECT relname FROM pg_class WHERE relname ~ '^seen_' AND relkind = 'r' ORDER BY relname LIMIT 1"
    )
    sizes: dict[str, int] = dict(sql(b"SELECT relation, bytes FROM tenantq.samples"))
    # The day that is filled is there, its partitioned parent is not.
    assert "seen" not in sizes
    assert day[0] in sizes
    assert f"{day[0]}_tenant_idx" in sizes
    assert sizes["ready (toast)"] > 0
    for relation in ("ready", "ready_pkey"):
        assert (sizes[relation],) == sql(f"SELECT pg_relation_size('tenantq.{relation}')".encode())[0]
    assert sizes["ready"] > 0
    health = read_health(postgres_queue)
    assert {heap.relation for heap in health.heaps} >= {"ready", "ready (toast)"}
    assert {index.relation for index in health.indexes} >= {"ready_pkey", "ready (toast index)"}


def test_one_interval_has_one_sample(postgres_queue: PostgresQueue, maintenance: Maintenance, sql: Sql) -> None:
    def moments() -> list[tuple[Any, ...]]:
        return sql(b"SELECT DISTINCT sampled_at FROM tenantq.samples")

    postgres_queue.enqueue("q", 1)
    assert take_sample(postgres_queue, interval=3_600)
    assert not take_sample(postgres_queue, interval=3_600)
    assert len(moments()) == 1
    sql(b"DELETE FROM tenantq.samples")
    assert maintenance.sample() == 1
    assert len(moments()) == 1
    with pytest.raises(tenantq.InvalidArgument):
        take_sample(postgres_queue, interval=0)


def test_the_elected_one_samples_by_itself(
    postgres_queue: PostgresQueue, maintenance: Maintenance, migrated_dsn: str, sql: Sql
) -> None:
    with psycopg.connect(migrated_dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtextextended('tenantq.maintenance', 0))")
        assert maintenance.sample() == 0
    maintenance.run_once()
    assert read_health(postgres_queue).samples == 1


def test_samples_are_kept_for_a_day(postgres_queue: PostgresQueue, sql: Sql) -> None:
    sql(
        b"INSERT INTO tenantq.samples "
        b"SELECT clock_timestamp() - n * interval '1 min', 'q', 'q', false, n, 0, 0, 0, 0 "
        b"FROM generate_series(1, 5000) AS n"
    )
    for _ in range(5):  # in bounded steps
        take_sample(postgres_queue, interval=INTERVAL)
    oldest, count = sql(b"SELECT max(bytes), count(*) FROM tenantq.samples WHERE relation = 'q'")[0]
    assert oldest == count
    assert oldest in {1_439, 1_440}


def test_a_sample_does_not_wait_for_a_table_that_is_being_emptied(
    postgres_queue: PostgresQueue, maintenance: Maintenance, migrated_dsn: str
) -> None:
    with psycopg.connect(migrated_dsn) as other:
        other.execute("TRUNCATE tenantq.dead")
        assert maintenance.sample() == 0
        assert not take_sample(postgres_queue)
    assert take_sample(postgres_queue)


def test_a_session_that_is_idle_in_a_transaction_is_named(
    postgres_queue: PostgresQueue, migrated_dsn: str
) -> None:
    with psycopg.connect(migrated_dsn, application_name="nightly report") as idle:
        idle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        idle.execute("SELECT count(*) FROM tenantq.ready")
        pid = idle.info.backend_pid
        holders = read_health(postgres_queue).holders
        (found,) = [holder for holder in holders if holder.pid == pid]
        assert (found.kind, found.state) == (HolderKind.SESSION, "idle in transaction")
        assert found.seconds is not None
        assert not found.is_hidden
        assert (
            f"session {pid} (idle in transaction, role postgres, application 'nightly report')" == found.described
        )
    assert pid not in {holder.pid for holder in read_health(postgres_queue).holders}


def test_the_oldest_holder_comes_first(postgres_queue: PostgresQueue, migrated_dsn: str, sql: Sql) -> None:
    with psycopg.connect(migrated_dsn) as old, psycopg.connect(migrated_dsn) as young:
        old.execute("SELECT pg_current_xact_id()")  # holds the horizon by its id alone, with no snapshot open
        sql(b"SELECT pg_current_xact_id()")
        young.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        young.execute("SELECT 1")
        holders = read_health(postgres_queue).holders
        pids = [holder.pid for holder in holders]
        assert pids.index(old.info.backend_pid) <= pids.index(young.info.backend_pid)
        ages = [holder.transactions for holder in holders]
        assert ages == sorted(ages, reverse=True)


def test_of_another_roles_session_the_transactions_are_seen_and_the_rest_is_said_to_be_hidden(
    watcher_dsn: str, migrated_dsn: str, sql: Sql
) -> None:
    with psycopg.connect(migrated_dsn) as idle, PostgresQueue(watcher_dsn) as queue:
        idle.execute("SELECT pg_current_xact_id()")
        sql(b"SELECT pg_current_xact_id()")
        health = read_health(queue)
        (found,) = [holder for holder in health.holders if holder.pid == idle.info.backend_pid]
        assert (found.is_hidden, found.seconds, found.state) == (True, None, None)
        assert found.transactions >= 1
        assert f"session {found.pid} (state hidden, role postgres)" in found.described
        assert any("pg_read_all_stats" in finding.advice for finding in health.findings)
        sql(b"GRANT pg_read_all_stats TO watcher")
        (found,) = [holder for holder in read_health(queue).holders if holder.pid == idle.info.backend_pid]
        assert (found.is_hidden, found.state) == (False, "idle in transaction")


def test_who_may_only_read_has_the_report_and_takes_no_sample(watcher_dsn: str) -> None:
    with PostgresQueue(watcher_dsn) as queue:
        assert read_health(queue).verdict is HealthVerdict.UNKNOWN
        with pytest.raises(MissingRights):
            take_sample(queue)


def test_the_settings_in_effect_are_read(postgres_queue: PostgresQueue, sql: Sql) -> None:
    settings = read_health(postgres_queue).autovacuum
    assert settings.is_enabled
    assert {table.scale_factor for table in settings.tables} == {0.02}
    sql(b"ALTER TABLE tenantq.ready RESET (autovacuum_vacuum_scale_factor)")
    sql(b"ALTER TABLE tenantq.keys SET (autovacuum_enabled = off)")
    reasons = " ".join(finding.reason for finding in read_health(postgres_queue).findings)
    assert "autovacuum is off on keys" in reasons
    assert "on ready autovacuum waits until a large part of the rows is dead" in reasons


def test_a_table_that_was_dropped_has_nothing_to_say(postgres_queue: PostgresQueue, sql: Sql) -> None:
    sql(
        b"INSERT INTO tenantq.samples "
        b"VALUES (clock_timestamp(), 'seen_20260101', 'seen_20260101', false, 8192, 1, 0, 0, 0)"
    )
    assert "seen_20260101" not in {heap.relation for heap in read_health(postgres_queue).heaps}


def test_a_prepared_transaction_that_nobody_ends_is_named(request: pytest.FixtureRequest) -> None:
    server = start_server(request.config)
    try:
        server.execute(b"ALTER SYSTEM SET max_prepared_transactions = 2")
        server.stop()
        server.start()
        with fresh_database(server, migrated=True) as dsn, PostgresQueue(dsn) as queue:
            with psycopg.connect(dsn) as connection:
                connection.execute("SELECT pg_current_xact_id()")
                connection.execute("PREPARE TRANSACTION 'forgotten'")
            (found,) = [holder for holder in read_health(queue).holders if holder.kind is HolderKind.PREPARED]
            assert (found.name, found.role, found.pid) == ("forgotten", "postgres", None)
            assert found.seconds is not None
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("ROLLBACK PREPARED 'forgotten'")
    finally:
        server.close()
