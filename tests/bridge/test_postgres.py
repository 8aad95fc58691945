"""Connections: outages, restarts, standbys, rights, forks; each a typed error, and a way back."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tenantq
from tenantq_bridge import (
    Forwarder,
    MissingRights,
    PostgresBusy,
    PostgresQueue,
    PostgresReadOnly,
    PostgresTimeout,
    PostgresUnavailable,
)
from tenantq_bridge.errors import PostgresError
from tests.bridge.conftest import Sql
from tests.conftest import start_server
from tests.postgres import PostgresServer, fresh_database

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def own_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    server = start_server(request.config)
    yield server
    server.close()


@pytest.fixture
def own_queue(own_server: PostgresServer) -> Iterator[PostgresQueue]:
    with fresh_database(own_server, migrated=True) as dsn, PostgresQueue(dsn) as queue:
        yield queue


END_SESSIONS = (
    b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
    b"WHERE application_name = 'tenantq' AND datname = current_database()"
)


def test_a_queue_is_made_while_postgres_is_away_and_says_so_at_the_first_call() -> None:
    queue = PostgresQueue("host=/nowhere dbname=shop password=secret")
    with pytest.raises(PostgresUnavailable) as caught:
        queue.enqueue("q", 1)
    assert isinstance(caught.value, tenantq.TenantqError)
    assert caught.value.hint
    assert not caught.value.outcome_unknown
    assert "secret" not in str(caught.value)
    queue.close()


def test_a_dsn_that_is_none_is_refused_at_once_without_its_password() -> None:
    with pytest.raises(tenantq.InvalidArgument) as caught:
        PostgresQueue("postgresql://u:secret@host:port/x y?z=1&")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("schema", ["", "a-b", "pg_x", "A", 'x"; DROP TABLE y', "x" * 49, "1a"])
def test_a_schema_that_is_no_name_is_refused(schema: str) -> None:
    with pytest.raises(tenantq.InvalidArgument):
        PostgresQueue("dbname=x", schema=schema)


def test_sessions_that_were_ended_are_replaced_without_an_error(postgres_queue: PostgresQueue, sql: Sql) -> None:
    postgres_queue.enqueue_many("q", range(4))
    for count in range(3):
        assert sql(END_SESSIONS)
        assert [message.payload for message in postgres_queue.claim("q")] == [count]
    assert postgres_queue.database.losses >= 3


def test_a_restart_is_survived_by_the_next_call(own_server: PostgresServer, own_queue: PostgresQueue) -> None:
    own_queue.enqueue("q", 1)
    [message] = own_queue.claim("q")
    own_server.stop("fast")
    try:
        with pytest.raises(PostgresUnavailable):
            own_queue.claim("q")
    finally:
        own_server.start()
    message.ack()
    own_queue.enqueue("q", 2)
    assert [other.payload for other in own_queue.claim("q", 5)] == [2]


def test_a_server_that_dies_under_a_waiting_claim_is_found_again(
    own_server: PostgresServer, own_queue: PostgresQueue
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(own_queue.claim, "q", wait=60.0)
        own_server.stop("immediate")
        own_server.start()
        try:
            own_queue.enqueue("q", "after")
        except PostgresUnavailable:
            own_queue.enqueue("q", "after")
        try:
            claimed = waiting.result(30)
        except PostgresUnavailable:
            claimed = own_queue.claim("q", wait=30.0)
    assert [message.payload for message in claimed] == ["after"]


def test_an_outage_stops_the_forwarder_and_consumes_nothing(
    own_server: PostgresServer, own_queue: PostgresQueue, store: tenantq.Store
) -> None:
    own_queue.subscribe("q", "*")
    store.tenant("acme").emit("t", 1)
    forwarder = Forwarder(store, own_queue)
    own_server.stop("fast")
    try:
        for _ in range(3):
            with pytest.raises(PostgresUnavailable):
                forwarder.run_once()
        assert store.tenant("acme").outbox.position().pending == 1
        assert forwarder.tenant_failures == {}
    finally:
        own_server.start()
    assert forwarder.run_once() == 1
    assert own_queue.claim("q")[0].attempts == 1
    forwarder.stop()


def test_a_running_forwarder_outlives_an_outage(
    own_server: PostgresServer, own_queue: PostgresQueue, store: tenantq.Store
) -> None:
    own_queue.subscribe("q", "*")
    own_server.stop("fast")
    with Forwarder(store, own_queue, interval=0.01) as forwarder:
        try:
            store.tenant("acme").emit("t", 1)
            deadline = time.monotonic() + 30
            while not forwarder.failures and time.monotonic() < deadline:
                threading.Event().wait(0.01)
        finally:
            own_server.start()
        assert forwarder.failures
        assert [message.payload for message in own_queue.claim("q", wait=30.0)] == [1]


def test_a_session_that_became_read_only_is_replaced(migrated_dsn: str) -> None:
    with PostgresQueue(migrated_dsn, pool_size=1) as queue:
        queue.schema.check()
        queue.database.run(b"SET default_transaction_read_only = on")
        queue.enqueue("q", 1)
        assert len(queue.claim("q", 5)) == 1
        assert queue.database.losses == 1


def test_a_server_that_takes_no_writes_is_named_as_such(migrated_dsn: str, sql: Sql) -> None:
    with PostgresQueue(migrated_dsn) as queue:
        sql(
            b"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', "
            b"current_database()); END $$"
        )
        with pytest.raises(PostgresReadOnly) as caught:
            queue.enqueue("q", 1)
        assert caught.value.hint


def test_a_role_without_rights_is_told_so(postgres_queue: PostgresQueue, migrated_dsn: str, sql: Sql) -> None:
    sql(b"DROP ROLE IF EXISTS tq_nobody")
    sql(b"CREATE ROLE tq_nobody LOGIN")
    try:
        with PostgresQueue(migrated_dsn.replace("postgres@", "tq_nobody@")) as queue:
            with pytest.raises(MissingRights) as caught:
                queue.enqueue("q", 1)
            assert caught.value.hint
            with pytest.raises(MissingRights):
                queue.migrate()
    finally:
        sql(b"DROP ROLE tq_nobody")


def test_a_role_that_owns_nothing_can_do_all_but_migrate(
    migrated_dsn: str, sql: Sql, store: tenantq.Store
) -> None:
    sql(b"DROP ROLE IF EXISTS tq_worker")
    sql(b"CREATE ROLE tq_worker LOGIN")
    sql(b"GRANT USAGE ON SCHEMA tenantq TO tq_worker")
    sql(b"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenantq TO tq_worker")
    sql(b"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA tenantq TO tq_worker")
    try:
        with PostgresQueue(migrated_dsn.replace("postgres@", "tq_worker@")) as queue:
            queue.subscribe("q", "*")
            store.tenant("acme").emit("t", 1)
            forwarder = Forwarder(store, queue)
            assert forwarder.run_once() == 1
            forwarder.stop()
            queue.ack(*queue.claim("q", wait=1.0))
    finally:
        sql(b"DROP OWNED BY tq_worker")
        sql(b"DROP ROLE tq_worker")


def test_a_statement_that_takes_too_long_is_a_typed_error(migrated_dsn: str, sql: Sql) -> None:
    with PostgresQueue(f"{migrated_dsn}&options=-c%20statement_timeout%3D1000") as queue:
        queue.enqueue("q", 1)
        sql(b"BEGIN")
        sql(b"LOCK TABLE tenantq.ready")
        with pytest.raises(PostgresTimeout):
            queue.claim("q")
        sql(b"ROLLBACK")
        assert len(queue.claim("q")) == 1


def test_more_threads_than_connections_take_turns(migrated_dsn: str) -> None:
    with PostgresQueue(migrated_dsn, pool_size=2) as queue, ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda number: queue.enqueue("q", number), range(100)))) == 100


def test_a_pool_that_stays_empty_is_a_typed_error(migrated_dsn: str) -> None:
    with PostgresQueue(migrated_dsn, pool_size=1, acquire_timeout=0.05) as queue:
        with queue.database.transaction(), pytest.raises(PostgresBusy):
            queue.enqueue("q", 1)
        queue.enqueue("q", 1)


def test_a_closed_queue_says_so(migrated_dsn: str) -> None:
    queue = PostgresQueue(migrated_dsn)
    queue.enqueue("q", 1)
    queue.close()
    queue.close()
    with pytest.raises(PostgresError, match="closed"):
        queue.enqueue("q", 1)


def test_a_forked_child_connects_anew_and_leaves_the_parents_sessions_alone(postgres_queue: PostgresQueue) -> None:
    postgres_queue.enqueue("q", "before")
    postgres_queue.claim("none", wait=0.01)
    session = postgres_queue.database.run(b"SELECT pg_backend_pid()")
    pid = os.fork()
    if pid == 0:
        try:
            postgres_queue.enqueue("q", "child")
            [message] = postgres_queue.claim("q", wait=5.0)
            message.ack()
            is_new = postgres_queue.database.run(b"SELECT pg_backend_pid()") != session
            os._exit(0 if is_new and message.payload == "before" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    [message] = postgres_queue.claim("q")
    assert message.payload == "child"
    assert postgres_queue.database.run(b"SELECT pg_backend_pid()") == session
    assert postgres_queue.database.losses == 0


def test_one_notification_at_most_for_a_burst(postgres_queue: PostgresQueue, migrated_dsn: str) -> None:
    from tenantq_bridge._bell import CHANNEL  # noqa: PLC0415

    with PostgresQueue(migrated_dsn) as other:
        heard = other.database.notifications(CHANNEL)
        for number in range(200):
            postgres_queue.enqueue("q", number)
        postgres_queue.close()  # sends what is pending
        count = 0
        while names := heard.wait(0.5):
            count += len(names)
        heard.close()
    assert 1 <= count <= 30


def test_a_listener_whose_session_is_ended_listens_again(
    postgres_queue: PostgresQueue, migrated_dsn: str, sql: Sql
) -> None:
    bell = postgres_queue._bell

    def until(state: bool) -> None:
        deadline = time.monotonic() + 30
        while bell.is_listening is not state:
            assert time.monotonic() < deadline
            threading.Event().wait(0.005)

    with bell.waiter("q") as rung:
        until(True)
        rung.clear()
        sql(
            b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            b"WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        )
        assert rung.wait(30)  # what was rung meanwhile may be lost, so all who wait look again
        until(True)
        rung.clear()
        with PostgresQueue(migrated_dsn) as other:
            other.enqueue("q", 1)
            assert rung.wait(30)


def test_a_connection_with_a_high_descriptor_is_alive_too(migrated_dsn: str) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1200:
        pytest.skip("this process may not open so many files")
    with contextlib.ExitStack() as stack:
        while stack.enter_context(Path(os.devnull).open("rb")).fileno() < 1024:
            pass
        queue = stack.enter_context(PostgresQueue(migrated_dsn))
        for _ in range(3):
            queue.stats()
        assert queue.database.losses == 0
