"""Files of an older schema: what becomes of them when this version meets them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

import tenantq
from tenantq import _migrations, _schema
from tenantq._schema import SCHEMA_VERSION
from tenantq._sqlite import Database, Row
from tenantq.errors import NewerFile, OlderFile
from tenantq.testing import ManualClock
from tests.children import Child
from tests.older import CREATE_VERSION_1, NOW, make_version_1, version_of

FROZEN = "4e6999f321e9fa72e471b1b24b34741ae865947c4cae4f9f17f7492f98cd4947"


@pytest.fixture
def old(store: tenantq.Store) -> Path:
    """A tenant "acme" whose file is of version 1."""
    return make_version_1(_schema.path_of(store.root, "acme"), "acme")


def schema_of(path: Path) -> list[tuple[object, ...]]:
    with closing(Database(path, read_only=True)) as database:
        return sorted(
            database.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name <> 'orders'"), key=str
        )


def meta_of(path: Path) -> dict[str, str]:
    with closing(Database(path, read_only=True)) as database:
        return _schema.read_meta(database)


def execute(path: Path, sql: str) -> None:
    with closing(Database(path)) as database:
        database.execute(sql)


def test_the_schema_of_version_1_is_never_changed() -> None:
    assert hashlib.sha256(CREATE_VERSION_1.encode()).hexdigest() == FROZEN


def test_an_older_file_is_migrated_when_it_is_opened(store: tenantq.Store, clock: ManualClock, old: Path) -> None:
    assert version_of(old) == 1
    store.tenant("acme").stats()
    assert version_of(old) == SCHEMA_VERSION
    assert store.activity().migrated == 1
    assert meta_of(old)["migrated_to_2"] == str(clock.now_ns())
    assert tenantq.verify(old).ok


def test_a_migrated_file_has_the_schema_of_a_new_one(store: tenantq.Store, old: Path) -> None:
    store.tenant("acme").stats()
    store.tenant("new").enqueue("mail", 1)
    assert schema_of(old) == schema_of(store.tenant("new").path)


def test_what_was_in_an_older_file_is_there_after_its_migration(store: tenantq.Store, old: Path) -> None:
    acme = store.tenant("acme")
    stats = acme.stats()
    # The lease is of another boot, so that its message is ready again.
    assert (stats.ready, stats.scheduled, stats.claimed, stats.dead) == (3, 1, 0, 1)
    assert (stats.outbox, stats.undeliverable) == (1, 1)
    assert (stats.queues[0].is_paused, stats.queues[0].max_depth) == (True, 100)
    assert acme.enqueue("mail", "again", key="a-key") == 1
    acme.resume("mail")
    held = acme.claim("mail", 10)
    assert [message.body for message in held] == ['"ready"', b"\x00\xff", '"claimed"']
    assert held[0].headers == {"trace": "1"}
    acme.ack(*held)
    assert acme.redrive() == 1
    assert acme.enqueue("mail", "new") == 6
    assert [event.seq for event in acme.outbox.undeliverable()] == [2]
    with acme.transaction() as tx:
        assert tx.execute("SELECT * FROM orders") == [(42, 99)]
    assert tenantq.verify(old).problems == ()


def test_a_new_file_and_a_current_one_are_not_migrated(store: tenantq.Store) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    assert store.activity().migrated == 0
    assert "migrated_to_2" not in meta_of(acme.path)


def test_messages_written_by_hand_into_an_older_file_are_counted(store: tenantq.Store, old: Path) -> None:
    execute(
        old, f"INSERT INTO queue (id, queue, visible_at, enqueued_at, payload) VALUES (9, 'docs', 0, {NOW}, '1')"
    )
    execute(old, "DELETE FROM queue WHERE id = 1")
    execute(old, "DELETE FROM tenantq_dead")
    assert len(tenantq.verify(old).problems) == 2
    assert {queue.queue: queue.ready for queue in store.tenant("acme").stats().queues} == {"docs": 1, "mail": 2}
    assert tenantq.verify(old).problems == ()


def test_what_is_committed_while_the_messages_are_counted_is_counted_once(
    store: tenantq.Store, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(old, f"INSERT INTO queue (id, visible_at, enqueued_at, payload) VALUES (9, 0, {NOW}, '1')")
    prepare, complete = _migrations._WITH_DATA[2]

    def prepare_and_let_others_write(database: Database) -> Sequence[Row]:
        rows = prepare(database)
        execute(
            old,
            f"INSERT INTO queue (id, visible_at, enqueued_at, payload) VALUES (10, 0, {NOW}, '2');"
            "INSERT INTO tenantq_depth (queue, last_id, ready) VALUES ('default', 10, 1);",
        )
        return rows

    monkeypatch.setitem(_migrations._WITH_DATA, 2, (prepare_and_let_others_write, complete))
    assert store.tenant("acme").stats().queues[0].ready == 2
    assert tenantq.verify(old).problems == ()


def test_the_write_lock_is_free_while_the_messages_are_read(
    store: tenantq.Store, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []

    def look(database: Database) -> Sequence[Row]:
        held.append(database.in_transaction)
        return ()

    monkeypatch.setitem(_migrations._WITH_DATA, 2, (look, _migrations._WITH_DATA[2][1]))
    store.tenant("acme").stats()
    assert held == [False]


def test_a_step_that_fails_leaves_the_older_file(
    store: tenantq.Store, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = schema_of(old), meta_of(old)
    with monkeypatch.context() as patched:
        patched.setitem(_schema._MIGRATIONS, "to_2", "CREATE TABLE half (a); CREATE TABLE queue (a);")
        with pytest.raises(tenantq.TenantqError):
            store.tenant("acme").stats()
    assert (schema_of(old), meta_of(old)) == before
    assert version_of(old) == 1
    assert store.activity().migrated == 0
    assert store.tenant("acme").stats().dead == 1


def test_a_file_is_migrated_over_several_versions_a_step_each(
    store: tenantq.Store, clock: ManualClock, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_newer(monkeypatch)
    monkeypatch.setitem(_schema._MIGRATIONS, f"to_{SCHEMA_VERSION + 2}", "CREATE TABLE queue (a);")
    with pytest.raises(tenantq.TenantqError):
        store.tenant("acme").stats()
    assert version_of(old) == SCHEMA_VERSION + 1  # each step that was made stays made
    two_newer(monkeypatch)
    with closing(Database(old)) as database:
        assert _migrations.migrate(database, clock.now_ns()) == SCHEMA_VERSION + 1
        assert _migrations.migrate(database, clock.now_ns()) is None
    assert version_of(old) == SCHEMA_VERSION + 2
    assert store.tenant("acme").stats().dead == 1


def two_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be of a version that is two schemas ahead."""
    for ahead in (1, 2):
        monkeypatch.setitem(
            _schema._MIGRATIONS, f"to_{SCHEMA_VERSION + ahead}", f"CREATE TABLE ahead_{ahead} (a);"
        )
    monkeypatch.setattr(_schema, "SCHEMA_VERSION", SCHEMA_VERSION + 2)


