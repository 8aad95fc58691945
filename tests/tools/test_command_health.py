"""`tenantq bridge health`, on a real Postgres with a day of samples that a test has made up."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.postgres import PostgresServer
from tests.tools.command import run, spawn

pytestmark = pytest.mark.postgres

Sql = Callable[[bytes], list[tuple[Any, ...]]]

HISTORY = b"""
    INSERT INTO tenantq.samples
    SELECT
        date_bin('30 s', now(), 'epoch') - (600 - n) * interval '30 s', 'ready', 'ready', false, %s, 900, 90, n, n
    FROM generate_series(1, 599) AS n
"""


@pytest.fixture
def sql(postgres_server: PostgresServer, migrated_dsn: str) -> Sql:
    database = str(psycopg.conninfo.conninfo_to_dict(migrated_dsn)["dbname"])
    return lambda statement: postgres_server.execute(statement, database)


def health(dsn: str, *arguments: str, status: int) -> str:
    return run("bridge", "health", *arguments, "--postgres", dsn, status=status).stdout


def test_too_few_samples_have_a_status_of_their_own(migrated_dsn: str, sql: Sql) -> None:
    assert "not enough samples yet: ready cannot be judged yet" in health(migrated_dsn, status=6)
    found = json.loads(health(migrated_dsn, "--json", status=6))
    assert found["verdict"] == "not enough samples yet"
    assert found["samples"] >= 1  # the command's own
    assert found["findings"][0]["advice"].startswith("leave `tenantq bridge run` running")


def test_a_heap_in_its_band_is_healthy(migrated_dsn: str, sql: Sql) -> None:
    sql(HISTORY.replace(b"%s", b"20000000 + n % 7 * 8192"))
    shown = health(migrated_dsn, status=0)
    assert "healthy: each heap stays in its band, and no index grows without its rows" in shown
    assert shown.splitlines()[0].split()[-2:] == ["GROWTH", "HEAP"]
    found = json.loads(health(migrated_dsn, "--json", status=0))
    (heap,) = [heap for heap in found["heaps"] if heap["relation"] == "ready"]
    assert (heap["growth"], heap["trough_bytes"], heap["peak_ever_bytes"]) == ("bounded", 20_000_000, 20_049_152)
    assert 0 < heap["band"] < 0.003


def test_a_setting_that_is_missing_is_a_warning_with_what_to_do(migrated_dsn: str, sql: Sql) -> None:
    sql(HISTORY.replace(b"%s", b"20000000"))
    sql(b"ALTER TABLE tenantq.ready RESET (autovacuum_vacuum_scale_factor)")
    shown = health(migrated_dsn, status=5)
    assert "warning: on ready autovacuum waits" in shown
    assert "  ALTER TABLE ... SET (autovacuum_vacuum_scale_factor = 0.02)" in shown


def test_a_heap_that_still_grows_is_unhealthy(migrated_dsn: str, sql: Sql) -> None:
    sql(HISTORY.replace(b"%s", b"20000000 + n * 65536"))
    found = json.loads(health(migrated_dsn, "--json", status=1))
    assert found["reason"].startswith("the heap of ready still sets new peaks after 5.0 h")


def test_who_holds_the_oldest_snapshot_is_named(migrated_dsn: str) -> None:
    with psycopg.connect(migrated_dsn, application_name="nightly\nreport") as idle:
        idle.execute("SELECT pg_current_xact_id()")
        shown = health(migrated_dsn, status=6)
        held = f"session {idle.info.backend_pid} (idle in transaction, role postgres, application"
    assert held in next(line for line in shown.splitlines() if line.startswith("oldest snapshot: "))


def test_samples_are_taken_while_it_watches(migrated_dsn: str) -> None:
    found = json.loads(health(migrated_dsn, "--watch-for", "0.5", "--interval", "0.1", "--json", status=6))
    assert found["samples"] >= 2


def test_a_signal_ends_the_watch_with_a_verdict(migrated_dsn: str, sql: Sql) -> None:
    process = spawn("bridge", "health", "--watch-for", "3600", "--postgres", migrated_dsn)
    while sql(b"SELECT count(*) FROM tenantq.samples") == [(0,)]:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (6, "")
    assert "not enough samples yet: ready" in out


def test_a_role_that_may_only_read_has_the_report(migrated_dsn: str, sql: Sql) -> None:
    sql(b"CREATE ROLE reader LOGIN")
    try:
        sql(b"GRANT USAGE ON SCHEMA tenantq TO reader")
        sql(b"GRANT SELECT ON ALL TABLES IN SCHEMA tenantq TO reader")
        result = run("bridge", "health", "--postgres", migrated_dsn.replace("postgres@", "reader@"), status=6)
        assert "no samples are taken: permission denied" in result.stderr
        assert "samples: none" in result.stdout
    finally:
        sql(b"DROP OWNED BY reader")
        sql(b"DROP ROLE reader")
