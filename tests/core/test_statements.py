"""tenantq.statements: what the application's own library commits is what Tenant would have committed."""

from __future__ import annotations

import itertools
import sqlite3
import uuid
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenantq
from tenantq import statements
from tenantq.errors import (
    DeclarationError,
    InvalidArgument,
    InvalidName,
    InvalidTenantId,
    NewerFile,
    OlderFile,
    PayloadError,
    UnknownTenant,
)
from tenantq.testing import ManualClock
from tests.children import Child
from tests.libraries import LIBRARIES, Library
from tests.older import make_version_1


@tenantq.message("statements.durable", priority=4, max_attempts=3)
class Durable(msgspec.Struct):
    text: str


@tenantq.message("statements.shared", cross_host=True, priority=2)
class Shared(msgspec.Struct):
    text: str


@tenantq.message("statements.memory", durable=False)
class Memory(msgspec.Struct):
    text: str


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Library:
    """Each of the libraries in turn."""
    found: Library = request.param
    return found


CALLS: list[tuple[str, tuple[object, ...], dict[str, Any]]] = [
    ("enqueue", ("mail", {"to": "ada"}), {}),
    ("enqueue", ("mail", None), {"delay": 60, "priority": -3}),
    ("enqueue", ("mail", b"\x00\xff"), {"headers": {"trace": "ä:b 100% ?"}, "max_attempts": 1}),
    ("enqueue", ("100% :x ?", "it's 100% :x ? \0 ☃"), {"at": datetime(2026, 1, 1, 1, tzinfo=UTC)}),
    ("enqueue", ("mail", [1]), {"at": datetime(1999, 1, 1, tzinfo=UTC)}),
    ("enqueue", ("report", 1), {"key": "2026:11", "priority": 9}),
    ("enqueue", ("report", 2), {"key": "2026:11"}),
    ("enqueue", ("report", 3), {"key": "2026:12", "delay": 1.5}),
    ("emit", ("order.placed", {"id": 1}), {}),
    ("emit", ("order.placed", b"\xff"), {"priority": 3, "max_attempts": 7, "headers": {"a": "ö"}, "delay": 5}),
    ("emit", ("later", "x"), {"at": datetime(2030, 1, 1, tzinfo=UTC)}),
    ("send", (Durable("it"),), {}),
    ("send", (Durable("it"),), {"key": "k", "priority": 0, "max_attempts": 9, "delay": 3}),
    ("send", (Shared("it"),), {}),
]


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return all that a closed file holds of messages and events, but for the events' random ids."""
    tables = ("queue", "tenantq_depth", "tenantq_forwarded", "tenantq_dead")
    with closing(sqlite3.connect(path)) as connection:
        found = {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables}
        events = connection.execute("SELECT * FROM tenantq_outbox ORDER BY seq").fetchall()
        found["tenantq_outbox"] = [(*event[:1], *event[2:]) for event in events]
    return found


def run(library: Library, path: Path, *every: statements.Statements) -> None:
    with library.transaction(path) as execute:
        for sql, parameters in itertools.chain.from_iterable(every):
            execute(sql, parameters)


def statements_of(library: Library, verb: str, *arguments: object, **options: Any) -> statements.Statements:
    found: statements.Statements = getattr(statements, verb)(*arguments, paramstyle=library.paramstyle, **options)
    return found


def test_it_leaves_the_rows_that_the_tenants_own_verbs_leave(
    store: tenantq.Store, clock: ManualClock, library: Library
) -> None:
    path, twin = store.prepare("acme"), store.tenant("twin")
    with library.transaction(path) as execute:
        for verb, arguments, options in CALLS:
            for sql, parameters in statements_of(library, verb, *arguments, clock=clock, **options):
                execute(sql, parameters)
            getattr(twin, verb)(*arguments, **options)
            clock.advance(1)
    assert tenantq.verify(path).problems == ()
    store.close()
    assert rows(path) == rows(twin.path)


