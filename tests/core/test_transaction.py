from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenantq
from tenantq.errors import (
    DiskFull,
    InvalidArgument,
    LeaseLost,
    QueueFull,
    StatementFailed,
    TenantqError,
    TransactionError,
)


@tenantq.message("transaction.durable")
class Durable(msgspec.Struct):
    value: int


@tenantq.message("transaction.shared", cross_host=True)
class Shared(msgspec.Struct):
    value: int


@tenantq.message("transaction.memory", durable=False)
class InMemory(msgspec.Struct):
    value: int


class Failed(Exception):
    pass


@pytest.fixture
def shop(acme: tenantq.Tenant) -> tenantq.Tenant:
    """A tenant with a table of the application and a claimed message."""
    with acme.transaction() as tx:
        tx.execute(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL CHECK (total >= 0)) STRICT"
        )
    return acme


def orders(tenant: tenantq.Tenant) -> list[Any]:
    with tenant.transaction() as tx:
        return [row[0] for row in tx.execute("SELECT id FROM orders ORDER BY id")]


def state(tenant: tenantq.Tenant) -> dict[str, object]:
    stats = tenant.stats()
    return {
        "orders": orders(tenant),
        "queues": [(queue.queue, queue.ready, queue.claimed) for queue in stats.queues],
        "outbox": stats.outbox,
        "memory": len(tenant.store.memory),
    }


def do_all(tx: tenantq.Transaction, message: tenantq.Message[Any]) -> None:
    tx.execute("INSERT INTO orders VALUES (:id, :total)", {"id": 42, "total": 99})
    tx.execute_many("INSERT INTO orders VALUES (?, ?)", [(43, 1), (44, 2)])
    tx.enqueue("mail", 1, delay=60)
    tx.enqueue_many("mail", [2, 3])
    tx.send(Durable(value=1))
    tx.send(Shared(value=1))
    assert tx.send(InMemory(value=1)) == 0
    tx.emit("topic", {"a": 1})
    tx.ack(message)


def claimed(tenant: tenantq.Tenant) -> tenantq.Message[Any]:
    tenant.enqueue("work", 1)
    return tenant.claim("work")[0]


def test_all_of_a_transaction_is_there_when_its_block_ends(shop: tenantq.Tenant) -> None:
    message = claimed(shop)
    with shop.transaction() as tx:
        do_all(tx, message)
        assert len(shop.store.memory) == 0
        assert not message.settled
    assert message.settled
    assert state(shop) == {
        "orders": [42, 43, 44],
        "queues": [("mail", 2, 0), ("transaction.durable", 1, 0), ("work", 0, 0)],
        "outbox": 2,
        "memory": 1,
    }


def test_nothing_of_a_transaction_is_there_when_its_block_fails(shop: tenantq.Tenant) -> None:
    message = claimed(shop)
    before = state(shop)
    with pytest.raises(Failed), shop.transaction() as tx:
        do_all(tx, message)
        raise Failed
    assert state(shop) == before
    assert not message.settled
    message.ack()


def test_nothing_is_there_when_the_commit_fails(shop: tenantq.Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    message = claimed(shop)
    before = state(shop)
    with pytest.raises(StatementFailed), shop.transaction() as tx:
        tx.execute("PRAGMA defer_foreign_keys = ON")
        tx.execute("CREATE TABLE child (id INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)")
        tx.execute("PRAGMA foreign_keys")
        do_all(tx, message)
        handle = tx._open()
        monkeypatch.setattr(handle.file.database, "commit", lambda: handle.file.database.execute("nonsense"))
    monkeypatch.undo()
    assert state(shop) == before


def test_a_lost_ack_undoes_the_transaction_even_when_it_is_caught(shop: tenantq.Tenant) -> None:
    message = claimed(shop)
    message.release()
    shop.claim("work")
    before = state(shop)
    with pytest.raises(LeaseLost) as caught, shop.transaction() as tx:
        do_all(tx, message)
    assert caught.value.lost == (message.id,)
    with pytest.raises(TransactionError, match="was undone"), shop.transaction() as tx:
        tx.enqueue("mail", 1)
        with pytest.raises(LeaseLost):
            tx.ack(message)
        with pytest.raises(TransactionError, match="failed already"):
            tx.enqueue("mail", 2)
        with pytest.raises(TransactionError, match="failed already"):
            tx.send(InMemory(value=1))
    assert state(shop) == before


def test_a_statement_that_fails_leaves_the_rest_of_the_transaction(shop: tenantq.Tenant) -> None:
    with shop.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1, 1)")
        for sql in (
            "INSERT INTO orders VALUES (1, 1)",
            "INSERT INTO orders VALUES (2, -1)",
            "INSERT INTO orders VALUES (2, NULL)",
            "INSERT INTO orders VALUES (2, 'text')",
            "SELECT * FROM nowhere",
            "not SQL",
            "INSERT INTO orders VALUES (2, 2); INSERT INTO orders VALUES (1, 1)",
        ):
            with pytest.raises(StatementFailed):
                tx.execute(sql)
        tx.enqueue("mail", 1)
    assert orders(shop) == [1]
    assert shop.stats().ready == 1


