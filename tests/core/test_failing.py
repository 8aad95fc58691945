from __future__ import annotations

import threading
from pathlib import Path

import pytest

import tenantq
from tenantq import _failing
from tenantq._failing import FailingTenants
from tenantq.clock import to_datetime
from tenantq.errors import CorruptFile, NotATenantFile, TenantBusy
from tenantq.testing import ManualClock

PATIENCE = 30


def test_the_pauses_grow_up_to_a_minute_and_begin_anew_when_it_works(clock: ManualClock) -> None:
    failing = FailingTenants(clock)
    pauses = []
    for _ in range(8):
        pauses.append(failing.note("acme", CorruptFile("broken")))
        clock.advance(pauses[-1])
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    failing.clear("acme")
    assert failing.listed() == []
    assert failing.note("acme", CorruptFile("broken")) == 1


def test_who_tries_meanwhile_does_not_make_the_pause_longer(clock: ManualClock) -> None:
    failing = FailingTenants(clock)
    failing.note("acme", CorruptFile("broken"))
    clock.advance(0.75)
    assert failing.note("acme", NotATenantFile("gone")) == pytest.approx(0.25)
    (found,) = failing.listed()
    assert (found.failures, found.error) == (1, "NotATenantFile")
    assert found.retry_in == pytest.approx(0.25)


def test_no_more_are_remembered_than_there_is_room_for(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_failing, "MOST_KEPT", 2)
    failing = FailingTenants(clock)
    pauses = [failing.note(name, CorruptFile("broken")) for name in ("a", "b", "c")]
    assert pauses == [1, 1, 60]
    assert [one.tenant for one in failing.listed()] == ["a", "b"]


def test_a_tenant_that_cannot_be_opened_is_told_of_until_it_can(
    store: tenantq.Store, clock: ManualClock, tmp_path: Path
) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    acme.backup(tmp_path / "acme.db")
    store.tenant("other").enqueue("mail", 1)
    store.close()
    with tenantq.open(store.root, clock=clock) as again:
        assert again.failing() == []
        acme.path.write_bytes(b"\xff" * 5000)
        since = to_datetime(clock.now_ns())
        for _ in range(3):
            with pytest.raises(NotATenantFile):
                again.tenant("acme").stats()
            clock.advance(0.1)
        again.tenant("other").enqueue("mail", 1)
        (found,) = again.failing()
        assert (found.tenant, found.error, found.since, found.failures) == ("acme", "NotATenantFile", since, 1)
        assert "acme.db" in found.message
        assert again.activity().failing_tenants == 1
        again.restore("acme", tmp_path / "acme.db")
        again.tenant("acme").enqueue("mail", 2)
        assert again.failing() == []
        assert again.activity().failing_tenants == 0


def test_a_deleted_tenant_fails_no_more(store: tenantq.Store) -> None:
    path = store.tenant("acme").path
    path.parent.mkdir()
    path.write_bytes(b"\xff" * 5000)
    with pytest.raises(NotATenantFile):
        store.tenant("acme").enqueue("mail", 1)
    assert len(store.failing()) == 1
    assert store.delete("acme")
    assert store.failing() == []


def test_a_tenant_that_others_hold_is_not_failing(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, busy_timeout=0.01) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)

        def write() -> None:
            with pytest.raises(TenantBusy):
                acme.enqueue("mail", 2)

        with acme.transaction():
            thread = threading.Thread(target=write)
            thread.start()
            thread.join()
        assert store.failing() == []


def test_a_worker_takes_a_tenant_up_again_when_its_file_is_good(live: tenantq.Store, tmp_path: Path) -> None:
    acme = live.tenant("acme")
    acme.enqueue("mail", 1)
    acme.backup(tmp_path / "acme.db")
    live.close()
    acme.path.write_bytes(b"\xff" * 5000)
    with tenantq.open(live.root) as store:
        handled: dict[str | None, threading.Event] = {"acme": threading.Event(), "other": threading.Event()}
        worker = tenantq.Worker(store)
        worker.on("mail")(lambda message: handled[message.tenant].set())
        with worker:
            store.tenant("other").enqueue("mail", 1)
            assert handled["other"].wait(PATIENCE)
            while [one.tenant for one in store.failing()] != ["acme"]:
                threading.Event().wait(0.01)
            store.restore("acme", tmp_path / "acme.db")
            assert handled["acme"].wait(PATIENCE)
        assert store.failing() == []
