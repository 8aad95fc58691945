"""What the hot statements cost: the plan of each, and the steps it takes behind any backlog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import pytest

import tenantq
from tenantq._file import TenantFile
from tenantq.sqlfile import load_statements
from tenantq.testing import ManualClock

FILES = {
    name: load_statements("tenantq", f"{name}.sql")
    for name in ("queue", "dead", "outbox", "undeliverable", "stats", "bounds", "limits", "periodic")
}
STATEMENTS = {f"{file}.{name}": sql for file, statements in FILES.items() for name, sql in statements.items()}

NOT_HOT = {
    "queue.find_ready",  # purge: an operator's
    "queue.find_scheduled",
    "queue.find_claimed",
    "queue.end_leases",  # after a boot
    "queue.find_held",  # restore
    "queue.count_given_back",  # restore
    "stats.recount_depths",  # verify
    "stats.count_due",  # groups what is due and not yet moved
    "queue.last_id",  # one row a queue, after another process's commit
    "dead.list_dead",
    "dead.find_dead_after",
    "queue.list_paused",
    "stats.read_depths",  # one row a queue
    "bounds.read_bounds",  # one row a bounded queue
    "bounds.read_whole_depth",  # one row a queue
    "limits.read_rules",  # one row a paused queue or a limited one, after another process's commit
    "limits.refill",  # after a boot
    "limits.read_claimed",  # one row a queue
    "outbox.count_pending",  # verify
    "undeliverable.recount_undeliverable",  # verify
    "outbox.prune_events",  # a bounded step, see below
}

SCANS_OF_FEW = (
    "SCAN tenantq_limit",
    "SCAN level",
    "SCAN json_each",
    "SCAN queue USING COVERING INDEX queue_due",
    "SCAN queue USING COVERING INDEX queue_leased",
    "SCAN queue USING INDEX queue_ready",
    "SCAN tenantq_bound",
    "SCAN tenantq_periodic",
)
"""Of the priorities in use, of the ids given, of the first entry of an index or table, and of few rows."""

INDEXES = {
    "queue.find_key": "queue_key",
    "queue.probe_queue": "queue_ready",
    "queue.find_claimable": "queue_ready",
    "queue.peek_ready": "queue_ready",
    "queue.find_due": "queue_due",
    "queue.find_expired": "queue_leased",
    "queue.next_due": "queue_due",
    "queue.peek_scheduled": "queue_due",
    "dead.list_dead_of_queue": "tenantq_dead_queue",
    "dead.find_dead_of_queue_after": "tenantq_dead_queue",
    "stats.oldest_ready": "queue_ready",
}


def file_of(tenant: tenantq.Tenant) -> TenantFile:
    handle = tenant._open(create=True)
    assert handle is not None
    return handle.file


def plan(tenant: tenantq.Tenant, sql: str) -> list[str]:
    connection = file_of(tenant).database._connection
    names: set[str] = set()
    for word in sql.replace(",", " ").replace(")", " ").replace("(", " ").replace(";", " ").split():
        if word.startswith(":"):
            names.add(word[1:])
    return [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, dict.fromkeys(names, 1))]


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - NOT_HOT))
def test_a_hot_statement_scans_no_table_and_sorts_nothing(acme: tenantq.Tenant, name: str) -> None:
    steps = plan(acme, STATEMENTS[name])
    assert not [step for step in steps if "TEMP B-TREE" in step], steps
    scans = [step for step in steps if step.startswith("SCAN") and "CONSTANT ROW" not in step]
    assert [step for step in scans if not step.startswith(SCANS_OF_FEW)] == [], steps
    if name in INDEXES:
        assert any(INDEXES[name] in step for step in steps), steps


def test_every_statement_is_either_hot_or_known_not_to_be() -> None:
    assert STATEMENTS.keys() >= NOT_HOT
    assert STATEMENTS.keys() >= INDEXES.keys()


def steps_of(tenant: tenantq.Tenant, action: Callable[[], Any]) -> int:
    """Count the virtual machine's steps of an action: time would measure the machine."""
    connection: apsw.Connection = file_of(tenant).database._connection
    count = 0

    def tick() -> bool:
        nonlocal count
        count += 1
        return False

    connection.set_progress_handler(tick, 1)
    try:
        action()
    finally:
        connection.set_progress_handler(None)
    return count


