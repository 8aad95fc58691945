"""From the shared layer down to tenants' files: each message once, in order, at the owner, and nobody held up."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import tenantq
from tenantq_bridge import Deliverer, Maintenance, PostgresQueue, PostgresUnavailable
from tests.bridge.conftest import Sql
from tests.conftest import start_server
from tests.postgres import PostgresServer

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).resolve().parents[2]

Make = Callable[..., Deliverer]


@pytest.fixture
def deliverer_of(postgres_queue: PostgresQueue) -> Iterator[Make]:
    """Make deliverers that are stopped at the end, of host "a" unless told otherwise."""
    made: list[Deliverer] = []

    def make(store: tenantq.Store, *, host: str = "a", **options: object) -> Deliverer:
        made.append(Deliverer(store, postgres_queue, host=host, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for deliverer in made:
        deliverer.stop()


def make_tenants(store: tenantq.Store, *names: str) -> None:
    for name in names:
        store.tenant(name).pause("unused")  # a write that makes the file


def drain(deliverer: Deliverer) -> int:
    total = 0
    while count := deliverer.run_once():
        total += count
    return total


def payloads(store: tenantq.Store, tenant: str = "acme", queue: str = "q") -> list[object]:
    return [message.payload for message in store.tenant(tenant).peek(queue, 1000)]


def waiting(queue: PostgresQueue) -> dict[str, int]:
    return {owner.tenant: owner.waiting for owner in queue.owners(waiting=True)}


def test_a_message_arrives_in_the_tenants_file_with_all_it_was_sent_with(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    make_tenants(store, "Acme GmbH")
    deliverer = deliverer_of(store)
    seq = postgres_queue.send_to_tenant(
        "Acme GmbH", "invoice.paid", {"cents": 1}, priority=3, key="k", max_attempts=2, headers={"a": "b"}
    )
    postgres_queue.send_to_tenant("Acme GmbH", "blob", b"\0\xff")
    postgres_queue.send_to_tenant("Acme GmbH", "later", 3, delay=3600)
    assert drain(deliverer) == 3
    [paid] = store.tenant("Acme GmbH").claim("invoice.paid")
    assert (paid.tenant, paid.queue, paid.payload, paid.key) == ("Acme GmbH", "invoice.paid", {"cents": 1}, "k")
    assert (paid.priority, paid.max_attempts, paid.attempts) == (3, 2, 1)
    assert paid.headers == {"a": "b", "tenantq-seq": str(seq)}
    paid.ack()
    assert store.tenant("Acme GmbH").claim("blob")[0].payload == b"\0\xff"
    assert store.tenant("Acme GmbH").stats().scheduled == 1
    assert sql(b"SELECT count(*) FROM tenantq.outgoing") == [(0,)]
    assert sql(b"SELECT count(*) FROM tenantq.owners WHERE due_at IS NOT NULL") == [(0,)]


def test_what_is_sent_before_any_host_has_the_tenant_waits_for_one(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    postgres_queue.send_to_tenant("acme", "q", 1)
    deliverer = deliverer_of(store)
    assert drain(deliverer) == 0
    [owner] = postgres_queue.owners()
    assert (owner.tenant, owner.host, owner.waiting) == ("acme", None, 1)
    assert "acme" not in store
    make_tenants(store, "acme")
    assert drain(deliverer) == 1
    assert payloads(store) == [1]
    assert postgres_queue.owners()[0].host == "a"


def test_a_tenants_messages_keep_their_order_whoever_sends(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    make_tenants(store, "acme", "other")
    sent: dict[str, list[tuple[int, int]]] = {"acme": [], "other": []}

    def send(numbers: range) -> None:
        for number in numbers:
            for tenant, places in sent.items():
                places.append((postgres_queue.send_to_tenant(tenant, "q", number), number))

    threads = [threading.Thread(target=send, args=(range(start, start + 25),)) for start in (0, 100, 200)]
    deliverers = [deliverer_of(store, round_rows=10, tenant_rows=4, interval=0.01).start() for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for deliverer in deliverers:
        deliverer.stop()
    drain(deliverers[0])
    for tenant, places in sent.items():
        assert payloads(store, tenant) == [number for _, number in sorted(places)]
    assert sum(deliverer.delivered for deliverer in deliverers) == 150


def test_a_huge_tenant_does_not_hold_up_the_small(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    small = [f"small-{number}" for number in range(10)]
    make_tenants(store, "huge", *small)
    for number in range(60):
        postgres_queue.send_to_tenant("huge", "q", number)
    for name in small:
        postgres_queue.send_to_tenant(name, "q", 1)
    deliverer = deliverer_of(store, round_rows=30, tenant_rows=10)
    assert deliverer.run_once() == 20
    assert all(payloads(store, name) == [1] for name in small)
    assert drain(deliverer) == 50
    assert payloads(store, "huge") == list(range(60))


def test_a_round_is_bounded_by_rows_and_bytes_and_serves_all_in_turn(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    names = [f"t{number}" for number in range(5)]
    make_tenants(store, *names)
    for name in names:
        for _ in range(2):
            postgres_queue.send_to_tenant(name, "q", "x" * 1000)
    by_bytes = deliverer_of(store, round_bytes=3100)
    assert [by_bytes.run_once(), by_bytes.run_once()] == [3, 3]
    tiny = deliverer_of(store, round_bytes=1)
    assert [tiny.run_once(), tiny.run_once()] == [1, 1]
    by_rows = deliverer_of(store, round_rows=1)
    assert [by_rows.run_once(), by_rows.run_once(), by_rows.run_once()] == [1, 1, 0]
    assert all(len(payloads(store, name)) == 2 for name in names)


@pytest.mark.parametrize("point", ["read", "received", "deleting", "delivered"])
def test_a_deliverer_killed_anywhere_loses_and_repeats_nothing(
    tmp_path: Path, postgres_queue: PostgresQueue, migrated_dsn: str, deliverer_of: Make, point: str
) -> None:
    root = tmp_path / "store"
    names = ["t0", "t1", "t2"]
    with tenantq.open(root) as store:
        make_tenants(store, *names)
    for number in range(30):
        postgres_queue.send_to_tenant(names[number % 3], "q", number)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "bridge")])}
    for rounds in (2, 1, 3):
        command = [sys.executable, "-m", "tests.bridge.deliver_child", str(root), migrated_dsn, point, str(rounds)]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=60)
        assert done.returncode == -signal.SIGKILL
    with tenantq.open(root) as store:
        drain(deliverer_of(store))
        for place, name in enumerate(names):
            assert payloads(store, name) == list(range(place, 30, 3))
            assert tenantq.verify(store.tenant(name).path)
    assert waiting(postgres_queue) == {}


def test_a_lost_reply_to_the_commit_repeats_nothing(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    make_tenants(store, "acme")

    def end_session(step: str) -> None:
        if step == "deleting" and not ended:
            ended.append(
                sql(
                    b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    b"WHERE application_name = 'tenantq' AND state = 'idle in transaction'"
                )
            )

    ended: list[object] = []
    deliverer = deliverer_of(store, failpoint=end_session)
    postgres_queue.send_to_tenant("acme", "q", 1)
    with pytest.raises(PostgresUnavailable):
        deliverer.run_once()
    assert waiting(postgres_queue) == {"acme": 1}
    postgres_queue.send_to_tenant("acme", "q", 2)
    assert drain(deliverer) == 1
    assert payloads(store) == [1, 2]
    assert waiting(postgres_queue) == {}


def test_nothing_is_written_once_the_session_and_its_locks_are_gone(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    make_tenants(store, "acme")

    def end_session(step: str) -> None:
        if step == "read":
            sql(
                b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                b"WHERE application_name = 'tenantq' AND state = 'idle in transaction'"
            )

    postgres_queue.send_to_tenant("acme", "q", 1)
    with pytest.raises(PostgresUnavailable):
        deliverer_of(store, failpoint=end_session).run_once()
    assert payloads(store) == []
    assert drain(deliverer_of(store)) == 1


def test_of_two_deliverers_one_has_a_tenant_and_the_other_goes_on(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    make_tenants(store, "acme", "other")
    second = deliverer_of(store)
    first_sees: list[int] = []

    def look(step: str) -> None:
        if step == "received" and not first_sees:
            postgres_queue.send_to_tenant("acme", "q", 2)  # who sends does not wait for the delivery
            postgres_queue.send_to_tenant("other", "q", 3)
            first_sees.append(second.run_once())

    first = deliverer_of(store, failpoint=look)
    postgres_queue.send_to_tenant("acme", "q", 1)
    assert first.run_once() == 1
    assert first_sees == [1]
    assert payloads(store, "other") == [3]
    assert drain(second) == 1
    assert payloads(store) == [1, 2]


def test_a_host_never_takes_a_tenant_from_another(
    store: tenantq.Store, tmp_path: Path, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    make_tenants(store, "acme")
    deliverer = deliverer_of(store)
    assert deliverer.run_once() == 0
    with tenantq.open(tmp_path / "clone") as clone:
        copy = clone.tenant("acme").path
        copy.parent.mkdir(parents=True)
        shutil.copy(store.tenant("acme").backup(tmp_path / "copy.db"), copy)
        other = deliverer_of(clone, host="b")
        postgres_queue.send_to_tenant("acme", "q", 1)
        assert drain(other) == 0
        assert other.foreign == {"acme": "a"}
        assert drain(deliverer) == 1
        assert (payloads(store), payloads(clone)) == ([1], [])
        other.stop()


def test_a_moved_tenants_messages_go_to_its_new_host(
    store: tenantq.Store, tmp_path: Path, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    make_tenants(store, "acme")
    old = deliverer_of(store)
    postgres_queue.send_to_tenant("acme", "q", 1)
    assert drain(old) == 1
    assert postgres_queue.assign("acme", "b") == "a"
    assert postgres_queue.assign("acme", "b") == "b"
    postgres_queue.send_to_tenant("acme", "q", 2)
    assert drain(old) == 0
    with tenantq.open(tmp_path / "b") as there:
        new = deliverer_of(there, host="b")
        assert drain(new) == 0
        assert isinstance(new.tenant_failures["acme"], tenantq.UnknownTenant)
        there.restore("acme", store.tenant("acme").backup(tmp_path / "copy.db"))
        assert drain(new) == 1
        assert payloads(there) == [1, 2]
        assert postgres_queue.owners("a") == []
        new.stop()
    assert payloads(store) == [1]


def test_a_move_waits_for_the_delivery_in_flight(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    make_tenants(store, "acme")
    moved = threading.Event()

    def move() -> None:
        postgres_queue.assign("acme", "b")
        moved.set()

    thread = threading.Thread(target=move)

    def is_waiting() -> bool:
        return bool(sql(b"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))

    def try_to_move(step: str) -> None:
        if step == "read":
            thread.start()
            deadline = time.monotonic() + 30
            while not is_waiting():
                assert time.monotonic() < deadline
        elif step == "deleting":
            assert not moved.is_set()

    postgres_queue.send_to_tenant("acme", "q", 1)
    assert deliverer_of(store, failpoint=try_to_move).run_once() == 1
    thread.join(30)
    assert moved.is_set()
    assert waiting(postgres_queue) == {}


def test_a_tenant_that_is_moved_again_and_again_while_all_run_gets_each_message_once(
    tmp_path: Path, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    sending = threading.Event()

    def send() -> None:
        for number in range(300):
            postgres_queue.send_to_tenant("acme", "q", number)
        sending.set()

    with tenantq.open(tmp_path / "a") as a, tenantq.open(tmp_path / "b") as b:
        make_tenants(a, "acme")
        stores = {"a": a, "b": b}
        running = [
            deliverer_of(store, host=host, tenant_rows=3, interval=0.01).start() for host, store in stores.items()
        ]
        thread = threading.Thread(target=send)
        thread.start()
        here, there = "a", "b"
        moves = 0
        while not sending.is_set() or moves < 4:
            postgres_queue.assign("acme", there)
            copy = stores[here].tenant("acme").backup(tmp_path / "moving.db")
            stores[there].restore("acme", copy)
            stores[here].delete("acme")
            here, there = there, here
            moves += 1
        thread.join(60)
        for deliverer in running:
            deliverer.stop()
        drain(deliverer_of(stores[here], host=here))
        assert payloads(stores[here]) == list(range(300))
        assert "acme" not in stores[there]


def test_a_missing_file_is_reported_and_its_messages_wait_until_it_is_there(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    make_tenants(store, "acme", "other")
    deliverer = deliverer_of(store)
    drain(deliverer)
    store.delete("acme")
    postgres_queue.send_to_tenant("acme", "q", 1)
    postgres_queue.send_to_tenant("other", "q", 2)
    assert drain(deliverer) == 1
    assert isinstance(deliverer.tenant_failures["acme"], tenantq.UnknownTenant)
    [owner] = postgres_queue.owners(waiting=True)
    assert "tenant 'acme' was deleted at " in (owner.failure or "")
    assert owner.oldest_age is not None
    store.create("acme")
    assert drain(deliverer) == 1
    assert payloads(store) == [1]
    assert deliverer.tenant_failures == {}


def test_one_tenants_damaged_file_costs_nobody_else(
    tmp_path: Path, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    with tenantq.open(tmp_path / "store") as store:
        make_tenants(store, "a", "broken", "z")
        drain(deliverer_of(store))
        path = store.tenant("broken").path
    whole = path.read_bytes()
    path.write_bytes(b"this is not a database" * 100)
    for name in ("a", "broken", "z"):
        postgres_queue.send_to_tenant(name, "q", 1)
    with tenantq.open(tmp_path / "store") as store:
        deliverer = deliverer_of(store)
        assert drain(deliverer) == 2
        assert isinstance(deliverer.tenant_failures["broken"], tenantq.TenantFileError)
        path.write_bytes(whole)
        deliverer.stop()
        assert drain(deliverer) == 1
        assert payloads(store, "broken") == [1]


def test_a_full_queue_takes_its_messages_as_room_comes(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    acme = store.tenant("acme")
    acme.limit("q", max_depth=2)
    for number in range(5):
        postgres_queue.send_to_tenant("acme", "q", number)
    deliverer = deliverer_of(store, interval=0.01)
    assert drain(deliverer) == 2
    assert isinstance(deliverer.tenant_failures["acme"], tenantq.QueueFull)
    got: list[object] = []
    with deliverer:
        while len(got) < 5:
            [message] = acme.claim("q", wait=30.0)
            got.append(message.payload)
            message.ack()
    assert got == list(range(5))


def test_a_restored_tenant_gets_nothing_twice_and_all_that_is_sent_later(
    store: tenantq.Store, tmp_path: Path, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    make_tenants(store, "acme")
    deliverer = deliverer_of(store)
    postgres_queue.send_to_tenant("acme", "q", 1)
    drain(deliverer)
    backup = store.tenant("acme").backup(tmp_path / "backup.db")
    postgres_queue.send_to_tenant("acme", "q", 2)
    drain(deliverer)
    store.restore("acme", backup)
    postgres_queue.send_to_tenant("acme", "q", 3)
    assert drain(deliverer) == 1
    assert payloads(store) == [1, 3]


def test_a_database_set_back_by_a_failover_neither_repeats_nor_loses_what_is_sent_after(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    make_tenants(store, "acme")
    deliverer = deliverer_of(store)
    drain(deliverer)
    postgres_queue.send_to_tenant("acme", "q", 1)
    sql(b"CREATE TABLE kept_owners AS TABLE tenantq.owners")
    sql(b"CREATE TABLE kept_outgoing AS TABLE tenantq.outgoing")
    postgres_queue.send_to_tenant("acme", "q", 2)
    drain(deliverer)
    sql(b"TRUNCATE tenantq.owners, tenantq.outgoing")
    sql(b"INSERT INTO tenantq.owners TABLE kept_owners")
    sql(b"INSERT INTO tenantq.outgoing TABLE kept_outgoing")
    postgres_queue.send_to_tenant("acme", "q", 3)
    assert drain(deliverer) == 1
    assert payloads(store) == [1, 2, 3]
    sql(b"TRUNCATE tenantq.owners, tenantq.outgoing")  # an empty database
    deliverer.stop()  # looks at all tenants again when it begins again, as after a lost connection
    postgres_queue.send_to_tenant("acme", "q", 4)
    drain(deliverer)
    assert payloads(store) == [1, 2, 3, 4]


def test_a_file_that_is_ahead_moves_the_places_on(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    make_tenants(store, "acme")
    deliverer = deliverer_of(store)
    postgres_queue.send_to_tenant("acme", "q", 1)
    # As of a database whose clock was an hour ahead.
    sql(b"UPDATE tenantq.outgoing SET seq = seq + 3600000000")
    drain(deliverer)
    seq = store.tenant("acme").inbox.position()
    assert postgres_queue.send_to_tenant("acme", "q", 2) == seq + 1
    assert drain(deliverer) == 1
    assert payloads(store) == [1, 2]


def test_a_forgotten_tenant_leaves_nothing(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue, sql: Sql
) -> None:
    postgres_queue.send_to_tenant("acme", "q", 1)
    assert postgres_queue.forget_tenant("acme") == 1
    assert postgres_queue.forget_tenant("acme") is None
    assert sql(b"SELECT (SELECT count(*) FROM tenantq.owners), (SELECT count(*) FROM tenantq.outgoing)") == [
        (0, 0)
    ]
    make_tenants(store, "acme")
    assert drain(deliverer_of(store)) == 0


def test_a_running_deliverer_is_woken_and_meets_new_tenants(
    store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    make_tenants(store, "acme")
    with deliverer_of(store, interval=5.0) as deliverer, Maintenance(postgres_queue):
        postgres_queue.send_to_tenant("acme", "q", "now")
        assert [message.payload for message in store.tenant("acme").claim("q", wait=30.0)] == ["now"]
    assert deliverer.failures == 0


def test_the_owners_host_is_told_by_a_notification(
    migrated_dsn: str, store: tenantq.Store, deliverer_of: Make, postgres_queue: PostgresQueue
) -> None:
    make_tenants(store, "acme")
    drain(deliverer_of(store, host="A host"))
    with PostgresQueue(migrated_dsn) as elsewhere, elsewhere.outgoing.waiter("A host") as rung:
        deadline = time.monotonic() + 30
        while not elsewhere._bell.is_listening:
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        rung.wait(5.0)  # once listening, it wakes whoever waits
        rung.clear()
        postgres_queue.send_to_tenant("acme", "q", 1)
        assert rung.wait(30)


def test_an_outage_is_waited_out(tmp_path: Path, request: pytest.FixtureRequest, store: tenantq.Store) -> None:
    server: PostgresServer = start_server(request.config)
    try:
        with PostgresQueue(server.create_database(migrated=True)) as queue:
            make_tenants(store, "acme")
            deliverer = Deliverer(store, queue, host="a", interval=0.05)
            queue.send_to_tenant("acme", "q", 1)
            with deliverer:
                assert store.tenant("acme").claim("q", wait=30.0)[0].payload == 1
                server.stop("immediate")
                deadline = time.monotonic() + 30
                while not deliverer.failures:
                    assert time.monotonic() < deadline
                    threading.Event().wait(0.01)
                server.start()
                queue.send_to_tenant("acme", "q", 2)
                assert store.tenant("acme").claim("q", wait=60.0)[0].payload == 2
    finally:
        server.close()


def test_a_round_costs_the_same_among_many_tenants_and_behind_what_was_delivered(migrated_dsn: str) -> None:
    with psycopg.connect(migrated_dsn) as connection:
        # 20,000 tenants, none of which has anything; then two have, one behind 5,000 messages that are dead rows.
        connection.execute(
            "INSERT INTO tenantq.owners (tenant, host, since, due_at) "
            "SELECT 't' || n, 'a', now(), CASE WHEN n < 3 THEN now() - interval '1 s' END "
            "FROM generate_series(1, 20000) AS n"
        )
        connection.execute(
            "INSERT INTO tenantq.outgoing (tenant, seq, queue, rank, max_attempts, sent_at, body) "
            "SELECT 't' || 1 + n % 2, n, 'q', 0, 25, now(), '1' FROM generate_series(1, 10000) AS n"
        )
        connection.execute("ANALYZE tenantq.owners")
        connection.commit()
        connection.execute("SELECT tenantq.finish_delivery('a', 't1', 9996, NULL)")
    with psycopg.connect(migrated_dsn) as connection:  # whose counts begin at 0
        rows = connection.execute("SELECT * FROM tenantq.begin_delivery('a', 100, 3, 10, 1000)").fetchall()
        assert sorted((row[0], row[1]) for row in rows) == [
            ("t1", 9998),
            ("t1", 10000),
            ("t2", 1),
            ("t2", 3),
            ("t2", 5),
        ]
        read = connection.execute(
            "SELECT relname, seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables "
            "WHERE relname IN ('owners', 'outgoing') ORDER BY relname"
        ).fetchall()
        assert [(name, scans) for name, scans, _ in read] == [("outgoing", 0), ("owners", 0)]
        assert all(fetched <= 8 for _, _, fetched in read), read


def test_the_default_host_is_the_machines_name(store: tenantq.Store, postgres_queue: PostgresQueue) -> None:
    assert Deliverer(store, postgres_queue).host == socket.gethostname()
