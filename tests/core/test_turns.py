"""Turns between processes: each that wants a file gets its share, and none leaves anything behind."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import tenantq
from tenantq import _turns
from tenantq._board import FILE_NAME, Board
from tenantq._turns import Turn
from tests.children import Child

HAMMER = """
tenant = tenantq.open(sys.argv[1], busy_timeout=60).tenant("acme")
share, hold = int(sys.argv[2]), float(sys.argv[3])
say("ready")
hear()
count = 0
def listen():
    hear()
    stop.set()
stop = threading.Event()
threading.Thread(target=listen, daemon=True).start()
while not stop.is_set():
    with tenant.transaction() as tx:
        tx.enqueue("mail", count)
        threading.Event().wait(hold) if hold else None
    count += 1
    if count == share:
        say("share")
stats = tenant.stats()
say(count, stats.busy_waits, stats.busy_seconds, stats.busy_longest)
"""


def test_every_process_gets_its_share_while_all_of_them_hammer_one_file(tmp_path: Path) -> None:
    processes, share = 5, 20
    with ExitStack() as stack:
        children = [stack.enter_context(Child(HAMMER, tmp_path, share, 0.002)) for _ in range(processes)]
        for child in children:
            assert child.heard() == "ready"
        for child in children:
            child.say()
        for child in children:
            assert child.heard() == "share"
        for child in children:
            child.say()
        told = [child.heard().split() for child in children]
        assert all(child.end() == 0 for child in children)
    counts = [int(words[0]) for words in told]
    # With SQLite's own handler, one of them is served a hundred times as often as another.
    assert max(counts) < 10 * min(counts)
    for _count, waits, seconds, longest in told:
        assert int(waits) > 0
        assert 0 < float(longest) <= float(seconds)
    with tenantq.open(tmp_path) as store:
        acme = store.tenant("acme")
        assert acme.stats().ready == sum(counts)
        assert tenantq.verify(acme.path).ok


def test_a_process_that_is_alone_never_waits(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    for number in range(200):
        acme.enqueue("mail", number)
    assert (acme.stats().busy_waits, acme.stats().busy_longest) == (0, 0.0)


def test_the_time_of_a_wait_is_the_time_that_passed(tmp_path: Path) -> None:
    with tenantq.open(tmp_path) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)
        with Child(
            """
            tenant = tenantq.open(sys.argv[1]).tenant("acme")
            with tenant.transaction() as tx:
                say("locked")
                hear()
                threading.Event().wait(0.1)
            """,
            tmp_path,
        ) as child:
            assert child.heard() == "locked"
            child.say()
            acme.enqueue("mail", 2)
        stats = acme.stats()
        assert stats.busy_waits == 1
        assert 0.05 < stats.busy_longest == pytest.approx(stats.busy_seconds)


@pytest.fixture
def slot(tmp_path: Path) -> tuple[Turn, Turn]:
    """Two connections' places at one file."""
    places = [Board(tmp_path).slot(7) for _ in range(2)]
    one, other = (Turn(place) for place in places if place is not None)
    return one, other


def test_a_turn_that_is_over_makes_way_once_for_one_that_waits(slot: tuple[Turn, Turn]) -> None:
    one, other = slot
    one.end()
    assert not one.is_over, "nobody waits"
    other.wait(0, 0.0001)
    one.end()
    assert one.is_over
    one.rest()
    assert not one.is_over


def test_a_turn_goes_on_for_a_while_though_another_one_waits(
    slot: tuple[Turn, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = slot
    monkeypatch.setattr(_turns, "TURN_NS", 10**12)
    one.take()
    other.wait(0, 0.0001)
    one.end()
    assert not one.is_over


def test_one_that_is_next_looks_on_until_the_turn_is_over(
    slot: tuple[Turn, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = slot
    for name in ("TURN_NS", "IDLE_NS", "STALE_NS"):
        monkeypatch.setattr(_turns, name, 10**15)
    monkeypatch.setattr(_turns, "HEED_SECONDS", 60.0)
    one.take()
    other.wait(0, 0.0001)
    other._tries_as_next = 1
    waiting = threading.Thread(target=other.wait, args=(1, 60.0))
    waiting.start()
    for _ in range(20):
        one.end()
        threading.Event().wait(0.001)
    assert waiting.is_alive()
    monkeypatch.setattr(_turns, "TURN_NS", 0)
    one.end()
    waiting.join(30)
    assert not waiting.is_alive()


def test_nobody_heeds_for_long_what_others_say_of_their_turns(
    slot: tuple[Turn, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = slot
    monkeypatch.setattr(_turns, "IDLE_NS", 10**15)
    one.take()  # and is killed, say
    started = time.monotonic()
    for tries in range(5):
        other.wait(tries, 60.0)
    other._tries_as_next = 1
    other.wait(5, 60.0)
    other.rest()
    assert time.monotonic() - started < 30


def test_nobody_makes_way_for_one_that_has_the_lock_or_is_gone(
    slot: tuple[Turn, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = slot
    other.wait(0, 0.0001)
    other.take()
    one.end()
    assert not one.is_over
    other.wait(0, 0.0001)
    monkeypatch.setattr(_turns, "STALE_NS", 0)
    one.end()
    assert not one.is_over


def test_nobody_makes_way_for_one_that_waited_before_a_boot(tmp_path: Path) -> None:
    place = Board(tmp_path).slot(7)
    assert place is not None
    place.cast("Q")[0] = time.monotonic_ns() + 3600 * 10**9
    one = Turn(place)
    one.end()
    assert not one.is_over


def test_one_that_is_woken_comes_before_its_sleep_is_over(
    slot: tuple[Turn, Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = slot
    if one._futex is None:
        pytest.skip("this system wakes nobody")
    hour = 3600.0
    monkeypatch.setattr(_turns, "SLEEP_SECONDS", (hour, hour))
    sleeper = threading.Thread(target=lambda: other.wait(_turns.FIRST_TRIES, hour))
    sleeper.start()
    while sleeper.is_alive():
        one.take()
        one.end()
        sleeper.join(0.001)


def test_processes_wait_at_random_where_they_cannot_tell_each_other(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with tenantq.open(tmp_path) as store:
        assert store.tenant("acme").enqueue("mail", 1) == 1


def test_a_closed_store_leaves_no_map_and_no_descriptor(tmp_path: Path) -> None:
    def opened() -> list[str]:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        found = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return [line for line in [*found, *maps.splitlines()] if str(tmp_path) in line]

    store = tenantq.open(tmp_path)
    store.tenant("acme").enqueue("mail", 1)
    assert any(FILE_NAME in line for line in opened())
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    mine = [link for link in links if str(link.readlink()).endswith(FILE_NAME)]
    assert not any(os.get_inheritable(int(link.name)) for link in mine)
    store.close()
    assert opened() == []
