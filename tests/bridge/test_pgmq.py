"""Events to pgmq's queues: each once by effect, as into our own.

On pgmq's own SQL where the Python package `pgmq`, which carries it, is installed; on a stand-in with the same
signatures (pgmq_fixture.sql) otherwise.
"""

from __future__ import annotations

import base64
import importlib.util
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenantq
from tenantq_bridge import Forwarder, PgmqMissing, PgmqTarget, PostgresQueue, PostgresUnavailable, Target
from tests.bridge.conftest import Sql
from tests.bridge.test_forwarder import drain
from tests.bridge.test_recovery import copy_back, copy_to, emit, run_child

pytestmark = pytest.mark.postgres

Sent = Callable[..., list[Any]]


def pgmq_sql() -> bytes:
    package = importlib.util.find_spec("pgmq")
    if package is not None and package.origin is not None:
        shipped = Path(package.origin).parent / "sql" / "pgmq.sql"
        if shipped.exists():
            return shipped.read_bytes()
    return Path(__file__).with_name("pgmq_fixture.sql").read_bytes()


@pytest.fixture
def pgmq(sql: Sql) -> Sql:
    """Install pgmq, with the queues "invoices" and "audit"."""
    sql(pgmq_sql())
    sql(b"SELECT pgmq.create('invoices')")
    sql(b"SELECT pgmq.create('audit')")
    return sql


@pytest.fixture
def sent(pgmq: Sql) -> Sent:
    """Tell the messages of a pgmq queue, in its order."""

    def run(queue: str = "invoices") -> list[Any]:
        return [row[0] for row in pgmq(f"SELECT message FROM pgmq.q_{queue} ORDER BY msg_id".encode())]

    return run


def forward(store: tenantq.Store, target: Target, **options: Any) -> int:
    forwarder = Forwarder(store, target, **options)
    try:
        return drain(forwarder)
    finally:
        forwarder.stop()


def test_an_event_arrives_with_its_payload_and_with_what_it_is_in_its_headers(
    store: tenantq.Store, postgres_queue: PostgresQueue, pgmq: Sql
) -> None:
    acme = store.tenant("acme")
    acme.emit("billing.paid", {"cents": 1}, headers={"a": "b"})
    acme.emit("billing.blob", b"\0\xff" * 60)
    acme.emit("billing.later", 3, delay=3600)
    assert forward(store, PgmqTarget(postgres_queue, "invoices")) == 3
    rows = pgmq(b"SELECT message, headers, vt > now() FROM pgmq.q_invoices ORDER BY msg_id")
    by_topic = {headers["tenantq-topic"]: (message, headers, later) for message, headers, later in rows}
    message, headers, is_later = by_topic["billing.paid"]
    assert (message, is_later) == ({"cents": 1}, False)
    assert headers == {
        "a": "b",
        "x-pgmq-group": "acme",
        "tenantq-tenant": "acme",
        "tenantq-topic": "billing.paid",
        "tenantq-event-id": acme.outbox.event_id_at(1),
    }
    message, headers, _ = by_topic["billing.blob"]
    assert base64.b64decode(message, validate=True) == b"\0\xff" * 60
    assert headers["tenantq-encoding"] == "base64"
    assert by_topic["billing.later"][2]


def test_topics_go_to_the_queues_of_their_patterns_once(
    store: tenantq.Store, postgres_queue: PostgresQueue, sent: Sent
) -> None:
    for topic in ("billing.paid", "user%x", "userax", "other"):
        store.tenant("acme").emit(topic, topic)
    routes = {"billing.*": "invoices", "*paid": "invoices", "user%*": "audit", "b*": "audit"}
    assert forward(store, PgmqTarget(postgres_queue, routes)) == 4
    assert sent("invoices") == ["billing.paid"]
    assert sent("audit") == ["billing.paid", "user%x"]


def test_the_queues_own_subscriptions_are_served_as_well(
    store: tenantq.Store, postgres_queue: PostgresQueue, sent: Sent
) -> None:
    postgres_queue.subscribe("ours", "*")
    store.tenant("acme").emit("t", 1)
    assert forward(store, PgmqTarget(postgres_queue, "invoices")) == 1
    assert sent() == [1]
    assert [message.payload for message in postgres_queue.claim("ours")] == [1]


