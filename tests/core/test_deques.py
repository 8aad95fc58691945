from __future__ import annotations

import pytest

from tenantq._deques import PriorityDeques, StealingDeques

ME, YOU, HER = 1, 2, 3


def filled(*, lifo: bool) -> StealingDeques[str]:
    deques: StealingDeques[str] = StealingDeques(lifo=lifo)
    for item in ("a", "b", "c"):
        deques.push(ME, item)
    return deques


@pytest.mark.parametrize(("lifo", "expected"), [(True, "cba"), (False, "abc")])
def test_an_owner_takes_from_its_own_end(lifo: bool, expected: str) -> None:
    deques = filled(lifo=lifo)
    assert "".join(deques.take(ME) for _ in range(3)) == expected
    assert not deques


@pytest.mark.parametrize(("lifo", "expected"), [(True, "abc"), (False, "cba")])
def test_a_thief_takes_from_the_other_end(lifo: bool, expected: str) -> None:
    deques = filled(lifo=lifo)
    assert "".join(deques.take(YOU) for _ in range(3)) == expected
    assert not deques


def test_nobody_steals_who_has_something() -> None:
    deques = filled(lifo=True)
    deques.push(YOU, "mine")
    assert deques.take(YOU) == "mine"
    assert deques.take(YOU) == "a"


def test_a_thief_takes_from_who_has_had_something_for_longest() -> None:
    deques = filled(lifo=True)
    deques.push(YOU, "x")
    assert "".join(deques.take(HER) for _ in range(4)) == "abcx"


@pytest.mark.parametrize("lifo", [True, False])
def test_what_is_given_back_is_taken_next(lifo: bool) -> None:
    deques = filled(lifo=lifo)
    item = deques.take(ME)
    deques.give_back(ME, item)
    assert deques.take(ME) == item


def test_what_is_given_back_to_an_empty_deque_is_there() -> None:
    deques: StealingDeques[str] = StealingDeques(lifo=False)
    deques.give_back(ME, "a")
    assert deques.owns(ME)
    assert deques.take(YOU) == "a"
    assert not deques.owns(ME)


@pytest.mark.parametrize("lifo", [True, False])
@pytest.mark.parametrize("owner", [ME, YOU, HER])
def test_the_order_shown_is_the_order_taken(lifo: bool, owner: int) -> None:
    deques = filled(lifo=lifo)
    deques.push(YOU, "x")
    deques.push(YOU, "y")
    shown = list(deques.in_order(owner))
    assert shown == [deques.take(owner) for _ in range(5)]


def test_a_higher_priority_is_stolen_before_the_own_is_taken() -> None:
    deques: PriorityDeques[str] = PriorityDeques(lifo=True)
    deques.push(0, ME, "own")
    deques.push(1, YOU, "stolen")
    assert not deques.owns_top(ME)
    assert [deques.take(ME), deques.take(ME)] == ["stolen", "own"]


def test_the_top_is_the_highest_priority_that_has_an_item() -> None:
    deques: PriorityDeques[int] = PriorityDeques(lifo=True)
    assert deques.top is None
    for priority in (3, -1, 7, 3):
        deques.push(priority, ME, priority)
    tops: list[tuple[int, int, int]] = []
    while deques.top is not None:
        tops.append((deques.top, deques.take(YOU), len(deques)))
    assert tops == [(7, 7, 3), (3, 3, 2), (3, 3, 1), (-1, -1, 0)]


def test_priorities_may_be_many() -> None:
    deques: PriorityDeques[int] = PriorityDeques(lifo=True)
    for _ in range(2):
        for priority in range(1000):
            deques.push(priority, ME, priority)
        assert list(deques.in_order(ME)) == list(range(999, -1, -1))
        assert [deques.take(ME) for _ in range(1000)] == list(range(999, -1, -1))
    assert (len(deques), deques.top) == (0, None)


def test_a_cleared_queue_is_empty_and_usable() -> None:
    deques: PriorityDeques[str] = PriorityDeques(lifo=False)
    deques.push(1, ME, "a")
    deques.clear()
    assert (len(deques), deques.top, list(deques.in_order(ME))) == (0, None, [])
    deques.give_back(0, ME, "b")
    assert (deques.top, deques.take(ME)) == (0, "b")
