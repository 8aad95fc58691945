"""Periodic messages of one tenant: each fire is one message, whoever makes it and however late."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenantq
from tenantq import _cron
from tenantq.errors import (
    CronMissing,
    DeclarationError,
    InvalidArgument,
    InvalidCron,
    InvalidName,
    PayloadTooLarge,
)
from tenantq.testing import ManualClock, assert_enqueued, drain
from tests.children import Child

HOUR = 3600.0
FIRE, MISSED = "tenantq-fire-at", "tenantq-missed-from"


@tenantq.message("periodic.report", priority=3, max_attempts=4)
class Report(msgspec.Struct):
    kind: str


@tenantq.message("periodic.invoice", cross_host=True)
class Invoice(msgspec.Struct):
    number: int


def claimed(tenant: tenantq.Tenant, queue: str = "report") -> list[str]:
    """Claim and ack all there is; return the times of the fires."""
    messages = tenant.claim(queue, 10_000)
    tenant.ack(*messages)
    return [message.headers[FIRE][5:16] for message in messages]


@pytest.fixture
def hourly(acme: tenantq.Tenant) -> tenantq.Tenant:
    acme.periodic.add("hourly", "0 * * * *", "report", {"kind": "usage"})
    return acme


def test_each_fire_is_one_message_that_tells_its_time(hourly: tenantq.Tenant, clock: ManualClock) -> None:
    assert hourly.claim("report") == []
    assert hourly.next_due() == HOUR
    clock.advance(HOUR)
    (message,) = hourly.claim("report", 10)
    assert message.payload == {"kind": "usage"}
    assert message.headers == {"tenantq-periodic": "hourly", FIRE: "2026-01-01T01:00:00+00:00"}
    message.ack()
    assert hourly.claim("report") == []
    assert hourly.next_due() == HOUR
    (kept,) = hourly.periodic.list()
    assert (str(kept.last_at), str(kept.next_at)) == ("2026-01-01 01:00:00+00:00", "2026-01-01 02:00:00+00:00")
    clock.advance(HOUR)
    assert claimed(hourly) == ["01-01T02:00"]


def test_a_claim_of_any_queue_a_reap_and_an_exchange_make_what_is_due(
    hourly: tenantq.Tenant, clock: ManualClock
) -> None:
    clock.advance(HOUR)
    assert hourly.claim("other") == []
    assert hourly.stats().ready == 1
    clock.advance(HOUR)
    hourly.reap()
    assert hourly.stats().ready == 2
    clock.advance(HOUR)
    hourly.exchange(hourly.claim("report", 1), "report", 1)
    assert (hourly.stats().ready, hourly.stats().claimed) == (1, 1)


def test_a_declared_message_brings_its_queue_and_options(acme: tenantq.Tenant, clock: ManualClock) -> None:
    kept = acme.periodic.add("weekly", "0 6 * * MON", Report(kind="week"), timezone="Europe/Berlin")
    assert (kept.queue, kept.priority, kept.max_attempts) == ("periodic.report", 3, 4)
    clock.advance(7 * 24 * HOUR)
    (message,) = acme.claim("periodic.report", 10)
    assert message.payload == Report(kind="week")
    assert message.headers[FIRE] == "2026-01-05T05:00:00+00:00"


@pytest.mark.parametrize(
    ("missed", "times", "missed_from"),
    [
        ("once", ["01-01T05:00"], "2026-01-01T01:00:00+00:00"),
        ("all", ["01-01T01:00", "01-01T02:00", "01-01T03:00", "01-01T04:00", "01-01T05:00"], None),
        ("skip", [], None),
    ],
)
def test_what_nobody_was_there_for_is_made_by_its_policy(
    store: tenantq.Store, clock: ManualClock, missed: str, times: list[str], missed_from: str | None
) -> None:
    acme = store.tenant("acme")
    acme.periodic.add("hourly", "0 * * * *", "report", 1, missed=missed)
    clock.advance(5 * HOUR + 120)
    with tenantq.open(store.root, clock=clock) as restarted:
        again = restarted.tenant("acme")
        messages = again.claim("report", 100)
        assert [message.headers[FIRE][5:16] for message in messages] == times
        assert [message.headers.get(MISSED) for message in messages[:1]] == [missed_from][: len(messages)]
        again.ack(*messages)
        clock.advance(HOUR - 120)
        assert claimed(again) == ["01-01T06:00"]


def test_all_missed_ones_are_a_thousand_at_the_most_and_the_first_tells_of_the_rest(
    acme: tenantq.Tenant, clock: ManualClock
) -> None:
    acme.periodic.add("each minute", "* * * * *", "report", 1, missed="all")
    clock.advance(7 * 24 * HOUR)
    messages = acme.claim("report", 5_000)
    assert len(messages) == 1_000
    assert messages[0].headers[MISSED] == "2026-01-01T00:01:00+00:00"
    assert MISSED not in messages[1].headers
    assert messages[-1].headers[FIRE] == "2026-01-08T00:00:00+00:00"


def test_adding_what_is_there_keeps_its_next_fire_and_a_change_of_times_does_not(
    hourly: tenantq.Tenant, clock: ManualClock
) -> None:
    clock.advance(HOUR + 60)
    commits = hourly.stats().commits
    hourly.periodic.add("hourly", "0 * * * *", "report", {"kind": "usage"})  # as an application does at its start
    assert hourly.stats().commits == commits
    hourly.periodic.add("hourly", "0 * * * *", "report", {"kind": "changed"})
    (message,) = hourly.claim("report", 10)
    assert (message.payload, message.headers[FIRE][11:16]) == ({"kind": "changed"}, "01:00")
    kept = hourly.periodic.add("hourly", "30 * * * *", "report", {"kind": "changed"})
    assert str(kept.next_at) == "2026-01-01 01:30:00+00:00"
    assert len(hourly.periodic.list()) == 1


def test_what_is_removed_fires_no_more_and_its_messages_stay(hourly: tenantq.Tenant, clock: ManualClock) -> None:
    clock.advance(HOUR)
    hourly.reap()
    assert hourly.periodic.remove("hourly")
    assert not hourly.periodic.remove("hourly")
    clock.advance(5 * HOUR)
    assert claimed(hourly) == ["01-01T01:00"]
    assert hourly.next_due() is None
    assert hourly.periodic.list() == ()


def test_a_tenant_that_is_not_there_is_made_by_adding_alone(store: tenantq.Store) -> None:
    nobody = store.tenant("nobody")
    assert nobody.periodic.list() == ()
    assert not nobody.periodic.remove("x")
    assert "nobody" not in store
    nobody.periodic.add("x", "0 0 * * *", "mail", 1)
    assert "nobody" in store


def test_with_a_key_a_fire_adds_nothing_while_the_last_one_is_there(
    acme: tenantq.Tenant, clock: ManualClock
) -> None:
    acme.periodic.add("hourly", "0 * * * *", "report", 1, key="report", missed="all")
    clock.advance(3 * HOUR)
    (message,) = acme.claim("report", 10)
    clock.advance(HOUR)
    acme.extend(message, 60)
    assert acme.claim("report", 10) == []
    message.ack()
    clock.advance(HOUR)
    assert claimed(acme) == ["01-01T05:00"]


def test_a_full_queue_is_waited_for_and_loses_no_fire(acme: tenantq.Tenant, clock: ManualClock) -> None:
    acme.limit("report", max_depth=2)
    acme.periodic.add("hourly", "0 * * * *", "report", 1, missed="all")
    acme.periodic.add("other", "0 * * * *", "mail", 1)
    clock.advance(5 * HOUR)
    assert claimed(acme, "mail") == ["01-01T05:00"]  # one that cannot fire keeps no other from it
    assert "is full" in (acme.periodic.list()[0].error or "")
    assert acme.next_due() == 10.0
    found = claimed(acme)
    for _ in range(4):
        clock.advance(10)
        found += claimed(acme)
    assert found == [f"01-01T0{hour}:00" for hour in range(1, 6)]
    assert acme.periodic.list()[0].error is None


def test_a_row_that_cannot_fire_here_fails_no_claim(
    hourly: tenantq.Tenant, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    hourly.enqueue("report", "by hand")
    with hourly.transaction() as tx:  # a zone that another machine's database had
        tx.execute("UPDATE tenantq_periodic SET timezone = 'Mars/Olympus'")
    clock.advance(HOUR)
    assert [message.payload for message in hourly.claim("report", 10)] == ["by hand"]
    assert "Mars/Olympus" in (hourly.periodic.list()[0].error or "")
    hourly.periodic.add("hourly", "0 * * * *", "report", {"kind": "usage"}, timezone="UTC")
    assert hourly.periodic.list()[0].error is None


def test_the_wall_clock_may_jump_and_no_fire_comes_twice(hourly: tenantq.Tenant, clock: ManualClock) -> None:
    clock.advance(HOUR)
    assert claimed(hourly) == ["01-01T01:00"]
    clock.jump(-3 * HOUR)
    assert claimed(hourly) == []
    clock.advance(3 * HOUR)
    assert claimed(hourly) == []
    clock.jump(HOUR)  # ahead: what that hour shows is due, and is not due again when the clock is right
    assert claimed(hourly) == ["01-01T02:00"]
    clock.jump(-HOUR)
    assert claimed(hourly) == []
    clock.advance(2 * HOUR)
    assert claimed(hourly) == ["01-01T03:00"]
    # After a jump far ahead it would wait for that time; removed and added, it goes by the clock as it is now.
    clock.jump(365 * 24 * HOUR)
    claimed(hourly)
    clock.jump(-365 * 24 * HOUR)
    assert hourly.periodic.remove("hourly")
    hourly.periodic.add("hourly", "0 * * * *", "report", 1)
    clock.advance(HOUR)
    assert claimed(hourly) == ["01-01T04:00"]


def test_it_is_backed_up_and_a_restored_tenant_goes_on_from_the_backups_next_fire(
    store: tenantq.Store, hourly: tenantq.Tenant, clock: ManualClock, tmp_path: Path
) -> None:
    clock.advance(HOUR)
    assert claimed(hourly) == ["01-01T01:00"]
    backup = hourly.backup(tmp_path / "acme.db")
    clock.advance(2 * HOUR)
    assert claimed(hourly) == ["01-01T03:00"]
    store.restore("acme", backup)
    assert claimed(hourly) == ["01-01T03:00"]  # once more: the file that had it is gone
    clock.advance(HOUR)
    assert claimed(hourly) == ["01-01T04:00"]


def test_a_transaction_that_fails_behind_a_fire_takes_it_along(
    hourly: tenantq.Tenant, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance(HOUR)
    with monkeypatch.context() as patched:
        patched.setattr("tenantq._file.TenantFile.claim", lambda *_args, **_options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            hourly.claim("report")
    assert hourly.stats().ready == 0
    assert claimed(hourly) == ["01-01T01:00"]


BAD: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "an expression": (InvalidCron, {"cron": "0 25 * * *"}),
    "one that never fires": (InvalidCron, {"cron": "* * */20 * 1L"}),
    "a zone": (InvalidArgument, {"timezone": "Europe/Atlantis"}),
    "a name": (InvalidName, {"name": "a\nb"}),
    "no name": (InvalidName, {"name": ""}),
    "a queue": (InvalidName, {"target": ""}),
    "a policy": (InvalidArgument, {"missed": "twice"}),
    "a priority": (InvalidArgument, {"priority": 1.5}),
    "attempts": (InvalidArgument, {"max_attempts": 0}),
    "a key": (InvalidName, {"key": ""}),
    "a header": (InvalidArgument, {"headers": {"tenantq-fire-at": "now"}}),
    "headers": (InvalidArgument, {"headers": {"a": 1}}),
    "a large payload": (PayloadTooLarge, {"payload": "x" * (64 * 1024 * 1024)}),
    "a type": (DeclarationError, {"target": object()}),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_a_typed_error_and_nothing_is_kept(store: tenantq.Store, what: str) -> None:
    error, wrong = BAD[what]
    arguments: dict[str, Any] = {"name": "x", "cron": "0 0 * * *", "target": "mail", "payload": 1, **wrong}
    if not isinstance(arguments["target"], str):
        del arguments["payload"]
    with pytest.raises(error):
        store.tenant("acme").periodic.add(**arguments)
    assert "acme" not in store


def test_what_needs_another_layer_or_has_no_payload_is_refused(acme: tenantq.Tenant) -> None:
    with pytest.raises(InvalidArgument, match=r"does not wait in the tenant's file"):
        acme.periodic.add("x", "0 0 * * *", Invoice(number=1))
    with pytest.raises(InvalidArgument, match="no payload"):
        acme.periodic.add("x", "0 0 * * *", "mail")
    with pytest.raises(InvalidArgument, match="no other payload"):
        acme.periodic.add("x", "0 0 * * *", Report(kind="a"), 1)


@pytest.fixture
def without_cronsim(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(__import__("sys").modules, "cronsim", None)
    _cron.is_installed.cache_clear()
    yield
    _cron.is_installed.cache_clear()


@pytest.mark.usefixtures("without_cronsim")
def test_without_the_library_adding_is_an_error_that_says_what_to_install(acme: tenantq.Tenant) -> None:
    with pytest.raises(CronMissing, match=r"pip install 'tenantq\[cron\]'"):
        acme.periodic.add("x", "0 0 * * *", "mail", 1)


def test_a_process_without_the_library_claims_and_leaves_the_fires_to_others(
    hourly: tenantq.Tenant, clock: ManualClock, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    hourly.enqueue("report", "by hand")
    clock.advance(HOUR)
    request.getfixturevalue("without_cronsim")
    with caplog.at_level(logging.WARNING, "tenantq.periodic"):
        assert [message.payload for message in hourly.claim("report", 10, lease=HOUR)] == ["by hand"]
        assert hourly.next_due() == HOUR
        assert hourly.claim("report", 10) == []
    assert caplog.text.count("pip install 'tenantq[cron]'") == 1
    request.getfixturevalue("monkeypatch").undo()
    _cron.is_installed.cache_clear()
    with tenantq.open(hourly.store.root, clock=clock) as other:
        assert claimed(other.tenant("acme")) == ["01-01T01:00"]


def test_a_worker_that_runs_dry_makes_what_is_due(store: tenantq.Store, clock: ManualClock) -> None:
    acme = store.tenant("acme")
    acme.periodic.add("hourly", "0 * * * *", Report(kind="usage"))
    handled: list[str] = []
    worker = tenantq.Worker(store)
    worker.on(Report)(lambda message: handled.append(message.headers[FIRE][11:16]))
    for _ in range(3):
        clock.advance(HOUR)
        drain(worker)
    assert handled == ["01:00", "02:00", "03:00"]
    assert_enqueued(acme, Report, count=0)


def test_a_waiting_claim_and_an_idle_worker_wake_for_a_fire(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.periodic.add("each second", "* * * * * *", "waiting", 1)
    (message,) = acme.claim("waiting", wait=10)
    assert message.headers["tenantq-periodic"] == "each second"
    handled = threading.Event()
    worker = tenantq.Worker(live)
    worker.on("worked")(lambda _message: handled.set())
    with worker:
        acme.periodic.add("each second", "* * * * * *", "worked", 1)
        assert handled.wait(10)


RACER = """
store = tenantq.open(sys.argv[1])
acme = store.tenant("acme")
say("ready")
hear()
import time
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    for message in acme.claim("tick", 10, wait=0.05):
        say(message.headers["tenantq-fire-at"], message.id)
        message.ack()