def test_it_is_committed_with_the_applications_rows_or_not_at_all(acme: tenantq.Tenant, library: Library) -> None:
    path = acme.store.prepare("acme")
    with library.transaction(path) as execute:
        execute("CREATE TABLE orders (id INTEGER)", {})
    enqueued = statements_of(library, "enqueue", "mail", 1)
    emitted = statements_of(library, "emit", "order.placed", 1)
    with pytest.raises(ZeroDivisionError), library.transaction(path) as execute:
        execute("INSERT INTO orders VALUES (1)", {})
        for sql, parameters in (*enqueued, *emitted):
            execute(sql, parameters)
        raise ZeroDivisionError
    assert (acme.stats().ready, acme.stats().outbox) == (0, 0)
    acme.store.prepare("acme")
    with library.transaction(path) as execute:
        execute("INSERT INTO orders VALUES (2)", {})
        for sql, parameters in (*enqueued, *emitted):
            execute(sql, parameters)
    assert (acme.stats().ready, acme.stats().outbox) == (1, 1)
    with acme.transaction() as tx:
        assert tx.execute("SELECT id FROM orders") == [(2,)]


def test_an_id_is_never_given_out_twice(acme: tenantq.Tenant, library: Library) -> None:
    given = [acme.enqueue("mail", 1), acme.enqueue("other", 1)]
    for queue in ("mail", "other"):
        acme.ack(*acme.claim(queue))
    for turn in range(3):
        path = acme.store.prepare("acme")
        with library.transaction(path) as execute:
            for _ in range(2):
                for sql, parameters in statements_of(library, "enqueue", f"queue{turn}", turn):
                    execute(sql, parameters)
                query = statements.last_id(f"queue{turn}", paramstyle=library.paramstyle)
                given.append(execute(*query).fetchone()[0])
        given.append(acme.enqueue("mail", turn))
        for queue in (f"queue{turn}", "mail"):
            acme.purge(queue)
    assert given == sorted(set(given))
    assert acme.enqueue("mail", 1) == given[-1] + 1


def test_the_id_of_a_key_is_that_of_the_message_which_has_it(acme: tenantq.Tenant, library: Library) -> None:
    first = acme.enqueue("report", 1, key="k")
    acme.enqueue("report", 2)
    with library.transaction(acme.store.prepare("acme")) as execute:
        for sql, parameters in statements_of(library, "enqueue", "report", 3, key="k"):
            execute(sql, parameters)
        query = statements.last_id("report", "k", paramstyle=library.paramstyle)
        assert execute(*query).fetchone() == (first,)
        query = statements.last_id("nothing", paramstyle=library.paramstyle)
        assert execute(*query).fetchone() == (None,)


@pytest.mark.parametrize("bound", ["queue", "tenant", "store"])
def test_over_a_bound_the_library_raises_and_nothing_is_added(
    acme: tenantq.Tenant, library: Library, bound: str
) -> None:
    acme.enqueue("other", 1)
    if bound != "store":
        acme.limit("mail" if bound == "queue" else None, max_depth=2 if bound == "queue" else 3)
    options = {"max_depth": 2} if bound == "store" else {}
    path = acme.store.prepare("acme")
    once = statements_of(library, "enqueue", "mail", 1, **options)
    run(library, path, once, once)
    with pytest.raises(library.integrity_error, match=r"tenantq - the (queue|tenant) is full"):
        run(library, path, once)
    with pytest.raises(library.integrity_error, match="is full"):
        run(library, path, statements_of(library, "enqueue", "mail", 1, key="new", **options))
    assert acme.stats().ready == 3


def test_over_the_bound_of_the_outbox_the_library_raises(acme: tenantq.Tenant, library: Library) -> None:
    path = acme.store.prepare("acme")
    once = statements_of(library, "emit", "order.placed", 1, max_outbox=1)
    run(library, path, once)
    with pytest.raises(library.integrity_error, match="tenantq - the outbox is full"):
        run(library, path, once)
    assert acme.stats().outbox == 1