def test_a_tenants_events_keep_their_order(store: tenantq.Store, postgres_queue: PostgresQueue, pgmq: Sql) -> None:
    for number in range(30):
        for tenant in ("a", "b"):
            store.tenant(tenant).emit("t", number)
    assert forward(store, PgmqTarget(postgres_queue, "invoices"), batch_rows=10, tenant_rows=4) == 60
    rows = pgmq(b"SELECT headers->>'tenantq-tenant', message FROM pgmq.q_invoices ORDER BY msg_id")
    for tenant in ("a", "b"):
        assert [message for name, message in rows if name == tenant] == list(range(30))


@pytest.mark.parametrize("point", ["staged", "committed", "marked"])
def test_a_forwarder_killed_anywhere_loses_and_repeats_nothing(
    tmp_path: Path, postgres_queue: PostgresQueue, migrated_dsn: str, sent: Sent, point: str
) -> None:
    root = tmp_path / "store"
    for tenant in range(3):
        emit(root, range(10 * tenant, 10 * tenant + 10), f"t{tenant}")
    assert run_child(root, migrated_dsn, point, 2, "pgmq invoices") == -signal.SIGKILL
    assert run_child(root, migrated_dsn, point, 1, "pgmq invoices") == -signal.SIGKILL
    with tenantq.open(root) as store:
        forward(store, PgmqTarget(postgres_queue, "invoices"))
    assert sorted(sent()) == list(range(30))


def test_a_lost_reply_to_the_commit_and_a_second_forwarder_repeat_nothing(
    store: tenantq.Store, postgres_queue: PostgresQueue, sent: Sent
) -> None:
    store.tenant("acme").emit("t", 1)

    def lose(step: str) -> None:
        if step == "committed":
            raise PostgresUnavailable("lost", outcome_unknown=True)

    target = PgmqTarget(postgres_queue, "invoices")
    with pytest.raises(PostgresUnavailable):
        forward(store, target, failpoint=lose)
    assert forward(store, target) == 0
    assert sent() == [1]


def test_a_restored_tenant_repeats_and_loses_nothing(
    tmp_path: Path, postgres_queue: PostgresQueue, sent: Sent
) -> None:
    root = tmp_path / "store"
    target = PgmqTarget(postgres_queue, "invoices")

    def run() -> int:
        with tenantq.open(root) as store:
            return forward(store, target)

    emit(root, range(5))
    run()
    emit(root, range(5, 10))
    backup = copy_to(root, tmp_path / "backup.db")
    emit(root, range(10, 15))
    run()
    copy_back(root, backup)
    emit(root, range(100, 120))
    assert run() == 20
    assert sent() == [*range(15), *range(100, 120)]


def test_what_jsonb_does_not_take_is_kept_in_its_tenants_file_and_holds_up_nobody(
    store: tenantq.Store, postgres_queue: PostgresQueue, sent: Sent
) -> None:
    store.tenant("nul").emit("t", "\0")
    store.tenant("acme").emit("t", 1)
    forwarder = Forwarder(store, PgmqTarget(postgres_queue, "invoices"))
    assert drain(forwarder) == 1
    assert forwarder.undeliverable == 1
    forwarder.stop()
    assert [event.topic for event in store.tenant("nul").outbox.undeliverable()] == ["t"]
    assert sent() == [1]


def test_a_missing_pgmq_or_queue_is_told_and_the_events_wait(
    store: tenantq.Store, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    store.tenant("acme").emit("t", 1)
    target = PgmqTarget(postgres_queue, "invoices")
    with pytest.raises(PgmqMissing, match="no pgmq"):
        forward(store, target)
    sql(pgmq_sql())
    with pytest.raises(PgmqMissing, match="no queue 'invoices'"):
        forward(store, target)
    assert store.tenant("acme").outbox.position().pending == 1
    sql(b"SELECT pgmq.create('invoices')")
    assert forward(store, target) == 1


def test_a_target_without_routes_is_refused(postgres_queue: PostgresQueue) -> None:
    with pytest.raises(tenantq.InvalidArgument):
        PgmqTarget(postgres_queue, {})
