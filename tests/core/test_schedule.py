"""The schedule: what it says of each tenant without its file being opened, and what it survives."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tenantq
from tenantq import _schedule, _schedule_file, naming
from tenantq._doorbell import slot_of
from tenantq._file import TenantFile
from tenantq._schedule import Record, Schedule, Work, signature_of
from tenantq._sqlite import Database
from tenantq.clock import SystemClock
from tenantq.testing import ManualClock
from tests.children import Child
from tests.watching import NEVER, look

SECOND = 1_000_000_000


def record_of(root: Path, tenant_id: str) -> Record | None:
    """Read a tenant's record as another process would."""
    schedule = Schedule(root)
    try:
        found = [one for one in schedule.records(slot_of(tenant_id)) if one.key == naming.key_of(tenant_id)]
    finally:
        schedule.close()
    assert len(found) <= 1
    return found[0] if found else None


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the tenants whose files are opened from here on."""
    ids: list[str] = []
    original = tenantq.Store._open_file

    def open_file(self: tenantq.Store, tenant_id: str, path: Path) -> object:
        ids.append(tenant_id)
        return original(self, tenant_id, path)

    monkeypatch.setattr(tenantq.Store, "_open_file", open_file)
    return ids


# What a record says


def ready(tenant: tenantq.Tenant) -> None:
    tenant.enqueue("mail", 1)


def delayed(tenant: tenantq.Tenant) -> None:
    tenant.enqueue("mail", 1, delay=90)
    tenant.enqueue("mail", 2, delay=60)


def claimed(tenant: tenantq.Tenant) -> None:
    tenant.enqueue_many("mail", [1, 2])
    tenant.claim("mail", 1, lease=50)
    tenant.claim("mail", 1, lease=40)


def emitted(tenant: tenantq.Tenant) -> None:
    tenant.emit("topic", 1)


def in_a_transaction(tenant: tenantq.Tenant) -> None:
    with tenant.transaction() as tx:
        tx.enqueue("mail", 1)
        tx.enqueue("mail", 1, delay=60)
        tx.emit("topic", 1)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        (ready, (Work.MESSAGES, 0, 0)),
        (delayed, (0, 60, 0)),
        (claimed, (Work.MESSAGES, 0, 40)),
        (emitted, (Work.EVENTS, 0, 0)),
        (in_a_transaction, (Work.MESSAGES | Work.EVENTS, 60, 0)),
    ],
)
def test_a_record_says_what_the_file_has(
    tmp_path: Path,
    clock: ManualClock,
    fill: Callable[[tenantq.Tenant], None],
    expected: tuple[int, int, int],
    *,
    is_closed: bool,
) -> None:
    work, due_in, leased_for = expected
    with tenantq.open(tmp_path, clock=clock) as store:
        tenant = store.tenant("acme")
        fill(tenant)
        if is_closed:
            store.close()
        record = record_of(tmp_path, "acme")
        assert record is not None
        assert record.due_at == (clock.now_ns() + due_in * SECOND if due_in else 0)
        assert record.leased_until == (clock.boottime_ns() + leased_for * SECOND if leased_for else 0)
        if is_closed and fill is claimed:
            work = 0  # what was ready before the claims is forgotten when the file is closed
        assert record.work == work
        assert record.rung_at > 0
        assert record.signature == (signature_of(tenant.path) if is_closed else 0)


def test_what_is_over_is_forgotten_when_the_file_is_closed(tmp_path: Path, clock: ManualClock) -> None:
    with tenantq.open(tmp_path, clock=clock) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1, delay=10)
        acme.emit("topic", 1)
        clock.advance(10)
        acme.ack(*acme.claim("mail"))
        (event,) = acme.outbox.read(0, limit=10, max_bytes=1000)
        acme.outbox.confirm(event.seq, event.event_id)
    record = record_of(tmp_path, "acme")
    assert record is not None
    assert (record.due_at, record.leased_until, record.work) == (0, 0, 0)


def test_a_transaction_that_is_undone_may_leave_a_record_early_and_never_late(
    tmp_path: Path, clock: ManualClock
) -> None:
    with tenantq.open(tmp_path, clock=clock) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1, delay=50)
        with pytest.raises(ZeroDivisionError), acme.transaction() as tx:
            tx.enqueue("mail", 1, delay=5)
            raise ZeroDivisionError
        record = record_of(tmp_path, "acme")
        assert record is not None
        assert clock.now_ns() < record.due_at <= clock.now_ns() + 50 * SECOND


def test_a_lease_that_is_over_does_not_hide_the_next_one(tmp_path: Path, clock: ManualClock) -> None:
    with tenantq.open(tmp_path, clock=clock) as store:
        acme = store.tenant("acme")
        acme.enqueue_many("mail", [1, 2])
        acme.ack(*acme.claim("mail", lease=5))
        clock.advance(100)
        acme.claim("mail", lease=7)
        record = record_of(tmp_path, "acme")
        assert record is not None
        assert record.leased_until == clock.boottime_ns() + 7 * SECOND


def test_a_delay_that_is_over_does_not_hide_the_next_one(tmp_path: Path, clock: ManualClock) -> None:
    with tenantq.open(tmp_path, clock=clock) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1, delay=5)
        clock.advance(100)
        acme.claim("mail")
        acme.enqueue("mail", 2, delay=7)
        record = record_of(tmp_path, "acme")
        assert record is not None
        assert record.due_at == clock.now_ns() + 7 * SECOND


# Whom it wakes


def test_a_worker_that_starts_opens_only_the_tenants_that_have_something_for_it(
    tmp_path: Path, opened: list[str]
) -> None:
    with tenantq.open(tmp_path) as store:
        for number in range(50):
            tenant = store.tenant(f"tenant-{number}")
            tenant.enqueue("mail", number)
            if number != 7:
                tenant.ack(*tenant.claim("mail"))
            if number == 9:
                tenant.enqueue("mail", number, delay=3600)
            if number == 11:
                tenant.emit("topic", number)
    opened.clear()
    handled: list[str | None] = []
    with tenantq.open(tmp_path) as store:
        worker = tenantq.Worker(store)

        @worker.on("mail")
        def handle(message: tenantq.Message[object]) -> None:
            handled.append(message.tenant)
            worker.request_stop()

        worker.run()
        assert handled == ["tenant-7"]
        assert opened == ["tenant-7"]
    with tenantq.open(tmp_path) as store, store.watch(only=Work.EVENTS) as watch:
        assert look(watch) == {"tenant-11"}


def test_a_delayed_message_of_a_tenant_that_nobody_has_open_is_told_of_when_it_is_due(
    tmp_path: Path, clock: ManualClock, opened: list[str]
) -> None:
    with tenantq.open(tmp_path, clock=clock) as store:
        store.tenant("acme").enqueue("mail", 1, delay=60)
    opened.clear()
    with tenantq.open(tmp_path, clock=clock) as store, store.watch(NEVER, only=Work.MESSAGES) as watch:
        assert look(watch) == set()
        assert 0 < min(watch._due.values()) - time.monotonic() <= 60
        clock.advance(60)
        watch._line = [(0.0, slot) for _moment, slot in watch._line]  # its time has come
        watch._due = dict.fromkeys(watch._due, 0.0)
        assert look(watch) == {"acme"}
        assert watch.wait(0) == set()
    assert opened == []


def test_what_other_processes_delay_for_a_short_time_comes_on_time(tmp_path: Path) -> None:
    with (
        tenantq.open(tmp_path) as store,
        store.watch(NEVER, only=Work.MESSAGES) as watch,
        Child(
            """
            store = tenantq.open(sys.argv[1])
            store.tenant("acme").enqueue("mail", 1, delay=0.2)
            store.close()
            """,
            tmp_path,
        ) as child,
    ):
        found: set[str] = set()
        while not found:
            found = watch.wait(30)
        assert found == {"acme"}
        assert child.end() == 0
        assert [message.payload for message in store.tenant("acme").claim("mail", wait=10)] == [1]


def test_an_enqueue_does_not_wake_who_waits_for_events(tmp_path: Path) -> None:
    with tenantq.open(tmp_path) as store, store.watch(NEVER, only=Work.EVENTS) as watch:
        look(watch)
        store.tenant("acme").enqueue("mail", 1)
        assert watch.wait(0) == set()
        store.tenant("acme").emit("topic", 1)
        assert watch.wait(30) == {"acme"}


def test_each_commit_of_a_tenant_whose_messages_are_not_taken_is_told_of_once(tmp_path: Path) -> None:
    with tenantq.open(tmp_path) as store, store.watch(NEVER, only=Work.MESSAGES) as watch:
        look(watch)
        for _ in range(3):
            store.tenant("acme").enqueue("mail", 1)
            assert watch.wait(30) == {"acme"}
            assert watch.wait(0) == set()
        other = next(name for n in range(100_000) if slot_of(name := f"t{n}") == slot_of("acme"))
        store.tenant(other).enqueue("mail", 1)
        assert watch.wait(30) == {other}  # and not acme, though they share a slot


# What happened without us


def test_what_a_shell_wrote_to_a_closed_tenant_is_found_by_the_sweep(tmp_path: Path) -> None:
    with tenantq.open(tmp_path) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)
        acme.ack(*acme.claim("mail"))
        path = acme.path
    with tenantq.open(tmp_path) as store, store.watch(0, only=Work.MESSAGES) as watch:
        assert look(watch) == set()
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys, sqlite3\n"
                "with sqlite3.connect(sys.argv[1]) as db:\n"
                "    db.execute('INSERT INTO queue (payload, visible_at, enqueued_at) VALUES (1, 0, 0)')\n",
                path,
            ],
            check=True,
        )
        assert watch.wait(30) == {"acme"}
        assert len(store.tenant("acme").claim("default")) == 1


@pytest.mark.parametrize("moment", ["before the close", "before the close, and killed", "after the close"])
def test_what_another_library_commits_while_the_file_is_being_closed_is_found_by_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store = tenantq.open(tmp_path)
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    acme.ack(*acme.claim("mail"))
    script = """
        import sqlite3
        from tenantq import statements
        connection = sqlite3.connect(sys.argv[1])
        hear()
        with connection:
            for sql, parameters in statements.enqueue("mail", 2):
                connection.execute(sql, parameters)
        stop_here("committed")
    """
    with Child(script, acme.path) as child:
        where, name = (Database, "close") if moment == "after the close" else (TenantFile, "settle_schedule")
        step = getattr(where, name)

        def commit_behind(of: object) -> object:
            result = step(of)
            child.say()
            assert child.heard() == "committed"
            if moment.endswith("killed"):
                child.kill()
            return result

        monkeypatch.setattr(where, name, commit_behind)
        store.close()
        monkeypatch.undo()
        with tenantq.open(tmp_path) as again, again.watch(0, only=Work.MESSAGES) as watch:
            assert watch.wait(30) == {"acme"}


def test_a_file_that_replaced_another_one_is_looked_at(tmp_path: Path) -> None:
    root, saved = tmp_path / "store", tmp_path / "saved.db"
    with tenantq.open(root) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)
        path = acme.backup(saved) and acme.path
        acme.ack(*acme.claim("mail"))
    shutil.copy(saved, path)
    with tenantq.open(root) as store, store.watch(NEVER, only=Work.MESSAGES) as watch:
        assert look(watch) == {"acme"}


def test_a_file_that_was_replaced_under_a_store_is_not_vouched_for_when_that_closes(tmp_path: Path) -> None:
    store = tenantq.open(tmp_path / "store")
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    saved = acme.backup(tmp_path / "saved.db")
    acme.ack(*acme.claim("mail"))
    for suffix in ("-wal", "-shm"):
        acme.path.with_name(acme.path.name + suffix).unlink()
    saved.replace(acme.path)
    store.close()
    with tenantq.open(store.root) as again, again.watch(NEVER, only=Work.MESSAGES) as watch:
        assert look(watch) == {"acme"}


def test_a_restored_tenant_is_looked_at_by_all(tmp_path: Path) -> None:
    with tenantq.open(tmp_path / "store") as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)
        saved = acme.backup(tmp_path / "saved.db")
        acme.ack(*acme.claim("mail"))
        with (
            store.watch(NEVER, only=Work.MESSAGES) as workers,
            store.watch(NEVER, only=Work.EVENTS) as forwarders,
        ):
            look(workers)
            look(forwarders)
            store.restore("acme", saved)
            assert workers.wait(30) == {"acme"}
            assert forwarders.wait(30) == {"acme"}


def test_a_folder_that_cannot_be_read_hides_no_other_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenantq.open(tmp_path) as store:
        for tenant_id in ("acme", "other"):
            store.tenant(tenant_id).enqueue("mail", 1)
    hidden = tmp_path / naming.shard_name("acme")
    is_hidden = True
    listdir, scandir = os.listdir, os.scandir

    def refuse(original: Callable[[Path], object]) -> Callable[[Path], object]:
        def read(path: Path) -> object:
            if is_hidden and path == hidden:
                raise PermissionError(13, "Permission denied", str(path))
            return original(path)

        return read

    monkeypatch.setattr(os, "listdir", refuse(listdir))
    monkeypatch.setattr(os, "scandir", refuse(scandir))
    with tenantq.open(tmp_path) as store, store.watch(0, only=Work.MESSAGES) as watch:
        assert look(watch) == {"other"}
        is_hidden = False
        assert look(watch) == {"acme"}  # it was not told of yet


@pytest.mark.parametrize("how", ["delete", "rm"])
def test_a_tenant_that_is_gone_leaves_no_record(tmp_path: Path, how: str) -> None:
    with tenantq.open(tmp_path) as store:
        store.tenant("acme").enqueue("mail", 1)
        store.tenant("other").enqueue("mail", 1)
        if how == "delete":
            store.delete("acme")
            assert record_of(tmp_path, "acme") is None
    if how == "rm":
        (tmp_path / naming.shard_name("acme") / "acme.db").unlink()
    with tenantq.open(tmp_path) as store, store.watch(0, only=Work.MESSAGES) as watch:
        found: set[str] = set()
        found |= look(watch)
        found |= look(watch)
        assert found == {"other"}
    assert record_of(tmp_path, "acme") is None
    with tenantq.open(tmp_path) as store:
        (store.create("acme") if how == "delete" else store.tenant("acme")).enqueue("mail", 1)
        assert (record_of(tmp_path, "acme") or Record(*[0] * 6)).work == Work.MESSAGES


def test_a_handle_of_a_deleted_tenant_says_nothing_of_who_has_its_record_now(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path)
    first, second = (n << 40 for n in (1, 2))  # of one slot
    old = schedule.entry(first)
    assert old is not None
    schedule.drop(first)
    new = schedule.entry(second)
    assert new is not None
    new.expect(Work.MESSAGES, 70, 80, is_whole=True)
    old.settle(0, None, None)
    old.stamp(1)
    old.expect(0, 90, 90, is_whole=True)
    assert list(schedule.records(0)) == [Record(second, 0, 70, 80, Work.MESSAGES, 0)]
    schedule.close()


def kill_here(point: str) -> str:
    return f"""
        from tenantq import _file_transaction, _doorbell
        store = tenantq.open(sys.argv[1])
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)
        acme.ack(*acme.claim("mail"))
        original = {point}
        def stop(*arguments):
            if "commit" in "{point}":
                original(*arguments)
            stop_here("here")
        {point} = stop
        acme.enqueue("mail", 2)
    """


@pytest.mark.parametrize("point", ["_doorbell.Doorbell.ring", "_file_transaction.FileTransaction.commit"])
def test_a_process_that_is_killed_behind_its_commit_leaves_its_work_to_be_found(
    tmp_path: Path, point: str
) -> None:
    with tenantq.open(tmp_path) as store:
        with Child(kill_here(point), tmp_path) as child:
            assert child.heard() == "here"
            child.kill()
        with store.watch(NEVER, only=Work.MESSAGES) as watch:
            assert look(watch) == {"acme"}
        assert [message.payload for message in store.tenant("acme").claim("mail")] == [2]


@pytest.mark.parametrize("what", ["rm", "other layout", "cut to 4", "cut to 8192", "a directory"])
def test_without_a_schedule_to_trust_every_tenant_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with tenantq.open(tmp_path) as store:
        for tenant_id in ("acme", "other"):
            tenant = store.tenant(tenant_id)
            tenant.enqueue("mail", 1)
            tenant.ack(*tenant.claim("mail"))
    path = tmp_path / _schedule.FILE_NAME
    match what:
        case "rm":
            path.unlink()
        case "other layout":
            monkeypatch.setattr(_schedule_file, "LAYOUT", 99)
        case "cut to 4" | "cut to 8192":
            os.truncate(path, int(what.removeprefix("cut to ")))
        case "a directory":
            path.unlink()
            path.mkdir()
    with tenantq.open(tmp_path) as store, store.watch(NEVER, only=Work.MESSAGES) as watch:
        assert look(watch) == {"acme", "other"}
        assert store._schedule.is_there == (what != "a directory")
        store.tenant("new").enqueue("mail", 1)
        found: set[str] = set()
        while "new" not in found:
            found = watch.wait(30)
            assert found


def test_a_tenant_without_a_record_is_told_of_once_however_it_looks_behind_that(tmp_path: Path) -> None:
    with tenantq.open(tmp_path) as store:
        store.tenant("acme").enqueue("mail", 1)
    (tmp_path / _schedule.FILE_NAME).unlink()
    with tenantq.open(tmp_path, max_open_tenants=1) as store, store.watch(NEVER, only=Work.MESSAGES) as watch:
        assert look(watch) == {"acme"}
        assert store.tenant("acme").claim("other") == []
        store.tenant("globex").claim("other")
        store.tenant("globex").enqueue("other", 1)  # closes acme
        assert look(watch) == {"globex"}
        store.tenant("acme").enqueue("mail", 2)
        assert look(watch) == {"acme"}


def boot_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "boot_id", lambda _self: "another")


def keep_look(source: str, target: str) -> None:
    """Link a tenant's file, which keeps how it looks; copy what is mapped."""
    (shutil.copy2 if Path(source).name.startswith(".") else os.link)(source, target)


