"""`tenantq bridge`, on a real Postgres: from the first migration to events that wait nowhere any more."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest

import tenantq
from tenantq_bridge import BreakerState, Forwarder, PostgresQueue
from tests.bridge.test_pgmq import pgmq_sql
from tests.postgres import PostgresServer
from tests.tools.command import StoreCommand, run, spawn

AWAY = "postgresql://nobody@127.0.0.1:1/none?connect_timeout=2"

COMMANDS: list[tuple[str, ...]] = [
    ("migrate",),
    ("subscribe", "audit", "*"),
    ("unsubscribe", "audit", "*"),
    ("share", "audit"),
    ("unshare", "audit"),
    ("record", "audit"),
    ("unrecord", "audit"),
    ("history", "audit"),
    ("status",),
    ("health",),
    ("send", "acme", "note", "1"),
    ("owners",),
    ("assign", "acme", "a"),
    ("forget", "acme", "--yes"),
    ("run", "--once"),
]


class BridgeCommand(StoreCommand):
    """The command on a store and a database."""

    def __init__(self, path: Path, dsn: str) -> None:
        super().__init__(path)
        self.dsn = dsn

    def bridge(self, *arguments: str, **options: Any) -> Any:
        """Run `tenantq bridge ...` with --json."""
        return self.json("bridge", *arguments, env={"TENANTQ_POSTGRES": self.dsn}, **options)

    def emit(self, tenant: str, topic: str, *payloads: object) -> None:
        """Emit events by the library."""
        with tenantq.open(self.path) as store:
            for payload in payloads:
                store.tenant(tenant).emit(topic, payload)


@pytest.fixture
def shared(tq: StoreCommand, migrated_dsn: str) -> BridgeCommand:
    """The command on a database with the tables."""
    return BridgeCommand(tq.path, migrated_dsn)


@pytest.mark.postgres
def test_events_go_from_an_empty_database_to_their_queue(tq: StoreCommand, postgres_dsn: str) -> None:
    empty = BridgeCommand(tq.path, postgres_dsn)
    empty.emit("acme", "billing.paid", {"order": 1}, {"order": 2})
    assert empty.bridge("migrate") == {"migrated": True}
    assert empty.bridge("migrate") == {"migrated": True}
    subscribed = empty.bridge("subscribe", "invoices", "billing.*")
    assert subscribed == {"queue": "invoices", "pattern": "billing.*", "subscribed": True}
    assert empty.bridge("status")["pending"] == 2
    assert empty.bridge("run", "--once") == {"forwarded": 2, "delivered": 0, "failed": {}, "undeliverable": 0}
    status = empty.bridge("status")
    assert (status["pending"], status["shared"]["ready"], status["held_back"]) == (0, 2, [])
    assert status["subscriptions"] == [{"queue": "invoices", "pattern": "billing.*"}]
    with PostgresQueue(postgres_dsn) as queue:
        assert [message.payload for message in queue.claim("invoices", 10)] == [{"order": 1}, {"order": 2}]


@pytest.mark.postgres
def test_a_subscription_ends_and_its_events_stay(shared: BridgeCommand) -> None:
    shared.bridge("subscribe", "audit", "*")
    shared.emit("acme", "a", 1)
    shared.bridge("run", "--once")
    assert shared.bridge("unsubscribe", "audit", "*")["subscribed"] is False
    shared.emit("acme", "a", 2)
    shared.bridge("run", "--once")
    status = shared.bridge("status")
    assert (status["subscriptions"], status["shared"]["ready"], status["pending"]) == ([], 1, 0)


@pytest.mark.postgres
def test_status_is_a_table_for_people_and_needs_no_store(shared: BridgeCommand) -> None:
    shared.bridge("subscribe", "audit", "billing.*")
    shared.emit("acme", "billing.paid", 1)
    shared.bridge("run", "--once")
    shown = run("bridge", "status", "--postgres", shared.dsn).stdout
    assert "audit  billing.*" in shown
    assert "events waiting: give --store" in shown
    assert "events waiting: 0" in shared("bridge", "status", "--postgres", shared.dsn).stdout


@pytest.mark.postgres
def test_the_forwarder_runs_until_a_signal(shared: BridgeCommand) -> None:
    shared.bridge("subscribe", "audit", "*")
    shared.path.mkdir()
    process = spawn("--json", "bridge", "run", "--store", str(shared.path), "--postgres", shared.dsn)
    assert process.stderr is not None
    assert "forwarding the events of the store" in process.stderr.readline()
    shared.emit("acme", "a", {"n": 1})
    with PostgresQueue(shared.dsn) as queue:
        (message,) = queue.claim("audit", wait=30)
        assert (message.tenant, message.payload) == ("acme", {"n": 1})
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert json.loads(out) == {"forwarded": 1, "delivered": 0, "failed": {}, "undeliverable": 0}


@pytest.mark.postgres
def test_a_message_is_sent_down_to_a_tenant_and_shown_until_it_is_there(shared: BridgeCommand) -> None:
    shared.emit("acme", "a", 1)
    sent = shared.bridge("send", "acme", "plan.changed", '{"plan": "pro"}', "--priority", "2")
    assert (sent["tenant"], sent["queue"]) == ("acme", "plan.changed")
    (waiting,) = shared.bridge("status")["outgoing"]
    assert (waiting["tenant"], waiting["host"], waiting["waiting"]) == ("acme", None, 1)
    shown = shared("bridge", "status", "--postgres", shared.dsn).stdout
    assert "WAITING  TENANT  HOST  FAILURE" in shown
    done = shared.bridge("run", "--once", "--host", "db-1")
    assert done == {"forwarded": 1, "delivered": 1, "failed": {}, "undeliverable": 0}
    with tenantq.open(shared.path) as store:
        (message,) = store.tenant("acme").claim("plan.changed")
        assert (message.payload, message.priority) == ({"plan": "pro"}, 2)
        assert message.headers == {"tenantq-seq": str(sent["seq"])}
    assert shared.bridge("status")["outgoing"] == []
    owner = shared.bridge("owners", "--host", "db-1")
    assert (owner["tenant"], owner["host"], owner["waiting"], owner["failure"]) == ("acme", "db-1", 0, None)


@pytest.mark.postgres
def test_events_go_to_the_queues_of_pgmq_that_the_options_name(
    shared: BridgeCommand, postgres_server: PostgresServer
) -> None:
    database = str(psycopg.conninfo.conninfo_to_dict(shared.dsn)["dbname"])
    shared.emit("acme", "billing.paid", 1)
    env = {"TENANTQ_POSTGRES": shared.dsn}
    missing = shared("bridge", "run", "--once", "--pgmq", "audit", env=env, status=4)
    assert "no pgmq" in missing.stderr
    postgres_server.execute(pgmq_sql(), database)
    for queue in (b"audit", b"invoices"):
        postgres_server.execute(b"SELECT pgmq.create('" + queue + b"')", database)
    shared.bridge("run", "--once", "--pgmq", "audit", "--pgmq", "billing.*=invoices")
    for queue in (b"audit", b"invoices"):
        assert postgres_server.execute(b"SELECT message FROM pgmq.q_" + queue, database) == [(1,)]
    twice = shared("bridge", "run", "--pgmq", "a", "--pgmq", "b", env=env, status=2)
    assert "given twice" in twice.stderr


@pytest.mark.postgres
def test_a_tenant_is_assigned_and_forgotten(shared: BridgeCommand) -> None:
    assert shared.bridge("assign", "acme", "db-1") == {"tenant": "acme", "host": "db-1", "before": None}
    assert shared.bridge("assign", "acme", "db-2") == {"tenant": "acme", "host": "db-2", "before": "db-1"}
    shared.bridge("send", "acme", "note", "--text", "hello")
    shared.path.mkdir()
    failed = shared.bridge("run", "--once", "--host", "db-2", status=1)
    assert failed == {
        "forwarded": 0,
        "delivered": 0,
        "failed": {"acme": "the store has no tenant 'acme'"},
        "undeliverable": 0,
    }
    assert shared.bridge("owners", "--waiting")["failure"] == "the store has no tenant 'acme'"
    assert shared.bridge("forget", "acme", "--yes") == {"tenant": "acme", "removed": 1}
    assert shared.bridge("forget", "acme", "--yes", status=1) == {"tenant": "acme", "removed": None}


@pytest.mark.postgres
def test_a_tenant_whose_file_fails_is_named_and_holds_up_no_other(shared: BridgeCommand) -> None:
    shared.bridge("subscribe", "audit", "*")
    shared.emit("acme", "a", 1)
    shared.emit("globex", "a", 2)
    shared.file_of("acme").write_bytes(b"nothing of ours" * 1000)
    document = shared.bridge("run", "--once", status=1)
    assert (document["forwarded"], list(document["failed"])) == (1, ["acme"])
    status = shared.bridge("status", status=1)
    assert (status["pending"], status["unreadable"]) == (0, 1)


@pytest.mark.postgres
def test_a_tenant_that_is_held_back_is_shown_and_readmitted(
    shared: BridgeCommand, postgres_server: PostgresServer
) -> None:
    shared.bridge("subscribe", "audit", "*")
    shared.emit("acme", "a", 1)
    shared.bridge("run", "--once")
    held = b"UPDATE tenantq.forwarding SET quarantined_at = now(), reason = 'the file is older\\n than it was'"
    postgres_server.execute(held, str(psycopg.conninfo.conninfo_to_dict(shared.dsn)["dbname"]))
    shared.emit("acme", "a", 2)
    (tenant,) = shared.bridge("status", status=1)["held_back"]
    assert (tenant["tenant"], tenant["reason"]) == ("acme", "the file is older\\n than it was")
    assert "held back: acme: " in shared("bridge", "status", "--postgres", shared.dsn, status=1).stderr
    shared.bridge("run", "--once")
    assert shared.bridge("status", status=1)["shared"]["ready"] == 1
    assert shared.bridge("readmit", "acme", "--resend") == {"tenant": "acme", "readmitted": True}
    shared.bridge("run", "--once")
    assert shared.bridge("status")["shared"]["ready"] == 2


@pytest.mark.postgres
def test_events_that_postgres_refuses_are_listed_sent_again_and_removed(
    shared: BridgeCommand, postgres_server: PostgresServer
) -> None:
    database = str(psycopg.conninfo.conninfo_to_dict(shared.dsn)["dbname"])
    shared.bridge("subscribe", "audit", "*")
    constraint = b"ALTER TABLE tenantq.ready ADD CONSTRAINT poison CHECK (body NOT LIKE '%bad%')"
    postgres_server.execute(constraint, database)
    shared.emit("acme", "a", "good", "bad 1", "bad 2")
    assert shared.bridge("run", "--once") == {"forwarded": 1, "delivered": 0, "failed": {}, "undeliverable": 2}
    status = shared.bridge("status")
    assert (status["pending"], status["undeliverable"], status["forwarders"]) == (0, 2, [])
    shown = shared("bridge", "undeliverable", "acme").stdout
    assert "bad 1" in shown
    assert "violates check constraint" in shown
    listed = shared("bridge", "undeliverable", "acme", "--json").stdout.splitlines()
    assert [json.loads(line)["payload"] for line in listed] == ["bad 1", "bad 2"]
    only = json.loads(shared("bridge", "undeliverable", "acme", "3", "--json").stdout)
    assert (only["place"], only["topic"], only["tenant"]) == (3, "a", "acme")
    assert shared.json("bridge", "undeliverable", "acme", "3", "--discard", "--yes") == {
        "tenant": "acme",
        "discarded": 1,
    }
    postgres_server.execute(b"ALTER TABLE tenantq.ready DROP CONSTRAINT poison", database)
    assert shared.json("bridge", "undeliverable", "acme", "--resend") == {"tenant": "acme", "resent": 1}
    assert "There are no undeliverable events." in shared("bridge", "undeliverable", "acme").stderr
    assert shared.bridge("run", "--once")["forwarded"] == 1
    assert shared.bridge("status")["shared"]["ready"] == 2


def test_the_status_tells_how_a_forwarder_finds_a_postgres_that_is_away(tq: StoreCommand) -> None:
    with tenantq.open(tq.path) as store, PostgresQueue(AWAY) as queue:
        forwarder = Forwarder(store, queue)
        with forwarder:
            while forwarder.breaker.state is not BreakerState.OPEN:
                threading.Event().wait(0.01)
            result = tq("bridge", "status", "--postgres", AWAY, status=4)
        assert f"forwarder {os.getpid()}: the breaker is open, since " in result.stderr
        assert "next try at" in result.stderr
        assert "forwarder" not in tq("bridge", "status", "--postgres", AWAY, status=4).stderr


@pytest.mark.postgres
def test_a_tenant_that_is_not_held_back_cannot_be_readmitted(shared: BridgeCommand) -> None:
    shared.emit("acme", "a", 1)
    shared.bridge("run", "--once")
    assert shared.bridge("readmit", "acme", "--skip", status=1) == {"tenant": "acme", "readmitted": False}
    env = {"TENANTQ_POSTGRES": shared.dsn}
    assert "--resend or --skip" in shared("bridge", "readmit", "acme", env=env, status=2).stderr


@pytest.mark.postgres
@pytest.mark.parametrize("arguments", COMMANDS[1:], ids=" ".join)
def test_missing_tables_are_told_with_the_way_to_make_them(
    tq: StoreCommand, postgres_dsn: str, arguments: tuple[str, ...]
) -> None:
    tq.path.mkdir()
    result = tq("bridge", *arguments, "--postgres", postgres_dsn, status=4)
    assert "hint: run `tenantq bridge migrate`" in result.stderr


@pytest.mark.postgres
def test_a_worker_gets_the_shared_layer(shared: BridgeCommand, tmp_path: Path) -> None:
    (tmp_path / "billing.py").write_text(WORKER)
    shared.path.mkdir()
    process = spawn(
        "worker",
        "--app",
        "billing:make",
        "--store",
        str(shared.path),
        "--postgres",
        shared.dsn,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    with PostgresQueue(shared.dsn) as queue:
        queue.enqueue("invoices", {"order": 1})
    assert process.stdout.readline() == "invoice {'order': 1}\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert (process.returncode, out) == (0, "drained: 1 handled\n")


WORKER = """
import tenantq

