"""Deployments that would lose messages or show them are refused, or made safe, from the beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenantq
from tenantq import _filesystem
from tenantq.errors import TenantFileError, UnsupportedSQLite
from tests.children import Child


@pytest.mark.parametrize("version", ["3.51.2", "3.44.6", "3.7.0", "2.8.17"])
def test_a_sqlite_that_can_lose_committed_rows_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr("tenantq._sqlite.apsw.sqlite_lib_version", lambda: version)
    with pytest.raises(UnsupportedSQLite, match=version) as caught:
        tenantq.open(tmp_path / "store")
    assert "apsw 3.51.3" in caught.value.hint
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "3.100.0", "4.0.0"])
def test_one_that_cannot_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("tenantq._sqlite.apsw.sqlite_lib_version", lambda: version)
    tenantq.open(tmp_path / "store").close()


def test_a_store_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_filesystem, "filesystem_of", lambda _path, _mounts: "nfs4")
    with pytest.raises(TenantFileError, match="nfs4") as caught:
        tenantq.open(tmp_path / "store")
    assert "local disk" in caught.value.hint


def test_nobody_else_can_read_what_a_process_writes_whatever_its_umask(tmp_path: Path) -> None:
    script = """
        os.umask(0)
        with tenantq.open(sys.argv[1] + "/store") as store:
            acme, other = store.tenant("acme"), store.tenant("other")
            acme.limit("mail", max_depth=1)
            acme.enqueue("mail", 1)
            thread = threading.Thread(target=acme.enqueue, args=("mail", 2), kwargs={"wait": 30})
            thread.start()
            acme.ack(*acme.claim("mail", wait=1))
            thread.join()
            other.enqueue("mail", 1, delay=60)
            store.periodic.add("nightly", "0 3 * * *", "report", 1)
            acme.backup(sys.argv[1] + "/backups/acme.db")
            store.restore("other", other.backup(sys.argv[1] + "/backups/other.db"))
            store.prepare("third")
            with store.watch() as watch:
                watch.wait(0)
                acme.stats()
                say("open")
                hear()
    """
    with Child(script, tmp_path) as child:
        assert child.heard() == "open"
        written = sorted(tmp_path.rglob("*"))
        names = {path.name for path in written}
        assert {".doorbell", ".board", ".schedule", ".room", "acme.db-wal", "acme.db-shm"} <= names
        modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in written}
        is_directory = {str(path.relative_to(tmp_path)): path.is_dir() for path in written}
        assert modes == {name: 0o700 if is_directory[name] else 0o600 for name in modes}
        child.say()
        assert child.end() == 0