def test_after_a_boot_only_what_has_something_or_was_open_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    with tenantq.open(before) as store:
        for number in range(200):
            tenant = store.tenant(f"t{number}")
            tenant.enqueue("mail", 1)
            tenant.ack(*tenant.claim("mail"))
        store.tenant("ready").enqueue("mail", 1)
        store.tenant("leased").enqueue("mail", 1)
        store.tenant("leased").claim("mail", lease=3600)
        store.tenant("late").enqueue("mail", 1, delay=3600)
    with tenantq.open(before) as store:
        store.tenant("t7").enqueue("mail", 1)
        shutil.copytree(before, after, copy_function=keep_look)  # what the disk has when the host goes down
    boot_again(monkeypatch)
    with tenantq.open(after) as store, store.watch(NEVER, only=Work.MESSAGES) as watch:
        assert look(watch) == {"ready", "leased", "t7"}
        late = record_of(after, "late")
        assert late is not None
        assert late.due_at > time.time_ns()


def test_after_a_boot_no_record_is_trusted_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenantq.open(tmp_path) as store:
        for name in ("torn", "twice", "whole"):
            tenant = store.tenant(name)
            tenant.enqueue("mail", 1)
            tenant.ack(*tenant.claim("mail"))
    schedule = Schedule(tmp_path)
    torn = schedule._find(naming.key_of("torn"))
    twice = schedule._find(naming.key_of("twice"))
    assert torn is not None
    assert twice is not None
    torn[_schedule_file.DUE] = 1 << 62
    schedule._add(naming.key_of("twice"))[:] = twice
    schedule.close()
    boot_again(monkeypatch)
    with tenantq.open(tmp_path) as store, store.watch(NEVER, only=Work.MESSAGES) as watch:
        assert look(watch) == {"torn", "twice"}


