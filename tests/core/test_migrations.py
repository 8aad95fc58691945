"""Files of an older schema: what becomes of them when this version meets them."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import tenantq
from tenantq import _migrations, _schema
from tenantq._doorbell import slot_of
from tenantq._schema import SCHEMA_VERSION
from tenantq._sqlite import Database, Row
from tenantq.errors import DiskFull, FileReplaced, NewerFile, OlderFile, TenantBusy, UnknownTenant
from tenantq.naming import key_of
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


def test_a_step_that_finds_no_space_leaves_the_older_file_and_can_be_tried_again(
    store: tenantq.Store, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = schema_of(old), meta_of(old)
    with monkeypatch.context() as patched:
        step = "CREATE TABLE large (a); PRAGMA max_page_count = 1; INSERT INTO large VALUES (zeroblob(1000000));"
        patched.setitem(_schema._MIGRATIONS, "to_2", step)
        for _time in range(2):
            with pytest.raises(DiskFull):
                store.tenant("acme").enqueue("mail", 1)
    assert (schema_of(old), meta_of(old), version_of(old)) == (*before, 1)
    store.tenant("acme").enqueue("mail", 1)
    assert tenantq.verify(old).problems == ()


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


# A look at an older file, a copy of it, and the way back


def test_verify_tells_the_version_of_an_older_file_and_does_not_migrate_it(
    store: tenantq.Store, old: Path
) -> None:
    before = trace_of(old)
    report = tenantq.verify(old)
    assert (report.ok, report.schema_version, report.is_older) == (True, 1, True)
    assert (report.ready, report.scheduled, report.claimed, report.dead, report.outbox) == (2, 1, 1, 1, 1)
    assert trace_of(old) == before
    store.tenant("acme").stats()
    report = tenantq.verify(old)
    assert (report.schema_version, report.is_older) == (SCHEMA_VERSION, False)


def test_a_backup_of_an_older_file_is_one_of_its_version(store: tenantq.Store, old: Path, tmp_path: Path) -> None:
    copy = store.tenant("acme").backup(tmp_path / "copy.db")
    assert (version_of(copy), version_of(old)) == (1, 1)
    assert tenantq.verify(copy).claimed == 1


def test_a_restore_of_an_older_backup_migrates_it_on_the_way(store: tenantq.Store, tmp_path: Path) -> None:
    saved = make_version_1(tmp_path / "saved.db", "acme")
    before = trace_of(saved)
    store.restore("acme", saved)
    assert trace_of(saved) == before
    acme = store.tenant("acme")
    assert version_of(acme.path) == SCHEMA_VERSION
    stats = acme.stats()
    assert (stats.ready, stats.scheduled, stats.claimed, stats.dead) == (3, 1, 0, 1)
    assert tenantq.verify(acme.path).problems == ()


def test_an_older_file_that_is_copied_into_the_store_is_migrated_at_the_next_call(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    acme.enqueue("mail", "now")
    saved = make_version_1(tmp_path / "saved.db", "acme")
    saved.replace(acme.path)
    for suffix in ("-wal", "-shm"):
        acme.path.with_name(acme.path.name + suffix).unlink()
    with pytest.raises(FileReplaced):
        acme.enqueue("mail", "refused")
    assert acme.stats().dead == 1
    assert version_of(acme.path) == SCHEMA_VERSION


def test_a_store_that_is_not_to_migrate_does_not_restore_an_older_backup(tmp_path: Path) -> None:
    saved = make_version_1(tmp_path / "saved.db", "acme")
    with tenantq.open(tmp_path / "store", migrate=False) as store:
        with pytest.raises(OlderFile):
            store.restore("acme", saved)
        assert "acme" not in store


# Migrated ahead


def test_migrate_says_which_version_a_file_had_and_leaves_a_current_one_alone(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, migrate=False) as store:
        path = make_version_1(store.tenant("acme").path, "acme")
        assert store.migrate("acme") == 1
        before = trace_of(path)
        assert store.migrate("acme") is None
        assert trace_of(path) == before
        assert store.tenant("acme").stats().dead == 1
        assert store.migrate("acme") is None  # while it is open here
        activity = store.activity()
        assert activity.migrated == 1
        with pytest.raises(UnknownTenant):
            store.migrate("nobody")


def test_a_busy_file_is_not_waited_for_beyond_the_timeout_and_stays_as_it_is(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, busy_timeout=0.05) as store:
        path = make_version_1(store.tenant("acme").path, "acme")
        with closing(Database(path)) as other:
            other.begin()
            with pytest.raises(TenantBusy):
                store.migrate("acme")
            with pytest.raises(TenantBusy):
                store.tenant("acme").stats()
            other.rollback()
        assert version_of(path) == 1
        assert store.migrate("acme") == 1


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
    "backup": lambda store, _path: store.tenant("acme").backup(store.root.with_name("copy")),
    "restore": lambda store, path: store.restore("acme", path, replace=True),
    "verify": lambda _store, path: tenantq.verify(path),
    "migrate": lambda store, _path: store.migrate("acme"),
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


# Two versions at work on one file


def migrate_further(path: Path) -> None:
    """Do what a process of the next version does to a file."""
    with closing(Database(path)) as database:
        database.begin()
        database.execute("CREATE TABLE of_the_next_version (a)")
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        database.commit()


CALLS: dict[str, Callable[[tenantq.Tenant], object]] = {
    "enqueue": lambda acme: acme.enqueue("mail", 1),
    "enqueue_many": lambda acme: acme.enqueue_many("mail", [1, 2]),
    "claim": lambda acme: acme.claim("mail"),
    "a waiting claim": lambda acme: acme.claim("nothing", wait=5),
    "reap": lambda acme: acme.reap(),
    "stats": lambda acme: acme.stats(),
    "peek": lambda acme: acme.peek("mail"),
    "next_due": lambda acme: acme.next_due(),
    "the outbox": lambda acme: acme.outbox.undeliverable(),
    "a transaction": lambda acme: acme.transaction().__enter__(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_process_that_has_a_file_open_notices_that_a_newer_one_migrated_it(
    store: tenantq.Store, name: str
) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", "before")
    migrate_further(acme.path)
    before = rows_of(acme.path)
    for _time in range(2):
        with pytest.raises(NewerFile, match=f"knows up to {SCHEMA_VERSION}") as caught:
            CALLS[name](acme)
        assert (caught.value.tenant, caught.value.path) == ("acme", str(acme.path))
    assert rows_of(acme.path) == before
    assert store.tenant("other").enqueue("mail", 1) == 1


def rows_of(path: Path) -> list[list[tuple[object, ...]]]:
    with closing(Database(path, read_only=True)) as database:
        tables = ("queue", "tenantq_depth", "tenantq_meta", "tenantq_dead")
        return [database.execute(f"SELECT * FROM {table}") for table in tables]


def test_a_delivery_of_the_older_process_stays_claimed_until_its_lease_ends(
    store: tenantq.Store, clock: ManualClock
) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", "once")
    (held,) = acme.claim("mail", lease=30)
    migrate_further(acme.path)
    for settle in (held.ack, held.nack, held.release, lambda: held.extend(60)):
        with pytest.raises(NewerFile):
            settle()
    with pytest.MonkeyPatch.context() as newer:
        newer.setattr(_schema, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        with tenantq.open(store.root, clock=clock) as of_next_version:
            assert of_next_version.tenant("acme").claim("mail") == []
            clock.advance(31)
            (again,) = of_next_version.tenant("acme").claim("mail")
            assert (again.payload, again.attempts) == ("once", 2)
            again.ack()


def test_calls_that_are_merged_are_all_refused(store: tenantq.Store) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    assert acme._handle is not None
    line = acme._handle._line
    assert line.try_take()
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(acme.enqueue, "mail", number) for number in range(8)]
        wait_until(lambda: len(line.waiting) == 8)
        migrate_further(acme.path)
        line.hand_over()
    assert {type(call.exception()) for call in calls} == {NewerFile}


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_the_file_is_not_asked_for_its_version_while_nobody_else_changes_it(
    store: tenantq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    asked: list[object] = []
    check = _schema.check_version

    def ask(database: Database, tenant_id: str | None) -> None:
        asked.append(tenant_id)
        check(database, tenant_id)

    monkeypatch.setattr(_schema, "check_version", ask)
    for number in range(5):
        acme.enqueue("mail", number)
        acme.ack(*acme.claim("mail"))
        acme.stats()
    assert asked == []
    execute(acme.path, "CREATE TABLE somebody_elses (a)")
    acme.stats()
    acme.enqueue("mail", 1)
    assert asked == ["acme"]


def ring(store: tenantq.Store, tenant_id: str) -> None:
    """Say that a tenant has news, as a commit does."""
    store._ring(slot_of(tenant_id), store._schedule.entry(key_of(tenant_id)))


def test_a_worker_of_an_older_version_says_so_once_a_tenant_and_serves_the_others(
    live: tenantq.Store, caplog: pytest.LogCaptureFixture
) -> None:
    for tenant_id in ("acme", "other"):
        live.tenant(tenant_id).enqueue("mail", 1)
    path = live.tenant("acme").path
    live.close()
    make_newer(path)
    done = threading.Semaphore(0)
    with tenantq.open(live.root) as store:
        worker = tenantq.Worker(store)
        worker.on("mail")(lambda _message: done.release())
        with worker:
            for number in range(5):
                assert done.acquire(timeout=30)
                ring(store, "acme")
                store.tenant("other").enqueue("mail", number)
            execute(path, f"PRAGMA user_version = {SCHEMA_VERSION}")  # as if this worker were of the next version
            ring(store, "acme")
            acme = store.tenant("acme")
            wait_until(lambda: not acme.stats().ready + acme.stats().claimed)
    said = [record for record in caplog.records if "not served by this version" in record.message]
    assert [record.tenant for record in said] == ["acme"]  # type: ignore[attr-defined]
    assert f"schema version {SCHEMA_VERSION + 1}" in said[0].message
