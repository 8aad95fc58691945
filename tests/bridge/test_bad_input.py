"""What a user or an administrator can get wrong: each a typed error with a hint, and nothing is lost by it."""

from __future__ import annotations

import contextlib
import tracemalloc
import uuid
from collections.abc import Callable, Iterator

import msgspec
import psycopg
import pytest

import tenantq
from tenantq.errors import InvalidArgument, InvalidName, PayloadTooLarge
from tenantq_bridge import (
    BreakerState,
    Deliverer,
    Forwarder,
    Maintenance,
    MissingRights,
    PostgresBusy,
    PostgresError,
    PostgresQueue,
    PostgresReadOnly,
    PostgresTimeout,
    PostgresUnavailable,
    SchemaNewer,
    SchemaOutdated,
)
from tests.bridge.conftest import Sql
from tests.bridge.test_forwarder import drain
from tests.conftest import start_server
from tests.postgres import PostgresServer
from tests.tools.command import run

pytestmark = pytest.mark.postgres

TABLES = (
    b"tenantq.ready, tenantq.delayed, tenantq.forwarding, tenantq.subscriptions, tenantq.owners, "
    b"tenantq.shared_queues"
)


class World(msgspec.Struct, kw_only=True):
    """A database with the tables, as somebody else leaves it for us."""

    dsn: str
    sql: Sql
    role: str

    def option(self, option: str) -> str:
        return f"{self.dsn}&options=-c%20{option.replace('=', '%3D')}"

    def with_role(self, *grants: str) -> str:
        self.sql(f"CREATE ROLE {self.role} LOGIN".encode())
        for grant in grants:
            self.sql(f"{grant} {self.role}".encode())
        return self.dsn.replace("postgres@", f"{self.role}@")


@contextlib.contextmanager
def nowhere(_world: World) -> Iterator[str]:
    yield "host=no.such.host.invalid dbname=shop password=secret connect_timeout=2"


@contextlib.contextmanager
def refused_port(_world: World) -> Iterator[str]:
    yield "postgresql://app:secret@127.0.0.1:1/shop"


@contextlib.contextmanager
def no_such_database(world: World) -> Iterator[str]:
    yield psycopg.conninfo.make_conninfo(world.dsn, dbname="none")


@contextlib.contextmanager
def no_such_role(world: World) -> Iterator[str]:
    yield world.dsn.replace("postgres@", "no_such_role:secret@")


@contextlib.contextmanager
def no_rights(world: World) -> Iterator[str]:
    yield world.with_role()


@contextlib.contextmanager
def no_right_to_one_table(world: World) -> Iterator[str]:
    yield world.with_role(
        "GRANT USAGE ON SCHEMA tenantq TO",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenantq TO",
        "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA tenantq TO",
        f"REVOKE ALL ON {TABLES.decode()} FROM",
    )


@contextlib.contextmanager
def older_schema(world: World) -> Iterator[str]:
    [(version,)] = world.sql(b"DELETE FROM tenantq.migrations WHERE version > 1 RETURNING 1")[:1]
    yield world.dsn
    world.sql(b"INSERT INTO tenantq.migrations SELECT n, now() FROM generate_series(2, 4) AS n")
    assert version == 1


@contextlib.contextmanager
def newer_schema(world: World) -> Iterator[str]:
    world.sql(b"INSERT INTO tenantq.migrations VALUES (99, now())")
    yield world.dsn
    world.sql(b"DELETE FROM tenantq.migrations WHERE version = 99")


@contextlib.contextmanager
def read_only(world: World) -> Iterator[str]:
    yield world.option("default_transaction_read_only=on")


@contextlib.contextmanager
def statement_timeout(world: World) -> Iterator[str]:
    with psycopg.connect(world.dsn) as holder:
        holder.execute(b"LOCK TABLE " + TABLES)
        yield world.option("statement_timeout=200")


@contextlib.contextmanager
def lock_timeout(world: World) -> Iterator[str]:
    with psycopg.connect(world.dsn) as holder:
        holder.execute(b"LOCK TABLE " + TABLES)
        yield world.option("lock_timeout=100")


CONDITIONS: list[tuple[Callable[[World], contextlib.AbstractContextManager[str]], type[PostgresError], str]] = [
    (nowhere, PostgresUnavailable, "DSN"),
    (refused_port, PostgresUnavailable, "DSN"),
    (no_such_database, PostgresUnavailable, "DSN"),
    (no_such_role, PostgresUnavailable, "DSN"),
    (no_rights, MissingRights, "grant"),
    (no_right_to_one_table, MissingRights, "grant"),
    (older_schema, SchemaOutdated, "tenantq bridge migrate"),
    (newer_schema, SchemaNewer, "upgrade"),
    (read_only, PostgresReadOnly, "primary"),
    (statement_timeout, PostgresTimeout, "statement_timeout"),
    (lock_timeout, PostgresBusy, "long transaction"),
]