@pytest.mark.parametrize("parameters", [(2**63,), (object(),), ("\ud800",), (1, 2), (), {"other": 1}, (1j,)])
def test_a_value_that_sqlite_cannot_take_is_a_typed_error(shop: tenantq.Tenant, parameters: Any) -> None:
    with shop.transaction() as tx:
        with pytest.raises(TenantqError):
            tx.execute("INSERT INTO orders VALUES (?, 1)", parameters)
        with pytest.raises(TenantqError):
            tx.execute_many("INSERT INTO orders VALUES (?, 1)", [(7,), parameters])
    assert orders(shop) == []


def test_half_of_a_call_is_none_of_it(shop: tenantq.Tenant) -> None:
    taken = shop.enqueue("mail", 0)

    def rows() -> Iterator[tuple[int, int]]:
        yield 1, 1
        raise Failed

    with shop.transaction() as tx:
        tx.execute("INSERT INTO queue (id, payload, visible_at, enqueued_at) VALUES (?, '1', 1, 1)", (taken + 3,))
        with pytest.raises(Failed):
            tx.execute_many("INSERT INTO orders VALUES (?, ?)", rows())
        # Ids by hand, in the way of what comes: the second of the three would fail.
        tx.execute("DELETE FROM queue WHERE id = ?", (taken + 3,))
        tx._open().file._last_id = taken - 1
        with pytest.raises(StatementFailed):
            tx.enqueue_many("mail", [1, 2, 3])
    assert orders(shop) == []
    assert shop.stats().ready == 1


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT", "commit;", " \n\tCoMmIt", "END", "END TRANSACTION", "BEGIN", "BEGIN IMMEDIATE", "ROLLBACK",
        "SAVEPOINT a", "RELEASE a", "ATTACH ':memory:' AS b", "DETACH b", "VACUUM", "-- a\nCOMMIT",
        "/* a */ COMMIT", ";COMMIT", "/**/--\n;\nROLLBACK TO a",
    ],
)  # fmt: skip
def test_what_ends_a_transaction_is_refused_inside_of_it(shop: tenantq.Tenant, sql: str) -> None:
    with shop.transaction() as tx:
        with pytest.raises(TransactionError, match="does not go inside"):
            tx.execute(sql)
        with pytest.raises(TransactionError, match="does not go inside"):
            tx.execute_many(sql, [()])
        tx.execute("INSERT INTO orders VALUES (1, 1)")
    assert orders(shop) == [1]


@pytest.mark.parametrize(
    "sql",
    ["SELECT 1; COMMIT", "SELECT 1; END", "SELECT 1; ROLLBACK", "INSERT OR ROLLBACK INTO orders VALUES (1, 1)"],
)
def test_a_transaction_that_was_ended_on_the_sly_is_undone_as_a_whole(shop: tenantq.Tenant, sql: str) -> None:
    with pytest.raises(TransactionError, match="was undone"), shop.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1, 1)")
        tx.enqueue("mail", 1)
        with pytest.raises((StatementFailed, TransactionError)):
            tx.execute(sql)
        with pytest.raises(TransactionError, match="failed already"):
            tx.enqueue("mail", 2)
    assert orders(shop) == []
    assert shop.stats().ready == 0
    shop.enqueue("mail", 1)