MANY = 100_000


def bury_many(tx: tenantq.Transaction) -> None:
    tx.enqueue_many("mail", [0] * MANY)
    tx.execute("""
        INSERT INTO tenantq_dead (
            id, queue, priority, visible_at, attempts, max_attempts, enqueued_at, died_at, payload
        )
        SELECT id, queue, priority, visible_at, 1, 1, 1, 1, payload FROM queue
    """)
    tx.execute("DELETE FROM queue")
    depths = tx._open().file._depth("mail")
    depths[1], depths[4] = depths[1] - MANY, depths[4] + MANY


BACKLOGS: dict[str, Callable[[tenantq.Transaction], object]] = {
    "ready": lambda tx: tx.enqueue_many("mail", [0] * MANY, priority=-1),
    "delayed": lambda tx: tx.enqueue_many("mail", [0] * MANY, delay=3600),
    "of a higher priority, to come": lambda tx: tx.enqueue_many("mail", [0] * MANY, delay=3600, priority=9),
    "of another queue": lambda tx: tx.enqueue_many("another", [0] * MANY, priority=9),
    "of another queue, delayed": lambda tx: tx.enqueue_many("another", [0] * MANY, delay=3600),
    "claimed": lambda tx: (
        tx.enqueue_many("mail", [0] * MANY),
        tx._open().file.claim("mail", MANY, worker="w", now=1, boottime=1, leased_until=2**62, lease_token=1),
    ),
    "dead": bury_many,
    "events": lambda tx: [tx.emit("topic", 0) for _ in range(MANY // 10)],
}


def costs(tenant: tenantq.Tenant) -> dict[str, int]:
    """Return the steps of each hot verb, with one message there for it."""

    def one_round() -> dict[str, int]:
        held: list[tenantq.Message[Any]] = []
        tenant.enqueue("mail", 1, priority=5)
        tenant.enqueue("mail", 1, priority=5)
        found = {
            "enqueue": steps_of(tenant, lambda: tenant.enqueue("mail", 1, priority=5)),
            "enqueue with a key": steps_of(tenant, lambda: tenant.enqueue("mail", 1, priority=5, key="k")),
            "claim": steps_of(tenant, lambda: held.extend(tenant.claim("mail"))),
            "exchange": steps_of(tenant, lambda: held.extend(tenant.exchange([held.pop()], "mail"))),
            "extend": steps_of(tenant, lambda: held[0].extend(60)),
            "nack": steps_of(tenant, lambda: held.pop().nack(delay=0)),
            "empty claim": steps_of(tenant, lambda: tenant.claim("empty")),
            "next_due": steps_of(tenant, tenant.next_due),
            "stats": steps_of(tenant, tenant.stats),
            "peek": steps_of(tenant, lambda: tenant.peek("mail", 1)),
        }
        for message in tenant.claim("mail", 4):
            message.ack()
        return found

    one_round()
    return one_round()


@pytest.mark.parametrize("kind", BACKLOGS)
def test_no_verb_costs_more_behind_a_hundred_thousand(acme: tenantq.Tenant, kind: str) -> None:
    alone = costs(acme)
    with acme.transaction() as tx:
        BACKLOGS[kind](tx)
    behind = costs(acme)
    # A few steps more for the backlog's own queue and priority in the depths and in the stats.
    assert {verb: (alone[verb], steps) for verb, steps in behind.items() if steps > 1.5 * alone[verb] + 60} == {}


def test_a_prune_looks_at_no_more_than_a_step_of_what_stays(acme: tenantq.Tenant, clock: ManualClock) -> None:
    def prune_behind(count: int) -> int:
        with acme.transaction() as tx:
            for number in range(count):
                tx.emit("topic", number)
        acme.outbox.mark_forwarded(acme.outbox.position().last_seq, "x")
        return steps_of(acme, lambda: acme.outbox.prune(older_than=60))

    few = prune_behind(2000)
    assert prune_behind(20_000) < 1.2 * few
