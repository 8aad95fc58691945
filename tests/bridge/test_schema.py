"""Migrations: idempotent, one at a time, refused where a newer program was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest

from tenantq_bridge import PostgresQueue, SchemaMissing, SchemaNewer, SchemaOutdated, UnsupportedPostgres, schema
from tenantq_bridge.schema import SCHEMA_VERSION
from tests.postgres import PostgresServer

pytestmark = pytest.mark.postgres


def test_a_database_without_the_tables_says_what_to_do(postgres_dsn: str) -> None:
    with PostgresQueue(postgres_dsn) as queue:
        with pytest.raises(SchemaMissing) as caught:
            queue.claim("q")
        assert "tenantq bridge migrate" in caught.value.hint
        queue.migrate()
        assert queue.claim("q") == []


def test_migrating_again_changes_nothing(postgres_dsn: str) -> None:
    with PostgresQueue(postgres_dsn) as queue:
        queue.migrate()
        queue.enqueue("q", 1)
        queue.migrate()
        assert len(queue.claim("q")) == 1


def test_migrations_that_race_all_succeed(postgres_dsn: str) -> None:
    def migrate(_: int) -> None:
        with PostgresQueue(postgres_dsn) as queue:
            queue.migrate()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, range(4)))
    with psycopg.connect(postgres_dsn) as connection:
        versions = connection.execute("SELECT version FROM tenantq.migrations").fetchall()
    assert versions == [(version,) for version in range(1, SCHEMA_VERSION + 1)]


def test_a_newer_schema_is_refused_and_left_as_it_is(postgres_dsn: str) -> None:
    with PostgresQueue(postgres_dsn) as queue:
        queue.migrate()
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("INSERT INTO tenantq.migrations VALUES (99, now())")
    with PostgresQueue(postgres_dsn) as queue:
        for use in (queue.migrate, lambda: queue.enqueue("q", 1), queue.stats, queue.subscriptions):
            with pytest.raises(SchemaNewer):
                use()
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM tenantq.ready").fetchone() == (0,)


def test_an_older_schema_asks_for_a_migration(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE SCHEMA tenantq")
        connection.execute("CREATE TABLE tenantq.migrations (version integer PRIMARY KEY, applied_at timestamptz)")
    with PostgresQueue(postgres_dsn) as queue:
        with pytest.raises(SchemaOutdated) as caught:
            queue.claim("q")
        assert "migrate" in caught.value.hint
        queue.migrate()
        assert queue.claim("q") == []


def test_two_schemas_in_one_database_know_nothing_of_each_other(postgres_dsn: str) -> None:
    with PostgresQueue(postgres_dsn, schema="one") as one, PostgresQueue(postgres_dsn, schema="select") as two:
        one.migrate()
        two.migrate()
        one.enqueue("q", 1)
        assert two.claim("q") == []
        assert len(one.claim("q")) == 1


def test_a_database_in_another_encoding_is_refused(postgres_server: PostgresServer) -> None:
    postgres_server.execute(
        b"CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    try:
        with PostgresQueue(postgres_server.dsn("latin")) as queue, pytest.raises(UnsupportedPostgres):
            queue.migrate()
    finally:
        postgres_server.drop_database("dbname=latin")


def test_every_table_has_the_documents_autovacuum_settings_days_of_seen_too(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 1)
    with PostgresQueue(postgres_dsn) as queue:
        queue.migrate()
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("SELECT tenantq.open_seen_days()")
    monkeypatch.undo()
    with PostgresQueue(postgres_dsn) as queue:
        queue.migrate()
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("DROP TABLE tenantq.seen_" + datetime.now(UTC).strftime("%Y%m%d"))
        connection.execute("SELECT tenantq.open_seen_days()")
        options = connection.execute(
            "SELECT relname, reloptions FROM pg_class "
            "WHERE relnamespace = 'tenantq'::regnamespace AND relkind = 'r'"
        ).fetchall()
    assert len([table for table, _ in options if table.startswith("seen_2")]) == 2
    for table, found in options:
        settings = dict(option.split("=") for option in found or ())
        assert settings.get("autovacuum_vacuum_scale_factor") == "0.02", table
        assert settings.get("autovacuum_vacuum_cost_delay") == "0", table
        assert int(settings["autovacuum_vacuum_threshold"]) <= 1_000, table


def test_an_older_schema_is_brought_up_and_keeps_what_is_in_it(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresQueue(postgres_dsn) as queue, monkeypatch.context() as patched:
        patched.setattr("tenantq_bridge.schema.SCHEMA_VERSION", 1)
        queue.migrate()
        queue.database.run(
            b"SELECT tenantq.enqueue_messages('q', 0::smallint, '0', NULL, NULL, 5, NULL, NULL, ARRAY['1'], "
            b"ARRAY[NULL]::bytea[])"
        )
    with PostgresQueue(postgres_dsn) as queue:
        with pytest.raises(SchemaOutdated):
            queue.owners()
        queue.migrate()
        assert queue.owners() == []
        assert [message.payload for message in queue.claim("q")] == [1]


def test_the_hot_table_has_one_index_and_the_documents_settings(postgres_dsn: str) -> None:
    with PostgresQueue(postgres_dsn) as queue:
        queue.migrate()
    with psycopg.connect(postgres_dsn) as connection:
        indexes = connection.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'ready'").fetchall()
        options = connection.execute(
            "SELECT reloptions FROM pg_class WHERE oid = 'tenantq.ready'::regclass"
        ).fetchone()
    assert indexes == [("ready_pkey",)]
    assert options is not None
    assert {"fillfactor=60", "autovacuum_vacuum_scale_factor=0.02"} <= set(options[0])


def test_messages_of_the_first_version_are_claimed_after_the_migration(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresQueue(postgres_dsn) as queue, monkeypatch.context() as patched:
        patched.setattr("tenantq_bridge.schema.SCHEMA_VERSION", 1)
        queue.migrate()
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(
            "SELECT tenantq.enqueue_messages('q', 0::smallint, '0', NULL, NULL, 5, NULL, NULL, ARRAY['1'], "
            "ARRAY[NULL]::bytea[])"
        )
    with PostgresQueue(postgres_dsn) as queue:
        with pytest.raises(SchemaOutdated):
            queue.claim("q")
        queue.migrate()
        [message] = queue.claim("q")
        assert message.payload == 1
        message.ack()
