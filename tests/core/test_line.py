"""The line: turns come in order, and none is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tenantq._line import Line, Waiting

PATIENCE = 20.0


def stand(pool: ThreadPoolExecutor, line: Line, waiting: Waiting[int], timeout: float = PATIENCE) -> object:
    """Have a thread wait in line; return when it stands there."""
    length = len(line.waiting)
    future = pool.submit(line.wait, waiting, timeout)
    while len(line.waiting) == length:
        threading.Event().wait(0.001)
    return future


def test_a_free_turn_is_taken_once() -> None:
    line = Line()
    assert line.try_take()
    assert not line.try_take()
    line.hand_over()
    assert line.try_take()


def test_turns_come_in_the_order_of_the_line() -> None:
    line, order = Line(), [Waiting[int](None) for _ in range(5)]
    assert line.try_take()
    with ThreadPoolExecutor(5) as pool:
        for waiting in order:
            stand(pool, line, waiting)
        for number, _ in enumerate(order):
            line.hand_over()
            assert [waiting.has_turn for waiting in order] == [other <= number for other in range(5)]
            assert not line.try_take()  # who comes now comes behind them
        line.hand_over()
    assert line.try_take()


def test_work_is_taken_along_up_to_the_first_that_wants_the_turn_itself() -> None:
    line = Line()
    work = [Waiting[int](lambda _: 1), Waiting[int](lambda _: 2)]
    own, last = Waiting[int](None), Waiting[int](lambda _: 3)
    assert line.try_take()
    with ThreadPoolExecutor(4) as pool:
        for waiting in (*work, own, last):
            stand(pool, line, waiting)
        assert line.take_along(1) == work[:1]
        assert line.take_along(9) == work[1:]
        assert line.take_along(9) == []
        work[0].is_done = True
        line.bring_back(work)
        line.hand_over()
        assert (work[0].has_turn, work[1].has_turn) == (False, True)
        line.hand_over()
        assert own.has_turn
        line.hand_over()
        assert last.has_turn
        line.hand_over()
    assert line.try_take()


def test_a_wait_in_vain_leaves_the_line() -> None:
    line = Line()
    assert line.try_take()
    assert not line.wait(Waiting[int](None), 0.01)
    assert len(line.waiting) == 0
    line.hand_over()
    assert line.try_take()


def test_whoever_comes_when_the_turn_has_become_free_takes_it() -> None:
    line, waiting = Line(), Waiting[int](None)
    assert line.wait(waiting, 0)
    assert waiting.has_turn
    assert not line.try_take()


def test_no_turn_is_lost_among_threads_that_give_up_and_threads_that_do_not() -> None:
    line, turns = Line(), 0

    def use(timeout: float) -> int:
        nonlocal turns
        had = 0
        for _ in range(300):
            waiting = Waiting[int](None)
            if line.wait(waiting, timeout):
                before = turns
                had += 1
                turns = before + 1  # wrong if two have the turn
                line.hand_over()
        return had

    with ThreadPoolExecutor(6) as pool:
        counts = list(pool.map(use, [PATIENCE, 0.0001] * 3))
    assert counts[0] == counts[2] == counts[4] == 300
    assert turns == sum(counts)
    assert line.try_take()
