from __future__ import annotations

import doctest
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import tenantq
import tenantq.testing
from tenantq.clock import to_datetime
from tenantq.errors import InvalidArgument
from tenantq.testing import ManualClock, assert_enqueued, drain


def test_the_examples_are_true() -> None:
    assert doctest.testmod(tenantq.testing).failed == 0


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(datetime(2026, 3, 29, 1, 59, 59, tzinfo=UTC))
    assert clock.now_ns() == clock.now_ns()
    clock.advance(1.5)
    assert to_datetime(clock.now_ns()) == datetime(2026, 3, 29, 2, 0, 0, 500_000, tzinfo=UTC)
    assert clock.monotonic() == 1.5


def test_small_steps_add_up_exactly() -> None:
    clock = ManualClock()
    for _ in range(10):
        clock.advance(0.1)
    assert clock.monotonic() == 1.0


def test_a_manual_clock_never_goes_back() -> None:
    with pytest.raises(InvalidArgument):
        ManualClock().advance(-1)


@tenantq.message("testing.welcome")
class Welcome(msgspec.Struct):
    to: str
    again: int = 0


@tenantq.message("testing.placed", cross_host=True)
class Placed(msgspec.Struct):
    order: int


@tenantq.message("testing.warm", durable=False)
class Warm(msgspec.Struct):
    page: str


def test_drain_handles_what_is_there_and_what_that_adds(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    clock: ManualClock,
) -> None:
    worker = tenantq.Worker(store)
    seen: list[str] = []

    @worker.on(Welcome)
    def welcome(message: tenantq.Message[Welcome]) -> None:
        seen.append(message.payload.to)
        if message.payload.again:
            acme.send(Welcome(to="again", again=message.payload.again - 1))
            acme.send(Warm(page="/"))

    @worker.on(Warm)
    def warm(message: tenantq.Message[Warm]) -> None:
        seen.append(message.payload.page)

    acme.send(Welcome(to="ada", again=2))
    acme.send(Welcome(to="later"), delay=60)
    assert drain(worker) == 5
    assert sorted(seen) == ["/", "/", "ada", "again", "again"]
    assert drain(worker) == 0
    clock.advance(60)
    assert drain(worker) == 1
    assert seen[-1] == "later"


def test_assert_enqueued_returns_the_payloads_that_wait_in_each_layer(
    store: tenantq.Store,
    acme: tenantq.Tenant,
) -> None:
    for tenant in (acme, store.tenant("other")):
        tenant.send(Welcome(to="ada"))
        tenant.send(Welcome(to="bob"), delay=60)
        tenant.send(Placed(order=7))
        tenant.send(Warm(page="/"))
        tenant.enqueue("plain", {"month": "2026-11"})
    assert assert_enqueued(acme, Welcome) == [Welcome(to="ada"), Welcome(to="bob")]
    assert assert_enqueued(acme, Welcome, where={"to": "bob"}, count=1) == [Welcome(to="bob")]
    assert assert_enqueued(acme, Welcome, where=lambda payload: payload.to < "b") == [Welcome(to="ada")]
    assert assert_enqueued(acme, Placed, count=1) == [Placed(order=7)]
    assert assert_enqueued(acme, Warm) == [Warm(page="/")]
    assert assert_enqueued(acme, "plain", where={"month": "2026-11"}) == [{"month": "2026-11"}]
    assert assert_enqueued(acme, "plain", where={"year": 1}, count=0) == []
    assert assert_enqueued(acme, "nothing", count=0) == []
    assert_enqueued(acme, Welcome, count=2)


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (
            Placed,
            {},
            ["expected at least one message of 'testing.placed' in tenant 'acme'", "nothing waits there"],
        ),
        (Welcome, {"count": 1}, ["expected 1 message of", "found 7", "to='ada-0'", "and 2 more"]),
        (Welcome, {"count": 0}, ["expected 0 messages", "found 7"]),
        (Welcome, {"where": {"to": "eve"}}, ["where {'to': 'eve'}, found 0", "to='ada-0'"]),
        (Welcome, {"where": {"nothing": 1}}, ["found 0"]),
        (Welcome, {"where": lambda payload: False}, ["found 0"]),
        ("plain", {}, ["'plain'"]),
    ],
)
def test_assert_enqueued_says_what_it_found(
    acme: tenantq.Tenant,
    target: Any,
    options: dict[str, Any],
    words: list[str],
) -> None:
    for number in range(7):
        acme.send(Welcome(to=f"ada-{number}"))
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(acme, target, **options)
    assert [word for word in words if word not in str(caught.value)] == []


def test_assert_enqueued_does_not_count_what_is_claimed(acme: tenantq.Tenant) -> None:
    acme.send(Welcome(to="ada"))
    acme.claim("testing.welcome")
    assert_enqueued(acme, Welcome, count=0)
