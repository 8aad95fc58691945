"""Events from tenants' files to Postgres: routing, order, fairness, and what one tenant's trouble costs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import tenantq
from tenantq_bridge import Forwarder, PostgresQueue, PostgresUnavailable
from tests.bridge.conftest import Sql

pytestmark = pytest.mark.postgres

Arrived = Callable[[str], list[tuple[str, str]]]


@pytest.fixture
def arrived(sql: Sql) -> Arrived:
    """Tell what lies in a queue, as (tenant, body), in the order of the claims."""

    def run(queue: str) -> list[tuple[str, str]]:
        rows = sql(
            b"SELECT tenant, body FROM tenantq.ready WHERE queue = %(queue)s ORDER BY rank, seq", {"queue": queue}
        )
        return [(row[0], row[1]) for row in rows]

    return run


def drain(forwarder: Forwarder) -> int:
    total = 0
    while count := forwarder.run_once():
        total += count
    return total


def test_an_event_arrives_with_all_it_has(
    store: tenantq.Store, forwarder: Forwarder, postgres_queue: PostgresQueue
) -> None:
    postgres_queue.subscribe("q", "billing.*")
    with store.tenant("Acme GmbH").transaction() as tx:
        tx.emit("billing.paid", {"cents": 1}, headers={"a": "b"}, priority=3, max_attempts=2)
        tx.emit("billing.blob", b"\0\xff")
        tx.emit("billing.later", 3, delay=3600)
    assert forwarder.run_once() == 3
    assert forwarder.run_once() == 0
    paid, blob = postgres_queue.claim("q", 5)
    assert (paid.tenant, paid.topic, paid.payload) == ("Acme GmbH", "billing.paid", {"cents": 1})
    assert (paid.headers, paid.priority, paid.max_attempts) == ({"a": "b"}, 3, 2)
    assert paid.event_id == store.tenant("Acme GmbH").outbox.event_id_at(1)
    assert blob.payload == b"\0\xff"
    assert postgres_queue.stats("q").scheduled == 1
    paid.nack(delay=0)
    [again] = postgres_queue.claim("q")
    assert (again.id, again.topic, again.event_id, again.tenant) == (
        paid.id,
        paid.topic,
        paid.event_id,
        paid.tenant,
    )
    position = store.tenant("Acme GmbH").outbox.position()
    assert (position.forwarded_seq, position.pending) == (3, 0)


def test_in_a_pattern_only_the_star_is_special(
    store: tenantq.Store, forwarder: Forwarder, postgres_queue: PostgresQueue
) -> None:
    expected = {
        "*": {"a.b.c", "a.", "ab", "ac", "abc", "a%", "a_c", "a\\b", "a*", "größe.x"},
        "a.*": {"a.b.c", "a."},
        "*.c": {"a.b.c"},
        "a*c": {"a.b.c", "ac", "abc", "a_c"},
        "a%": {"a%"},
        "a_c": {"a_c"},
        "a\\*": {"a\\b"},
        "A.*": set(),
        "größe.*": {"größe.x"},
        "a": set(),
    }
    for pattern in expected:
        postgres_queue.subscribe(f"for {pattern}", pattern)
    for topic in sorted(expected["*"]):
        store.tenant("acme").emit(topic, 1)
    assert forwarder.run_once() == 10
    for pattern, topics in expected.items():
        assert {message.topic for message in postgres_queue.claim(f"for {pattern}", 20)} == topics, pattern


def test_every_subscribed_queue_gets_an_event_once(
    store: tenantq.Store, forwarder: Forwarder, postgres_queue: PostgresQueue, arrived: Arrived
) -> None:
    for queue, pattern in [("a", "x.*"), ("a", "*"), ("a", "x.y"), ("b", "*y"), ("c", "z")]:
        postgres_queue.subscribe(queue, pattern)
    store.tenant("acme").emit("x.y", 1)
    drain(forwarder)
    assert [arrived(queue) for queue in "abc"] == [[("acme", "1")], [("acme", "1")], []]


def test_what_nobody_subscribed_to_is_passed_over(
    store: tenantq.Store, forwarder: Forwarder, postgres_queue: PostgresQueue, arrived: Arrived
) -> None:
    store.tenant("acme").emit("unheard", 1)
    assert forwarder.run_once() == 1
    postgres_queue.subscribe("q", "*")
    store.tenant("acme").emit("heard", 2)
    drain(forwarder)
    assert arrived("q") == [("acme", "2")]
    assert store.tenant("acme").outbox.position().pending == 0


def test_a_tenants_events_keep_their_order(
    store: tenantq.Store, postgres_queue: PostgresQueue, arrived: Arrived
) -> None:
    postgres_queue.subscribe("q", "*")
    forwarder = Forwarder(store, postgres_queue, batch_rows=10, tenant_rows=4)
    for number in range(30):
        for tenant in ("a", "b", "c"):
            store.tenant(tenant).emit("t", number)
    assert drain(forwarder) == 90
    forwarder.stop()
    for tenant in ("a", "b", "c"):
        assert [int(body) for name, body in arrived("q") if name == tenant] == list(range(30))


def test_a_huge_tenant_does_not_hold_up_the_small(
    store: tenantq.Store, postgres_queue: PostgresQueue, arrived: Arrived
) -> None:
    postgres_queue.subscribe("q", "*")
    with store.tenant("a-huge").transaction() as tx:
        for number in range(500):
            tx.emit("t", number)
    for number in range(20):
        store.tenant(f"small-{number}").emit("t", number)
    forwarder = Forwarder(store, postgres_queue, batch_rows=50, tenant_rows=10)
    assert forwarder.run_once() == 30
    assert sum(name.startswith("small") for name, _ in arrived("q")) == 20
    assert drain(forwarder) == 490
    forwarder.stop()


def test_the_small_have_their_events_in_postgres_within_the_first_rounds_beside_a_huge_one(
    store: tenantq.Store, forwarder: Forwarder, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    postgres_queue.subscribe("q", "*")
    with store.tenant("a-huge").transaction() as tx:
        for number in range(100_000):
            tx.emit("t", number)
    for number in range(99):
        store.tenant(f"small-{number}").emit("t", number)
    count = forwarder.run_once()
    assert count == 599
    [(small,)] = sql(b"SELECT count(DISTINCT tenant) FROM tenantq.ready WHERE tenant LIKE 'small%'")
    assert small == 99
    store.tenant("small-7").emit("t", "late")
    store.tenant("unseen").emit("t", "late")
    # One batch of the huge one may come before them, since it is in line; it is bounded in rows too.
    assert forwarder.run_once() + forwarder.run_once() <= 2 * 5_000
    assert sql(b"SELECT count(*) FROM tenantq.ready WHERE body = '\"late\"'") == [(2,)]


def test_a_tenant_alone_in_line_gets_the_whole_batch(
    store: tenantq.Store, forwarder: Forwarder, postgres_queue: PostgresQueue
) -> None:
    with store.tenant("alone").transaction() as tx:
        for number in range(2_000):
            tx.emit("t", number)
    assert forwarder.run_once() == 2_000


def test_a_batch_is_bounded_by_bytes(store: tenantq.Store, postgres_queue: PostgresQueue) -> None:
    for tenant in ("a", "b", "c"):
        for _ in range(3):
            store.tenant(tenant).emit("t", "x" * 1000)
    forwarder = Forwarder(store, postgres_queue, batch_bytes=2500)
    counts = []
    while count := forwarder.run_once():
        counts.append(count)
    forwarder.stop()
    assert sum(counts) == 9
    assert max(counts) <= 3


def test_more_tenants_than_a_batch_takes_all_get_their_turn(
    store: tenantq.Store, postgres_queue: PostgresQueue, arrived: Arrived
) -> None:
    postgres_queue.subscribe("q", "*")
    for number in range(60):
        store.tenant(f"t{number}").emit("t", number)
    forwarder = Forwarder(store, postgres_queue, batch_rows=7)
    assert drain(forwarder) == 60
    forwarder.stop()
    assert len({name for name, _ in arrived("q")}) == 60


def test_one_tenants_broken_file_costs_nobody_else(
    store: tenantq.Store, forwarder: Forwarder, postgres_queue: PostgresQueue, arrived: Arrived
) -> None:
    postgres_queue.subscribe("q", "*")
    for name in ("a", "broken", "z"):
        store.tenant(name).emit("t", 1)
    path = store.tenant("broken").path
    store.close()
    whole = path.read_bytes()
    path.write_bytes(b"this is not a database" * 100)
    with tenantq.open(store.root) as again:
        other = Forwarder(again, postgres_queue)
        assert drain(other) == 2
        assert isinstance(other.tenant_failures["broken"], tenantq.TenantqError)
        path.write_bytes(whole)
        other.stop()
        assert drain(other) == 1
        assert other.tenant_failures == {}
        other.stop()
    assert sorted(arrived("q")) == [("a", "1"), ("broken", "1"), ("z", "1")]


def test_of_two_forwarders_the_slower_inserts_nothing(
    store: tenantq.Store, postgres_queue: PostgresQueue, arrived: Arrived
) -> None:
    postgres_queue.subscribe("q", "*")
    for number in range(5):
        store.tenant("acme").emit("t", number)
    is_staged, may_commit = threading.Event(), threading.Event()

    def hold(step: str) -> None:
        if step == "staged":
            is_staged.set()
            assert may_commit.wait(30)

    counts: dict[str, int] = {}
    first = Forwarder(store, postgres_queue, failpoint=hold)
    second = Forwarder(store, postgres_queue)
    threads = [
        threading.Thread(target=lambda: counts.update(first=first.run_once())),
        threading.Thread(target=lambda: counts.update(second=second.run_once())),
    ]
    threads[0].start()
    assert is_staged.wait(30)
    # The first holds the tenant's state and has inserted; the second reads the old state and then waits.
    threads[1].start()
    store.tenant("acme").emit("t", 5)
    may_commit.set()
    for thread in threads:
        thread.join(30)
    drain(second)
    first.stop()
    second.stop()
    assert counts["first"] == 5
    assert [body for _, body in arrived("q")] == ["0", "1", "2", "3", "4", "5"]


def test_many_forwarders_and_emitters_at_once_lose_and_repeat_nothing(
    store: tenantq.Store, postgres_queue: PostgresQueue, arrived: Arrived
) -> None:
    postgres_queue.subscribe("q", "*")
    forwarders = [
        Forwarder(store, postgres_queue, batch_rows=20, tenant_rows=5, interval=0.01).start() for _ in range(3)
    ]
    for number in range(200):
        store.tenant(f"t{number % 7}").emit("t", number)
    for forwarder in forwarders:
        forwarder.stop()
    drain(forwarders[0])
    forwarders[0].stop()
    bodies = [int(body) for _, body in arrived("q")]
    assert sorted(bodies) == list(range(200))
    for tenant in range(7):
        assert [n for n in bodies if n % 7 == tenant] == sorted(n for n in bodies if n % 7 == tenant)
    assert sum(forwarder.forwarded for forwarder in forwarders) == 200


def test_a_running_forwarder_wakes_who_waits(
    store: tenantq.Store, forwarder: Forwarder, postgres_queue: PostgresQueue
) -> None:
    postgres_queue.subscribe("q", "*")
    with forwarder:
        store.tenant("acme").emit("t", "now")
        assert [message.payload for message in postgres_queue.claim("q", wait=20.0)] == ["now"]


def test_forwarded_events_are_pruned_but_for_the_last(store: tenantq.Store, postgres_queue: PostgresQueue) -> None:
    tenant = store.tenant("acme")
    for number in range(3):
        tenant.emit("t", number)
    forwarder = Forwarder(store, postgres_queue, keep=0)
    drain(forwarder)
    forwarder.stop()
    assert [tenant.outbox.event_id_at(seq) is None for seq in (1, 2, 3)] == [True, True, False]


def test_a_lost_reply_to_the_commit_repeats_nothing(
    store: tenantq.Store, postgres_queue: PostgresQueue, arrived: Arrived
) -> None:
    postgres_queue.subscribe("q", "*")
    store.tenant("acme").emit("t", 1)

    def lose(step: str) -> None:
        if step == "committed":
            raise PostgresUnavailable("lost", outcome_unknown=True)

    forwarder = Forwarder(store, postgres_queue, failpoint=lose)
    with pytest.raises(PostgresUnavailable):
        forwarder.run_once()
    store.tenant("acme").emit("t", 2)
    with pytest.raises(PostgresUnavailable):
        forwarder.run_once()
    forwarder.stop()
    assert [body for _, body in arrived("q")] == ["1", "2"]


def test_a_session_that_is_ended_before_the_commit_loses_nothing(
    store: tenantq.Store, postgres_queue: PostgresQueue, sql: Sql, arrived: Arrived
) -> None:
    postgres_queue.subscribe("q", "*")
    store.tenant("acme").emit("t", 1)
    failures: list[Any] = []

    def end_session(step: str) -> None:
        if step == "staged" and not failures:
            failures.append(
                sql(
                    b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    b"WHERE application_name = 'tenantq' AND state = 'idle in transaction'"
                )
            )

    forwarder = Forwarder(store, postgres_queue, failpoint=end_session)
    with pytest.raises(PostgresUnavailable):
        forwarder.run_once()
    assert failures == [[(True,)]]
    assert arrived("q") == []
    assert drain(forwarder) == 1
    forwarder.stop()
    assert arrived("q") == [("acme", "1")]
