"""An overgrown index is rebuilt, and only then; nothing is left behind, and nobody is waited for without end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from tenantq_bridge import Maintenance, PostgresQueue, read_health
from tenantq_bridge import indexes as module
from tenantq_bridge.indexes import Indexes, Rebuilder
from tests.bridge.conftest import Sql
from tests.pooler import Pooler
from tests.postgres import PostgresServer

pytestmark = pytest.mark.postgres

QUICK = {"lock_timeout": "200", "statement_timeout": "60000"}

REBUILD = b"REINDEX INDEX CONCURRENTLY tenantq.keys_pkey"
FILENODES = b"SELECT pg_relation_filenode('tenantq.keys_pkey'), pg_relation_filenode('tenantq.dead_pkey')"
WRITE = b"INSERT INTO tenantq.keys VALUES ('q', 'open', 0)"
"""Holds up a rebuild before it builds, in a transaction that stays open."""
READ = b"SELECT FROM tenantq.keys LIMIT 1"
"""Holds it up after the new index has taken over, before the old one is dropped."""

SIZE = b"SELECT pg_relation_size('tenantq.keys_pkey')"
LEFT = b"SELECT relname FROM pg_class WHERE relname ~ '_cc(new|old)' ORDER BY relname"
REBUILDS = b"SELECT count(*) FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting%'"


@pytest.fixture
def indexes(postgres_queue: PostgresQueue) -> Indexes:
    return Indexes(postgres_queue.database, min_bytes=500_000, min_factor=5)


@pytest.fixture
def rebuilder(postgres_queue: PostgresQueue, indexes: Indexes) -> Iterator[Rebuilder]:
    made = Rebuilder(postgres_queue.schema, indexes)
    yield made
    made.stop()


@pytest.fixture
def overgrown(sql: Sql) -> None:
    """keys_pkey has few rows left of many; dead_pkey is as large, and full."""
    sql(b"INSERT INTO tenantq.keys SELECT 'q', 'key-' || n, n FROM generate_series(1, 30000) AS n")
    sql(
        b"INSERT INTO tenantq.dead (id, queue, rank, attempts, max_attempts, enqueued_at, visible_at, died_at) "
        b"SELECT n, 'q', 0, 1, 1, now(), now(), now() FROM generate_series(1, 30000) AS n"
    )
    sql(b"DELETE FROM tenantq.keys WHERE id % 100 <> 0")
    sql(b"VACUUM ANALYZE tenantq.keys, tenantq.dead")


def test_an_overgrown_index_is_rebuilt_and_a_full_one_is_not(
    overgrown: None, rebuilder: Rebuilder, sql: Sql
) -> None:
    (before,) = sql(FILENODES)
    (size,) = sql(SIZE)[0]
    assert rebuilder.run_once() == 1
    (after,) = sql(FILENODES)
    assert after[0] != before[0]
    assert after[1] == before[1]
    assert sql(SIZE)[0][0] * 10 < size
    assert sql(LEFT) == []
    assert rebuilder.run_once() == 0
    assert sql(FILENODES) == [after]


def test_the_estimate_is_near_what_a_rebuilt_index_takes(overgrown: None, indexes: Indexes, sql: Sql) -> None:
    sql(b"REINDEX SCHEMA tenantq")
    sizes = {index.name: index for index in indexes.sizes()}
    for name in ("dead_pkey", "dead_by_queue", "keys_pkey"):
        assert 0.6 < sizes[name].needed_bytes / sizes[name].bytes < 1.7, sizes[name]


def test_nothing_is_rebuilt_below_the_thresholds_or_before_rows_were_counted(
    postgres_queue: PostgresQueue, overgrown: None, sql: Sql
) -> None:
    database = postgres_queue.database
    assert Indexes(database).overgrown() == []
    assert Indexes(database, min_bytes=500_000, min_factor=1_000).overgrown() == []
    assert [index.name for index in Indexes(database, min_bytes=500_000).overgrown()] == ["keys_pkey"]
    # Neither VACUUM nor ANALYZE has seen this one.
    sql(b"INSERT INTO tenantq.forwarding (tenant, file_id, epoch_at) VALUES ('acme', '', now())")
    assert "forwarding_pkey" not in {index.name for index in Indexes(database).sizes()}


def test_health_names_an_index_that_is_overgrown(
    postgres_queue: PostgresQueue, overgrown: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Indexes.__init__, "__kwdefaults__", {"min_bytes": 500_000, "min_factor": 5})
    reasons = " ".join(finding.reason for finding in read_health(postgres_queue).findings)
    assert "the index keys_pkey takes" in reasons
    assert "dead_pkey" not in reasons


@pytest.mark.parametrize(
    ("statement", "leftover"), [(WRITE, "keys_pkey_ccnew"), (READ, "keys_pkey_ccold")], ids=["new", "old"]
)
def test_leftovers_of_an_interrupted_rebuild_are_dropped(
    *, overgrown: None, postgres_queue: PostgresQueue, migrated_dsn: str, sql: Sql, statement: bytes, leftover: str
) -> None:
    with psycopg.connect(migrated_dsn) as other:
        other.execute(statement)
        sql(b"SET lock_timeout = 50")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            sql(REBUILD)
    sql(b"RESET lock_timeout")
    assert sql(LEFT) == [(leftover,)]
    (before,) = sql(FILENODES)
    assert Rebuilder(postgres_queue.schema, Indexes(postgres_queue.database)).run_once() == 0
    assert sql(LEFT) == []
    assert sql(FILENODES) == [before]


def test_leftovers_of_a_whole_table_and_of_its_toast_table_are_dropped(
    overgrown: None, postgres_queue: PostgresQueue, migrated_dsn: str, sql: Sql
) -> None:
    with psycopg.connect(migrated_dsn) as writer:
        writer.execute("DELETE FROM tenantq.dead WHERE id = 1")
        sql(b"SET lock_timeout = 50")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            sql(b"REINDEX TABLE CONCURRENTLY tenantq.dead")
    sql(b"RESET lock_timeout")
    left = [row[0] for row in sql(LEFT)]
    assert len(left) == 3
    assert any(name.startswith("pg_toast_") for name in left)
    Rebuilder(postgres_queue.schema, Indexes(postgres_queue.database)).run_once()
    assert sql(LEFT) == []


def test_a_rebuild_that_runs_elsewhere_is_left_alone(
    overgrown: None,
    postgres_queue: PostgresQueue,
    migrated_dsn: str,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SESSION_SETTINGS", QUICK)

    def operate() -> None:
        with psycopg.connect(migrated_dsn, autocommit=True) as operator:
            operator.execute(REBUILD)

    operating = threading.Thread(target=operate)
    with psycopg.connect(migrated_dsn) as writer:
        writer.execute(WRITE)
        operating.start()
        wait_for_a_rebuild(sql, operating)
        rebuilder = Rebuilder(postgres_queue.schema, Indexes(postgres_queue.database))
        assert rebuilder.run_once() == 0
        assert sql(LEFT) == [("keys_pkey_ccnew",)]
    operating.join()
    assert sql(LEFT) == []
    assert sql(SIZE)[0][0] < 100_000


def test_a_forgotten_transaction_is_waited_for_in_bounds_and_the_rebuild_comes_later(
    overgrown: None, rebuilder: Rebuilder, migrated_dsn: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SESSION_SETTINGS", QUICK)
    with psycopg.connect(migrated_dsn) as writer:
        writer.execute(WRITE)
        assert rebuilder.run_once() == 0
        assert sql(SIZE)[0][0] > 500_000
    assert rebuilder.run_once() == 1
    assert sql(LEFT) == []


def test_behind_an_old_snapshot_no_rebuild_is_begun(
    overgrown: None, rebuilder: Rebuilder, migrated_dsn: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SNAPSHOT_AGE", timedelta(0))
    with psycopg.connect(migrated_dsn) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        assert rebuilder.run_once() == 0
        assert sql(LEFT) == []
    assert rebuilder.run_once() == 1


def test_two_never_rebuild_at_once(overgrown: None, rebuilder: Rebuilder, migrated_dsn: str) -> None:
    with psycopg.connect(migrated_dsn, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(hashtextextended('tenantq.reindex', 0))")
        assert rebuilder.run_once() == 0
    while rebuilder.run_once() == 0:
        pass  # the server is ending the other's session


def test_a_rebuild_that_changes_nothing_is_not_repeated(
    overgrown: None, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    wrong = Indexes(postgres_queue.database, min_bytes=500_000, min_factor=0.5)
    rebuilder = Rebuilder(postgres_queue.schema, wrong)
    assert rebuilder.run_once() == 3  # keys_pkey, and the two of dead, to no avail
    (once,) = sql(FILENODES)
    assert rebuilder.run_once() == 0
    assert sql(FILENODES) == [once]


def test_stopping_maintenance_ends_a_rebuild_that_runs(
    overgrown: None, postgres_queue: PostgresQueue, migrated_dsn: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SESSION_SETTINGS", {"lock_timeout": "0", "statement_timeout": "0"})
    monkeypatch.setattr(Indexes.__init__, "__kwdefaults__", {"min_bytes": 500_000, "min_factor": 5})
    with psycopg.connect(migrated_dsn) as writer:
        writer.execute(WRITE)
        with Maintenance(postgres_queue):
            wait_for_a_rebuild(sql)
        assert sql(SIZE)[0][0] > 500_000
    assert Rebuilder(postgres_queue.schema, Indexes(postgres_queue.database)).run_once() == 1
    assert sql(LEFT) == []


@pytest.mark.parametrize("refuses", [True, False], ids=["refuses options", "drops options"])
def test_through_a_pooler_nothing_is_rebuilt_unless_there_is_a_way_past_it(
    *,
    overgrown: None,
    postgres_server: PostgresServer,
    migrated_dsn: str,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
    refuses: bool,
) -> None:
    database = str(psycopg.conninfo.conninfo_to_dict(migrated_dsn)["dbname"])
    (before,) = sql(FILENODES)
    with (
        Pooler(Path(postgres_server.directory), refuses=refuses) as pooler,
        PostgresQueue(pooler.dsn(database), listen=False) as queue,
    ):
        indexes = Indexes(queue.database, min_bytes=500_000, min_factor=5)
        pooled = Rebuilder(queue.schema, indexes)
        with caplog.at_level(logging.WARNING, logger="tenantq.bridge"):
            assert [pooled.run_once(), pooled.run_once()] == [0, 0]
        assert len(caplog.messages) == 1
        assert "no index can be rebuilt" in caplog.text
        assert "direct_dsn" in caplog.text
        assert sql(FILENODES) == [before]
        assert Rebuilder(queue.schema, indexes, direct_dsn=migrated_dsn).run_once() == 1


def test_who_does_not_own_the_tables_rebuilds_nothing(overgrown: None, migrated_dsn: str, sql: Sql) -> None:
    sql(b"CREATE ROLE worker LOGIN")
    try:
        sql(b"GRANT USAGE ON SCHEMA tenantq TO worker")
        sql(b"GRANT SELECT ON ALL TABLES IN SCHEMA tenantq TO worker")
        with PostgresQueue(migrated_dsn.replace("postgres@", "worker@")) as queue:
            indexes = Indexes(queue.database, min_bytes=500_000, min_factor=5)
            assert [(index.name, index.is_ours) for index in indexes.overgrown()] == [("keys_pkey", False)]
            assert Rebuilder(queue.schema, indexes).run_once() == 0
    finally:
        sql(b"DROP OWNED BY worker")
        sql(b"DROP ROLE worker")


def wait_for_a_rebuild(sql: Sql, thread: threading.Thread | None = None) -> None:
    """Return when a REINDEX waits for another transaction."""
    while sql(REBUILDS) == [(0,)]:
        assert thread is None or thread.is_alive(), "it did not wait"
