"""The circuit breaker: while Postgres is away one question asks for it, and tenants' files are left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tenantq
from tenantq_bridge import BreakerState, Forwarder, PostgresQueue, PostgresUnavailable, breaker, running_forwarders
from tenantq_bridge.breaker import CircuitBreaker
from tests.conftest import start_server
from tests.postgres import PostgresServer


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; it is bounded."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_a_breaker_opens_asks_and_closes() -> None:
    one = CircuitBreaker()
    assert (one.is_closed, one.pause(), one.status.since) == (True, 0.0, None)
    one.probe()
    assert one.is_closed
    one.fail("away")
    opened = one.status
    assert (opened.state, opened.failures, opened.error) == (BreakerState.OPEN, 1, "away")
    assert opened.since is not None
    assert opened.next_try_at is not None
    assert opened.next_try_at > datetime.now(UTC)
    assert 0 < one.pause() <= breaker.PAUSE
    one.probe()
    half = one.status
    assert (half.state, half.since, half.next_try_at) == (BreakerState.HALF_OPEN, opened.since, None)
    one.fail("still away")
    assert (one.status.state, one.status.since, one.status.failures) == (BreakerState.OPEN, opened.since, 2)
    one.probe()
    assert one.succeed()
    assert not one.succeed()
    assert (one.is_closed, one.status.since, one.pause()) == (True, None, 0.0)


def test_a_breakers_pauses_grow_to_a_bound_and_are_not_all_alike() -> None:
    pauses: dict[int, set[float]] = {}
    for _ in range(20):
        one = CircuitBreaker()
        for number in range(1, 12):
            one.fail("away")
            pauses.setdefault(number, set()).add(round(one.pause(), 6))
    for number, found in pauses.items():
        full = min(breaker.PAUSE_MAX, breaker.PAUSE * 2 ** (number - 1))
        assert max(found) <= full
        assert min(found) > full * (1 - breaker.JITTER) - 0.1
        assert len(found) > 1


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    server = start_server(request.config)
    yield server
    server.close()


@pytest.mark.postgres
def test_an_outage_touches_no_tenants_file_and_ends_within_the_backoff(
    own_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "PAUSE_MAX", 0.3)
    with (
        tenantq.open(tmp_path / "store") as store,
        PostgresQueue(own_server.create_database(migrated=True)) as queue,
    ):
        queue.subscribe("q", "*")
        acme = store.tenant("acme")
        acme.emit("t", 0)
        forwarder = Forwarder(store, queue)
        with forwarder:
            until(lambda: forwarder.forwarded == 1)
            assert [each.breaker.state for each in running_forwarders(store.root)] == [BreakerState.CLOSED]
            own_server.stop()
            acme.emit("t", 1)
            until(lambda: forwarder.breaker.failures >= 2)
            [shown] = running_forwarders(store.root)
            assert shown.breaker.state in (BreakerState.OPEN, BreakerState.HALF_OPEN)
            assert shown.breaker.since == forwarder.breaker.since
            handle = acme._handle
            assert handle is not None
            for number in range(2, 20):
                acme.emit("t", number)
                store.tenant(f"new-{number}").emit("t", number)
            operations, opened = handle.operations, set(store._handles)
            failures = forwarder.breaker.failures
            until(lambda: forwarder.breaker.failures >= failures + 3)
            assert (handle.operations, set(store._handles)) == (operations, opened)
            assert acme.outbox.position().pending == 19
            own_server.start()
            until(lambda: forwarder.forwarded == 38)
            assert forwarder.breaker == breaker.BreakerStatus()
        assert forwarder.tenant_failures == {}
        assert {message.attempts for message in queue.claim("q", 100)} == {1}
        assert running_forwarders(store.root) == []
        assert not list(store.root.glob(".*forwarder*"))


@pytest.mark.postgres
def test_an_outage_noticed_at_the_commit_opens_the_breaker(
    store: tenantq.Store, postgres_queue: PostgresQueue
) -> None:
    def lose(_step: str) -> None:
        raise PostgresUnavailable("lost")

    forwarder = Forwarder(store, postgres_queue, failpoint=lose)
    store.tenant("acme").emit("t", 1)
    with pytest.raises(PostgresUnavailable):
        forwarder.run_once()
    assert (forwarder.breaker.state, forwarder.breaker.error) == (BreakerState.OPEN, "lost")
    forwarder.stop()


def test_a_file_of_a_dead_forwarder_is_none_of_a_running_one(tmp_path: Path) -> None:
    (tmp_path / ".forwarder-1-dead").write_text("{}")
    assert running_forwarders(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
