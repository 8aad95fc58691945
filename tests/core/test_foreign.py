"""A file that something else in this process has open is not written: it could lose committed rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import tenantq
from tenantq import _foreign, _handle
from tenantq.errors import ForeignHandle


@pytest.fixture(autouse=True)
def _guard_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_handle, "GUARD_INTERVAL", 0.0)


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
