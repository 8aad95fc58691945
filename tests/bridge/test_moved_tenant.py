"""A tenant that moves to another store goes on there: nothing is lost or repeated in Postgres."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tenantq
from tenantq.errors import EventsWaiting, TenantDeleted, TenantMoved
from tenantq_bridge import Forwarder, PostgresQueue
from tests.bridge.conftest import Sql


class Died(Exception):
    """Stands for a forwarder's end."""


@pytest.fixture
def other(tmp_path: Path) -> tenantq.Store:
    return tenantq.open(tmp_path / "other")


def drain(forwarder: Forwarder) -> None:
    while forwarder.run_once():
        pass


def sent(sql: Sql) -> list[int]:
    return [json.loads(row[0]) for row in sql(b"SELECT body FROM tenantq.ready WHERE queue = 'all' ORDER BY seq")]


@pytest.mark.parametrize("is_marked", [True, False])
def test_the_new_store_continues_the_outbox(
    store: tenantq.Store,
    other: tenantq.Store,
    postgres_queue: PostgresQueue,
    sql: Sql,
    *,
    is_marked: bool,
) -> None:
    tmp_path = store.root.parent
    postgres_queue.subscribe("all", "*")
    acme = store.tenant("acme")
    for number in range(5):
        acme.emit("topic", number)

    def die(step: str) -> None:  # between the commit in Postgres and the mark in the file
        if step == "committed":
            raise Died

    if not is_marked:
        dying = Forwarder(store, postgres_queue, failpoint=die)
        with pytest.raises(Died):
            dying.run_once()
        dying.stop()
        assert acme.outbox.position().pending == 5
    here, there = Forwarder(store, postgres_queue), Forwarder(other, postgres_queue)
    if is_marked:
        drain(here)
    acme.emit("topic", 5)
    last_id = acme.enqueue("mail", 1)
    store.export("acme", tmp_path / "acme.move")
    with pytest.raises(TenantMoved):
        acme.emit("topic", "late")
    drain(here)
    moved = other.import_(tmp_path / "acme.move")
    drain(there)
    moved.emit("topic", 6)
    drain(here)
    drain(there)
    assert sent(sql) == list(range(7))
    assert moved.enqueue("mail", 2) == last_id + 1
    assert sql(b"SELECT epoch, last_seq FROM tenantq.forwarding") == [(1, 7)]
    assert moved.outbox.position().pending == 0
    # And back again, by another move.
    other.export("acme", tmp_path / "back.move")
    store.import_(tmp_path / "back.move").emit("topic", 7)
    drain(there)
    drain(here)
    assert sent(sql) == list(range(8))
    for forwarder in (here, there):
        forwarder.stop()
    other.close()


def test_an_export_enters_one_store_once(store: tenantq.Store, other: tenantq.Store, tmp_path: Path) -> None:
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    acme.claim("mail")
    target = store.export("acme", tmp_path / "acme.move")
    with pytest.raises(TenantMoved):
        store.restore("acme", target)
    moved = other.import_(target)
    assert [message.attempts for message in moved.claim("mail")] == [1]  # given back, the attempt not counted
    for again in (other, store):
        with pytest.raises(tenantq.TenantqError):
            again.import_(target)
    other.delete("acme")
    with pytest.raises(TenantDeleted):
        other.import_(target)
    with pytest.raises(TenantMoved):
        store.undo_export("acme")
    other.close()


def test_a_deletion_forwards_the_events_first(
    store: tenantq.Store, forwarder: Forwarder, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    postgres_queue.subscribe("all", "*")
    store.tenant("acme").emit("topic", 1)
    with pytest.raises(EventsWaiting):
        store.delete("acme")
    assert store.delete("acme", events="forward", forward=forwarder.run_once)
    assert sent(sql) == [1]
    store.tenant("globex").emit("topic", 2)
    with forwarder:  # one that runs elsewhere
        assert store.delete("globex", events="forward", wait=60)
    assert sent(sql) == [1, 2]


def test_what_postgres_keeps_of_a_tenant_is_told_and_what_can_go_goes(
    store: tenantq.Store, forwarder: Forwarder, postgres_queue: PostgresQueue
) -> None:
    postgres_queue.subscribe("all", "*")
    store.tenant("acme").emit("topic", 1)
    store.tenant("other").emit("topic", 2)
    drain(forwarder)
    postgres_queue.send_to_tenant("acme", "mail", 1)
    traces = postgres_queue.traces("acme")
    assert (traces.messages, traces.forwarding, traces.outgoing, traces.owners) == (1, 1, 1, 1)
    assert traces.seen == 1
    store.delete("acme")
    postgres_queue.erase_tenant("acme")
    postgres_queue.erase_tenant("acme")
    left = postgres_queue.traces("acme")
    assert (left.messages, left.seen, left.forwarding, left.outgoing, left.owners) == (1, 0, 0, 0, 0)
    assert postgres_queue.traces("other").forwarding == 1
    drain(forwarder)
    assert postgres_queue.traces("acme").forwarding == 0
