"""A store of coroutines: its threads, its event loop, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

import tenantq
import tenantq.aio
from tenantq.aio import _pool
from tenantq.errors import (
    CorruptFile,
    InvalidArgument,
    NotATenantFile,
    StoreClosed,
    TenantBusy,
    TransactionError,
    WrongEventLoop,
)
from tests.aio.running import Occupied, WithStore, run, turn


def test_locked_tenants_do_not_stop_the_others(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        async with contextlib.AsyncExitStack() as stack:
            locked = []
            for n in range(6):
                core = store.core.tenant(f"locked{n}")
                stack.enter_context(core.transaction())
                locked.append(asyncio.create_task(store.tenant(f"locked{n}").enqueue("mail", n)))
            await turn(50)
            ids = await asyncio.gather(*(store.tenant(f"free{n}").enqueue("mail", n) for n in range(10)))
            assert ids == [1] * 10
            assert not any(task.done() for task in locked)
        assert await asyncio.gather(*locked) == [1] * 6

    with_store(body, threads=2)


def test_a_tenant_known_to_be_slow_takes_none_of_the_threads(
    with_store: WithStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pool, "PATIENCE", 0.001)

    async def body(store: tenantq.aio.Store) -> None:
        slow, free = store.tenant("slow"), store.tenant("free")
        first, second = Occupied(), Occupied()
        calls = [asyncio.create_task(slow._call(first))]
        await first.begun()
        await free.enqueue("mail", 1)  # the only thread is taken: this one waits until that is slow
        calls.append(asyncio.create_task(slow._call(second)))
        first.may_end.set()
        await second.begun()
        assert store._pool._running == set()
        second.may_end.set()
        await asyncio.gather(*calls)

    with_store(body, threads=1)


def test_a_locked_tenant_is_busy_after_its_time(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        with store.core.tenant("acme").transaction():
            outcomes = await asyncio.gather(*(acme.enqueue("mail", n) for n in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [TenantBusy] * 3
        assert len({id(outcome) for outcome in outcomes}) == 3

    with_store(body, busy_timeout=0.05)


def test_a_faulty_file_is_its_tenant_s_error_alone(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        bad, good = store.tenant("bad"), store.tenant("good")
        bad.path.parent.mkdir(exist_ok=True)
        bad.path.write_bytes(b"no database" * 1000)
        outcomes = await asyncio.gather(
            *(bad.enqueue("mail", n) for n in range(3)), good.enqueue("mail", 1), return_exceptions=True
        )
        assert all(isinstance(outcome, CorruptFile | NotATenantFile) for outcome in outcomes[:3])
        assert outcomes[3] == 1

    with_store(body)


def test_a_thousand_tenants_are_served_by_a_few_threads(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        ids = await asyncio.gather(*(store.tenant(f"t{n}").enqueue("mail", n) for n in range(200)))
        assert ids == [1] * 200
        assert len([tenant async for tenant in store.tenants()]) == 200
        assert store._pool._lanes == {}

    with_store(body, threads=2, max_open_tenants=20)


def test_another_event_loop_is_refused(tmp_path: Path) -> None:
    async def use(store: tenantq.aio.Store) -> None:
        await store.tenant("acme").enqueue("mail", 1)

    async def close(store: tenantq.aio.Store) -> None:
        await store.close()

    store = tenantq.aio.open(tmp_path / "store")
    with pytest.raises(WrongEventLoop, match="no event loop"):
        store.tenant("acme")
    run(use(store))
    for action in (use, close):
        with pytest.raises(WrongEventLoop, match="outside"):
            run(action(store))
    store.core.close()
    store._pool.shut_down()


def test_a_forked_child_is_refused_and_may_open_its_own(with_store: WithStore, tmp_path: Path) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        await store.tenant("acme").enqueue("mail", 1)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with pytest.raises(WrongEventLoop):
                    store.tenant("acme")
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1]) == 0
        assert await store.tenant("acme").enqueue("mail", 2) == 2

    if sys.version_info >= (3, 12):
        pytest.skip("forks with threads warn there")
    with_store(body)


def test_close_runs_what_was_called_before_and_refuses_the_rest(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        occupied = Occupied()
        calls: list[asyncio.Task[Any]] = [asyncio.create_task(acme._call(occupied))]
        await occupied.begun()
        calls += [asyncio.create_task(acme.enqueue("mail", n)) for n in range(3)]
        await turn()
        closing = [asyncio.create_task(store.close()) for _ in range(2)]
        await turn()
        with pytest.raises(StoreClosed):
            await acme.enqueue("mail", 9)
        occupied.may_end.set()
        assert await asyncio.gather(*calls) == [None, 1, 2, 3]
        await asyncio.gather(*closing)
        await store.close()
        assert not acme.path.with_name("acme.db-wal").exists()

    with_store(body)


def test_close_undoes_open_transactions(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        with pytest.raises(TransactionError, match="closed"):
            async with acme.transaction() as tx:
                await tx.enqueue("mail", 1)
                await store.close()
                await tx.enqueue("mail", 2)
        with tenantq.open(store.root) as other:
            assert other.tenant("acme").stats().ready == 0

    with_store(body)


def test_a_cancelled_close_is_complete(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        occupied = Occupied()
        call = asyncio.create_task(store.tenant("acme")._call(occupied))
        await occupied.begun()
        closing = asyncio.create_task(store.close())
        await turn()
        closing.cancel()
        await turn()
        assert not closing.done()
        occupied.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await call
        assert store.core.is_closed

    with_store(body)


def test_options_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        tenantq.aio.open(tmp_path / "store", threads=0)
    with pytest.raises(InvalidArgument):
        tenantq.aio.open(tmp_path / "store", transaction_timeout=-1)


def test_periodic_messages_of_a_tenant_and_of_the_store_are_added_listed_and_removed(
    with_store: WithStore,
) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        for periodic in (store.tenant("acme").periodic, store.periodic):
            added = await periodic.add("daily", "0 6 * * *", "report", {"n": 1})
            assert await periodic.list() == (added,)
            assert await periodic.remove("daily")
            assert await periodic.list() == ()

    with_store(body)


def test_what_another_library_commits_wakes_a_coroutine_that_waits(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        path = await store.prepare("acme")
        waiting = asyncio.create_task(store.tenant("acme").claim("mail", wait=30))
        await turn(10)
        assert await store.prepare("acme") == path  # closed again, for the other library
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            for sql, parameters in tenantq.statements.enqueue("mail", "hello"):
                connection.execute(sql, parameters)
        await store.tenant("acme").notify()
        (message,) = await waiting
        assert message.payload == "hello"

    with_store(body)


def test_a_tenant_is_made_moved_and_deleted(with_store: WithStore, tmp_path: Path) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = await store.create("acme")
        await acme.enqueue("mail", 1)
        await store.export("acme", tmp_path / "acme.move")
        with pytest.raises(tenantq.TenantMoved):
            await acme.enqueue("mail", 2)
        assert [stone.went for stone in await store.deleted()] == ["moved"]
        assert (await (await store.undo_export("acme")).stats()).ready == 1
        await store.export("acme", tmp_path / "again.move")
        assert (await store.import_(tmp_path / "again.move")).id == "acme"
        assert (await store.delete("acme")).messages == 1
        with pytest.raises(tenantq.TenantDeleted):
            await acme.enqueue("mail", 2)

    with_store(body)
