from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenantq._sleepers import Sleeper, Sleepers, wait_for


def asleep(sleeper: Sleeper) -> bool:
    return sleeper._bell.locked()


def joined(sleepers: Sleepers, *needs: int, until: int = 0) -> list[Sleeper]:
    made = [Sleeper(until=until, need=need) for need in needs]
    for sleeper in made:
        sleepers.join(sleeper)
    return made


def test_the_first_to_come_is_woken_first() -> None:
    sleepers = Sleepers()
    first, second = joined(sleepers, 1, 1)
    sleepers.rouse(1)
    assert (asleep(first), asleep(second)) == (False, True)
    sleepers.rouse(1)
    assert not asleep(second)
    assert not sleepers


def test_as_many_are_woken_as_the_amount_is_enough_for() -> None:
    sleepers = Sleepers()
    made = joined(sleepers, 2, 3, 1)
    sleepers.rouse(4)
    assert [asleep(sleeper) for sleeper in made] == [False, True, True]


def test_only_those_that_would_sleep_too_long_are_woken() -> None:
    sleepers = Sleepers()
    (soon,) = joined(sleepers, 1, until=5)
    (late,) = joined(sleepers, 1, until=6)
    sleepers.rouse_late(5)
    assert (asleep(soon), asleep(late)) == (True, False)


def test_a_sleeper_may_be_rung_twice_and_leave_twice() -> None:
    one, other = Sleepers(), Sleepers()
    (sleeper,) = joined(one, 1)
    other.join(sleeper)
    one.rouse(1)
    other.rouse_all()
    one.leave(sleeper)
    assert not asleep(sleeper)


def test_who_was_rung_before_does_not_sleep() -> None:
    sleeper = Sleeper(until=0)
    sleeper.ring()
    sleeper.sleep(600)


def test_an_attempt_is_repeated_after_each_change() -> None:
    lock, sleepers, attempted = threading.Lock(), Sleepers(), threading.Semaphore(0)
    found: list[int] = []

    def attempt() -> list[int]:
        attempted.release()
        return found if len(found) > 1 else []

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_for, attempt, 60, lock=lock, watch=lambda: [sleepers], now=time.monotonic_ns)
        for number in (1, 2):
            attempted.acquire()
            with lock:
                found.append(number)
                sleepers.rouse(1)
        assert waiting.result(timeout=10) == [1, 2]
    assert not sleepers


def test_a_wait_ends_with_one_more_attempt() -> None:
    attempts: list[int] = []

    def attempt() -> list[int]:
        attempts.append(1)
        return []

    assert wait_for(attempt, 0.01, lock=threading.Lock(), watch=list, now=time.monotonic_ns) == []
    assert len(attempts) == 2


def test_a_wait_that_is_broken_off_wakes_the_others() -> None:
    lock, sleepers = threading.Lock(), Sleepers()
    (other,) = joined(sleepers, 1)
    attempts: list[int] = []

    def attempt() -> list[int]:
        attempts.append(1)
        if len(attempts) == 2:
            raise KeyboardInterrupt
        return []

    with pytest.raises(KeyboardInterrupt):
        wait_for(attempt, 0.01, lock=lock, watch=lambda: [sleepers], now=time.monotonic_ns)
    assert not asleep(other)
    assert not lock.locked()