def test_a_failed_enqueue_leaves_the_transaction_to_go_on(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    with closing(sqlite3.connect(acme.store.prepare("acme"), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for queue in ("mail", "mail", "other"):
            for sql, parameters in statements.enqueue(queue, 1):
                try:
                    connection.execute(sql, parameters)
                except sqlite3.IntegrityError as exc:
                    assert queue == "mail"
                    assert exc.sqlite_errorname == "SQLITE_CONSTRAINT_TRIGGER"  # noqa: PT017
        connection.execute("COMMIT")
    assert acme.stats().ready == 2


def test_outside_of_a_transaction_each_call_is_whole_by_itself(acme: tenantq.Tenant) -> None:
    with closing(sqlite3.connect(acme.store.prepare("acme"), isolation_level=None)) as connection:
        for sql, parameters in (*statements.enqueue("mail", 1), *statements.emit("topic", 1)):
            connection.execute(sql, parameters)
    assert (acme.stats().ready, acme.stats().outbox) == (1, 1)


def test_a_file_of_a_newer_version_is_left_as_it_is(acme: tenantq.Tenant, library: Library) -> None:
    path = acme.store.prepare("acme")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = rows(path)
    for once in (statements_of(library, "enqueue", "mail", 1), statements_of(library, "emit", "topic", 1)):
        with pytest.raises(library.integrity_error, match="tenantq - the file is of a newer version"):
            run(library, path, once)
    assert rows(path) == before
    path.unlink()


def test_events_have_an_identity_each_and_their_place(acme: tenantq.Tenant, library: Library) -> None:
    acme.emit("topic", 0)
    path = acme.store.prepare("acme")
    run(library, path, *(statements_of(library, "emit", "topic", number) for number in (1, 2)))
    acme.emit("topic", 3)
    events = acme.outbox.read(0, limit=10, max_bytes=10**6)
    assert [(event.seq, event.body) for event in events] == [(1, "0"), (2, "1"), (3, "2"), (4, "3")]
    assert {uuid.UUID(event.event_id).version for event in events} == {7}
    assert len({event.event_id for event in events}) == 4
    assert acme.outbox.position().last_seq == 4


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: statements.enqueue("", 1), InvalidName),
        (lambda: statements.enqueue("mail", 1, key="\0"), InvalidName),
        (lambda: statements.enqueue("mail", float("nan")), PayloadError),
        (lambda: statements.enqueue("mail", 1, delay=-1), InvalidArgument),
        (lambda: statements.enqueue("mail", 1, priority=10**6), InvalidArgument),
        (lambda: statements.enqueue("mail", 1, max_attempts=0), InvalidArgument),
        (lambda: statements.enqueue("mail", 1, max_depth=0), InvalidArgument),
        (lambda: statements.enqueue("mail", 1, headers={"a": 1}), InvalidArgument),  # type: ignore[dict-item]
        (lambda: statements.enqueue("mail", 1, paramstyle="numeric"), InvalidArgument),
        (lambda: statements.emit("", 1), InvalidName),
        (lambda: statements.emit("topic", 1, priority=10**6), InvalidArgument),
        (lambda: statements.emit("topic", 1, max_attempts=0), InvalidArgument),
        (lambda: statements.emit("topic", 1, max_outbox=0), InvalidArgument),
        (lambda: statements.emit("topic", 1, headers={"a": "\ud800"}), InvalidArgument),
        (lambda: statements.emit("topic", object()), PayloadError),
        (lambda: statements.send(1), DeclarationError),
        (lambda: statements.send(Memory("m")), DeclarationError),
        (lambda: statements.send(Shared("s"), key="k"), InvalidArgument),
        (lambda: statements.last_id(""), InvalidName),
        (lambda: statements.last_id("mail", ""), InvalidName),
        (lambda: statements.pragmas("new"), InvalidArgument),
    ],
)
def test_what_tenant_refuses_is_refused_before_any_sql_is_made(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_a_library_with_the_wal_reset_bug_makes_no_checkpoints() -> None:
    assert "PRAGMA wal_autocheckpoint = 0" in statements.pragmas("3.51.2")
    assert "PRAGMA wal_autocheckpoint = 0" not in statements.pragmas("3.51.3")


def test_no_statement_has_what_a_library_takes_for_a_placeholder() -> None:
    for made in (statements.enqueue("mail", 1), statements.emit("topic", 1)):
        for sql, parameters in made:
            assert "%" not in sql
            assert "?" not in sql
            assert sql.count(":") == len(parameters)


# notify


def test_notify_wakes_a_claim_that_waits_in_another_process(store: tenantq.Store) -> None:
    path = store.prepare("acme")
    script = """
        with tenantq.open(sys.argv[1]) as store:
            acme = store.tenant("acme")
            acme.stats()
            say("waiting")
            say(*(message.payload for message in acme.claim("mail", wait=30)))
    """
    with Child(script, store.root) as child:
        assert child.heard() == "waiting"
        with closing(sqlite3.connect(path)) as connection, connection:
            for sql, parameters in statements.enqueue("mail", "hello"):
                connection.execute(sql, parameters)
        store.tenant("acme").notify()
        assert child.heard() == "hello"
        assert child.end() == 0


@pytest.mark.parametrize("is_notified", [True, False])
@pytest.mark.parametrize("only", [None, tenantq.Work.MESSAGES, tenantq.Work.EVENTS])
def test_a_watch_tells_of_it_and_finds_it_by_its_sweep_if_nobody_notified(
    live: tenantq.Store, only: tenantq.Work | None, is_notified: bool
) -> None:
    path = live.prepare("acme")
    interval = 3600.0 if is_notified else 0.01
    with live.watch(sweep_interval=interval, only=only) as watch:
        while watch.wait(0.1):
            pass
        with closing(sqlite3.connect(path)) as connection, connection:
            for sql, parameters in (*statements.enqueue("mail", 1), *statements.emit("topic", 1)):
                connection.execute(sql, parameters)
        if is_notified:
            live.tenant("acme").notify()
        assert watch.wait(30) == {"acme"}


def test_notify_tells_of_no_tenant_that_is_not_there(store: tenantq.Store) -> None:
    with pytest.raises(UnknownTenant):
        store.tenant("acme").notify()
    assert list(store.tenants()) == []


# prepare


def test_prepare_makes_a_tenant_and_leaves_it_closed(store: tenantq.Store) -> None:
    path = store.prepare("acme")
    assert path == store.tenant("acme").path
    assert [found.name for found in path.parent.iterdir()] == ["acme.db"]
    assert tenantq.verify(path).ok
    store.tenant("acme").enqueue("mail", 1)
    assert store.prepare("acme") == path
    assert [found.name for found in path.parent.iterdir()] == ["acme.db"]
    assert store.tenant("acme").stats().ready == 1


def test_prepare_opens_no_file_that_it_has_prepared(store: tenantq.Store) -> None:
    path = store.prepare("acme")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert store.prepare("acme") == path
        with Child(
            """
            import sqlite3
            try:
                sqlite3.connect(sys.argv[1], timeout=0).execute("INSERT INTO tenantq_paused VALUES ('q', 1)")
            except sqlite3.OperationalError as exc:
                say(exc)
            """,
            path,
        ) as child:
            assert child.heard() == "database is locked"


def test_prepare_migrates_an_older_file_or_refuses_it(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, migrate=False) as store:
        path = make_version_1(store.tenant("acme").path, "acme")
        with pytest.raises(OlderFile):
            store.prepare("acme")
    with tenantq.open(tmp_path) as store:
        assert store.prepare("acme") == path
        assert store.activity().migrated == 1
    assert tenantq.verify(path).schema_version > 1


def test_prepare_refuses_what_is_no_file_of_this_tenant(store: tenantq.Store) -> None:
    with pytest.raises(InvalidTenantId):
        store.prepare("")
    path = store.prepare("acme")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with tenantq.open(store.root) as again, pytest.raises(NewerFile):
        again.prepare("acme")
    path.unlink()
