"""Consumers on several hosts: worker processes, each with a store of its own, take from one Postgres queue."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenantq
from tenantq_bridge import Forwarder, PostgresQueue
from tests.bridge.conftest import Sql
from tests.children import Child

pytestmark = pytest.mark.postgres

WORKER = """
    import psycopg
    from tenantq_bridge import PostgresQueue

    root, dsn, name, mode = sys.argv[1:]
    store, queue = tenantq.open(root), PostgresQueue(dsn)
    worker = tenantq.Worker(store, bridge=queue, lease=2.0, concurrency=2, name=name)

    @worker.on("orders", layer=tenantq.Layer.SHARED)
    def handle(message):
        if mode == "stuck":
            say("holding", message.event_id)
            threading.Event().wait()
        with psycopg.connect(dsn) as connection:
            if queue.apply_once(connection, message):
                connection.execute(
                    "INSERT INTO public.handled VALUES (%s, %s, %s)", (name, message.tenant, message.event_id)
                )
        say("handled", message.event_id)

    say("started")
    worker.start()
    hear()
    worker.stop()
    queue.close()
    store.close()
"""


def emit(root: Path, queue: PostgresQueue, tenant: str, count: int) -> None:
    """Emit a tenant's events in a host's store, and forward them as that host does."""
    with tenantq.open(root) as store:
        for number in range(count):
            store.tenant(tenant).emit("orders", number)
        forwarder = Forwarder(store, queue)
        while forwarder.run_once():
            pass
        forwarder.stop()


def hear_handled(child: Child, count: int) -> None:
    for _ in range(count):
        assert child.heard().startswith("handled")


def test_workers_of_two_hosts_share_the_events_of_both_and_take_over_from_one_that_dies(
    postgres_queue: PostgresQueue, migrated_dsn: str, sql: Sql, tmp_path: Path
) -> None:
    sql(b"CREATE TABLE public.handled (worker text, tenant text, event_id uuid)")
    postgres_queue.subscribe("orders", "orders")
    hosts = [tmp_path / "one", tmp_path / "two"]
    emit(hosts[0], postgres_queue, "acme", 5)
    emit(hosts[1], postgres_queue, "bolt", 5)
    with Child(WORKER, hosts[0], migrated_dsn, "stuck", "stuck") as dying:
        assert dying.heard() == "started"
        assert dying.heard().startswith("holding")
        with Child(WORKER, hosts[1], migrated_dsn, "two", "work") as other:
            assert other.heard() == "started"
            emit(hosts[0], postgres_queue, "acme", 20)
            dying.kill()  # what it held is taken over when its leases end
            hear_handled(other, 30)
            with Child(WORKER, hosts[0], migrated_dsn, "one", "work") as again:
                assert again.heard() == "started"
                emit(hosts[1], postgres_queue, "bolt", 20)
                while sql(b"SELECT count(*) < 50 FROM public.handled") == [(True,)]:
                    assert other.process.poll() is None
                    assert again.process.poll() is None
                for child in (other, again):
                    child.say()
                    assert child.end() == 0
    assert sql(b"SELECT tenant, count(*), count(DISTINCT event_id) FROM public.handled GROUP BY 1 ORDER BY 1") == [
        ("acme", 25, 25),
        ("bolt", 25, 25),
    ]
    assert {row[0] for row in sql(b"SELECT DISTINCT worker FROM public.handled")} <= {"one", "two"}
    assert postgres_queue.stats("orders").queues == ()