# The file


def test_many_tenants_of_a_slot_have_each_a_record(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path)
    keys = [(5 << 52) + number for number in range(1, 500)]
    entries = [schedule.entry(key) for key in keys]
    for number, entry in enumerate(entries, 1):
        assert entry is not None
        entry.expect(0, number, None, is_whole=True)
    again = Schedule(tmp_path)
    assert {record.key: record.due_at for record in again.records(5)} == dict(
        zip(keys, range(1, 500), strict=True)
    )
    assert again.slots() == [5]
    schedule.close()
    again.close()


def test_the_file_grows_for_all_who_have_it(tmp_path: Path) -> None:
    one, other = Schedule(tmp_path), Schedule(tmp_path)
    assert one.slots() == other.slots() == []
    for slot in range(600):
        assert (one, other)[slot % 2].entry((slot << 52) + 1) is not None
    for schedule in (one, other):
        assert schedule.slots() == list(range(600))
        assert [record.key & 1 for slot in range(600) for record in schedule.records(slot)] == [1] * 600
        schedule.close()
    assert (tmp_path / _schedule.FILE_NAME).stat().st_size == 3 << 20


def test_of_a_file_that_was_cut_behind_its_first_part_no_record_is_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = Schedule(tmp_path)
    for slot in range(600):
        assert schedule.entry((slot << 52) + 1) is not None
    schedule.close()
    os.truncate(tmp_path / _schedule.FILE_NAME, 1 << 20)
    again = Schedule(tmp_path)
    assert again.slots() == list(range(600))
    assert list(again.records(599)) == []
    assert not again.is_there
    assert again.entry((599 << 52) + 1) is None
    assert "there is no schedule" in caplog.text
    again.close()


