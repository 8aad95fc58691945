"""What waits costs no thread, and is woken by what it waits for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import tenantq.aio
from tenantq.errors import QueueFull, StoreClosed
from tests.aio.running import PATIENCE, WithStore, turn


def threads_of_pool() -> int:
    return sum(thread.name.startswith("tenantq-aio") for thread in threading.enumerate())


async def until_asleep(store: tenantq.aio.Store, count: int) -> None:
    """Wait until so many coroutines sleep for a bell, and no thread works."""
    while True:
        waiters = [
            waiter
            for bells in (store._bells, store._room_bells)
            for lines in bells._slots.values()
            for line in lines.values()
            for waiter in line.waiters
        ]
        if len(waiters) == count and all(w._sleep is not None for w in waiters) and not store._pool._lanes:
            return
        await asyncio.sleep(0)


def test_a_thousand_waiting_claims_hold_no_thread_and_each_gets_its_message(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        claims = [asyncio.create_task(acme.claim("mail", wait=PATIENCE)) for _ in range(1000)]
        await until_asleep(store, 1000)
        assert threads_of_pool() <= 4
        before = store.activity().commits
        await acme.enqueue_many("mail", range(1000))
        found = await asyncio.gather(*claims)
        assert sorted(message.payload for (message,) in found) == list(range(1000))
        assert store.activity().commits - before < 100

    with_store(body)


def test_another_process_s_commit_wakes_a_claim(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        claim = asyncio.create_task(store.tenant("acme").claim("mail", wait=PATIENCE))
        await until_asleep(store, 1)

        def elsewhere() -> None:
            with tenantq.open(store.root) as other:
                other.tenant("acme").enqueue("mail", 1)

        await asyncio.to_thread(elsewhere)
        (message,) = await claim
        assert message.payload == 1

    with_store(body)


def test_a_delayed_message_wakes_a_claim_in_time(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 1, delay=0.05)
        assert len(await acme.claim("mail", wait=PATIENCE)) == 1
        assert await acme.claim("mail", wait=0.01) == []

    with_store(body)


def test_a_cancelled_waiter_passes_its_turn_on(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        first, second = (asyncio.create_task(acme.claim("mail", wait=PATIENCE)) for _ in range(2))
        await until_asleep(store, 2)
        enqueueing = asyncio.create_task(acme.enqueue("mail", 1))
        first.cancel()
        (message,) = await second
        assert message.payload == 1
        await enqueueing
        assert first.cancelled()
        assert store._bells._slots == {}

    with_store(body)


def test_an_enqueue_waits_for_room_in_its_turn(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.limit("mail", max_depth=2)
        await acme.enqueue_many("mail", range(2))
        waiting = []
        for n in range(2, 6):
            waiting.append(asyncio.create_task(acme.enqueue("mail", n, wait=PATIENCE)))
            await until_asleep(store, n - 1)
        assert threads_of_pool() <= 4
        seen: list[Any] = []
        while len(seen) < 6:
            for message in await acme.claim("mail", wait=PATIENCE):
                seen.append(message.payload)
                await message.ack()
        assert seen == list(range(6))
        assert await asyncio.gather(*waiting) == [3, 4, 5, 6]

    with_store(body)


def test_an_enqueue_gives_up_when_its_time_is_over(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.limit("mail", max_depth=1)
        await acme.enqueue("mail", 1, key="one")
        with pytest.raises(QueueFull):
            await acme.enqueue("mail", 2, wait=0.01)
        with pytest.raises(QueueFull):
            await acme.enqueue_many("mail", range(2), wait=PATIENCE * 2)  # never fits
        assert await acme.enqueue("mail", 1, key="one", wait=PATIENCE * 2) == 1
        await until_asleep(store, 0)

    with_store(body)


def test_the_memory_layer_wakes_claims_and_enqueues(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        memory = store.memory
        claims = [asyncio.create_task(memory.claim("mail", wait=PATIENCE)) for _ in range(3)]
        await turn()
        claims[0].cancel()
        await memory.enqueue("mail", 1)
        await asyncio.to_thread(store.core.memory.enqueue, "mail", 2)
        one, two = await asyncio.gather(*claims[1:])
        assert {one[0].payload, two[0].payload} == {1, 2}
        full = asyncio.create_task(memory.enqueue("mail", 3, wait=PATIENCE))
        await turn()
        assert not full.done()
        await one[0].ack()
        await full
        with pytest.raises(QueueFull):
            await memory.enqueue("mail", 4, wait=0.01)

    with_store(body, memory_depth=2)


def test_closing_the_store_ends_what_waits(with_store: WithStore) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.limit("full", max_depth=1)
        await acme.enqueue("full", 1)
        tasks.append(asyncio.create_task(acme.claim("mail", wait=PATIENCE)))
        tasks.append(asyncio.create_task(acme.enqueue("full", 1, wait=PATIENCE)))
        await until_asleep(store, 2)
        await store.close()
        for task in tasks:
            with pytest.raises(StoreClosed):
                await task

    with_store(body)
