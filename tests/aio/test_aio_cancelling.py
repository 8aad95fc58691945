"""Cancellation and timeouts leave no lease and no transaction behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import tenantq
import tenantq.aio
from tests.aio.running import PATIENCE, Occupied, StoppingClock, WithStore, run, turn


async def cancelled(task: asyncio.Task[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_call_that_has_not_begun_is_withdrawn(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        occupied = Occupied()
        first = asyncio.create_task(acme._call(occupied))
        await occupied.begun()
        calls = [asyncio.create_task(acme.enqueue("mail", n)) for n in range(3)]
        await turn()
        calls[1].cancel()
        await cancelled(calls[1])  # at once, though the tenant is occupied
        occupied.may_end.set()
        await asyncio.gather(first, calls[0], calls[2])
        assert [message.payload for message in await acme.peek("mail")] == [0, 2]

    with_store(body)


def test_calls_in_a_batch_that_waits_for_the_file_are_withdrawn(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        with store.core.tenant("acme").transaction():
            calls: list[asyncio.Task[Any]] = [asyncio.create_task(acme.claim("mail")) for _ in range(2)]
            calls += [asyncio.create_task(acme.enqueue("mail", n)) for n in range(1, 3)]
            await turn(50)  # they are in a thread by now
            for call in (calls[0], calls[2]):
                call.cancel()
                await cancelled(call)  # at once
        assert [len(found) for found in await asyncio.gather(calls[1])] == [1]
        await calls[3]
        assert [message.payload for message in await acme.peek("mail")] == [2]

    with_store(body)


def test_an_enqueue_that_has_begun_is_committed(with_store: WithStore) -> None:
    clock = StoppingClock()

    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        clock.is_armed = True
        call = asyncio.create_task(acme.enqueue("mail", 1, key="once"))
        await clock.reached()
        call.cancel()
        await cancelled(call)
        clock.may_go_on.set()
        assert await acme.enqueue("mail", 1, key="once") == 2

    with_store(body, clock=clock)


def test_a_cancelled_claim_gives_back_what_it_claimed(with_store: WithStore) -> None:
    clock = StoppingClock()

    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        clock.is_armed = True
        call = asyncio.create_task(acme.claim("mail"))
        await clock.reached()
        call.cancel()
        await turn()
        call.cancel()  # again, while it waits for what was claimed
        await turn()
        assert not call.done()
        clock.may_go_on.set()
        await cancelled(call)
        (message,) = await acme.claim("mail")
        assert message.attempts == 1

    with_store(body, clock=clock)


def test_a_claim_cancelled_in_the_turn_in_which_it_ends_gives_back(
    with_store: WithStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        call = asyncio.create_task(acme.claim("mail"))
        await turn(1)
        (inner,) = store._pool._lanes["acme"].calls
        end = inner.end

        def end_and_cancel() -> None:
            end()
            call.cancel()

        monkeypatch.setattr(inner, "end", end_and_cancel)
        await cancelled(call)
        (message,) = await acme.claim("mail")
        assert message.attempts == 1

    with_store(body)


def test_a_claim_that_times_out_leaves_no_lease(with_store: WithStore) -> None:
    clock = StoppingClock()

    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        clock.is_armed = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                call = asyncio.create_task(clock.reached())
                call.add_done_callback(lambda _done: limit.reschedule(0))
                asyncio.get_running_loop().call_later(0.01, clock.may_go_on.set)
                await acme.claim("mail")
        await call
        assert (await acme.stats()).claimed == 0

    with_store(body, clock=clock)


def test_a_cancelled_exchange_keeps_its_acks_and_gives_back_its_claim(with_store: WithStore) -> None:
    clock = StoppingClock()

    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue_many("mail", range(2))
        held = await acme.claim("mail")
        clock.is_armed = True
        call = asyncio.create_task(acme.exchange(held, "mail"))
        await clock.reached()
        call.cancel()
        await turn()
        clock.may_go_on.set()
        await cancelled(call)
        stats = await acme.stats()
        assert (stats.ready, stats.claimed) == (1, 0)

    with_store(body, clock=clock)


def test_a_claim_of_a_loop_that_is_closed_over_it_is_given_back(tmp_path: Path) -> None:
    clock = StoppingClock()
    store = tenantq.aio.open(tmp_path / "store", clock=clock)
    with tenantq.open(tmp_path / "store") as other:
        other.tenant("acme").enqueue("mail", 0)
        loop = asyncio.new_event_loop()

        async def begin() -> asyncio.Task[Any]:
            acme = store.tenant("acme")
            clock.is_armed = True
            task = asyncio.create_task(acme.claim("mail"))
            await clock.reached()
            return task

        task = loop.run_until_complete(begin())
        loop.run_until_complete(loop.shutdown_default_executor())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        clock.may_go_on.set()
        store._pool._executor.shutdown()
        store._pool._apart.shutdown()
        (message,) = other.tenant("acme").claim("mail")
        assert message.attempts == 1
        message.ack()
        store.core.close()


def test_the_end_of_the_loop_cancels_everything_cleanly(tmp_path: Path) -> None:
    async def main() -> None:
        store = tenantq.aio.open(tmp_path / "store")
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)

        async def in_transaction() -> None:
            async with acme.transaction() as tx:
                await tx.enqueue("mail", 1)
                begun.set()
                await asyncio.Event().wait()

        begun = asyncio.Event()
        tasks.append(asyncio.create_task(in_transaction()))
        await begun.wait()
        tasks.extend(asyncio.create_task(acme.claim("mail", wait=PATIENCE)) for _ in range(3))
        await turn()
        stores.append(store)

    tasks: list[asyncio.Task[Any]] = []
    stores: list[tenantq.aio.Store] = []
    run(main())
    assert all(task.cancelled() for task in tasks)
    stores[0].core.close()
    stores[0]._pool.shut_down()
    with tenantq.open(tmp_path / "store") as other:
        stats = other.tenant("acme").stats()
        assert (stats.ready, stats.claimed) == (1, 0)
