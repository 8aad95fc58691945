"""Periodic messages for all tenants: each is given each fire once, through faults, kills and several workers."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

import tenantq
from tenantq import _store_periods, _walk
from tenantq._walk import PeriodicWalk
from tenantq.errors import InvalidCron, NewerFile, NotATenantFile, TenantqError
from tenantq.testing import ManualClock, drain
from tests.children import Child

HOUR = 3600.0
FIRE, MISSED = "tenantq-fire-at", "tenantq-missed-from"


@pytest.fixture(autouse=True)
def no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_walk, "REST", 0)


def make_tenants(store: tenantq.Store, count: int) -> list[str]:
    names = [f"t{number}" for number in range(count)]
    for name in names:
        store.tenant(name).enqueue("other", 1)
    return names


def given(store: tenantq.Store, tenant_id: str) -> list[str]:
    """The times of the fires that a tenant was given, whether or not they are claimed."""
    return [message.headers[FIRE][5:16] for message in store.tenant(tenant_id).peek("report", 10_000)]


def walk(store: tenantq.Store) -> int:
    return PeriodicWalk(store).run_once()


def test_every_tenant_is_given_every_fire_once(store: tenantq.Store, clock: ManualClock) -> None:
    names = make_tenants(store, 12)
    store.periodic.add("hourly", "0 * * * *", "report", {"kind": "usage"})
    assert walk(store) == 0
    for _ in range(2):
        clock.advance(HOUR)
        assert walk(store) == 12
        assert walk(store) == 0
    for name in names:
        assert given(store, name) == ["01-01T01:00", "01-01T02:00"]
    (message,) = store.tenant("t3").claim("report")
    assert message.payload == {"kind": "usage"}
    assert message.headers["tenantq-periodic"] == "hourly"
    (kept,) = store.periodic.list()
    assert str(kept.next_at) == "2026-01-01 03:00:00+00:00"


def test_a_worker_gives_and_handles_them(store: tenantq.Store, clock: ManualClock) -> None:
    make_tenants(store, 3)
    store.periodic.add("hourly", "0 * * * *", "report", 1)
    clock.advance(HOUR)
    handled: list[str | None] = []
    worker = tenantq.Worker(store)
    worker.on("report")(lambda message: handled.append(message.tenant))
    drain(worker)
    assert sorted(map(str, handled)) == ["t0", "t1", "t2"]


def test_a_running_worker_hears_of_what_another_process_adds(live: tenantq.Store) -> None:
    make_tenants(live, 3)
    handled: set[str | None] = set()
    are_all = threading.Event()
    worker = tenantq.Worker(live)

    @worker.on("report")
    def handle(message: tenantq.Message[int]) -> None:
        handled.add(message.tenant)
        if len(handled) == 3:
            are_all.set()

    with worker:
        with Child("tenantq.open(sys.argv[1]).periodic.add('x', '* * * * * *', 'report', 1)", live.root) as child:
            assert child.end() == 0
        assert are_all.wait(30)


def test_a_new_tenant_begins_at_the_next_fire_and_a_deleted_one_does_not_come_back(
    store: tenantq.Store, clock: ManualClock
) -> None:
    make_tenants(store, 3)
    store.periodic.add("hourly", "0 * * * *", "report", 1)
    clock.advance(HOUR)
    walk(store)
    store.delete("t1")
    make_tenants(store, 1)
    store.tenant("new").enqueue("other", 1)
    clock.advance(HOUR)
    assert walk(store) == 3
    assert "t1" not in store
    assert given(store, "new") == ["01-01T02:00"]


@pytest.mark.parametrize(
    ("missed", "times"),
    [("once", ["01-01T05:00"]), ("all", [f"01-01T0{hour}:00" for hour in range(1, 6)]), ("skip", [])],
)
def test_what_no_worker_ran_for_is_made_by_its_policy(
    store: tenantq.Store, clock: ManualClock, missed: str, times: list[str]
) -> None:
    make_tenants(store, 2)
    store.periodic.add("hourly", "0 * * * *", "report", 1, missed=missed)
    clock.advance(5 * HOUR + 120)
    walk(store)
    assert given(store, "t0") == given(store, "t1") == times
    clock.advance(HOUR - 120)
    walk(store)
    assert given(store, "t0") == [*times, "01-01T06:00"]


@pytest.mark.parametrize("missed", ["once", "all"])
def test_a_tenant_whose_file_fails_is_given_its_messages_later_and_delays_no_other(
    store: tenantq.Store, clock: ManualClock, missed: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = make_tenants(store, 6)
    store.periodic.add("hourly", "0 * * * *", "report", 1, missed=missed)
    bad = store.tenant("t2").path
    with store.exclusive("t2"):
        content = bad.read_bytes()
        bad.write_bytes(b"x" * 8192)
    for made in (5, 5):
        clock.advance(HOUR)
        assert walk(store) == made
    with store.exclusive("t2"):
        bad.write_bytes(content)
    assert walk(store) == 0  # not at every look
    clock.advance(600)
    walk(store)
    expected = ["01-01T01:00", "01-01T02:00"]
    assert given(store, "t2") == (expected if missed == "all" else expected[-1:])
    for name in set(names) - {"t2"}:
        assert given(store, name) == expected
    if missed == "once":
        (message,) = store.tenant("t2").peek("report")
        assert message.headers[MISSED] == "2026-01-01T01:00:00+00:00"
    clock.advance(HOUR)
    assert walk(store) == 6


def test_a_full_queue_of_one_tenant_is_waited_for(store: tenantq.Store, clock: ManualClock) -> None:
    make_tenants(store, 3)
    store.tenant("t1").limit("report", max_depth=1)
    store.periodic.add("hourly", "0 * * * *", "report", 1)
    for made in (3, 2):
        clock.advance(HOUR)
        assert walk(store) == made
    store.tenant("t1").purge("report")
    clock.advance(10)
    assert walk(store) == 1
    assert given(store, "t1") == ["01-01T02:00"]


def test_a_late_fire_that_one_process_made_does_not_end_a_later_one_that_another_could_not(
    store: tenantq.Store, clock: ManualClock
) -> None:
    make_tenants(store, 1)
    shard = int(store.tenant("t0").path.parent.name, 16)
    store.periodic.add("hourly", "0 * * * *", "report", 1, missed="all")
    with store.periods() as book:
        assert book is not None
        clock.advance(HOUR)
        first = book.take([shard], None, {})
        assert first is not None
        assert book.take([shard], first, {"t0": "locked"}) is None
        clock.advance(HOUR - 10)
        late = book.take([shard], None, {})
        assert late is not None
        assert late.due is None
        clock.advance(10)
        second = book.take([shard], None, {})
        assert second is not None
        assert second.late["t0"].times[:1] == late.late["t0"].times
        book.take([], second, {"t0": "locked"})
        book.take([], late, {})
    clock.advance(600)
    assert walk(store) == 2
    assert given(store, "t0") == ["01-01T01:00", "01-01T02:00"]


def test_a_late_tenant_that_is_deleted_is_forgotten(store: tenantq.Store, clock: ManualClock) -> None:
    make_tenants(store, 2)
    store.tenant("t1").limit("report", max_depth=1)
    store.tenant("t1").enqueue("report", 1, headers={FIRE: "x"})
    store.periodic.add("hourly", "0 * * * *", "report", 1)
    clock.advance(HOUR)
    assert walk(store) == 1
    store.delete("t1")
    clock.advance(10)
    assert walk(store) == 0
    assert "t1" not in store
    with store.periods() as book:
        assert book is not None
        assert book._execute("SELECT * FROM late") == book._execute("SELECT * FROM walk") == []


def test_what_is_removed_is_given_to_nobody_and_added_anew_begins_anew(
    store: tenantq.Store, clock: ManualClock
) -> None:
    make_tenants(store, 2)
    store.periodic.add("hourly", "0 * * * *", "report", 1)
    clock.jump(10 * HOUR)
    walk(store)
    assert store.periodic.remove("hourly")
    assert not store.periodic.remove("hourly")
    clock.advance(HOUR)
    assert walk(store) == 0
    clock.jump(-10 * HOUR)
    store.periodic.add("hourly", "0 * * * *", "report", 1)
    clock.advance(HOUR)
    assert walk(store) == 2
    assert given(store, "t0") == ["01-01T02:00", "01-01T10:00"]


def test_a_restored_tenant_is_given_the_next_fire_and_not_those_of_its_past(
    store: tenantq.Store, clock: ManualClock, tmp_path: Path
) -> None:
    make_tenants(store, 1)
    store.periodic.add("hourly", "0 * * * *", "report", 1, missed="all")
    backup = store.tenant("t0").backup(tmp_path / "t0.db")
    clock.advance(HOUR)
    walk(store)
    store.restore("t0", backup)
    assert walk(store) == 0
    clock.advance(HOUR)
    walk(store)
    assert given(store, "t0") == ["01-01T02:00"]


def test_a_tenant_and_the_store_may_have_the_same_name(store: tenantq.Store, clock: ManualClock) -> None:
    make_tenants(store, 1)
    store.periodic.add("hourly", "0 * * * *", "report", "of all")
    store.tenant("t0").periodic.add("hourly", "0 * * * *", "report", "its own")
    clock.advance(HOUR)
    walk(store)
    assert sorted(message.payload for message in store.tenant("t0").claim("report", 9)) == ["its own", "of all"]


def test_a_change_while_a_fire_is_on_its_way_loses_nobodys(
    store: tenantq.Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tenants(store, 8)
    store.periodic.add("hourly", "0 * * * *", "report", "before")
    clock.advance(HOUR)
    walker = PeriodicWalk(store)
    give = walker._give

    def give_and_stop(part: _store_periods.Part, tenant_id: str, due: _store_periods.Due) -> int:
        walker.request_stop()
        return give(part, tenant_id, due)

    monkeypatch.setattr(walker, "_give", give_and_stop)
    first = walker.run_once()
    assert first < 8
    store.periodic.add("hourly", "30 * * * *", "report", "behind")
    assert first + walk(store) == 8
    payloads = [message.payload for number in range(8) for message in store.tenant(f"t{number}").peek("report")]
    assert sorted(set(payloads)) == ["before", "behind"]


def test_bad_input_makes_no_file_and_what_is_not_ours_is_left_alone(store: tenantq.Store) -> None:
    with pytest.raises(InvalidCron):
        store.periodic.add("x", "never", "report", 1)
    assert store.periodic.list() == ()
    assert not store.periodic.remove("x")
    assert not store.periods_path.exists()
    store.periodic.add("x", "0 0 * * *", "report", 1)
    assert store.periods_path.stat().st_mode & 0o777 == 0o600
    with store.periods() as book:
        assert book is not None
        book._execute("PRAGMA user_version = 9")
    with pytest.raises(NewerFile):
        store.periodic.list()
    store.periods_path.write_bytes(b"x" * 8192)
    with pytest.raises(NotATenantFile):
        store.periodic.list()
    worker = tenantq.Worker(store)
    worker.on("report")(lambda _message: None)
    store.tenant("acme").enqueue("report", 1)
    with pytest.raises(TenantqError):
        worker.run_once()
    assert worker.counts["handled"] == 1


def test_an_idle_walk_opens_nothing_until_something_is_due(
    store: tenantq.Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.periodic.add("hourly", "0 * * * *", "report", 1)
    walker = PeriodicWalk(store)
    walker.run_once()
    clock.advance(2)
    walker.run_once()
    opened: list[object] = []
    original = store.periods

    def opening() -> object:
        opened.append(1)
        return original()

    monkeypatch.setattr(store, "periods", opening)
    for _ in range(50):
        clock.advance(1)
        walker.run_once()
    assert opened == []
    clock.jump(-HOUR)  # what was read of the clock is worth nothing now
    walker.run_once()
    assert opened


WALKER = """
from tenantq import _store_periods, _walk
_store_periods.TAKEN_NS = int(float(sys.argv[2]) * 1e9)
_walk.REST = 0
left = int(sys.argv[3])
store = tenantq.open(sys.argv[1])
give = _walk.PeriodicWalk._give

