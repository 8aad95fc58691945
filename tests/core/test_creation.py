from __future__ import annotations

import errno
import os
import resource
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tenantq
from tenantq import _creation, _schema
from tenantq._sqlite import Database
from tenantq.errors import DiskFull, TenantFileError


@pytest.fixture(params=["nameless", "named"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "named":
        monkeypatch.setattr(_creation, "_NAMELESS", 0)
    return str(request.param)


def create(path: Path, tenant_id: str = "acme", *, is_full: bool = False) -> Path:
    _creation.create_file(path, tenant_id, survives_power_loss=is_full)
    return path


@pytest.mark.usefixtures("way")
def test_a_new_file_is_what_the_schema_writes_and_its_tenants_own(tmp_path: Path) -> None:
    (tmp_path / "plain.db").touch()
    with closing(Database(tmp_path / "plain.db")) as database:
        _schema.write_schema(database, "acme")
        schema = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name")
    files: list[str] = []
    for tenant_id in ("acme", "übel"):
        with closing(Database(create(tmp_path / f"{len(files)}.db", tenant_id))) as database:
            meta = _schema.check_file(database, tenant_id)
            assert database.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name") == schema
            assert database.execute("PRAGMA journal_mode") == [("wal",)]
            assert database.execute("PRAGMA integrity_check") == [("ok",)]
            files.append(meta["file_id"])
    assert files[0] != files[1]
    assert (tmp_path / "0.db").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.db", "1.db", "plain.db"]


@pytest.mark.usefixtures("way")
def test_who_comes_second_leaves_the_first_ones_file_alone(tmp_path: Path) -> None:
    path = create(tmp_path / "acme.db")
    before = path.read_bytes()
    create(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_nameless_files_makes_named_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no such files here")

    monkeypatch.setattr(_creation, "_write_nameless", refuse)
    with sqlite3.connect(create(tmp_path / "acme.db")) as connection:
        assert connection.execute("SELECT count(*) FROM queue").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize(("is_full", "synced"), [(False, 0), (True, 1)])
def test_the_folder_is_synced_where_the_file_is_to_survive_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool, synced: int
) -> None:
    folders: list[Path] = []
    monkeypatch.setattr(_schema, "sync_directory", folders.append)
    create(tmp_path / "acme.db", is_full=is_full)
    assert folders == [tmp_path] * synced


@contextmanager
def small_files() -> Iterator[None]:
    """Let no file of this process grow over a page or two: what a full disk does, without one.

    For no longer than the block: the test runner's own output may go to a file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("way")
def test_what_cannot_be_written_is_a_typed_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TenantFileError) as caught, small_files():
        create(tmp_path / "acme.db")
    assert caught.value.tenant == "acme"
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(_creation, "_sync_data", full)
    with pytest.raises(DiskFull):
        create(tmp_path / "acme.db")
    assert list(tmp_path.iterdir()) == []


def test_threads_make_files_of_their_own_tenants(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(40)]
    threads = [
        threading.Thread(
            target=lambda some: [create(tmp_path / f"{name}.db", name) for name in some], args=(part,)
        )
        for part in (names[::2], names[1::2])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file_ids = set()
    for name in names:
        with closing(Database(tmp_path / f"{name}.db")) as database:
            file_ids.add(_schema.check_file(database, name)["file_id"])
    assert len(file_ids) == 40


def test_a_forked_child_makes_files_of_its_own(store: tenantq.Store, tmp_path: Path) -> None:
    store.tenant("parent").enqueue("mail", 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store.tenant("child").enqueue("mail", 2)
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert sorted(store.tenants()) == ["child", "parent"]


def test_listing_clears_what_killed_processes_left_and_nothing_else(store: tenantq.Store) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    shard = acme.path.parent
    old, young, note = (shard / name for name in (".new-old", ".new-young", ".note"))
    for path in (old, young, note):
        path.touch()
    with _creation.temporary_file(shard) as held:
        for path in (old, note, held.path, acme.path):
            os.utime(path, (0, 0))
        assert list(store.tenants()) == ["acme"]
        assert not old.exists()
        assert all(path.exists() for path in (young, note, held.path, acme.path))
    assert not held.path.exists()


def test_a_leftover_that_cannot_be_removed_hinders_nobody(
    store: tenantq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    left = acme.path.parent / ".new-old"
    left.touch()
    os.utime(left, (0, 0))

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", refuse)
    assert list(store.tenants()) == ["acme"]
