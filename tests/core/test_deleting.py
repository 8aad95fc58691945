"""A deleted tenant is gone for every process, says what went with it, and comes back only on purpose."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import tenantq
from tenantq import _schema
from tenantq._tombstones import tombstone_path
from tenantq.errors import EventsWaiting, InvalidArgument, TenantDeleted, TenantExists, TenantFileError
from tests.children import Child

LONG = "🦆" * 60  # too long for a file name to spell


def test_the_report_says_what_was_removed(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.enqueue_many("mail", range(3))
    (message,) = acme.claim("mail")
    acme.dead_letter(message, error="no")
    acme.emit("topic", 1)
    deletion = store.delete("acme", events="drop")
    assert deletion
    assert (deletion.messages, deletion.dead, deletion.pending, deletion.undeliverable) == (2, 1, 1, 0)
    assert deletion.files[0].path == str(acme.path)
    assert deletion.files[0].bytes > 0
    again = store.delete("acme")
    assert not again
    assert (again.files, again.messages) == ([], None)


def test_a_deleted_tenant_is_made_by_no_call_but_on_purpose(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)
    store.delete("acme")
    for call in (
        lambda: acme.enqueue("mail", 2),
        lambda: store.tenant("acme").emit("topic", 1),
        lambda: store.tenant("acme").transaction().__enter__(),
        lambda: store.tenant("acme", create=False),
    ):
        with pytest.raises(TenantDeleted, match="was deleted at ") as caught:
            call()
        assert "create" in caught.value.hint
        assert caught.value.at
    assert acme.claim("mail") == []
    with tenantq.open(store.root) as other, pytest.raises(TenantDeleted):
        other.tenant("acme").enqueue("mail", 2)
    assert store.create("acme").enqueue("mail", 3) == 1
    with pytest.raises(TenantExists):
        store.create("acme")


@pytest.mark.parametrize("tenant_id", ["acme", "../ACME", LONG])
def test_the_deleted_are_listed_until_they_come_again(store: tenantq.Store, tenant_id: str) -> None:
    store.create(tenant_id)
    assert store.deleted() == []
    store.delete(tenant_id)
    (stone,) = store.deleted()
    assert (stone.tenant, stone.went) == (tenant_id, "deleted")
    assert list(store.tenants()) == []
    store.create(tenant_id)
    assert store.deleted() == []
    assert list(store.tenants()) == [tenant_id]


def test_one_that_never_was_leaves_no_tombstone(store: tenantq.Store) -> None:
    assert not store.delete("acme")
    assert store.tenant("acme").enqueue("mail", 1) == 1


def test_a_backup_brings_a_deleted_tenant_back(store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.enqueue("mail", 1)
    copy = acme.backup(tmp_path / "copy.db")
    store.delete("acme")
    store.restore("acme", copy)
    assert not tombstone_path(acme.path).exists()
    assert acme.stats().ready == 1
    assert store.deleted() == []


def test_a_process_that_has_the_file_open_gets_a_typed_error_and_writes_nothing_more(
    store: tenantq.Store, acme: tenantq.Tenant
) -> None:
    writer = """
    tenant = tenantq.open(sys.argv[1]).tenant("acme")
    count = 0
    try:
        while True:
            tenant.enqueue("mail", count)
            count += 1
            if count == 1:
                say("writing")
    except tenantq.TenantDeleted:
        say(count)
    """
    with Child(writer, store.root) as child:
        assert child.heard() == "writing"
        deletion = store.delete("acme")
        acknowledged = int(child.heard())
    assert deletion.messages == acknowledged  # all of them went, and none came after
    assert "acme" not in store


def test_events_that_wait_are_refused_dropped_or_waited_for(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.emit("topic", 1)
    with pytest.raises(EventsWaiting, match="1 events") as caught:
        store.delete("acme")
    assert (caught.value.pending, caught.value.undeliverable) == (1, 0)
    acme.emit("topic", 2)
    with pytest.raises(EventsWaiting):
        store.delete("acme", events="forward", wait=0)
    seen = threading.Event()

    def forward() -> int:
        seen.set()
        for event in acme.outbox.read(0, limit=9, max_bytes=9000):
            acme.outbox.confirm(event.seq, event.event_id)
        return 1

    assert store.delete("acme", events="forward", forward=forward)
    assert seen.is_set()


def test_backups_and_replica_go_too_where_that_is_asked(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    acme.enqueue("mail", 1)
    store.tenant("other").enqueue("mail", 1)
    copies = tmp_path / "copies"
    copies.mkdir()
    copy = acme.backup(copies)
    kept = store.tenant("other").backup(copies)
    deletion = store.delete("acme", backups=[copies], replica=lambda tenant: [f"s3://{tenant}"])
    assert (copy.exists(), kept.exists()) == (False, True)
    assert str(copy) in [file.path for file in deletion.files]
    assert deletion.replicas == ["s3://acme"]


def test_a_deleted_tenant_leaves_no_generation_in_a_backup_directory(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    copies = tenantq.BackupDirectory(tmp_path / "copies")
    store.tenant("other").enqueue("mail", 1)
    for number in range(2):
        acme.enqueue("mail", number)
        copies.update(store)
    taken = copies.backups("acme")
    deletion = store.delete("acme", backups=[copies.path])
    assert [file.path for file in deletion.files if "copies" in file.path] == [str(one.path) for one in taken]
    assert len(taken) == 2
    assert not any(one.path.exists() for one in taken)
    assert list(copies.tenants()) == ["other"]
    assert not copies.update(store).failed


def test_bad_input_leaves_the_tenant_as_it_was(store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.enqueue("mail", 1)
    for options in (
        {"events": "maybe"},
        {"backups": [tmp_path / "none"]},
        {"backups": [store.root]},
        {"wait": -1},
    ):
        with pytest.raises(InvalidArgument):
            store.delete("acme", **options)
    assert acme.stats().ready == 1


def test_a_tombstone_that_cannot_be_read_is_an_error_that_says_so(
    store: tenantq.Store, acme: tenantq.Tenant
) -> None:
    acme.enqueue("mail", 1)
    store.delete("acme")
    tombstone_path(acme.path).write_bytes(b"")
    with pytest.raises(TenantFileError, match="tombstone") as caught:
        acme.enqueue("mail", 1)
    assert caught.value.hint


def test_the_tombstone_lies_where_the_file_was(store: tenantq.Store) -> None:
    assert tombstone_path(_schema.path_of(store.root, "acme")).name == "acme.deleted"


def test_another_library_that_has_the_file_open_adds_nothing_behind_the_deletion(
    store: tenantq.Store, acme: tenantq.Tenant
) -> None:
    acme.enqueue("mail", 1)
    holder = """
        import sqlite3
        from tenantq import statements
        connection = sqlite3.connect(sys.argv[1], isolation_level="IMMEDIATE")
        connection.execute("SELECT count(*) FROM queue").fetchall()
        say("open")
        hear()
        try:
            with connection:
                for sql, parameters in statements.enqueue("mail", 2):
                    connection.execute(sql, parameters)
        except sqlite3.IntegrityError as exc:
            say("refused:", exc)
    """
    with Child(holder, acme.path) as child:
        assert child.heard() == "open"
        assert store.delete("acme")
        child.say()
        assert child.heard().startswith("refused: tenantq")
