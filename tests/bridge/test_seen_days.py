"""The days of what was forwarded are opened by whoever comes first, and whoever comes second is content."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

pytestmark = pytest.mark.postgres

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('\"tenantq\".seen', 0))"
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
DAYS = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'tenantq.seen'::regclass"


def open_days(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT tenantq.open_seen_days()")


def test_two_that_find_no_day_at_once_open_it_once(migrated_dsn: str) -> None:
    with ThreadPoolExecutor(2) as pool, psycopg.connect(migrated_dsn, autocommit=True) as watching:
        with psycopg.connect(migrated_dsn) as holding:
            holding.execute(LOCK)
            both = [pool.submit(open_days, migrated_dsn) for _ in range(2)]
            while watching.execute(WAITING).fetchone() != (2,):
                assert not any(one.done() for one in both), "it does not wait for the lock"
        for one in both:
            one.result()
        assert watching.execute(DAYS).fetchone() == (2,)