"""


def test_processes_that_race_for_many_fires_make_each_exactly_once(tmp_path: Path) -> None:
    with tenantq.open(tmp_path) as store:
        added = store.tenant("acme").periodic.add("tick", "* * * * * *", "tick", 1, missed="all")
    with contextlib.ExitStack() as stack:
        racers = [stack.enter_context(Child(RACER, tmp_path, 4.5)) for _ in range(4)]
        for racer in racers:
            assert racer.heard() == "ready"
        for racer in racers:
            racer.say()
        said = [line for racer in racers for line in racer.heard_all()]
    times = sorted(line.split()[0] for line in said)
    with tenantq.open(tmp_path) as store:
        (kept,) = store.tenant("acme").periodic.list()
    assert added.fire_ns is not None
    assert kept.fired_ns is not None
    seconds = (kept.fired_ns - added.fire_ns) // 10**9 + 1
    assert len(set(times)) == len(times) == seconds >= 3


KILLED = """
from tenantq._sqlite import Database
store = tenantq.open(sys.argv[1])
acme = store.tenant("acme")
point, commit = sys.argv[2], Database.commit

def at_commit(self):
    if point == "after":
        commit(self)
    stop_here("at the commit")

say("ready")
hear()
Database.commit = at_commit
acme.claim("tick", 10, wait=30)
"""


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_process_killed_at_a_fires_commit_leaves_it_made_once(tmp_path: Path, point: str) -> None:
    with tenantq.open(tmp_path) as store:
        acme = store.tenant("acme")
        acme.periodic.add("tick", "* * * * * *", "tick", 1, missed="all")
        with Child(KILLED, tmp_path, point) as child:
            assert child.heard() == "ready"
            child.say()
            assert child.heard() == "at the commit"
            child.kill()
        acme.reap()
        (kept,) = acme.periodic.list()
        with acme.transaction() as tx:
            rows = tx.execute("SELECT json_extract(headers, '$.tenantq-fire-at') FROM queue ORDER BY id")
            rows = rows or tx.execute("SELECT headers FROM queue")
        acme.periodic.remove("tick")
        times = [row[0] for row in rows]
        assert kept.last_at is not None
        assert len(set(times)) == len(times) >= 1
        assert times[-1] == kept.last_at.isoformat()
