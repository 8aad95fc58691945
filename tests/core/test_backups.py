"""A backup directory: what changed is never passed over, what did not is not opened, no kill loses anything."""

from __future__ import annotations

import os
import shutil
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenantq
from tenantq import _looks, _manifest, _sqlite
from tenantq.clock import to_datetime
from tenantq.errors import BackupNotFound, TenantFileError
from tenantq.testing import ManualClock
from tests.children import Child

LONG = "🦆" * 60  # too long for a file name to spell: only the file itself says whose it is

WRITER = """
    with tenantq.open(sys.argv[1]) as store:
        while hear() == "on":
            store.tenant("acme").enqueue("mail", 1)
            say("done")
"""

RUN = """
    from tenantq import _backup_run, _manifest, backups

    point, seen = sys.argv[3], []

    def kill_at(name, module, function):
        if point == name:
            original = getattr(module, function)
            def stop(*arguments, **options):
                seen.append(1)
                if len(seen) == 2 or name != "after a copy":
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **options)
            setattr(module, function, stop)

    kill_at("in a copy", _backup_run, "check_sound")
    kill_at("before a name", _backup_run, "put_in_place")
    kill_at("after a copy", _manifest.Log, "add")
    kill_at("before the manifest", backups, "save")
    kill_at("before the removal", backups.BackupDirectory, "_remove")
    kill_at("before the end", _manifest.Log, "remove")
    with tenantq.open(sys.argv[1]) as store:
        tenantq.BackupDirectory(sys.argv[2]).update(store, jobs=2, keep=1)
"""

POINTS = [
    "in a copy",
    "before a name",
    "after a copy",
    "before the manifest",
    "before the removal",
    "before the end",
]