@pytest.fixture
def world(migrated_dsn: str, sql: Sql) -> Iterator[World]:
    made = World(dsn=migrated_dsn, sql=sql, role=f"tq_{uuid.uuid4().hex[:12]}")
    yield made
    if sql(b"SELECT FROM pg_roles WHERE rolname = %(role)s", {"role": made.role}):
        sql(f"DROP OWNED BY {made.role}; DROP ROLE {made.role}".encode())


@pytest.mark.parametrize(("condition", "error", "hint"), CONDITIONS, ids=[each[0].__name__ for each in CONDITIONS])
def test_what_is_wrong_with_postgres_is_told_by_everything_that_uses_it_and_loses_nothing(
    *,
    condition: Callable[[World], contextlib.AbstractContextManager[str]],
    error: type[PostgresError],
    hint: str,
    world: World,
    store: tenantq.Store,
    postgres_queue: PostgresQueue,
) -> None:
    postgres_queue.subscribe("q", "*")
    postgres_queue.enqueue("q", "before")
    store.tenant("acme").emit("t", "event")
    with condition(world) as dsn, PostgresQueue(dsn) as queue:
        forwarder, deliverer = Forwarder(store, queue), Deliverer(store, queue)
        calls: dict[str, Callable[[], object]] = {
            "enqueue": lambda: queue.enqueue("q", 1),
            "enqueue_many": lambda: queue.enqueue_many("q", range(6_000)),
            "claim": lambda: queue.claim("q"),
            "subscribe": lambda: queue.subscribe("q", "other"),
            "share": lambda: queue.share("q"),
            "forwarder": forwarder.run_once,
            "deliverer": deliverer.run_once,
            "maintenance": Maintenance(queue).run_once,
        }
        for name, call in calls.items():
            with pytest.raises(error) as caught:
                call()
            assert hint in caught.value.hint, name
            assert "secret" not in str(caught.value)
            assert not getattr(caught.value, "outcome_unknown", False), name
        assert forwarder.breaker.state is BreakerState.OPEN
        assert deliverer._outages == 1  # so it waits, for longer each time
        result = run("bridge", "subscribe", "q", "other", "--postgres", dsn, status=4)
        assert hint in result.stderr
        assert "secret" not in result.stderr
        assert len(result.stderr.splitlines()) == 2
        forwarder.stop()
        deliverer.stop()
    assert store.tenant("acme").outbox.position().pending == 1
    forwarder = Forwarder(store, postgres_queue)
    assert drain(forwarder) == 1
    forwarder.stop()
    assert [(each.payload, each.attempts) for each in postgres_queue.claim("q", 9)] == [
        ("before", 1),
        ("event", 1),
    ]
    assert [each.pattern for each in postgres_queue.subscriptions()] == ["*"]
    assert postgres_queue.shares() == []


def test_a_dsn_that_is_none_is_wrong_usage_of_the_command() -> None:
    result = run("bridge", "status", "--postgres", "postgresql://u:secret@host:port/x y", status=2)
    assert "hint: postgresql://" in result.stderr
    assert "secret" not in result.stderr


