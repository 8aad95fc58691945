"""The tenants as a worker's source: fair turns, acks that go with the next claim, and how far it claims ahead."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tenantq
from tenantq._sources import MOST_AHEAD
from tenantq._tenant_source import TenantSource
from tenantq.errors import TenantBusy

PATIENCE = 30


def test_a_flood_of_one_tenant_does_not_keep_another_waiting(live: tenantq.Store) -> None:
    flood, small = live.tenant("flood"), live.tenant("small")
    flood.enqueue_many("mail", range(2000))
    handled: list[str] = []
    is_over = threading.Event()
    worker = tenantq.Worker(live, concurrency=1)

    @worker.on("mail")
    def handle(message: tenantq.Message[int]) -> None:
        handled.append(message.tenant or "")
        if len(handled) == 300:
            small.enqueue("mail", 1)
        if message.tenant == "small" or len(handled) == 2000:
            is_over.set()

    with worker:
        assert is_over.wait(PATIENCE)
    # Behind what was handled until the news came: not behind the flood, nor behind what was claimed ahead of it.
    assert handled.index("small") < 1500


def test_what_was_handled_is_acked_when_the_worker_stops(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.enqueue_many("mail", range(500))
    handled: list[int] = []
    worker = tenantq.Worker(live, concurrency=2)

    @worker.on("mail")
    def handle(message: tenantq.Message[int]) -> None:
        handled.append(message.payload)
        if len(handled) == 100:
            worker.request_stop()

    worker.run()
    left = [message.payload for message in acme.claim("mail", 500)]
    assert sorted(handled + left) == list(range(500))
    assert worker.counts["handled"] == len(handled)


def test_a_fast_handler_has_much_claimed_ahead_and_a_slow_one_little(live: tenantq.Store) -> None:
    source = TenantSource(
        live,
        ["mail"],
        threads=2,
        lease=60,
        worker="w",
        ring=lambda: None,
        tell=lambda _message, _lost: None,
    )
    live.tenant("acme").enqueue("mail", 1)
    (message,) = live.tenant("acme").peek("mail")
    for _ in range(200):
        source.worked(0.0, message)
    assert MOST_AHEAD < source._room == source._bound <= 2 * MOST_AHEAD
    for _ in range(200):
        source.worked(5.0, message)
    assert 2 * 2 <= source._room == source._bound < 2 * 4
    source.stop()


def test_an_ack_that_cannot_be_written_is_tried_until_it_is(
    live: tenantq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = live.tenant("acme")
    acme.enqueue("mail", 1)
    failures = iter([TenantBusy("locked"), TenantBusy("locked")])
    exchange, ack = tenantq.Tenant.exchange, tenantq.Tenant.ack

    def fail_first(verb: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            for failure in failures:
                raise failure
            return verb(*arguments, **options)

        return call

    monkeypatch.setattr(tenantq.Tenant, "exchange", fail_first(exchange))
    monkeypatch.setattr(tenantq.Tenant, "ack", fail_first(ack))
    done = threading.Event()
    worker = tenantq.Worker(live, concurrency=1)
    worker.on("mail")(lambda _message: done.set())
    with worker:
        assert done.wait(PATIENCE)
    assert worker.counts["handled"] == 1
    stats = acme.stats()
    assert (stats.ready, stats.claimed) == (0, 0)
