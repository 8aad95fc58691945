"""Load: what share of recent time a file's write turn was held, by whichever process, and what follows from it."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

import tenantq
from tenantq import _board
from tenantq._board import Board, new_slot
from tenantq._load import Load, LoadStats
from tenantq.testing import ManualClock
from tests.children import Child
from tests.core.test_checkpointer import until


def weight(span: float, window: float = 10.0) -> float:
    return window * (1 - math.exp(-span / window))


def work(tenant: tenantq.Tenant, clock: ManualClock, seconds: float) -> None:
    with tenant.transaction() as tx:
        tx.enqueue("mail", 1)
        clock.advance(seconds)


def test_a_tenant_without_work_has_all_its_headroom(acme: tenantq.Tenant) -> None:
    stats = acme.stats()
    assert (stats.utilisation, stats.headroom, stats.operations_per_second, stats.capacity) == (0, 1, 0, None)


def test_a_turn_that_is_never_free_leaves_no_headroom(acme: tenantq.Tenant, clock: ManualClock) -> None:
    for _ in range(5):
        work(acme, clock, 2)
    stats = acme.stats()
    assert stats.utilisation == pytest.approx(1)
    assert stats.utilisation_minute == pytest.approx(1)
    assert stats.headroom == pytest.approx(0)
    assert stats.operations_per_second == pytest.approx(0.5)
    assert stats.capacity == pytest.approx(0.5)


def test_half_of_the_time_is_half_of_the_headroom(acme: tenantq.Tenant, clock: ManualClock) -> None:
    for _ in range(100_000 // 500):
        work(acme, clock, 0.25)
        clock.advance(0.25)
    stats = acme.stats()
    assert stats.utilisation == pytest.approx(0.5, rel=0.03)
    assert stats.utilisation_minute == pytest.approx(0.5, rel=0.03)
    assert stats.operations_per_second == pytest.approx(2, rel=0.03)
    assert stats.capacity == pytest.approx(4, rel=0.03)


def test_what_is_past_weighs_less_and_less(acme: tenantq.Tenant, clock: ManualClock) -> None:
    work(acme, clock, 5)
    clock.advance(10)
    stats = acme.stats()
    assert stats.utilisation == pytest.approx(weight(5) * math.exp(-1) / weight(15))
    assert stats.utilisation_minute == pytest.approx(weight(5, 60) * math.exp(-10 / 60) / weight(15, 60))
    assert stats.operations_per_second == pytest.approx(1 / 5 * stats.utilisation)
    assert stats.capacity == pytest.approx(1 / 5)
    clock.advance(1000)
    assert acme.stats().headroom == pytest.approx(1)


def test_a_first_call_is_no_full_load(acme: tenantq.Tenant, clock: ManualClock) -> None:
    work(acme, clock, 0.01)
    assert acme.stats().utilisation == pytest.approx(0.01, rel=0.1)


def test_calls_that_are_undone_take_the_turn_and_do_not_count(acme: tenantq.Tenant, clock: ManualClock) -> None:
    with pytest.raises(ZeroDivisionError), acme.transaction() as tx:
        tx.enqueue("mail", 1)
        clock.advance(5)
        raise ZeroDivisionError
    stats = acme.stats()
    assert stats.utilisation == pytest.approx(1)
    assert (stats.operations_per_second, stats.capacity) == (0, None)


@pytest.fixture
def place(tmp_path: Path) -> memoryview:
    place = Board(tmp_path).slot(7)
    assert place is not None
    return place


def one_second(load: Load, clock: ManualClock, operations: int = 10) -> None:
    load.begin()
    clock.advance(1)
    load.end(operations)


def test_processes_add_to_the_same_load_and_read_the_whole(place: memoryview, clock: ManualClock) -> None:
    one, other, reader = (Load(place, 1.0, clock.monotonic) for _ in range(3))
    one_second(one, clock)
    one.leave()
    one_second(other, clock)
    other.leave()
    found = reader.read()
    assert found.utilisation == pytest.approx(1)
    assert found.operations_per_second == pytest.approx(10)


def test_another_tenant_of_the_slot_begins_anew(place: memoryview, clock: ManualClock) -> None:
    one = Load(place, 1.0, clock.monotonic)
    one_second(one, clock)
    one.leave()
    assert Load(place, 2.0, clock.monotonic).read() == LoadStats()
    assert Load(place, 1.0, clock.monotonic).read().utilisation > 0


def test_what_another_boot_left_is_forgotten(place: memoryview, clock: ManualClock) -> None:
    one = Load(place, 1.0, clock.monotonic)
    one_second(one, clock)
    one.leave()
    assert Load(place, 1.0, ManualClock().monotonic).read() == LoadStats()


def test_what_nobody_of_ours_wrote_is_no_load(place: memoryview, clock: ManualClock) -> None:
    load = Load(place, math.nan, clock.monotonic)
    for junk in (b"\xff", b"\x7f", b"\x40", b"\xc0"):
        place[:] = junk * len(place)
        assert load.read() == LoadStats()
    for value in (math.nan, math.inf, -1.0):
        place[24:72] = struct.pack("=6d", 1.0, 0.0, 0.0, value, 1.0, 1.0)
        assert Load(place, 1.0, clock.monotonic).read() == LoadStats()


def test_a_process_without_a_board_knows_its_own_load(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_board, "FILE_NAME", "no/such/folder")
    with tenantq.open(tmp_path, clock=clock) as store:
        acme = store.tenant("acme")
        work(acme, clock, 5)
        assert acme.stats().utilisation == pytest.approx(1)
    assert Load(new_slot(), 1.0, clock.monotonic).read() == LoadStats()


def test_a_tenant_that_another_process_hammers_has_less_headroom_than_an_idle_one(live: tenantq.Store) -> None:
    acme, idle = live.tenant("acme"), live.tenant("idle")
    idle.enqueue("mail", 1)
    with Child(
        """
        tenant = tenantq.open(sys.argv[1]).tenant("acme")
        while True:
            with tenant.transaction() as tx:
                tx.enqueue("mail", 1)
                threading.Event().wait(0.002)
        """,
        live.root,
    ):
        until(lambda: acme.stats().headroom < 0.9)
        stats = acme.stats()
        assert stats.capacity is not None
        assert stats.capacity >= stats.operations_per_second > 0
        assert idle.stats().headroom > 0.9 > acme.stats().headroom