@pytest.fixture
def locked_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server that asks one of its roles for a password."""
    server = start_server(request.config)
    rules = server.directory / "data" / "pg_hba.conf"
    rules.write_text("local all tq_locked scram-sha-256\n" + rules.read_text())
    server.execute(b"CREATE ROLE tq_locked LOGIN PASSWORD 'right'")
    server.execute(b"SELECT pg_reload_conf()")
    yield server
    server.close()


@pytest.mark.parametrize("password", ["wr0ng-secret", None], ids=["wrong", "none"])
def test_a_password_that_is_wrong_or_missing_is_told_and_not_shown(
    locked_server: PostgresServer, password: str | None
) -> None:
    dsn = psycopg.conninfo.make_conninfo(locked_server.dsn(), user="tq_locked", password=password)
    with PostgresQueue(dsn) as queue, pytest.raises(PostgresUnavailable) as caught:
        queue.enqueue("q", 1)
    assert "password" in caught.value.hint
    assert "password" in caught.value.message
    assert "wr0ng-secret" not in str(caught.value)


def test_a_role_that_may_not_create_is_told_so_by_a_migration(world: World, postgres_dsn: str) -> None:
    dsn = world.with_role().replace(world.dsn.rpartition("/")[2].partition("?")[0], "")
    name = psycopg.conninfo.conninfo_to_dict(postgres_dsn)["dbname"]
    with PostgresQueue(psycopg.conninfo.make_conninfo(dsn, dbname=str(name))) as queue:
        with pytest.raises(MissingRights) as caught:
            queue.migrate()
        assert "owner" in caught.value.hint
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute("SELECT to_regnamespace('tenantq')").fetchone() == (None,)


def test_a_batch_that_takes_longer_than_a_statement_may_is_halved_until_it_passes(
    world: World, store: tenantq.Store, postgres_queue: PostgresQueue
) -> None:
    world.sql(
        b"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        b"$$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$"
    )
    world.sql(b"CREATE TRIGGER slow BEFORE INSERT ON tenantq.ready FOR EACH ROW EXECUTE FUNCTION slow()")
    postgres_queue.subscribe("q", "*")
    with store.tenant("acme").transaction() as tx:
        for number in range(60):
            tx.emit("t", number)
    store.tenant("small").emit("t", "small")
    timeouts = done = 0
    with PostgresQueue(world.option("statement_timeout=900")) as queue:
        forwarder = Forwarder(store, queue, batch_rows=100)
        while done < 61:
            assert timeouts < 20
            try:
                done += forwarder.run_once()
            except PostgresTimeout:
                timeouts += 1
                assert forwarder._packer._rows < 100
        world.sql(b"DROP TRIGGER slow ON tenantq.ready")
        for number in range(7):
            store.tenant("small").emit("late", number)
            assert drain(forwarder) == 1
        assert forwarder._packer._rows == 100
        forwarder.stop()
    assert timeouts > 0
    arrived = [each.payload for each in postgres_queue.claim("q", 100)]
    assert [each for each in arrived if each != "small"] == [*range(60), *range(7)]
    assert arrived.count("small") == 1
    assert forwarder.activity().forwarded == 68


NAMES = ["x" * 63, "y" * 64, "é" * 128, "MixedCase", "mixedcase", 'it\'s "quoted"; --', "100%_\\sure", "a.b:c/d"]


def test_a_queue_of_any_name_is_its_own_for_everything_that_a_queue_has(
    store: tenantq.Store, postgres_queue: PostgresQueue, forwarder: Forwarder
) -> None:
    for name in NAMES:
        postgres_queue.subscribe(name, name)
        postgres_queue.record(name)
    for name in NAMES[::2]:
        postgres_queue.share(name, max_claimed=5)
    assert {each.queue for each in postgres_queue.shares()} == set(NAMES[::2])
    for name in NAMES:
        store.tenant("acme").emit(name, name)
    assert drain(forwarder) == len(NAMES)
    for name in NAMES:
        [message] = postgres_queue.claim(name, 9)
        assert (message.payload, message.queue, message.topic) == (name, name, name)
        message.ack()
        assert [each.message.payload for each in postgres_queue.history(name)] == [name]


@pytest.mark.parametrize("name", ["x" * 129, "x" * 200, "", "a\0b"], ids=["129", "200", "empty", "NUL"])
def test_a_name_that_is_none_is_refused_before_anything_is_sent(name: str) -> None:
    with PostgresQueue("host=/nowhere") as queue:
        calls: list[Callable[[], object]] = [
            lambda: queue.enqueue(name, 1),
            lambda: queue.claim(name),
            lambda: queue.subscribe(name, "*"),
            lambda: queue.subscribe("q", name),
            lambda: queue.unsubscribe(name, "*"),
            lambda: queue.share(name),
            lambda: queue.unshare(name),
            lambda: queue.record(name),
            lambda: queue.history(name),
            lambda: queue.pause(name),
            lambda: queue.purge(name),
            lambda: queue.send_to_tenant("acme", name, 1),
        ]
        for call in calls:
            with pytest.raises(InvalidName):
                call()
    if name and "\0" not in name:
        assert "characters" in run("bridge", "share", name, "--postgres", "host=/nowhere", status=2).stderr


@pytest.mark.parametrize("kind", ["text", "bytes", "bytearray"])
def test_a_payload_of_300_mb_is_refused_before_it_is_sent_and_costs_no_gigabytes(kind: str) -> None:
    size = 300 * 2**20
    payload: object = "x" * size if kind == "text" else bytes(size) if kind == "bytes" else bytearray(size)
    with PostgresQueue("host=/nowhere") as queue:
        calls: list[Callable[[], object]] = [
            lambda: queue.enqueue("q", payload),
            lambda: queue.enqueue_many("q", [1, payload]),
            lambda: queue.send_to_tenant("acme", "q", payload),
        ]
        for call in calls:
            tracemalloc.start()
            with pytest.raises(PayloadTooLarge, match="is over the limit") as caught:
                call()
            _now, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert isinstance(caught.value, tenantq.TenantqError)
            assert peak < 2 * size + 2**20


def test_patterns_that_no_topic_matches_bring_nothing_and_harm_nothing(
    store: tenantq.Store, postgres_queue: PostgresQueue, forwarder: Forwarder
) -> None:
    for pattern in ("billng.*", "%", "_", "billing%", "b_lling.paid", "billing\\*", "x" * 128):
        postgres_queue.subscribe("none", pattern)
    postgres_queue.subscribe("q", "billing.*")
    store.tenant("acme").emit("billing.paid", 1)
    assert drain(forwarder) == 1
    assert len(postgres_queue.claim("q", 9)) == 1
    assert postgres_queue.claim("none", 9) == []
    assert len(postgres_queue.subscriptions()) == 8


def test_a_dsn_of_no_text_is_an_invalid_argument() -> None:
    with pytest.raises(InvalidArgument):
        PostgresQueue("dbname")
