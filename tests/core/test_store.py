from __future__ import annotations

import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tenantq
from tenantq import _schema
from tenantq.errors import (
    CorruptFile,
    EventsWaiting,
    FileReplaced,
    InvalidArgument,
    NewerFile,
    NotATenantFile,
    StoreClosed,
    StoreNotFound,
    TenantBusy,
    TenantDeleted,
    TenantFileError,
    TransactionError,
    WrongTenant,
)
from tests.children import Child


def open_files(root: Path) -> int:
    """Count this process's descriptors below a directory; /proc names them without opening anything."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith(str(root))
        except FileNotFoundError:
            continue
    return count


def around(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


# A store


def test_a_store_is_made_where_there_is_none_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with pytest.raises(StoreNotFound):
        tenantq.open(path, create=False)
    assert not path.exists()
    tenantq.open(path).close()
    assert path.stat().st_mode & 0o777 == 0o700
    with tenantq.open(str(path), create=False) as store:
        assert list(store.tenants()) == []


def test_a_store_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TenantFileError):
            tenantq.open(path)


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "none"},
        {"durability": 1},
        {"busy_timeout": -1},
        {"max_open_tenants": -1},
        {"memory_depth": 0},
    ],
)
def test_the_options_of_a_store_are_checked(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        tenantq.open(tmp_path, **options)


@pytest.mark.parametrize(("durability", "synchronous"), [("normal", 1), ("full", 2)])
def test_durability_is_what_sqlite_syncs(tmp_path: Path, durability: str, synchronous: int) -> None:
    with tenantq.open(tmp_path, durability=durability) as store, store.tenant("acme").transaction() as tx:
        assert tx.execute("PRAGMA synchronous") == [(synchronous,)]
        assert tx.execute("PRAGMA journal_mode") == [("wal",)]
        assert tx.execute("PRAGMA wal_autocheckpoint") == [(10000,)]
        assert tx.execute("PRAGMA temp_store") == [(2,)]
        assert tx.execute("PRAGMA cache_size") == [(-262144,)]


def test_a_closed_store_refuses_everything(store: tenantq.Store) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    (message,) = acme.claim("mail")
    store.close()
    store.close()
    calls: list[Callable[[], Any]] = [
        lambda: store.tenant("acme"),
        lambda: list(store.tenants()),
        lambda: "acme" in store,
        lambda: store.delete("acme"),
        lambda: store.restore("acme", acme.path),
        store.watch,
        lambda: store.memory,
        lambda: acme.enqueue("mail", 1),
        lambda: acme.claim("mail"),
        lambda: acme.claim("mail", wait=5),
        acme.stats,
        message.ack,
        lambda: acme.transaction().__enter__(),
        acme.outbox.position,
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()
    assert around(acme.path) == ["acme.db"]


def test_closing_waits_for_no_transaction_for_ever(tmp_path: Path) -> None:
    store = tenantq.open(tmp_path, busy_timeout=0.05)
    acme, other = store.tenant("acme"), store.tenant("other")
    other.enqueue("mail", 1)
    with acme.transaction() as tx:
        tx.enqueue("mail", 1)
        with ThreadPoolExecutor(1) as pool:
            assert isinstance(pool.submit(store.close).exception(), TenantBusy)
        with pytest.raises(TransactionError):
            store.close()
        assert around(other.path) == ["other.db"]
    store.close()
    assert around(acme.path) == ["acme.db"]
    with tenantq.open(tmp_path) as again:
        assert again.tenant("acme").stats().ready == 1


def test_a_store_lists_only_what_is_a_tenant(store: tenantq.Store) -> None:
    for tenant_id in ("b", "a", "A"):
        store.tenant(tenant_id).enqueue("mail", 1)
    store.tenant("never written")
    shard = store.tenant("a").path.parent
    for name in ("note.txt", ".new-0123", "x.db-wal", "B.db"):
        (shard / name).write_text("")
    (store.root / "zz").mkdir()
    (store.root / "00").write_text("a file where a directory could be")
    assert sorted(store.tenants()) == ["A", "a", "b"]


# Open files


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    limit, threads = 4, 8
    most = 0
    with tenantq.open(tmp_path, max_open_tenants=limit) as store:
        ids = [f"tenant-{number}" for number in range(200)]

        def use(seed: int) -> None:
            nonlocal most
            choose = random.Random(seed)
            for _ in range(25):
                tenant = store.tenant(choose.choice(ids))
                tenant.enqueue("mail", seed)
                most = max(most, open_files(tmp_path))

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(use, range(threads)))
        # A thread that makes a tenant has its directory and two files of the new one open for a moment.
        assert 3 <= most <= 3 * limit + 4 + 4 * threads
        assert sum(store.tenant(tenant_id).stats().ready for tenant_id in store.tenants()) == threads * 25
        assert open_files(tmp_path) <= 3 * limit + 4  # the doorbell, the board, and the schedule with its map
    assert open_files(tmp_path) == 0


def test_an_evicted_tenant_is_one_file_with_all_its_rows(tmp_path: Path) -> None:
    with tenantq.open(tmp_path / "store", max_open_tenants=1) as store:
        acme = store.tenant("acme")
        acme.enqueue_many("mail", range(100))
        assert around(acme.path) == ["acme.db", "acme.db-shm", "acme.db-wal"]
        store.tenant("other").enqueue("mail", 1)
        assert around(acme.path) == ["acme.db"]
        shutil.copy(acme.path, tmp_path / "copy.db")
        with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            assert copy.execute("SELECT count(*) FROM queue").fetchone() == (100,)
        assert acme.claim("mail")[0].payload == 0


def test_what_was_used_lately_stays_open(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_open_tenants=3) as store:
        tenants = [store.tenant(name) for name in ("hot", "cold", "new", "newer")]
        for tenant in tenants[:3]:
            tenant.enqueue("mail", 1)
        tenants[3].enqueue("mail", 1)
        hot = tenants[0]
        hot.enqueue("mail", 2)
        store.tenant("newest").enqueue("mail", 1)
        assert around(hot.path) == ["hot.db", "hot.db-shm", "hot.db-wal"]


def test_a_tenant_in_a_transaction_is_not_evicted(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_open_tenants=1) as store:
        with store.tenant("acme").transaction() as tx:
            tx.enqueue("mail", 1)
            for number in range(5):
                store.tenant(f"other-{number}").enqueue("mail", 1)
            tx.enqueue("mail", 2)
        assert store.tenant("acme").stats().ready == 2


# Making and deleting


def test_a_deleted_tenant_is_gone_and_may_come_again(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    assert not store.delete("acme")
    acme.enqueue("mail", 1)
    acme.emit("topic", 1)
    file_id = acme.outbox.position().file_id
    assert "acme" in store
    with pytest.raises(EventsWaiting):
        store.delete("acme")
    assert store.delete("acme", events="drop")
    assert "acme" not in store
    assert around(acme.path) == ["acme.deleted"]
    assert acme.stats() == tenantq.TenantStats(tenant="acme")
    assert acme.outbox.position().file_id == ""
    acme.outbox.mark_forwarded(1, "x")
    assert "acme" not in store
    with pytest.raises(TenantDeleted):
        acme.enqueue("mail", 2)
    store.create("acme")
    acme.enqueue("mail", 2)
    assert [message.payload for message in acme.claim("mail", 9)] == [2]
    assert acme.outbox.position().file_id not in ("", file_id)


def test_a_tenant_is_not_deleted_inside_of_its_own_transaction(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    with acme.transaction() as tx:
        tx.enqueue("mail", 1)
        with pytest.raises(TransactionError):
            store.delete("acme")
    assert acme.stats().ready == 1


def test_deleting_waits_for_one_tenant_and_holds_up_no_other(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, busy_timeout=0.3) as store, ThreadPoolExecutor(1) as pool:
        with store.tenant("acme").transaction() as tx:
            deleting = pool.submit(store.delete, "acme")
            while store._gate_of("acme").acquire(blocking=False):
                store._gate_of("acme").release()
            store.tenant("other").enqueue("mail", 1)
            assert len(store.memory) == 0
            assert not deleting.done()
            tx.enqueue("mail", 1)
            assert isinstance(deleting.exception(), TenantBusy)
        assert store.tenant("acme").stats().ready == 1
        assert pool.submit(store.delete, "acme").result()


def test_a_stale_wal_beside_no_file_is_not_replayed(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", "old")
    leftovers = {path.name: path.read_bytes() for path in acme.path.parent.iterdir() if path != acme.path}
    store.close()
    acme.path.unlink()
    for name, content in leftovers.items():
        (acme.path.parent / name).write_bytes(content)
    with tenantq.open(store.root) as again:
        assert again.tenant("acme").stats().ready == 0
        again.tenant("acme").enqueue("mail", "new")
        assert [message.payload for message in again.tenant("acme").peek("mail")] == ["new"]


def test_eight_processes_may_make_one_tenant_at_once(tmp_path: Path) -> None:
    script = """
        store = tenantq.open(sys.argv[1])
        say("ready")
        hear()
        ids = [store.tenant("acme").enqueue("mail", sys.argv[2]) for _ in range(20)]
        say(*ids)
    """
    children = [Child(script, tmp_path, number) for number in range(8)]
    try:
        for child in children:
            assert child.heard() == "ready"
        for child in children:
            child.say()
        ids = [int(id_) for child in children for id_ in child.heard().split()]
    finally:
        for child in children:
            child.__exit__(None, None, None)
    assert sorted(ids) == list(range(1, 161))
    with tenantq.open(tmp_path) as store:
        assert store.tenant("acme").stats().ready == 160
        assert tenantq.verify(store.tenant("acme").path).ok


def test_the_threads_of_a_process_may_make_one_tenant_at_once(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    start = threading.Barrier(8)

    def first_use(_number: int) -> int:
        start.wait()
        return store.tenant("acme").enqueue("mail", 1)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(first_use, range(8))) == list(range(1, 9))


# Files that are not what they should be


def make_foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY)")


def make_others(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {_schema.APPLICATION_ID}")
        connection.execute("CREATE TABLE t (a)")


def make_newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {_schema.SCHEMA_VERSION + 1}")


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


BAD_FILES: dict[str, tuple[Callable[[Path], object], type[TenantFileError]]] = {
    "text": (lambda path: path.write_text("not a database, " * 500), NotATenantFile),
    "empty": (lambda path: path.write_bytes(b""), NotATenantFile),
    "foreign": (make_foreign, NotATenantFile),
    "ours in name alone": (make_others, NotATenantFile),
    "newer": (make_newer, NewerFile),
    "another tenant's": (lambda path: shutil.copy(path.parent.parent / "other.db", path), WrongTenant),
    "truncated": (lambda path: os.truncate(path, 3 * 4096), CorruptFile),
    "half a page": (lambda path: os.truncate(path, 1000), TenantFileError),
    "no pages": (lambda path: overwrite(path, 4096, b"\xff" * 40_000), CorruptFile),
    "bad header": (lambda path: overwrite(path, 0, b"\xff" * 100), NotATenantFile),
    "a directory": (make_directory, TenantFileError),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_a_typed_error_and_left_as_it_is(store: tenantq.Store, tmp_path: Path, kind: str) -> None:
    spoil, expected = BAD_FILES[kind]
    bad, good = store.tenant("acme"), store.tenant("good")
    for tenant in (bad, good, store.tenant("other")):
        tenant.enqueue_many("mail", ["x" * 200] * 200)
    store.close()
    shutil.copy(_schema.path_of(store.root, "other"), store.root / "other.db")
    spoil(bad.path)
    before = bad.path.read_bytes() if bad.path.is_file() else b""
    with tenantq.open(store.root) as again:
        for call in (
            lambda: again.tenant("acme").enqueue("mail", 1),
            lambda: again.tenant("acme").claim("mail", 300),
            lambda: again.tenant("acme").stats(),
        ):
            with pytest.raises(expected) as caught:
                call()
            assert caught.value.path is not None
            assert "acme.db" in caught.value.path
            assert caught.value.tenant == "acme"
        assert len(again.tenant("good").claim("mail", 500)) == 200
        assert sorted(again.tenants()) == ["acme", "good", "other"]
    if bad.path.is_file():
        assert bad.path.read_bytes() == before


def test_a_file_that_is_damaged_while_it_is_open_is_a_typed_error(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_open_tenants=1) as store:
        acme = store.tenant("acme")
        acme.enqueue_many("mail", ["x" * 300] * 3000)
        store.tenant("other").enqueue("mail", 1)
        acme.claim("mail")
        overwrite(acme.path, 4096 * 20, b"\xff" * 4096 * 100)
        with pytest.raises(TenantFileError):
            acme.claim("mail", 3000)
        assert store.tenant("other").claim("mail")[0].payload == 1


# Files that change under an open handle


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_file_that_is_no_longer_ours_is_told_and_then_opened_anew(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    tmp_path: Path,
    how: str,
) -> None:
    acme.enqueue("mail", "old")
    acme.backup(tmp_path / "copy.db")
    acme.enqueue("mail", "after the copy")
    if how == "deleted":
        acme.path.unlink()
    else:
        (tmp_path / "copy.db").replace(acme.path)
    for suffix in ("-wal", "-shm"):
        acme.path.with_name(acme.path.name + suffix).unlink()
    with pytest.raises(FileReplaced):
        acme.enqueue("mail", "refused")
    new = acme.enqueue("mail", "new")
    expected = ["new"] if how == "deleted" else ["old", "new"]
    assert [message.payload for message in acme.peek("mail")] == expected
    with tenantq.open(store.root) as again:
        assert [message.payload for message in again.tenant("acme").peek("mail")] == expected
    assert new == len(expected)


def test_what_is_acknowledged_in_a_replacement_stays_when_the_old_file_is_closed(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    tmp_path: Path,
) -> None:
    acme.enqueue("mail", "old")
    acme.backup(tmp_path / "copy.db")
    with tenantq.open(store.root) as other:
        for suffix in ("-wal", "-shm"):
            acme.path.with_name(acme.path.name + suffix).unlink()
        (tmp_path / "copy.db").replace(acme.path)
        other.tenant("acme").enqueue("mail", "new")
        store.close()
        other.tenant("acme").enqueue("mail", "newer")
        with tenantq.open(store.root) as third:
            assert [message.payload for message in third.tenant("acme").peek("mail")] == ["old", "new", "newer"]


def test_another_process_deletes_a_tenant_and_makes_it_again(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", "old")
    (message,) = acme.claim("mail")
    with Child(
        """
        store = tenantq.open(sys.argv[1])
        store.delete("acme")
        say(store.create("acme").enqueue("mail", "new"))
        hear()
        """,
        store.root,
    ) as child:
        assert child.heard() == "1"
        with pytest.raises(FileReplaced):
            message.ack()
        acme.enqueue("mail", "newer")
        child.say()
        child.end()
    assert {message.payload for message in acme.peek("mail")} == {"new", "newer"}


# A locked tenant


def test_a_locked_tenant_holds_up_no_other(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, busy_timeout=0.3) as store:
        store.tenant("acme").enqueue("mail", 1)
        store.close()
    with (
        tenantq.open(tmp_path, busy_timeout=0.3) as store,
        Child(
            """
        import apsw
        connection = apsw.Connection(sys.argv[1])
        connection.execute("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; SELECT * FROM queue").fetchall()
        say("locked")
        hear()
        """,
            store.tenant("acme").path,
        ) as child,
        ThreadPoolExecutor(2) as pool,
    ):
        assert child.heard() == "locked"
        blocked = [pool.submit(store.tenant("acme").claim, "mail") for _ in range(2)]
        for number in range(5):
            store.tenant(f"other-{number}").enqueue("mail", 1)
        assert [type(future.exception()) for future in blocked] == [TenantBusy, TenantBusy]
        child.say()
        child.end()
        assert len(store.tenant("acme").claim("mail")) == 1


def test_the_activity_of_a_store_counts_files_that_were_closed_too(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_open_tenants=1) as store:
        for number in range(3):
            store.tenant(f"t{number}").enqueue_many("mail", range(2))
            store.tenant(f"t{number}").enqueue("mail", 2)
        activity = store.activity()
        assert (activity.open_tenants, activity.commits, activity.operations) == (1, 6, 6)
        assert (activity.busy_waits, activity.busy_seconds, activity.busy_longest) == (0, 0.0, 0.0)
    assert (store.activity().open_tenants, store.activity().commits) == (0, 6)
