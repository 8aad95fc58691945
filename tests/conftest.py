"""Fixtures that several packages' tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenantq_bridge import PostgresQueue
from tests import opens
from tests.postgres import PostgresServer, embedded_server, fresh_database, system_server

opens.watch_opens()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres",
        choices=["embedded", "system"],
        default="embedded",
        help="which Postgres the tests run on: the embedded one, or the system's 15",
    )


@pytest.fixture(autouse=True)
def _only_sqlite_opens_tenants() -> Iterator[None]:
    """Whatever a test does, tenantq opens no tenant's file that its process has open, but by SQLite."""
    yield
    told, opens.found[:] = opens.found[:], []
    assert told == []


def start_server(config: pytest.Config) -> PostgresServer:
    """Start the server that the command line asks for."""
    server = embedded_server() if config.getoption("--postgres") == "embedded" else system_server()
    if server is None:
        pytest.skip("there is no system Postgres 15 to run")
    return server


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """One server for the session; a test that stops one starts its own."""
    server = start_server(request.config)
    yield server
    server.close()


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh, empty database."""
    with fresh_database(postgres_server, migrated=False) as dsn:
        yield dsn


@pytest.fixture
def migrated_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh database with the queue's tables."""
    with fresh_database(postgres_server, migrated=True) as dsn:
        yield dsn


@pytest.fixture
def postgres_queue(migrated_dsn: str) -> Iterator[PostgresQueue]:
    """A queue on a fresh database with its tables."""
    with PostgresQueue(migrated_dsn) as queue:
        yield queue
