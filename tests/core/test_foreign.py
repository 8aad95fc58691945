"""A file that something else in this process has open is not written: it could lose committed rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import tenantq
from tenantq import _foreign, _handle, statements
from tenantq.errors import ForeignHandle, TenantInUse
from tests.children import Child


@pytest.fixture(autouse=True)
def _guard_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_handle, "GUARD_INTERVAL", 0.0)
    # Whatever the tests before have looked at.
    monkeypatch.setattr(_foreign, "_allowance", [_foreign.LOOK_BURST, 0.0])
    monkeypatch.setattr(_foreign, "_next_look", [0.0])


def test_a_second_sqlite_library_on_the_file_is_told(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)
    other = sqlite3.connect(acme.path)
    other.execute("SELECT count(*) FROM queue").fetchall()
    with pytest.raises(ForeignHandle) as caught:
        acme.enqueue("mail", 2)
    assert caught.value.tenant == "acme"
    with pytest.raises(ForeignHandle), acme.transaction():
        pass
    other.close()


def test_a_plain_descriptor_is_told(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)
    with acme.path.open("rb"), pytest.raises(ForeignHandle):
        acme.enqueue("mail", 2)


def test_one_that_was_there_before_us_is_told(acme: tenantq.Tenant, store: tenantq.Store) -> None:
    acme.enqueue("mail", 1)
    path = acme.path
    store.close()
    with path.open("rb"), tenantq.open(store.root) as again, pytest.raises(ForeignHandle):
        again.tenant("acme").enqueue("mail", 2)


def test_our_own_second_connection_is_none_of_a_stranger(acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.enqueue("mail", 1)
    for number in range(3):
        acme.backup(tmp_path / f"{number}.db")
        acme.enqueue("mail", number)
        assert tenantq.verify(acme.path).ok
        acme.enqueue("mail", number)


def test_another_tenants_file_is_no_business_of_this_one(acme: tenantq.Tenant, store: tenantq.Store) -> None:
    other = store.tenant("other")
    other.enqueue("mail", 1)
    with other.path.open("rb"):
        acme.enqueue("mail", 1)


def test_a_process_with_too_many_descriptors_lists_them_seldom(
    acme: tenantq.Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def listdir(path: str) -> list[str]:
        looks.append(path)
        return ["0"] * (_foreign.MAX_DESCRIPTORS + 1)

    monkeypatch.setattr(_foreign, "_next_look", [0.0])
    monkeypatch.setattr("tenantq._foreign.os.listdir", listdir)
    for number in range(5):
        acme.enqueue("mail", number)
    assert looks == ["/proc/self/fd"]


def test_every_call_is_refused_until_the_other_library_has_closed_the_file(
    acme: tenantq.Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme.enqueue("mail", 1)
    with closing(sqlite3.connect(acme.path)) as other:
        other.execute("SELECT count(*) FROM queue").fetchall()
        for number in range(3):
            with pytest.raises(ForeignHandle):
                acme.enqueue("mail", number)
            monkeypatch.setattr(_handle, "GUARD_INTERVAL", 3600.0)  # no refusal may count as a look
    acme.enqueue("mail", 2)


LOOKS: dict[str, Callable[[tenantq.Store, Path, Path], object]] = {
    "enqueue": lambda store, _path, _other: store.tenant("acme").enqueue("mail", 1),
    "stats": lambda store, _path, _other: store.tenant("acme").stats(),
    "backup": lambda store, _path, other: store.tenant("acme").backup(other),
    "verify": lambda _store, path, _other: tenantq.verify(path),
    "migrate": lambda store, _path, _other: store.migrate("acme"),
    "prepare": lambda store, _path, _other: store.prepare("acme"),
    "restore": lambda store, _path, other: store.restore("acme", other),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_file_that_another_library_has_open_is_not_opened_so_its_locks_stay(tmp_path: Path, look: str) -> None:
    with tenantq.open(tmp_path / "store") as store:
        path = store.prepare("acme")
        store.tenant("acme").enqueue("mail", 0)
        other = store.tenant("acme").backup(tmp_path / "backup.db")
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        tenantq.open(tmp_path / "store") as store,
    ):
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(ForeignHandle) as caught:
            LOOKS[look](store, path, other)
        assert "tenantq.statements" in caught.value.hint
        script = """
            import sqlite3
            try:
                sqlite3.connect(sys.argv[1], timeout=0).execute("DELETE FROM queue")
            except sqlite3.OperationalError as exc:
                say(exc)
            """
        with Child(script, path) as child:
            assert child.heard() == "database is locked"
        connection.execute("COMMIT")
    assert tenantq.verify(path).ok


def test_a_tenant_that_this_process_has_open_elsewhere_is_not_restored_under_it(
    acme: tenantq.Tenant, store: tenantq.Store, tmp_path: Path
) -> None:
    acme.enqueue("mail", 1)
    saved = acme.backup(tmp_path / "backup.db")
    with tenantq.open(store.root) as again, pytest.raises(TenantInUse) as caught:
        again.restore("acme", saved)
    assert "close that store" in caught.value.hint
    assert acme.enqueue("mail", 2) == 2


def test_notify_tells_of_two_libraries_on_one_file(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)
    with closing(sqlite3.connect(acme.path)) as other:
        other.execute("SELECT count(*) FROM queue").fetchall()
        with pytest.raises(ForeignHandle):
            acme.notify()
    acme.notify()


def test_one_library_at_a_time_is_no_stranger(acme: tenantq.Tenant, store: tenantq.Store) -> None:
    for number in range(3):
        with closing(sqlite3.connect(store.prepare("acme"))) as other, other:
            for sql, parameters in statements.enqueue("mail", number):
                other.execute(sql, parameters)
            acme.notify()
        assert acme.stats().ready == number + 1