def test_a_full_disk_undoes_the_transaction_and_is_usable_again(shop: tenantq.Tenant) -> None:
    message = claimed(shop)
    before = state(shop)
    with shop.transaction() as tx:
        ((pages,),) = tx.execute("PRAGMA page_count")
        tx.execute(f"PRAGMA max_page_count = {pages + 5}")
    for last in (lambda: None, lambda: tx.enqueue("mail", "x" * 100_000)):
        with pytest.raises((DiskFull, TransactionError)), shop.transaction() as tx:
            do_all(tx, message)
            with pytest.raises(DiskFull):
                tx.enqueue("mail", "x" * 100_000)
            last()
            raise Failed if tx._open().file.database.in_transaction is None else DiskFull
        assert state(shop) == before
    with pytest.raises(DiskFull):
        shop.enqueue("mail", "x" * 100_000)
    with shop.transaction() as tx:
        tx.execute("PRAGMA max_page_count = 1000000")
        do_all(tx, message)
    assert orders(shop) == [42, 43, 44]


def test_a_message_for_a_full_memory_layer_is_told_and_the_rest_is_committed(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, memory_depth=1) as store:
        acme = store.tenant("acme")
        with pytest.raises(QueueFull, match="committed, but 2 of its") as caught, acme.transaction() as tx:
            tx.enqueue("mail", 1)
            for value in range(3):
                tx.send(InMemory(value=value))
        assert "do not repeat" in caught.value.hint
        assert acme.stats().ready == len(store.memory) == 1


def test_a_wrong_option_of_a_message_for_memory_is_told_before_the_commit(shop: tenantq.Tenant) -> None:
    options: list[dict[str, Any]] = [
        {"priority": 2**20},
        {"delay": -1},
        {"key": ""},
        {"max_attempts": 0},
        {"headers": 1},
    ]
    for option in options:
        with pytest.raises(InvalidArgument), shop.transaction() as tx:
            tx.enqueue("mail", 1)
            tx.send(InMemory(value=1), **option)
    assert shop.stats().ready == 0


def test_a_transaction_is_one_threads(shop: tenantq.Tenant) -> None:
    message = claimed(shop)
    with shop.transaction() as tx, ThreadPoolExecutor(1) as pool:
        uses: list[Callable[[], Any]] = [
            lambda: tx.execute("SELECT 1"),
            lambda: tx.execute_many("SELECT ?", [(1,)]),
            lambda: tx.enqueue("mail", 1),
            lambda: tx.send(InMemory(value=1)),
            lambda: tx.emit("topic", 1),
            lambda: tx.ack(message),
            lambda: tx.__exit__(None, None, None),
        ]
        for use in uses:
            assert isinstance(pool.submit(use).exception(), TransactionError)
        tx.enqueue("mail", 1)
    assert state(shop)["queues"] == [("mail", 1, 0), ("work", 0, 1)]


def test_a_transaction_is_used_only_inside_of_its_block(shop: tenantq.Tenant) -> None:
    tx = shop.transaction()
    with pytest.raises(TransactionError, match="not open"):
        tx.enqueue("mail", 1)
    with tx:
        tx.enqueue("mail", 1)
    with pytest.raises(TransactionError, match="not open"):
        tx.enqueue("mail", 2)
    with pytest.raises(TransactionError, match="once"):
        tx.__enter__()
    assert shop.stats().ready == 1


def test_an_abandoned_transaction_waits_for_nothing(shop: tenantq.Tenant) -> None:
    shop.transaction()
    shop.enqueue("mail", 1)


def test_transactions_on_two_tenants_stand_side_by_side(store: tenantq.Store) -> None:
    one, two = store.tenant("one"), store.tenant("two")
    with one.transaction() as first, two.transaction() as second:
        first.enqueue("mail", 1)
        second.enqueue("mail", 2)
        assert store.tenant("three").enqueue("mail", 3) == 1
    assert one.stats().ready == two.stats().ready == 1


def test_a_key_answers_inside_of_a_transaction(acme: tenantq.Tenant) -> None:
    first = acme.enqueue("mail", 1, key="k")
    with acme.transaction() as tx:
        assert tx.enqueue("mail", 2, key="k") == first
        second = tx.enqueue("mail", 3, key="l")
        assert tx.enqueue("mail", 4, key="l") == second
    assert acme.stats().ready == 2


def test_an_id_is_given_out_once_though_its_message_is_deleted_by_hand(shop: tenantq.Tenant) -> None:
    with pytest.raises(Failed), shop.transaction() as tx:
        first = tx.enqueue("mail", 1)
        tx.execute("DELETE FROM queue WHERE id = ?", (first,))
        assert tx.enqueue("mail", 2) == first + 1
        raise Failed  # the depths know nothing of what is deleted by hand