def test_a_schedule_that_is_closed_opens_nothing_again(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path)
    assert schedule.entry(1 << 52) is not None
    schedule.close()
    before = set(Path("/proc/self/fd").iterdir())
    assert (schedule.slots(), list(schedule.records(1)), schedule.entry(1 << 52)) == ([], [], None)
    assert set(Path("/proc/self/fd").iterdir()) - before == set()


def test_processes_that_add_at_once_lose_no_record(tmp_path: Path) -> None:
    script = """
        from tenantq._schedule import Schedule
        from pathlib import Path
        schedule = Schedule(Path(sys.argv[1]))
        say("ready"); hear()
        for number in range(300):
            schedule.entry((number % 3 << 52) + int(sys.argv[2]) * 1000 + number + 1)
    """
    children = [Child(script, tmp_path, number) for number in range(4)]
    for child in children:
        assert child.heard() == "ready"
    for child in children:
        child.say()
    assert [child.end() for child in children] == [0] * 4
    for child in children:
        with child:
            pass
    schedule = Schedule(tmp_path)
    records = [record.key for slot in range(3) for record in schedule.records(slot)]
    assert len(records) == len(set(records)) == 1200
    schedule.close()


def test_on_a_full_disk_tenants_work_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with tenantq.open(tmp_path) as store:
        store.tenant("acme").enqueue("mail", 1)
        with store.watch(0.01, only=Work.MESSAGES) as watch:
            assert watch.wait(30) == {"acme"}
        assert len(store.tenant("acme").claim("mail")) == 1
    assert "there is no schedule" in caplog.text
    assert not list(tmp_path.glob("*.new"))


def test_a_name_of_a_file_has_its_tenants_key() -> None:
    for tenant_id in ("acme", "Globex Corp", "é" * 128, "con", "x" * 128):
        assert naming.key_of_file(naming.file_name(tenant_id)) == naming.key_of(tenant_id)
    for name in ("acme", "Acme.db", "acme.~x.db", "acme.~.db", ".db", "acme.db-wal"):
        assert naming.key_of_file(name) is None


def test_the_signature_sees_a_commit_of_another_library(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    assert signature_of(path) == 0
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
        before = signature_of(path)
        connection.execute("INSERT INTO t VALUES (1)")
        assert signature_of(path) == before
        connection.commit()
        assert signature_of(path) != before
    connection.close()
