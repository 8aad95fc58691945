"""While a tenant is kept quiet its file alone is complete, and a tool of the system's may copy it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

import tenantq
from tenantq.errors import FileReplaced, TenantBusy, UnknownTenant
from tests.children import Child

WRITER = """
    tenant = tenantq.open(sys.argv[1], busy_timeout=60).tenant("acme")
    for number in range(10**9):
        tenant.enqueue("mail", f"{sys.argv[2]}{number}")
        say(number)
"""

HOLDER = """
    with tenantq.open(sys.argv[1]) as store, store.quiesce("acme"):
        stop_here("quiet")
"""

READER = """
    import apsw
    connection = apsw.Connection(sys.argv[1])
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM queue").fetchall()
    say("reading")
    hear()
    connection.close()
"""


def copy(source: Path, target: Path) -> Path:
    """Copy a file as another program does."""
    subprocess.run(["cp", source, target], check=True)
    return target


def payloads(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        return [row[0] for row in connection.execute("SELECT payload FROM queue ORDER BY id")]


def test_twenty_copies_of_twenty_by_cp_are_complete_under_hammering_writers(tmp_path: Path) -> None:
    with (
        tenantq.open(tmp_path / "store", busy_timeout=60) as store,
        Child(WRITER, store.root, "a") as first,
        Child(WRITER, store.root, "b") as second,
    ):
        for round_ in range(20):
            acknowledged = {writer: int([writer.heard() for _ in range(50)][-1]) for writer in (first, second)}
            with store.quiesce("acme") as path:
                found = copy(path, tmp_path / f"{round_}.db")
                again = copy(path, tmp_path / "again.db")
            assert found.read_bytes() == again.read_bytes()
            assert tenantq.verify(found).ok
            kept = payloads(found)
            for name, writer in (("a", first), ("b", second)):
                of_one = [payload for payload in kept if payload.startswith(f'"{name}')]
                assert of_one == [f'"{name}{number}"' for number in range(len(of_one))]
                assert len(of_one) > acknowledged[writer]


def test_a_copy_with_the_wal_is_the_same_as_one_without(store: tenantq.Store, tmp_path: Path) -> None:
    store.tenant("acme").enqueue_many("mail", range(100))
    with store.quiesce("acme") as path:
        alone = copy(path, tmp_path / "alone.db")
        both = copy(path, tmp_path / "both.db")
        copy(path.with_name("acme.db-wal"), tmp_path / "both.db-wal")
    assert tenantq.verify(alone).ready == tenantq.verify(both).ready == 100


def test_nobody_writes_meanwhile_and_readers_go_on(tmp_path: Path) -> None:
    with (
        tenantq.open(tmp_path / "store", busy_timeout=0.05) as store,
        tenantq.open(tmp_path / "store", busy_timeout=0.05) as other,
    ):
        store.tenant("acme").enqueue("mail", 1)
        with store.quiesce("acme"):
            for tenant in (store.tenant("acme"), other.tenant("acme")):
                with pytest.raises(TenantBusy):
                    tenant.enqueue("mail", 2)
                assert tenant.stats().ready == 1
            with pytest.raises(TenantBusy), other.quiesce("acme"):
                pass
        other.tenant("acme").enqueue("mail", 2)
        assert store.tenant("acme").stats().ready == 2


def test_a_writer_waits_and_then_goes_on(store: tenantq.Store) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    with store.quiesce("acme"):
        thread = threading.Thread(target=acme.enqueue, args=("mail", 2))
        thread.start()
    thread.join()
    assert acme.stats().ready == 2


def test_a_killed_process_keeps_nobody_waiting(store: tenantq.Store, tmp_path: Path) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    with Child(HOLDER, store.root) as holder:
        assert holder.heard() == "quiet"
        found = copy(acme.path, tmp_path / "copy.db")
        holder.kill()
    acme.enqueue("mail", 2)
    assert tenantq.verify(found).ready == 1
    assert acme.stats().ready == 2


def test_a_reader_that_does_not_end_is_a_typed_error_and_writers_go_on(tmp_path: Path) -> None:
    with tenantq.open(tmp_path / "store", busy_timeout=0.2) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)
        with Child(READER, acme.path) as reader:
            assert reader.heard() == "reading"
            acme.enqueue("mail", 2)
            with pytest.raises(TenantBusy, match="a reader kept"), store.quiesce("acme"):
                pass
            acme.enqueue("mail", 3)
            reader.say()
            assert reader.end() == 0
        with store.quiesce("acme"):
            pass


def test_a_closed_tenant_is_one_file_again_afterwards(store: tenantq.Store) -> None:
    store.tenant("acme").enqueue("mail", 1)
    store.close()
    with tenantq.open(store.root) as again:
        with again.quiesce("acme") as path:
            pass
        assert [file.name for file in path.parent.iterdir()] == ["acme.db"]


def test_a_file_that_is_replaced_meanwhile_is_told_of_and_left_alone(store: tenantq.Store, tmp_path: Path) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    saved = acme.backup(tmp_path / "saved.db")
    store.close()
    with tenantq.open(store.root) as again:
        with pytest.raises(FileReplaced), again.quiesce("acme") as path:
            copy(saved, tmp_path / "new.db").replace(path)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink()
            shutil.copy(saved, path.with_name("acme.db-wal"))
        assert path.with_name("acme.db-wal").exists()
        path.with_name("acme.db-wal").unlink()
        assert again.tenant("acme").stats().ready == 1


def test_a_tenant_without_a_file_cannot_be_kept_quiet(store: tenantq.Store) -> None:
    with pytest.raises(UnknownTenant), store.quiesce("acme"):
        pass
    assert "acme" not in store


def test_an_error_in_the_block_lets_the_writers_go_on(store: tenantq.Store) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    with pytest.raises(ZeroDivisionError), store.quiesce("acme"):
        _ = 1 / 0
    acme.enqueue("mail", 2)