@pytest.fixture(autouse=True)
def _fine_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust a look at once: these tests write and look within one tick, and none of them twice in one."""
    monkeypatch.setattr(_looks, "CLOCK_TICK_NS", 0)


@pytest.fixture
def directory(tmp_path: Path) -> tenantq.BackupDirectory:
    return tenantq.BackupDirectory(tmp_path / "copies")


@pytest.fixture
def three(store: tenantq.Store) -> tenantq.Store:
    for tenant_id in ("acme", "globex", LONG):
        store.tenant(tenant_id).enqueue("mail", 0)
    return store


def check(directory: tenantq.BackupDirectory) -> None:
    """Check that the manifest and the files are the same, and each file is sound."""
    listed = [backup for tenant_id in directory.tenants() for backup in directory.backups(tenant_id)]
    assert all(backup.is_whole() for backup in listed)
    assert all(tenantq.verify(backup.path).ok for backup in listed)
    assert sorted(directory.path.rglob("*.db")) == sorted(backup.path for backup in listed)
    assert sorted(path.name for path in directory.path.iterdir() if path.is_file()) == ["manifest.json"]
    assert not list(directory.path.rglob(".*"))


def ready(backup: tenantq.Backup) -> int:
    return tenantq.verify(backup.path).ready


def test_a_run_takes_what_changed_and_opens_no_other(
    three: tenantq.Store, directory: tenantq.BackupDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = directory.update(three)
    assert (first.tenants, first.taken, first.unchanged, first.failed) == (3, 3, 0, 0)
    three.tenant("acme").enqueue("mail", 1)
    opened: list[str | None] = []
    original = _sqlite.Database.__init__

    def count(database: _sqlite.Database, path: Path, **options: Any) -> None:
        original(database, path, **options)
        if path.is_relative_to(three.root):
            opened.append(database.tenant)

    monkeypatch.setattr(_sqlite.Database, "__init__", count)
    results: list[tenantq.BackupResult] = []
    second = directory.update(three, on_result=results.append)
    assert set(opened) == {result.tenant for result in results} == {"acme"}
    assert (second.taken, second.unchanged) == (1, 2)
    assert second.bytes == results[0].backup.bytes if results[0].backup else 0
    assert [ready(backup) for backup in directory.backups("acme")] == [1, 2]
    assert [ready(backup) for backup in directory.backups(LONG)] == [1]
    check(directory)


def test_a_tenant_that_another_process_has_open_is_never_passed_over(
    store: tenantq.Store, directory: tenantq.BackupDirectory
) -> None:
    with Child(WRITER, store.root) as writer:
        for number in range(1, 21):
            writer.say("on")
            assert writer.heard() == "done"
            directory.update(store)
            assert ready(directory.find("acme")) == number
        writer.say("off")
        assert writer.end() == 0
    summary = directory.update(store)  # its last close moved the -wal into the file: other times, the same content
    assert (summary.taken, summary.same) == (0, 1)
    assert directory.update(store).unchanged == 1
    check(directory)


def test_a_file_that_was_changed_in_this_tick_of_the_clock_is_looked_into_again(
    store: tenantq.Store, directory: tenantq.BackupDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.tenant("acme").enqueue("mail", 1)
    monkeypatch.setattr(_looks, "CLOCK_TICK_NS", 10**15)
    assert directory.update(store).taken == 1
    assert directory.update(store).same == 1


def test_a_file_that_was_replaced_with_its_old_times_is_noticed(
    store: tenantq.Store, directory: tenantq.BackupDirectory, tmp_path: Path
) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    store.close()
    shutil.copy2(acme.path, tmp_path / "older.db")
    with tenantq.open(store.root) as again:
        directory.update(again)
        status = acme.path.stat()
        shutil.copy(tmp_path / "older.db", acme.path)
        os.utime(acme.path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert directory.update(again).same == 1


def test_looking_at_a_tenant_does_not_make_it_changed(
    store: tenantq.Store, directory: tenantq.BackupDirectory
) -> None:
    store.tenant("acme").enqueue("mail", 1)
    store.close()
    with tenantq.open(store.root) as again:
        directory.update(again)
        again.tenant("acme").stats()
        again.tenant("acme").peek("mail")
        assert directory.update(again).unchanged == 1
    with tenantq.open(store.root) as again:
        assert directory.update(again).unchanged == 1


def test_after_a_boot_each_tenant_is_looked_into_once(
    three: tenantq.Store, directory: tenantq.BackupDirectory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.update(three)
    monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
    assert directory.update(three).same == 3
    assert directory.update(three).unchanged == 3


def test_a_generation_is_found_by_its_name_or_by_time(
    store: tenantq.Store, directory: tenantq.BackupDirectory, clock: ManualClock
) -> None:
    taken = []
    for number in range(3):
        store.tenant("acme").enqueue("mail", number)
        directory.update(store)
        taken.append(to_datetime(clock.now_ns()))
        clock.advance(3600)
    found = directory.backups("acme")
    assert [backup.taken_at for backup in found] == taken
    assert directory.find("acme") == found[2]
    assert (
        directory.find("acme", at=taken[1])
        == directory.find("acme", at=taken[2] - timedelta(seconds=1))
        == found[1]
    )
    assert directory.find("acme", generation=found[0].generation) == found[0]
    for wrong in ({"at": taken[0] - timedelta(seconds=1)}, {"generation": "20000101T000000.000000Z"}):
        with pytest.raises(BackupNotFound) as caught:
            directory.find("acme", **wrong)
        assert found[0].generation in caught.value.hint
    with pytest.raises(BackupNotFound):
        directory.find("nobody")


def test_generations_grow_where_the_clock_is_set_back(
    store: tenantq.Store, directory: tenantq.BackupDirectory, clock: ManualClock
) -> None:
    for number in range(3):
        store.tenant("acme").enqueue("mail", number)
        directory.update(store)
        clock.jump(-3600)
    assert [ready(backup) for backup in directory.backups("acme")] == [1, 2, 3]
    check(directory)


def test_old_generations_go_by_count_and_by_age(
    store: tenantq.Store, directory: tenantq.BackupDirectory, clock: ManualClock
) -> None:
    def day(**options: float) -> list[int]:
        store.tenant("acme").enqueue("mail", 1)
        directory.update(store, **options)  # type: ignore[arg-type]
        clock.advance(86_400)
        check(directory)
        return [ready(backup) for backup in directory.backups("acme")]

    assert [day() for _ in range(4)][-1] == [1, 2, 3, 4]
    assert day(keep=2) == [4, 5]
    assert [day(keep=2, keep_days=3.5) for _ in range(5)][-1] == [6, 7, 8, 9, 10]
    assert day(keep_days=1.5) == [9, 10, 11]
    clock.advance(30 * 86_400)
    assert directory.update(store, keep_days=1).removed == 2
    assert [ready(backup) for backup in directory.backups("acme")] == [11]


def test_a_deleted_tenants_generations_stay_until_they_are_old(
    three: tenantq.Store, directory: tenantq.BackupDirectory, clock: ManualClock
) -> None:
    directory.update(three)
    three.delete("acme")
    assert directory.update(three, keep=1).deleted == 1
    gone_at = directory.tenants()["acme"]
    assert gone_at == to_datetime(clock.now_ns())
    clock.advance(86_400)
    assert directory.update(three, keep=1, keep_days=2).removed == 0
    assert ready(directory.find("acme")) == 1
    clock.advance(2 * 86_400)
    assert directory.update(three, keep=1, keep_days=2).removed == 1
    assert set(directory.tenants()) == {"globex", LONG}
    check(directory)


def test_a_tenant_that_comes_back_goes_on_in_its_directory(
    three: tenantq.Store, directory: tenantq.BackupDirectory
) -> None:
    directory.update(three)
    three.delete("acme")
    directory.update(three)
    three.create("acme").enqueue_many("mail", range(5))
    directory.update(three)
    assert directory.tenants()["acme"] is None
    assert [ready(backup) for backup in directory.backups("acme")] == [1, 5]


def test_a_store_without_tenants_makes_none_a_deleted_one(
    three: tenantq.Store, directory: tenantq.BackupDirectory
) -> None:
    directory.update(three)
    for tenant_id in list(three.tenants()):
        three.delete(tenant_id)
    directory.update(three, keep_days=0)
    assert set(directory.tenants().values()) == {None}
    check(directory)


def test_a_tenant_that_fails_does_not_stop_the_others(
    three: tenantq.Store, directory: tenantq.BackupDirectory
) -> None:
    directory.update(three)
    path = three.tenant("globex").path
    three.close()
    path.write_bytes(b"nothing of ours" * 1000)
    with tenantq.open(three.root) as again:
        again.tenant("acme").enqueue("mail", 1)
        results: list[tenantq.BackupResult] = []
        summary = directory.update(again, on_result=results.append)
        assert (summary.taken, summary.failed) == (1, 1)
        assert {result.tenant for result in results if result.error} == {"globex"}
        assert ready(directory.find("globex")) == 1
        assert directory.update(again).failed == 1
    check(directory)


def test_a_removed_copy_is_taken_again(three: tenantq.Store, directory: tenantq.BackupDirectory) -> None:
    directory.update(three)
    directory.find("acme").path.unlink()
    assert not directory.find("acme").is_whole()
    assert directory.update(three).taken == 1
    assert directory.find("acme").is_whole()


def test_a_run_that_is_stopped_is_gone_on_with(three: tenantq.Store, directory: tenantq.BackupDirectory) -> None:
    stop = threading.Event()
    summary = directory.update(three, jobs=1, stop=stop, on_result=lambda _result: stop.set())
    assert summary.taken + summary.left == 3
    again = directory.update(three)
    assert (again.taken, again.unchanged) == (summary.left, summary.taken)
    check(directory)


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_killed_anywhere_is_gone_on_with(
    three: tenantq.Store, directory: tenantq.BackupDirectory, point: str
) -> None:
    directory.update(three)
    for tenant_id in ("acme", LONG):
        three.tenant(tenant_id).enqueue("mail", 1)
    with Child(RUN, three.root, directory.path, point) as child:
        assert child.end() == -9
    for tenant_id in ("acme", "globex", LONG):  # whatever happened, each has a whole one
        assert directory.find(tenant_id).is_whole()
    directory.update(three, keep=1)
    assert [[ready(backup) for backup in directory.backups(one)] for one in ("acme", "globex", LONG)] == [
        [2],
        [1],
        [2],
    ]
    check(directory)


def test_a_line_that_a_crash_cut_short_is_no_line(
    three: tenantq.Store, directory: tenantq.BackupDirectory
) -> None:
    directory.update(three)
    (directory.path / _manifest.LOG).write_bytes(b'{"started":"2026')
    assert len(directory.tenants()) == 3
    three.tenant("acme").enqueue("mail", 1)
    assert directory.update(three).taken == 1
    check(directory)


def test_one_run_at_a_time(three: tenantq.Store, directory: tenantq.BackupDirectory) -> None:
    def again(_count: int) -> None:
        with pytest.raises(TenantFileError, match="another run"):
            directory.update(three)

    directory.update(three, on_plan=again)
    check(directory)


def test_a_manifest_that_cannot_be_read_is_an_error_and_the_copies_stay(
    three: tenantq.Store, directory: tenantq.BackupDirectory, clock: ManualClock
) -> None:
    directory.update(three)
    manifest = directory.path / _manifest.MANIFEST
    content = manifest.read_bytes()
    for bad in (b"", content[:100], msgspec.json.encode({"version": 99})):
        manifest.write_bytes(bad)
        for action in (lambda: directory.update(three), directory.tenants):
            with pytest.raises(TenantFileError) as caught:
                action()
            assert caught.value.hint
    manifest.unlink()
    clock.advance(1)
    assert directory.update(three).taken == 3
    assert sum(1 for _ in directory.path.rglob("*.db")) == 6


def test_a_directory_in_the_store_or_of_another_store_is_refused(
    three: tenantq.Store, directory: tenantq.BackupDirectory, tmp_path: Path
) -> None:
    with pytest.raises(TenantFileError, match="lies in the store"):
        tenantq.BackupDirectory(three.root / "copies").update(three)
    (tmp_path / "file").touch()
    with pytest.raises(TenantFileError):
        tenantq.BackupDirectory(tmp_path / "file" / "below").update(three)
    directory.update(three)
    with tenantq.open(tmp_path / "other") as other:
        other.tenant("acme").enqueue("mail", 1)
        with pytest.raises(TenantFileError, match="has backups of the store"):
            directory.update(other)
        directory.update(other, moved=True)


def test_a_tenant_is_forgotten_with_all_its_generations(
    three: tenantq.Store, directory: tenantq.BackupDirectory
) -> None:
    for number in range(3):
        three.tenant("acme").enqueue("mail", number)
        directory.update(three)
    assert directory.forget("acme") == 3
    assert directory.forget("acme") == 0
    assert "acme" not in directory.tenants()
    assert not list(directory.path.rglob("*/acme"))
    check(directory)


@pytest.mark.parametrize("options", [{"jobs": 0}, {"keep": 0}, {"keep_days": -1}])
def test_bad_options_are_refused(
    three: tenantq.Store, directory: tenantq.BackupDirectory, options: dict[str, int]
) -> None:
    with pytest.raises(tenantq.InvalidArgument):
        directory.update(three, **options)  # type: ignore[arg-type]
