"""The inbox: what the shared layer sent is in the tenant's queues once, in order, as room allows."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenantq
from tenantq.inbox import Incoming


def incoming(seq: int, body: str = "1", queue: str = "q", **options: object) -> Incoming:
    defaults: dict[str, object] = {
        "headers": None,
        "priority": 0,
        "max_attempts": 25,
        "key": None,
        "visible_ns": None,
    }
    return Incoming(seq=seq, queue=queue, body=body, **(defaults | options))  # type: ignore[arg-type]


@pytest.fixture
def acme(store: tenantq.Store) -> tenantq.Tenant:
    tenant = store.tenant("acme")
    tenant.emit("exists", 1)
    return tenant


def payloads(tenant: tenantq.Tenant, queue: str = "q") -> list[object]:
    return [message.payload for message in tenant.peek(queue, 100)]


def test_what_is_given_again_is_dropped(acme: tenantq.Tenant) -> None:
    assert acme.inbox.position() == 0
    first = acme.inbox.receive([incoming(7, "7"), incoming(9, "9")])
    assert (first.seq, first.received, first.refusal) == (9, 2, None)
    again = acme.inbox.receive([incoming(7, "7"), incoming(9, "9"), incoming(12, "12")])
    assert (again.seq, again.received) == (12, 1)
    assert payloads(acme) == [7, 9, 12]
    assert acme.inbox.position() == 12


def test_a_message_arrives_with_all_that_it_was_sent_with(acme: tenantq.Tenant) -> None:
    acme.inbox.receive([incoming(1, '"x"', headers='{"a":"b"}', priority=3, max_attempts=2, key="k")])
    [message] = acme.claim("q")
    assert (message.payload, message.headers, message.key) == ("x", {"a": "b"}, "k")
    assert (message.priority, message.max_attempts, message.attempts) == (3, 2, 1)


def test_a_delayed_message_waits_in_the_file(acme: tenantq.Tenant) -> None:
    acme.inbox.receive([incoming(1, visible_ns=2**62)])
    assert (acme.stats().ready, acme.stats().scheduled) == (0, 1)


def test_a_full_queue_takes_what_fits_and_the_rest_later_in_order(acme: tenantq.Tenant) -> None:
    acme.limit("q", max_depth=2)
    messages = [incoming(number, str(number)) for number in range(1, 5)]
    receipt = acme.inbox.receive([*messages, incoming(5, "5", "other")])
    assert (receipt.seq, receipt.received) == (2, 2)
    assert receipt.refusal is not None
    assert (receipt.refusal.queue, receipt.refusal.max_depth) == ("q", 2)
    assert payloads(acme, "other") == []
    acme.limit("q", max_depth=None)
    assert acme.inbox.receive([*messages, incoming(5, "5", "other")]).refusal is None
    assert payloads(acme) == [1, 2, 3, 4]
    assert payloads(acme, "other") == [5]


def test_a_deleted_tenant_is_not_made_again(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    store.delete("acme", events="drop")
    with pytest.raises(tenantq.UnknownTenant):
        acme.inbox.receive([incoming(1)])
    assert "acme" not in store


def test_the_mark_goes_back_with_a_restored_file(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    acme.inbox.receive([incoming(1)])
    backup = acme.backup(tmp_path / "backup.db")
    acme.inbox.receive([incoming(2)])
    store.restore("acme", backup)
    assert acme.inbox.position() == 1


def test_an_arrival_wakes_a_claim_that_waits(acme: tenantq.Tenant, store: tenantq.Store) -> None:
    with store.watch() as watch:
        while watch.wait(0.1):
            pass
        acme.inbox.receive([incoming(1)])
        assert watch.wait(20.0) == {"acme"}
