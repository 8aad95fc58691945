"""What the bridge's tests share: a store, statements by hand, and time moved in the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenantq
from tenantq_bridge import Forwarder, PostgresQueue

Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def sql(migrated_dsn: str) -> Iterator[Sql]:
    """Run a statement by hand in the test's database."""
    with psycopg.connect(migrated_dsn, autocommit=True) as connection:

        def run(statement: bytes, params: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture
def expire(sql: Sql) -> Callable[[], None]:
    """Let the time of every lease and every delay be over."""

    def run() -> None:
        sql(
            b"UPDATE tenantq.ready SET leased_until = clock_timestamp() - interval '1 s' "
            b"WHERE leased_until IS NOT NULL"
        )
        sql(b"UPDATE tenantq.delayed SET visible_at = clock_timestamp() - interval '1 s'")

    return run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tenantq.Store]:
    with tenantq.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def forwarder(store: tenantq.Store, postgres_queue: PostgresQueue) -> Iterator[Forwarder]:
    made = Forwarder(store, postgres_queue)
    yield made
    made.stop()
