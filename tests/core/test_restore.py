"""Restore beside other processes, the ids that go on, and a copy under another id."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

import tenantq
from tenantq import _given_out, _restoring, _schema
from tenantq._board import Board
from tenantq._departures import Departures
from tenantq.errors import InvalidArgument, TenantExists, TenantFileError, TenantInUse, WrongTenant
from tests.children import Child

IDLE = """
    tenant = tenantq.open(sys.argv[1]).tenant("acme")
    tenant.enqueue("mail", "held")
    say("open")
    hear()
    tenant.stats()
    say("called")
    hear()
"""

WAITING = """
    tenant = tenantq.open(sys.argv[1]).tenant("acme")
    tenant.enqueue("other", 1)
    tenant.ack(*tenant.claim("other"))
    say("open")
    say(*[message.payload for message in tenant.claim("restored", wait=30)])
"""

BUSY = """
    store = tenantq.open(sys.argv[1])
    tenant = store.tenant("acme")
    say("open")
    while True:
        tenant.claim("restored")
        tenant.stats()
"""


@pytest.fixture
def saved(acme: tenantq.Tenant, tmp_path: Path) -> Path:
    """A backup of a tenant that has gone on since, by three ids."""
    acme.enqueue("restored", "saved")
    path = acme.backup(tmp_path / "saved.db")
    acme.enqueue_many("mail", range(3))
    return path


# Other processes


def test_a_process_that_waits_for_messages_lets_go_when_asked_and_gets_those_of_the_backup(
    store: tenantq.Store, saved: Path
) -> None:
    acme = store.tenant("acme")
    acme.purge("restored")
    with Child(WAITING, store.root) as child:
        assert child.heard() == "open"
        with pytest.raises(TenantInUse):
            store.restore("acme", saved)
        store.restore("acme", saved, evict=True)
        assert child.heard() == "saved"


def test_a_process_that_calls_all_the_time_lets_go_when_asked(store: tenantq.Store, saved: Path) -> None:
    with Child(BUSY, store.root) as child:
        assert child.heard() == "open"
        for _ in range(2):
            store.restore("acme", saved, evict=True, wait=20)
            assert store.tenant("acme").stats().ready <= 1


def test_a_process_that_does_nothing_keeps_the_tenant_until_its_next_call(
    store: tenantq.Store, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenantq._lifecycle.EVICTION_SECONDS", 0.1)
    with Child(IDLE, store.root) as child:
        assert child.heard() == "open"
        with pytest.raises(TenantInUse, match="did not let go") as caught:
            store.restore("acme", saved, evict=True)
        assert "stop that process" in caught.value.hint
        assert store.tenant("acme").stats().ready == 5
        restoring = threading.Thread(
            target=store.restore, args=("acme", saved), kwargs={"evict": True, "wait": 20}
        )
        restoring.start()
        departures = Departures(Board(store.root))
        key = tenantq.naming.key_of("acme")
        while not departures.is_asked(key):
            pass
        child.say()
        assert child.heard() == "called"
        restoring.join(20)
        assert not restoring.is_alive()
        assert not departures.is_asked(key)
    assert store.tenant("acme").stats().ready == 1


def test_a_restore_waits_for_a_process_to_end(store: tenantq.Store, saved: Path) -> None:
    with Child(IDLE, store.root) as child:
        assert child.heard() == "open"
        ending = threading.Timer(0.2, child.kill)
        ending.start()
        store.restore("acme", saved, wait=20)
        ending.join()
    assert store.tenant("acme").stats().ready == 1
    with pytest.raises(InvalidArgument):
        store.restore("acme", saved, wait=-1)


def test_a_request_is_of_one_tenant_and_ends_by_itself(
    store: tenantq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenantq._departures.REQUEST_SECONDS", 0.02)
    departures = Departures(Board(store.root))
    key = tenantq.naming.key_of("acme")
    departures.ask(key)
    assert not departures.is_asked(key ^ 1)
    departures.withdraw(key ^ 1)
    assert departures.wait_for_end(key, 5)
    assert departures.asked_in(0) is None


# Ids


def next_id(store: tenantq.Store) -> int:
    return store.tenant("acme").enqueue("new", 1)


def test_new_ids_go_on_above_all_that_the_replaced_file_gave_out(store: tenantq.Store, saved: Path) -> None:
    acme = store.tenant("acme")
    acme.purge("mail")  # gone, and given out all the same
    store.restore("acme", saved)
    assert next_id(store) == 5
    assert [(queue.queue, queue.ready) for queue in acme.stats().queues] == [
        ("mail", 0),
        ("new", 1),
        ("restored", 1),
    ]


def test_ids_go_on_above_those_that_a_killed_process_gave_out(store: tenantq.Store, saved: Path) -> None:
    store.close()
    with Child(IDLE, store.root) as child:
        child.heard()
        child.kill()
    with tenantq.open(store.root) as again:
        again.restore("acme", saved)
        assert next_id(again) == 6


def test_ids_that_were_given_by_hand_are_not_given_again(store: tenantq.Store, saved: Path) -> None:
    path = store.tenant("acme").path
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO queue (id, visible_at, enqueued_at, payload) VALUES (70, 0, 0, '1')")
    with tenantq.open(store.root) as again:
        again.restore("acme", saved)
        assert next_id(again) == 71


@pytest.mark.parametrize("what", ["damaged", "empty", "deleted"])
def test_ids_jump_where_nobody_can_tell_what_was_given_out(store: tenantq.Store, saved: Path, what: str) -> None:
    path = store.tenant("acme").path
    store.close()
    match what:
        case "damaged":
            path.write_bytes(b"\xff" * 10_000)
        case "empty":
            path.write_bytes(b"")
        case _:
            path.unlink()
    with tenantq.open(store.root) as again:
        again.restore("acme", saved)
        assert next_id(again) == 1 + _given_out.JUMP + 1
        again.restore("acme", saved)
        assert next_id(again) == 1 + _given_out.JUMP + 2


def test_ids_jump_from_a_backup_without_a_message(store: tenantq.Store, tmp_path: Path) -> None:
    acme = store.tenant("acme")
    acme.pause("mail")
    saved = acme.backup(tmp_path / "x.db")
    store.delete("acme")
    store.restore("acme", saved)
    assert next_id(store) == _given_out.JUMP + 1
    assert tenantq.verify(acme.path).ok


def test_a_message_from_before_a_restore_is_not_taken_for_one_from_after_it(
    store: tenantq.Store, acme: tenantq.Tenant, saved: Path
) -> None:
    store.restore("acme", saved)
    acme.enqueue("mail", "new")
    (new,) = acme.claim("mail")
    assert new.id == 5
    assert tenantq.verify(acme.path).ok


# A copy under another id


def events(tenant: tenantq.Tenant) -> list[tenantq.Event]:
    return tenant.outbox.read(0, limit=9, max_bytes=10_000)


@pytest.fixture
def copied(store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path) -> tenantq.Tenant:
    acme.enqueue_many("mail", ["held", "ready"])
    acme.claim("mail")
    acme.enqueue("later", 1, delay=60)
    acme.emit("topic", "known")
    (known,) = events(acme)
    acme.outbox.mark_forwarded(known.seq, known.event_id)
    acme.emit("topic", "pending")
    store.restore("acme", acme.backup(tmp_path / "x.db"), as_="look")
    return store.tenant("look")


def test_a_copy_is_another_tenant_and_the_first_stays_as_it_was(
    store: tenantq.Store, acme: tenantq.Tenant, copied: tenantq.Tenant
) -> None:
    assert sorted(store.tenants()) == ["acme", "look"]
    assert acme.stats().claimed == 1
    assert [message.payload for message in copied.peek("mail")] == ["held", "ready"]
    assert tenantq.verify(copied.path).problems == ()
    assert tenantq.verify(copied.path).tenant == "look"
    assert copied.outbox.position().file_id != acme.outbox.position().file_id
    for _ in range(2):
        with pytest.raises(TenantExists):
            store.restore("acme", copied.path.parent.parent.parent / "x.db", as_="look")
    with pytest.raises(WrongTenant):
        store.restore("other", copied.path.parent.parent.parent / "x.db", as_="third")


def test_nothing_of_a_copy_happens_by_itself(copied: tenantq.Tenant) -> None:
    assert copied.claim("mail") == []
    assert copied.claim("later") == []
    assert all(queue.is_paused for queue in copied.stats().queues)
    copied.resume("mail")
    assert [message.payload for message in copied.claim("mail", 9)] == ["held", "ready"]


def test_events_of_a_copy_are_kept_apart_until_somebody_sends_them(copied: tenantq.Tenant) -> None:
    assert copied.stats().outbox == 0
    assert events(copied) == []
    (kept,) = copied.outbox.undeliverable()
    assert (kept.body, kept.error) == ('"pending"', "not forwarded: a copy of tenant 'acme'")
    copied.outbox.redeliver()
    assert [event.body for event in events(copied)] == ['"pending"']
    assert tenantq.verify(copied.path).problems == ()


def test_periodic_messages_of_a_copy_do_not_fire(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    pytest.importorskip("cronsim")
    acme.periodic.add("tick", "* * * * *", "mail", {})
    store.restore("acme", acme.backup(tmp_path / "x.db"), as_="look")
    (period,) = store.tenant("look").periodic.list()
    assert period.due_ns is None
    assert period.error == "stopped: a copy of tenant 'acme'"
    assert store.tenant("look").next_due() is None


# What cannot be


def test_a_copy_that_breaks_off_is_made_by_sqlite(
    store: tenantq.Store, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(source: int, target: int) -> None:
        os.write(target, os.pread(source, 10_000, 0))
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(_restoring, "_copy_bytes", break_off)
    store.restore("acme", saved)
    assert store.tenant("acme").stats().ready == 1
    assert tenantq.verify(store.tenant("acme").path).ok


def test_a_full_disk_leaves_the_tenant_as_it_was(
    store: tenantq.Store, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(_restoring, "sync_file", full)
    with pytest.raises(TenantFileError):
        store.restore("acme", saved)
    assert store.tenant("acme").stats().ready == 4
    path = _schema.path_of(store.root, "acme")
    assert sorted(one.name for one in path.parent.iterdir()) == ["acme.db", "acme.db-shm", "acme.db-wal"]