# Not to be migrated


def test_a_store_that_is_not_to_migrate_refuses_an_older_file_and_leaves_it(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, migrate=False) as store:
        store.tenant("new").enqueue("mail", 1)
        path = make_version_1(store.tenant("acme").path, "acme")
        before = trace_of(path)
        for call in (store.tenant("acme").stats, lambda: store.tenant("acme").enqueue("mail", 1)):
            with pytest.raises(OlderFile, match="schema version 1") as caught:
                call()
            assert (caught.value.tenant, caught.value.path) == ("acme", str(path))
        assert trace_of(path) == before
        with closing(Database(path)) as database:
            _migrations.migrate(database, 1)
        assert store.tenant("acme").stats().dead == 1


# Newer


def trace_of(path: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return all that is to be seen of a file and what lies beside it."""
    return {
        name.name: (name.read_bytes(), name.stat().st_mtime_ns, name.stat().st_ino)
        for name in path.parent.iterdir()
        if name.name.startswith(path.name) and not name.name.endswith("-shm")
    }


def make_newer(path: Path) -> None:
    execute(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


REFUSED: dict[str, Callable[[tenantq.Store, Path], object]] = {
    "stats": lambda store, _path: store.tenant("acme").stats(),
    "enqueue": lambda store, _path: store.tenant("acme").enqueue("mail", 1),
    "claim": lambda store, _path: store.tenant("acme").claim("mail"),
    "a transaction": lambda store, _path: store.tenant("acme").transaction().__enter__(),
    "backup": lambda store, path: store.tenant("acme").backup(path.with_name("copy")),
    "restore": lambda store, path: store.restore("acme", path, replace=True),
    "verify": lambda _store, path: tenantq.verify(path),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_newer_file_is_refused_and_nothing_of_it_is_touched(tmp_path: Path, name: str) -> None:
    path = make_version_1(tmp_path / "acme.db", "acme")
    with tenantq.open(tmp_path / "store") as store:
        if name != "restore":
            path = make_version_1(store.tenant("acme").path, "acme")
        make_newer(path)
        before, names = trace_of(path), sorted(path.parent.iterdir())
        for _time in range(2):
            with pytest.raises(NewerFile, match=f"schema version {SCHEMA_VERSION + 1}") as caught:
                REFUSED[name](store, path)
            assert "upgrade" in caught.value.hint
            assert trace_of(path) == before
            assert sorted(path.parent.iterdir()) == names


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "restore"])
def test_what_a_killed_process_left_beside_a_newer_file_is_not_touched(tmp_path: Path, name: str) -> None:
    with tenantq.open(tmp_path / "store") as store:
        path = store.tenant("acme").path
        with Child(KILLED_BY_NOW, path.parent, path) as child:
            assert child.heard() == "committed"
            child.kill()
        before = trace_of(path)
        assert before["acme.db-wal"][0]
        with pytest.raises(NewerFile):
            REFUSED[name](store, path)
        assert trace_of(path) == before


KILLED_BY_NOW = """
from pathlib import Path
from tenantq._sqlite import Database, Row
from tests.children import Child
from tests.older import make_version_1
from tenantq._schema import SCHEMA_VERSION

path = make_version_1(Path(sys.argv[2]), "acme")
database = Database(path)
database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
stop_here("committed")
"""
