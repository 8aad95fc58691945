"""Events that Postgres refuses: alone out of the way, kept with the error, and sent again once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import tenantq
from tenantq_bridge import Forwarder, PostgresQueue
from tenantq_bridge._postgres import Session
from tenantq_bridge.target import Forwarded
from tests.bridge.conftest import Sql
from tests.bridge.test_forwarder import drain
from tests.bridge.test_recovery import run_child

pytestmark = pytest.mark.postgres

Bodies = Callable[[], list[int]]


@pytest.fixture
def bodies(sql: Sql, postgres_queue: PostgresQueue) -> Bodies:
    """Tell the numbers that have arrived, in the order of the claims. Subscribes."""
    postgres_queue.subscribe("q", "*")
    return lambda: [int(row[0]) for row in sql(b"SELECT body FROM tenantq.ready ORDER BY rank, seq")]


@pytest.fixture
def refuse(sql: Sql) -> Callable[[str], None]:
    """Have Postgres refuse messages of which a condition is true; with none, refuse nothing more."""

    def run(condition: str) -> None:
        sql(b"ALTER TABLE tenantq.ready DROP CONSTRAINT IF EXISTS poison")
        if condition:
            sql(f"ALTER TABLE tenantq.ready ADD CONSTRAINT poison CHECK (NOT ({condition})) NOT VALID".encode())

    return run


Refuse = Callable[[str], None]


@pytest.fixture
def acme(store: tenantq.Store) -> tenantq.Tenant:
    return store.tenant("acme")


def emit(tenant: tenantq.Tenant, numbers: range) -> None:
    with tenant.transaction() as tx:
        for number in numbers:
            tx.emit("t", number)


def kept(tenant: tenantq.Tenant) -> list[int]:
    return [int(event.body) for event in tenant.outbox.undeliverable()]


def test_of_five_hundred_events_the_refused_one_alone_stays_behind(
    acme: tenantq.Tenant, forwarder: Forwarder, bodies: Bodies, refuse: Refuse, store: tenantq.Store
) -> None:
    refuse("body = '313'")
    emit(acme, range(500))
    emit(store.tenant("other"), range(1000, 1003))
    assert drain(forwarder) == 502
    assert [number for number in bodies() if number < 1000] == [n for n in range(500) if n != 313]
    assert [number for number in bodies() if number >= 1000] == [1000, 1001, 1002]
    assert (forwarder.undeliverable, forwarder.tenant_failures) == (1, {})
    [event] = acme.outbox.undeliverable()
    assert (event.seq, event.topic, event.body) == (314, "t", "313")
    assert 'violates check constraint "poison"' in event.error
    stats = acme.stats()
    assert (stats.outbox, stats.undeliverable) == (0, 1)
    emit(acme, range(500, 503))
    assert drain(forwarder) == 3
    assert bodies()[-3:] == [500, 501, 502]


def test_an_undeliverable_event_is_sent_again_with_all_it_has_under_its_own_id(
    acme: tenantq.Tenant, forwarder: Forwarder, postgres_queue: PostgresQueue, bodies: Bodies, refuse: Refuse
) -> None:
    refuse("topic = 'bad'")
    acme.emit("bad", 1, headers={"a": "b"}, priority=3, max_attempts=2)
    event_id = acme.outbox.event_id_at(1)
    drain(forwarder)
    [event] = acme.outbox.undeliverable()
    assert (event.event_id, event.headers, event.priority, event.max_attempts) == (event_id, '{"a": "b"}', 3, 2)
    refuse("")
    assert drain(forwarder) == 0
    assert acme.outbox.redeliver(event.seq) == 1
    assert (acme.outbox.undeliverable(), acme.stats().undeliverable, acme.stats().outbox) == ([], 0, 1)
    assert drain(forwarder) == 1
    [message] = postgres_queue.claim("q", 5)
    assert (message.event_id, message.payload, message.headers) == (event_id, 1, {"a": "b"})
    assert (message.priority, message.max_attempts) == (3, 2)


def test_an_event_that_is_refused_again_is_kept_again(
    acme: tenantq.Tenant, forwarder: Forwarder, bodies: Bodies, refuse: Refuse
) -> None:
    refuse("body IN ('1', '2')")
    emit(acme, range(4))
    drain(forwarder)
    assert acme.outbox.redeliver() == 2
    drain(forwarder)
    assert (kept(acme), forwarder.undeliverable) == ([1, 2], 4)
    assert acme.outbox.discard(acme.outbox.undeliverable()[0].seq) == 1
    refuse("")
    assert acme.outbox.redeliver() == 1
    drain(forwarder)
    assert bodies() == [0, 3, 2]


def test_a_resent_event_that_postgres_has_after_all_is_not_repeated(
    acme: tenantq.Tenant, forwarder: Forwarder, bodies: Bodies
) -> None:
    emit(acme, range(3))
    [_, event, _] = acme.outbox.read(0, limit=3, max_bytes=10**6)
    drain(forwarder)
    # As if another forwarder had been told no for it, while this one had just sent it.
    assert acme.outbox.keep_undeliverable(event, "refused")
    assert acme.outbox.redeliver() == 1
    emit(acme, range(3, 4))
    assert drain(forwarder) == 1
    assert bodies() == [0, 1, 2, 3]
    assert acme.stats().outbox == 0


class Between:
    """A target in front of which somebody else acts at the given call."""

    kind = "between"

    def __init__(self, queue: PostgresQueue, call: int, act: Callable[[], object]) -> None:
        self.queue = queue
        self.database = queue.database
        self.schema = queue.schema
        self.calls = 0
        self._call = call
        self._act = act

    def forward(self, session: Session, params: Mapping[str, Any]) -> Forwarded:
        self.calls += 1
        if self.calls == self._call:
            self._act()
        return self.queue.forward(session, params)

    def ring(self, queue: str) -> None:
        self.queue.ring(queue)


@pytest.mark.parametrize("call", [2, 3], ids=["before the event is found guilty", "before it is kept"])
def test_an_event_that_another_forwarder_delivers_meanwhile_is_not_kept(
    *,
    call: int,
    store: tenantq.Store,
    acme: tenantq.Tenant,
    forwarder: Forwarder,
    postgres_queue: PostgresQueue,
    bodies: Bodies,
    refuse: Refuse,
) -> None:
    def deliver() -> None:
        refuse("")
        assert drain(forwarder) == 1

    refuse("topic <> 'tenantq.probe'")
    postgres_queue.subscribe("q", "*")
    emit(acme, range(1))
    target = Between(postgres_queue, call, deliver)
    slower = Forwarder(store, target)
    drain(slower)
    slower.stop()
    assert target.calls >= call
    assert (bodies(), kept(acme), slower.undeliverable) == ([0], [], 0)
    assert acme.stats().outbox == 0
    emit(acme, range(1, 2))
    assert drain(forwarder) == 1
    assert bodies() == [0, 1]


def test_many_refused_events_cost_their_tenant_more_turns_and_others_nothing(
    store: tenantq.Store, acme: tenantq.Tenant, forwarder: Forwarder, bodies: Bodies, refuse: Refuse
) -> None:
    refuse("body < '2'")
    emit(acme, range(100, 150))
    emit(acme, range(200, 210))
    emit(store.tenant("other"), range(300, 302))
    drain(forwarder)
    assert sorted(bodies()) == [*range(200, 210), 300, 301]
    assert kept(acme) == list(range(100, 150))


def test_what_postgres_refuses_whatever_the_event_is_no_event_s_fault(
    acme: tenantq.Tenant, forwarder: Forwarder, bodies: Bodies, refuse: Refuse
) -> None:
    refuse("true")
    emit(acme, range(3))
    assert drain(forwarder) == 0
    assert list(forwarder.tenant_failures) == ["acme"]
    assert (kept(acme), acme.stats().outbox) == ([], 3)
    refuse("")
    forwarder.stop()
    assert drain(forwarder) == 3
    assert bodies() == [0, 1, 2]


def test_a_day_that_is_missing_in_postgres_makes_nothing_undeliverable(
    acme: tenantq.Tenant, forwarder: Forwarder, bodies: Bodies, sql: Sql
) -> None:
    drain(forwarder)  # opens the days
    tables = sql(b"SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'tenantq.seen'::regclass")
    for (table,) in tables:
        sql(f"DROP TABLE {table}".encode())
    emit(acme, range(3))
    assert drain(forwarder) == 0
    assert kept(acme) == []
    forwarder.stop()
    assert drain(forwarder) == 3
    assert bodies() == [0, 1, 2]


def test_an_event_that_cannot_even_be_sent_is_kept_too(
    acme: tenantq.Tenant, forwarder: Forwarder, bodies: Bodies
) -> None:
    emit(acme, range(4))
    with acme.transaction() as tx:  # what only SQL by hand can do
        tx.execute("UPDATE tenantq_outbox SET event_id = 'no uuid' WHERE seq = 2")
        tx.execute("UPDATE tenantq_outbox SET priority = 1000000 WHERE seq = 3")
    drain(forwarder)
    assert bodies() == [0, 3]
    assert ["cannot be sent" in event.error for event in acme.outbox.undeliverable()] == [True, True]


def test_a_nul_that_got_past_emit_is_refused_by_postgres_and_kept(
    acme: tenantq.Tenant, forwarder: Forwarder, bodies: Bodies
) -> None:
    emit(acme, range(3))
    with acme.transaction() as tx:
        tx.execute("UPDATE tenantq_outbox SET payload = 'a' || char(0) || 'b' WHERE seq = 2")
    drain(forwarder)
    assert bodies() == [0, 2]
    [event] = acme.outbox.undeliverable()
    assert event.body == "a\0b"
    assert "0x00" in event.error


def test_an_undeliverable_event_stays_so_through_prune_and_a_new_epoch(
    store: tenantq.Store, postgres_queue: PostgresQueue, bodies: Bodies, refuse: Refuse, tmp_path: Path
) -> None:
    acme = store.tenant("acme")
    forwarder = Forwarder(store, postgres_queue, keep=0)
    refuse("body = '1'")
    emit(acme, range(2))
    drain(forwarder)
    backup = acme.backup(tmp_path / "backup.db")
    emit(acme, range(2, 4))
    drain(forwarder)
    assert acme.outbox.event_id_at(1) is None
    store.restore("acme", backup)
    refuse("")
    emit(acme, range(100, 102))
    drain(forwarder)
    assert (bodies(), kept(acme)) == ([0, 2, 3, 100, 101], [1])
    acme.outbox.redeliver()
    drain(forwarder)
    assert bodies()[-1] == 1
    forwarder.stop()


@pytest.fixture(params=[(point, n) for point in ("staged", "committed", "parked", "marked") for n in (1, 3)])
def killed(request: pytest.FixtureRequest, tmp_path: Path, migrated_dsn: str, refuse: Refuse) -> Path:
    """A store whose forwarder was killed at a named point, reached for the given time."""
    root = tmp_path / "killed"
    refuse("body IN ('3', '4', '13', '19')")
    with tenantq.open(root) as store:
        emit(store.tenant("a"), range(10))
        emit(store.tenant("b"), range(10, 20))
    assert run_child(root, migrated_dsn, *request.param) == -signal.SIGKILL
    return root


def test_a_kill_anywhere_beside_a_refused_event_loses_and_repeats_nothing(
    bodies: Bodies, killed: Path, postgres_queue: PostgresQueue, refuse: Refuse
) -> None:
    with tenantq.open(killed) as store:
        forwarder = Forwarder(store, postgres_queue)
        drain(forwarder)
        arrived = bodies()
        assert [n for n in arrived if n < 10] == [0, 1, 2, 5, 6, 7, 8, 9]
        assert [n for n in arrived if n >= 10] == [10, 11, 12, 14, 15, 16, 17, 18]
        assert (kept(store.tenant("a")), kept(store.tenant("b"))) == ([3, 4], [13, 19])
        assert [store.tenant(name).stats().outbox for name in "ab"] == [0, 0]
        refuse("")
        assert [store.tenant(name).outbox.redeliver() for name in "ab"] == [2, 2]
        drain(forwarder)
        forwarder.stop()
        assert sorted(bodies()) == list(range(20))
