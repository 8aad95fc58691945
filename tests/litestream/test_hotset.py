"""The hot set alone: who gets a place, who is confirmed, who has to go."""

from __future__ import annotations

from tenantq_tools.litestream.hotset import CONFIRM_SECONDS, HotSet, Step, Verb


def begun(hot: HotSet, now: float) -> list[tuple[Verb, str]]:
    return [(step.verb, step.tenant) for step in hot.begin(now)]


def admit(hot: HotSet, now: float, *tenants: str) -> None:
    for tenant in tenants:
        hot.change(tenant)
    for step in list(hot.begin(now)):
        assert step.verb == Verb.ADMIT
        hot.succeed(step, now, has_news=True)


def test_no_more_have_a_place_than_there_are() -> None:
    hot = HotSet(capacity=2, idle=60)
    for tenant in "abc":
        hot.change(tenant)
    assert begun(hot, 0) == [(Verb.ADMIT, "a"), (Verb.ADMIT, "b")]
    assert (len(hot), hot.waiting) == (2, 1)


def test_the_one_that_was_active_longest_ago_goes_for_one_that_waits() -> None:
    hot = HotSet(capacity=2, idle=60)
    admit(hot, 1, "a")
    admit(hot, 2, "b")
    hot.change("c")
    assert begun(hot, 3) == [(Verb.RELEASE, "a")]
    assert begun(hot, 3) == [(Verb.RELEASE, "b")] or len(hot) == 2
    hot.succeed(Step(Verb.RELEASE, "a"), 3, has_news=False)
    assert (Verb.ADMIT, "c") in begun(hot, 3)


def test_a_change_is_confirmed_at_once_and_the_next_ones_after_a_while() -> None:
    hot = HotSet(capacity=2, idle=60)
    admit(hot, 0, "a")
    hot.change("a")
    assert begun(hot, CONFIRM_SECONDS / 2) == []
    assert begun(hot, CONFIRM_SECONDS) == [(Verb.CONFIRM, "a")]
    assert begun(hot, CONFIRM_SECONDS) == [], "one step at a time"


def test_marks_of_litestream_keep_nobody_in() -> None:
    hot = HotSet(capacity=2, idle=60)
    admit(hot, 0, "a")
    hot.change("a")
    (step,) = hot.begin(59)
    hot.succeed(step, 59, has_news=False)
    assert begun(hot, 61) == [(Verb.RELEASE, "a")]


def test_one_that_fails_is_tried_later_each_time_and_gives_its_place_to_others() -> None:
    hot = HotSet(capacity=1, idle=60)
    hot.change("a")
    (step,) = hot.begin(0)
    hot.fail(step, 0)
    assert begun(hot, 0.1) == []
    hot.change("b")
    (step,) = hot.begin(0.2)
    assert (step.verb, step.tenant) == (Verb.RELEASE, "a")
    hot.fail(step, 0.2)
    assert begun(hot, 0.3) == [(Verb.ADMIT, "b")]
    assert hot.waiting == 1


def test_when_litestream_has_ended_all_are_registered_anew() -> None:
    hot = HotSet(capacity=3, idle=60)
    admit(hot, 0, "a", "b")
    hot.clear()
    assert begun(hot, 1) == [(Verb.ADMIT, "a"), (Verb.ADMIT, "b")]
    assert not hot.is_settled
