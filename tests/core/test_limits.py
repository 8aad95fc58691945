"""What claims of a tenant obey: caps of what is claimed at once, rates, weights; in every process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tenantq
from tenantq import _leases
from tenantq._limits import Limit
from tenantq.clock import NANOSECONDS
from tenantq.errors import InvalidArgument, QueueFull
from tenantq.testing import ManualClock
from tests.children import Child

PATIENCE = 20.0


@pytest.fixture
def no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that waits looks when it is told to, or when it knows that something is due; else never."""
    monkeypatch.setattr(_leases, "LOOK_INTERVAL", 1_000_000.0)


# What limit takes


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_claimed": 0},
        {"max_claimed": True},
        {"rate": 0},
        {"rate": 1.5},
        {"rate": 1, "per": 0},
        {"rate": 1, "per": float("nan")},
        {"weight": 0},
        {"weight": -1},
        {"weight": "2"},
        {"weight": float("inf")},
        {"queue": "mail", "weight": 2},
    ],
)
def test_what_is_no_limit_is_refused(acme: tenantq.Tenant, limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        acme.limit(**limits)


def test_setting_one_limit_leaves_the_others(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=9)
    acme.limit("mail", max_claimed=3)
    acme.limit("mail", rate=5, per=60)
    acme.limit(weight=2, max_claimed=7)
    acme.limit(rate=1)
    stats = acme.stats()
    (mail,) = stats.queues
    assert (mail.max_depth, mail.max_claimed, mail.rate, mail.per) == (9, 3, 5, 60.0)
    assert (stats.max_depth, stats.max_claimed, stats.rate, stats.per, stats.weight) == (None, 7, 1, 1.0, 2.0)
    acme.limit("mail", max_claimed=None)
    acme.limit(weight=None, rate=None)
    stats = acme.stats()
    (mail,) = stats.queues
    assert (mail.max_depth, mail.max_claimed, mail.rate, mail.per) == (9, None, 5, 60.0)
    assert (stats.max_claimed, stats.rate, stats.per, stats.weight) == (7, None, None, 1.0)


def test_limits_survive_a_backup(acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.limit("mail", max_claimed=1)
    acme.enqueue_many("mail", range(2))
    acme.store.restore("acme", acme.backup(tmp_path / "acme.db"))
    assert len(acme.claim("mail", 2)) == 1


# What is claimed at once


def test_a_queue_has_no_more_claimed_than_its_cap(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_claimed=2)
    acme.enqueue_many("mail", range(5))
    acme.enqueue_many("other", range(5))
    held = acme.claim("mail", 5)
    assert [len(held), len(acme.claim("mail", 5)), len(acme.claim("other", 5))] == [2, 0, 5]
    held[0].ack()
    assert len(acme.claim("mail", 5)) == 1


def test_a_tenants_cap_counts_all_its_queues(acme: tenantq.Tenant) -> None:
    acme.limit(max_claimed=3)
    for queue in ("mail", "other"):
        acme.enqueue_many(queue, range(5))
    held = acme.claim("mail", 2)
    assert len(acme.claim("other", 5)) == 1
    assert len(acme.exchange(held, "other", 5)) == 2


def test_a_nack_a_release_and_a_dead_letter_make_room_under_a_cap(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_claimed=1)
    acme.enqueue_many("mail", range(3), max_attempts=1)
    (held,) = acme.claim("mail", 3)
    held.release()
    (held,) = acme.claim("mail", 3)
    held.nack()
    (held,) = acme.claim("mail", 3)
    acme.dead_letter(held)
    assert len(acme.claim("mail", 3)) == 1


def test_a_lease_that_ended_makes_room_at_the_next_claim(acme: tenantq.Tenant, clock: ManualClock) -> None:
    acme.limit("mail", max_claimed=1)
    acme.enqueue_many("mail", range(2))
    (lost,) = acme.claim("mail", lease=10)
    clock.advance(11)
    (again,) = acme.claim("mail")
    assert again.id == lost.id


@pytest.mark.usefixtures("no_look")
def test_an_ack_wakes_a_claim_that_waits_under_a_cap(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_claimed=1)
    acme.enqueue_many("mail", range(2))
    (held,) = acme.claim("mail", lease=1_000_000)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(acme.claim, "mail", wait=PATIENCE)
        while not acme.store._listeners._waiting:
            threading.Event().wait(0.001)
        began = time.monotonic()
        held.ack()
        assert len(waiting.result()) == 1
        assert time.monotonic() - began < PATIENCE / 2, "it was told"


def test_a_cap_binds_the_processes_that_have_the_tenant_open(acme: tenantq.Tenant) -> None:
    acme.enqueue_many("mail", range(9))
    with Child(
        """
        tenant = tenantq.open(sys.argv[1]).tenant("acme")
        held = tenant.claim("mail")
        say("open")
        while command := hear():
            say(len(tenant.claim("mail", 9)))
        """,
        acme.store.root,
    ) as child:
        assert child.heard() == "open"
        acme.limit("mail", max_claimed=3)
        assert len(acme.claim("mail", 1)) == 1
        child.say("claim")
        assert child.heard() == "1"
        assert acme.claim("mail") == []
        child.say()


# Rates


def test_a_rate_lets_so_many_go_and_then_one_for_each_part_of_its_time(
    acme: tenantq.Tenant, clock: ManualClock
) -> None:
    acme.limit("mail", rate=4, per=2)
    acme.enqueue_many("mail", range(50))
    assert len(acme.claim("mail", 50)) == 4
    for _ in range(5):
        assert acme.next_due("mail") == pytest.approx(0.5)
        clock.advance(0.499)
        assert acme.claim("mail", 50) == []
        clock.advance(0.001)
        assert len(acme.claim("mail", 50)) == 1
    clock.advance(1.5)
    assert len(acme.claim("mail", 50)) == 3
    clock.advance(1000)
    assert len(acme.claim("mail", 50)) == 4, "no more than a full bucket"


def test_a_tenants_rate_is_of_all_its_queues_and_the_lower_one_holds(
    acme: tenantq.Tenant, clock: ManualClock
) -> None:
    acme.limit(rate=3, per=1)
    acme.limit("mail", rate=2, per=1)
    for queue in ("mail", "other"):
        acme.enqueue_many(queue, range(5))
    assert len(acme.claim("mail", 5)) == 2
    assert len(acme.claim("other", 5)) == 1
    clock.advance(1)
    assert len(acme.claim("other", 5)) == 3
    assert acme.claim("mail", 5) == []


def test_a_claim_that_is_undone_gives_its_tokens_back(
    acme: tenantq.Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme.limit("mail", rate=2, per=10)
    acme.enqueue_many("mail", range(5))
    acme.claim("other")
    handle = acme._handle
    assert handle is not None
    commit = handle.file.database.commit

    def fail() -> None:
        monkeypatch.setattr(handle.file.database, "commit", commit)
        raise QueueFull("the disk is full", depth=1, max_depth=1)

    monkeypatch.setattr(handle.file.database, "commit", fail)
    with pytest.raises(QueueFull):
        acme.claim("mail", 5)
    assert len(acme.claim("mail", 5)) == 2


def test_a_new_rate_is_no_second_bucket(acme: tenantq.Tenant, clock: ManualClock) -> None:
    acme.limit("mail", rate=4, per=1)
    acme.enqueue_many("mail", range(20))
    acme.claim("mail", 3)
    acme.limit("mail", rate=5, per=1)
    assert len(acme.claim("mail", 20)) == 2
    acme.limit("mail", rate=2, per=1)
    assert acme.claim("mail", 20) == []
    clock.advance(0.5)
    assert len(acme.claim("mail", 20)) == 1
    acme.limit("mail", rate=None)
    assert len(acme.claim("mail", 20)) == 14


class AnotherBoot(ManualClock):
    def boot_id(self) -> str:
        return "another"


def test_a_bucket_is_full_after_a_boot(tmp_path: Path) -> None:
    clock = ManualClock()
    with tenantq.open(tmp_path, clock=clock) as store:
        acme = store.tenant("acme")
        acme.limit("mail", rate=2, per=3600)
        acme.enqueue_many("mail", range(9))
        acme.ack(*acme.claim("mail", 9))
        assert acme.claim("mail", 9) == []
    with tenantq.open(tmp_path, clock=AnotherBoot()) as store:
        assert len(store.tenant("acme").claim("mail", 9)) == 2


@pytest.mark.usefixtures("no_look")
def test_a_claim_that_waits_has_its_message_with_its_token(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.limit("mail", rate=1, per=0.05)
    acme.enqueue_many("mail", range(5))
    began = time.monotonic()
    for _ in range(5):
        assert len(acme.claim("mail", 5, wait=PATIENCE)) == 1
    assert time.monotonic() - began >= 0.2


def test_a_worker_keeps_a_rate_and_is_awake_with_each_token(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.limit("mail", rate=1, per=0.02)
    acme.enqueue_many("mail", range(10))
    moments: list[float] = []
    is_over = threading.Event()
    worker = tenantq.Worker(live, concurrency=2)

    @worker.on("mail")
    def handle(message: tenantq.Message[int]) -> None:
        moments.append(time.monotonic())
        if len(moments) == 10:
            is_over.set()

    with worker:
        assert is_over.wait(PATIENCE)
    assert moments[-1] - moments[0] >= 0.02 * 8


def test_a_rate_holds_nothing_back_in_a_paused_or_an_empty_queue_nor_in_one_at_its_cap(
    acme: tenantq.Tenant, clock: ManualClock
) -> None:
    acme.limit("mail", rate=1, per=10)
    acme.enqueue_many("mail", range(3))
    acme.claim("mail", lease=1000)
    assert acme.next_due() == acme.next_due("mail") == pytest.approx(10)
    assert acme.next_due("other") == pytest.approx(1000)
    acme.pause("mail")
    assert acme.next_due("mail") == pytest.approx(1000)
    acme.resume("mail")
    acme.limit("mail", max_claimed=1)
    clock.advance(10)
    assert acme.next_due("mail") == pytest.approx(990), "the token is there, and no place"
    acme.purge("mail")
    assert acme.next_due("mail") is None


@pytest.mark.usefixtures("no_look")
@pytest.mark.parametrize("raised", [{"max_claimed": 2}, {"rate": None}, {"rate": 1000}])
def test_a_raised_limit_wakes_a_claim_that_waits(acme: tenantq.Tenant, raised: dict[str, Any]) -> None:
    if "max_claimed" in raised:
        acme.limit("mail", max_claimed=1)
    else:
        acme.limit("mail", rate=1, per=1_000_000)
    acme.enqueue_many("mail", range(2))
    acme.claim("mail", lease=1_000_000)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(acme.claim, "mail", wait=PATIENCE)
        while not acme.store._listeners._waiting:
            threading.Event().wait(0.001)
        began = time.monotonic()
        acme.limit("mail", **raised)
        assert len(waiting.result()) == 1
        assert time.monotonic() - began < PATIENCE / 2, "it was told"


def test_no_time_is_owed_where_the_clock_was_set_back() -> None:
    limit = Limit(rate=2, per=NANOSECONDS, full_at=10**18)
    assert limit.tokens(5) == 0
    assert limit.next_token(5) == NANOSECONDS // 2


@pytest.mark.parametrize("rate", [1, 3, 7, 1000])
def test_a_bucket_gives_out_no_more_than_its_rate_over_a_long_time(rate: int) -> None:
    limit = Limit(rate=rate, per=NANOSECONDS)
    now = given = 0
    while now < 100 * NANOSECONDS:
        tokens = limit.tokens(now)
        assert tokens is not None
        limit.spend(tokens, now)
        given += tokens
        wait = limit.next_token(now)
        assert wait > 0
        assert not limit.tokens(now + wait - 1)
        now += wait
        assert limit.tokens(now) == 1
    assert given == pytest.approx(101 * rate, abs=1)


def test_a_file_without_limits_costs_a_claim_no_statement(acme: tenantq.Tenant) -> None:
    acme.enqueue_many("mail", range(9))
    acme.claim("mail")
    handle = acme._handle
    assert handle is not None
    assert handle.file.limits.are_none
    traced = _statements(handle, lambda: acme.claim("mail"))
    assert not [sql for sql in traced if "tenantq_limit" in sql]


def _statements(handle: Any, action: Callable[[], object]) -> list[str]:
    """Return the SQL that the handle's file runs for an action."""
    found: list[str] = []
    file = handle.file
    methods = file._execute, file._run

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(sql: str, *rest: Any) -> Any:
            found.append(sql)
            return method(sql, *rest)

        return call

    file._execute, file._run = map(noting, methods)
    try:
        action()
    finally:
        file._execute, file._run = methods
    assert found
    return found
