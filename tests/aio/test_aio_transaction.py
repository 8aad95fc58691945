"""A transaction of coroutines: all or nothing, over awaits, and never left open."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import tenantq.aio
from tenantq.aio import _pool
from tenantq.aio._calls import Call, run_calls
from tenantq.errors import LeaseLost, StatementFailed, TransactionError
from tests.aio.running import PATIENCE, StoppingClock, WithStore, turn


async def ready(tenant: tenantq.aio.Tenant) -> list[Any]:
    return [message.payload for message in await tenant.peek("mail", 100)]


def test_what_is_done_in_it_commits_together(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        (message,) = await acme.claim("mail")
        async with acme.transaction() as tx:
            await tx.execute("CREATE TABLE customer (name TEXT)")
            await tx.execute_many("INSERT INTO customer VALUES (?)", (name for name in [("ada",), ("bob",)]))
            await tx.enqueue_many("mail", range(1, 3))
            await tx.emit("topic", 1)
            await tx.ack(message)
            assert not message.settled
        assert message.settled
        assert await ready(acme) == [1, 2]
        async with acme.transaction() as tx:
            assert await tx.execute("SELECT count(*) FROM customer") == [(2,)]

    with_store(body)


def test_an_exception_undoes_it(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        with pytest.raises(ZeroDivisionError):
            async with acme.transaction() as tx:
                await tx.enqueue("mail", 0)
                raise ZeroDivisionError
        with pytest.raises(StatementFailed):
            async with acme.transaction() as tx:
                await tx.enqueue("mail", 0)
                await tx.execute("SELECT nonsense")
        with pytest.raises(TransactionError, match="not open"):
            await tx.enqueue("mail", 1)
        assert await ready(acme) == []

    with_store(body)


def test_calls_of_others_wait_for_it_and_hold_no_thread(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        async with acme.transaction() as tx:
            await tx.enqueue("mail", 0)
            others = [asyncio.create_task(acme.enqueue("mail", n)) for n in range(1, 10)]
            await turn(20)
            assert store._pool._running == set()
            await tx.enqueue("mail", "inside")
        await asyncio.gather(*others)
        assert (await ready(acme))[:3] == [0, "inside", 1]

    with_store(body, threads=1)


def test_many_are_open_at_once_with_a_single_thread(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        tenants = [store.tenant(f"t{n}") for n in range(20)]
        inside = asyncio.Barrier(len(tenants))

        async def one(tenant: tenantq.aio.Tenant) -> None:
            async with tenant.transaction() as tx:
                await tx.enqueue("mail", 1)
                await inside.wait()
                await tx.enqueue("mail", 2)

        await asyncio.gather(*(one(tenant) for tenant in tenants))
        assert [await ready(tenant) for tenant in tenants] == [[1, 2]] * 20

    with_store(body, threads=1)


def test_a_call_inside_of_the_task_s_own_transaction_is_refused(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        async with acme.transaction():
            with pytest.raises(TransactionError, match="this task"):
                await acme.enqueue("mail", 1)
        with pytest.raises(TransactionError, match="once"):
            async with acme.transaction() as tx, tx:
                pass

    with_store(body)


def test_a_cancelled_one_is_undone_before_the_error_leaves(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        inside = asyncio.Event()

        async def one() -> None:
            async with acme.transaction() as tx:
                await tx.enqueue("mail", 1)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(one())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.core.tenant("acme").enqueue("mail", 2)  # the file is free
        assert await ready(acme) == [2]

    with_store(body)


def test_one_cancelled_while_it_begins_is_undone(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)

        async def one() -> None:
            async with acme.transaction():
                raise AssertionError

        with store.core.tenant("acme").transaction():
            task = asyncio.create_task(one())
            pool = store._pool_of_loop()
            while not any(call._has_begun for run in pool._running | pool._running_slow for call in run.calls):
                await asyncio.sleep(0.001)
            task.cancel()
            await turn()
            assert not task.done()  # its thread waits for the file
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await acme.enqueue("mail", 1) == 2

    with_store(body)


def test_one_cancelled_before_its_thread_begins_holds_nothing(
    with_store: WithStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_taken, may_run = threading.Event(), threading.Event()

    def run_later(calls: list[Call[Any]]) -> None:
        is_taken.set()
        assert may_run.wait(PATIENCE)
        run_calls(calls)

    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        monkeypatch.setattr(_pool, "run_calls", run_later)

        async def one() -> None:
            async with acme.transaction():
                raise AssertionError

        task = asyncio.create_task(one())
        while not is_taken.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_run.set()
        assert await acme.enqueue("mail", 1) == 2

    with_store(body)


def test_one_cancelled_in_its_commit_is_committed(with_store: WithStore) -> None:
    clock = StoppingClock()

    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")

        async def one() -> None:
            async with acme.transaction() as tx:
                clock.is_armed = True
                await tx.enqueue("mail", 1)

        task = asyncio.create_task(one())
        await clock.reached()
        asyncio.get_running_loop().call_soon(clock.may_go_on.set)
        ending = asyncio.create_task(cancel_at_the_end(task, acme))
        with pytest.raises(asyncio.CancelledError):
            await task
        await ending
        assert await ready(acme) == [1]

    async def cancel_at_the_end(task: asyncio.Task[None], acme: tenantq.aio.Tenant) -> None:
        while not any(tx._ending for tx in acme.store._open_transactions) and acme.store._open_transactions:
            await asyncio.sleep(0)
        task.cancel()

    with_store(body, clock=clock)


def test_one_that_takes_too_long_is_undone(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        with pytest.raises(TransactionError, match="undone after"):
            async with acme.transaction() as tx:
                await tx.enqueue("mail", 1)
                await acme_free(store)
        with pytest.raises(TransactionError, match="undone after"):
            async with acme.transaction() as tx:
                await acme_free(store)
                await tx.enqueue("mail", 1)
        assert await ready(acme) == []

    async def acme_free(store: tenantq.aio.Store) -> None:
        await asyncio.to_thread(store.core.tenant("acme").claim, "mail")
        await asyncio.to_thread(store.core.tenant("acme").limit, max_depth=None)

    with_store(body, transaction_timeout=0.1)


def test_a_lost_lease_undoes_it(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        (message,) = await acme.claim("mail")
        await message.ack()
        with pytest.raises(LeaseLost):
            async with acme.transaction() as tx:
                await tx.enqueue("mail", 1)
                await tx.ack(message)
        assert await ready(acme) == []

    with_store(body)