def give_some(self, *arguments):
    global left
    made = give(self, *arguments)
    left -= 1
    if left == 0:
        stop_here("killed here")
    return made

_walk.PeriodicWalk._give = give_some
walker = _walk.PeriodicWalk(store)
say("ready")
hear()
while walker.run_once():
    pass
say("done")
"""

TENANTS = 120


def counts(store: tenantq.Store) -> dict[str, int]:
    found: dict[str, int] = {}
    for tenant_id in store.tenants():
        messages = store.tenant(tenant_id).peek("report", 10_000)
        times = [message.headers[FIRE] for message in messages]
        assert len(set(times)) == len(times)
        found[tenant_id] = len(times)
    return found


def due_in(root: Path, clock: ManualClock) -> None:
    """Fill a store whose fires are due by the real clock: they were added in its past."""
    with tenantq.open(root, clock=clock) as store:
        store.periodic.add("monthly", "0 0 1 * *", "report", 1)
        make_tenants(store, TENANTS)


@pytest.mark.parametrize("visits", [1, 60])
def test_a_walk_that_is_killed_goes_on_where_it_was(tmp_path: Path, clock: ManualClock, visits: int) -> None:
    due_in(tmp_path, clock)
    with Child(WALKER, tmp_path, 0.2, visits) as child:
        assert child.heard() == "ready"
        child.say()
        assert child.heard() == "killed here"
        child.kill()
    with tenantq.open(tmp_path) as store:
        is_over = threading.Event()
        walker = PeriodicWalk(store)
        while not is_over.wait(0.05):
            walker.run_once()
            with store.periods() as book:
                assert book is not None
                if not book._execute("SELECT 1 FROM walk"):
                    is_over.set()
        assert set(counts(store).values()) == {1}


def test_processes_that_walk_together_give_each_tenant_each_fire_once(tmp_path: Path, clock: ManualClock) -> None:
    due_in(tmp_path, clock)
    with contextlib.ExitStack() as stack:
        walkers = [stack.enter_context(Child(WALKER, tmp_path, 120, 0)) for _ in range(3)]
        for walker in walkers:
            assert walker.heard() == "ready"
        for walker in walkers:
            walker.say()
        for walker in walkers:
            assert walker.heard() == "done"
    with tenantq.open(tmp_path) as store:
        while walk(store):
            pass
        assert set(counts(store).values()) == {1}
