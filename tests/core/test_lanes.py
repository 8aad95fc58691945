from __future__ import annotations

from tenantq._lane import STALE_LEASES, Entry
from tenantq._lanes import Lanes
from tenantq._sleepers import Sleeper
from tenantq.clock import NANOSECONDS
from tenantq.testing import ManualClock

HOUR = 3600 * NANOSECONDS


def entry(*, priority: int = 0, key: str | None = None, due: int | None = None) -> Entry:
    return Entry(
        "payload",
        queue="mail",
        tenant=None,
        priority=priority,
        key=key,
        max_attempts=25,
        headers=None,
        enqueued_ns=0,
        visible_ns=0,
        due=due,
    )


def asleep_on(lanes: Lanes, *queues: str, until: int = HOUR) -> Sleeper:
    sleeper = Sleeper(until=until)
    for queue in queues:
        lanes.lane(queue).sleepers.join(sleeper)
    return sleeper


def is_asleep(sleeper: Sleeper) -> bool:
    return sleeper._bell.locked()


def test_a_claim_that_leaves_something_wakes_one_more() -> None:
    lanes = Lanes(max_depth=10, lifo=True, clock=ManualClock())
    lanes.admit("mail", [entry(), entry()])
    first, second = asleep_on(lanes, "mail"), asleep_on(lanes, "mail")
    lanes.take(["mail"], 1, HOUR)
    assert (is_asleep(first), is_asleep(second)) == (False, True)
    lanes.take(["mail"], 1, HOUR)
    assert is_asleep(second)


def test_who_was_woken_for_two_queues_passes_the_other_on() -> None:
    lanes = Lanes(max_depth=10, lifo=True, clock=ManualClock())
    both, other = asleep_on(lanes, "a", "b"), asleep_on(lanes, "b")
    lanes.admit("a", [entry()])
    lanes.admit("b", [entry()])
    assert (is_asleep(both), is_asleep(other)) == (False, True)
    assert len(lanes.take(["a", "b"], 1, HOUR)) == 1
    assert not is_asleep(other)


def test_a_lease_wakes_who_would_sleep_beyond_its_end() -> None:
    lanes = Lanes(max_depth=10, lifo=True, clock=ManualClock())
    lanes.admit("mail", [entry()])
    beyond, before = asleep_on(lanes, "mail", until=HOUR + 1), asleep_on(lanes, "mail", until=HOUR)
    lanes.take(["mail"], 1, HOUR)
    assert (is_asleep(beyond), is_asleep(before)) == (False, True)


def test_a_scheduled_message_wakes_who_would_sleep_beyond_its_time() -> None:
    lanes = Lanes(max_depth=10, lifo=True, clock=ManualClock())
    beyond, before = asleep_on(lanes, "mail", until=HOUR + 1), asleep_on(lanes, "mail", until=HOUR)
    lanes.admit("mail", [entry(due=HOUR)])
    assert (is_asleep(beyond), is_asleep(before)) == (False, True)


def test_leases_that_ended_do_not_pile_up() -> None:
    lanes = Lanes(max_depth=10, lifo=True, clock=ManualClock())
    lane = lanes.lane("mail")
    for _ in range(10 * STALE_LEASES):
        lanes.admit("mail", [entry()])
        (taken,) = lanes.take(["mail"], 1, HOUR)
        lane.end_lease(taken)
        lanes.remove(lane, taken)
    assert len(lane._leases) <= STALE_LEASES


def test_extensions_do_not_pile_up() -> None:
    lanes = Lanes(max_depth=10, lifo=True, clock=ManualClock())
    lanes.admit("mail", [entry()])
    (taken,) = lanes.take(["mail"], 1, HOUR)
    lane = lanes.lane("mail")
    for seconds in range(10 * STALE_LEASES):
        lanes.extend(lane, taken, HOUR + seconds)
    assert len(lane._leases) <= STALE_LEASES + 2
    assert lanes.next_due(None) == HOUR + 10 * STALE_LEASES - 1


def test_listing_the_leases_anew_keeps_the_expired_ones() -> None:
    clock = ManualClock()
    lanes = Lanes(max_depth=1000, lifo=True, clock=clock)
    lane = lanes.lane("mail")
    lanes.admit("mail", [entry() for _ in range(3)])
    lanes.take(["mail"], 3, NANOSECONDS)
    clock.advance(1)
    lanes.admit("mail", [entry(priority=1)])
    (held,) = lanes.take(["mail"], 1, HOUR)
    for seconds in range(3 * STALE_LEASES):
        lanes.extend(lane, held, HOUR + seconds)
    assert len(list(lane.expired())) == 3
    assert len(lanes.take(["mail"], 10, HOUR)) == 3


def test_a_queue_that_holds_nothing_is_forgotten_by_the_reaper() -> None:
    lanes = Lanes(max_depth=10, lifo=True, clock=ManualClock())
    lanes.admit("mail", [entry()])
    lanes.lane("paused").paused = True
    lanes.lane("idle")
    lanes.reap()
    assert [name in lanes for name in ("mail", "paused", "idle")] == [True, True, False]
    (taken,) = lanes.take(["mail"], 1, HOUR)
    lanes.reap()
    assert "mail" in lanes
    lanes.lane("mail").end_lease(taken)
    lanes.remove(lanes.lane("mail"), taken)
    lanes.reap()
    assert "mail" not in lanes