def make(store, bridge):
    worker = tenantq.Worker(store, bridge=bridge, concurrency=1)

    @worker.on("invoices", layer=tenantq.Layer.SHARED)
    def handle(message):
        print("invoice", message.payload, flush=True)

    return worker
"""


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_postgres_that_is_away_has_a_status_of_its_own(tq: StoreCommand, arguments: tuple[str, ...]) -> None:
    tq.path.mkdir()
    result = tq("bridge", *arguments, "--postgres", AWAY, status=4)
    assert result.stderr.splitlines()[0].startswith("tenantq: error: ")
    assert "hint: check that the server runs" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_without_a_dsn_the_command_asks_for_one(tq: StoreCommand, arguments: tuple[str, ...]) -> None:
    assert "no Postgres is given: set TENANTQ_POSTGRES" in tq("bridge", *arguments, status=2).stderr


def test_a_forwarder_on_a_store_that_is_not_there_is_an_error(tq: StoreCommand) -> None:
    assert "there is no store at" in tq("bridge", "run", "--postgres", AWAY, status=3).stderr
    assert not tq.path.exists()


def test_a_queue_is_shared_with_its_limits_until_that_is_ended(shared: BridgeCommand) -> None:
    said = shared.bridge("share", "audit", "--max-claimed", "3")
    assert said == {"queue": "audit", "shared": True, "max_claimed": 3, "max_claimed_per_tenant": None}
    with PostgresQueue(shared.dsn) as queue:
        queue.enqueue_many("audit", range(9))
        assert len(queue.claim("audit", 9)) == 3
        assert shared.bridge("unshare", "audit") == {"queue": "audit", "shared": False}
        assert len(queue.claim("audit", 9)) == 6


@pytest.mark.postgres
def test_shared_and_recorded_queues_are_in_the_status(shared: BridgeCommand) -> None:
    shared.path.mkdir()
    assert "nothing is subscribed" in shared("bridge", "status", "--postgres", shared.dsn).stderr
    shared.bridge("share", "reports", "--max-claimed", "9", "--max-claimed-per-tenant", "2")
    shared.bridge("share", "audit")
    shared.bridge("record", "audit")
    shared.bridge("subscribe", "audit", "no.such.topic")
    status = shared.bridge("status")
    assert status["shares"] == [
        {"queue": "audit", "max_claimed": None, "max_claimed_per_tenant": None, "is_ending": False},
        {"queue": "reports", "max_claimed": 9, "max_claimed_per_tenant": 2, "is_ending": False},
    ]
    assert status["recorded"] == ["audit"]
    assert status["subscriptions"] == [{"queue": "audit", "pattern": "no.such.topic"}]
    result = shared("bridge", "status", "--postgres", shared.dsn)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["9", "2", "shared", "reports"] in lines
    assert ["-", "-", "shared", "audit"] in lines
    assert ["RECORDED", "QUEUE"] in lines
    assert "nothing is subscribed" not in result.stderr
    with PostgresQueue(shared.dsn) as queue:
        queue.enqueue("reports", 1)
    shared.bridge("unshare", "reports")
    assert ["-", "-", "ending", "reports"] in [
        line.split() for line in shared("bridge", "status", "--postgres", shared.dsn).stdout.splitlines()
    ]


@pytest.mark.postgres
def test_the_history_of_a_recorded_queue_is_shown_the_latest_first(shared: BridgeCommand) -> None:
    assert "is not recorded" in shared("bridge", "history", "audit", "--postgres", shared.dsn).stderr
    assert shared.bridge("record", "audit") == {"queue": "audit", "recorded": True}
    assert "Nothing is kept" in shared("bridge", "history", "audit", "--postgres", shared.dsn).stderr
    shared.bridge("subscribe", "audit", "*")
    shared.emit("acme", "billing.paid", {"n": 1}, {"n": 2})
    shared.emit("globex", "billing.paid", b"\x00\xff")
    shared.bridge("run", "--once")
    with PostgresQueue(shared.dsn) as queue:
        for message in sorted(queue.claim("audit", 9, worker="w-1"), key=lambda found: found.id):
            message.ack()
        queue.record("other")
        queue.enqueue("other", 1)
        queue.claim("other")[0].ack()
    env = {"TENANTQ_POSTGRES": shared.dsn}
    kept = shared.json_lines("bridge", "history", "audit", env=env)
    assert {line["queue"] for line in kept} == {"audit"}
    assert [line["acked_at"] for line in kept] == sorted((line["acked_at"] for line in kept), reverse=True)
    assert {(line["worker"], line["topic"], line["attempts"]) for line in kept} == {("w-1", "billing.paid", 1)}
    assert sum("payload_base64" in line for line in kept) == 1
    mine = shared.json_lines("bridge", "history", "audit", "--tenant", "acme", env=env)
    assert [line["payload"] for line in mine] == [{"n": 2}, {"n": 1}]
    assert len(shared.json_lines("bridge", "history", "audit", "--limit", "1", env=env)) == 1
    shown = shared("bridge", "history", "audit", "--tenant", "acme", "--width", "3", env=env).stdout.splitlines()
    assert shown[0].split() == ["ID", "ACKED_AT", "ATTEMPTS", "TENANT", "WORKER", "PAYLOAD"]
    assert shown[1].endswith('w-1     {"n... (7 characters)')
    assert shared.bridge("unrecord", "audit") == {"queue": "audit", "recorded": False}
    result = shared("bridge", "history", "audit", env=env)
    assert "is not recorded" in result.stderr
    assert len(result.stdout.splitlines()) == 4


@pytest.mark.postgres
def test_the_bridges_metrics_are_totals_and_name_no_tenant(shared: BridgeCommand) -> None:
    shared.bridge("subscribe", "audit", "*")
    shared.emit("acme-secret", "a", 1, 2, 3)
    with PostgresQueue(shared.dsn) as queue:
        queue.send_to_tenant("acme-secret", "down", 1)
    process = spawn("bridge", "run", "--store", str(shared.path), "--postgres", shared.dsn, "--metrics", "0")
    assert process.stderr is not None
    url = process.stderr.readline().split()[-1]
    assert "forwarding the events of the store" in process.stderr.readline()
    wanted = ("\ntenantq_forwarded_events_total 3.0\n", "\ntenantq_delivered_messages_total 1.0\n")
    while not all(line in (text := urlopen(url, timeout=30).read().decode()) for line in wanted):
        assert process.poll() is None
    for line in (
        "tenantq_forwarded_batches_total 1.0",
        "tenantq_undeliverable_events_total 0.0",
        "tenantq_quarantined_tenants_total 0.0",
        "tenantq_forwarding_lag_seconds_count 1.0",
        'tenantq_breaker_state{state="closed",target="postgres"} 1.0',
        'tenantq_breaker_state{state="open",target="postgres"} 0.0',
        'tenantq_breaker_failures{target="postgres"} 0.0',
        'tenantq_failed_tenants{role="deliverer"} 0.0',
        'tenantq_failed_rounds_total{role="maintenance"} 0.0',
        "tenantq_foreign_tenants 0.0",
    ):
        assert f"\n{line}\n" in text
    assert "\ntenantq_waiting_tenants " in text
    assert "acme-secret" not in text
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0
