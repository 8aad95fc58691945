"""The worker of an event loop: async handlers beside others, and no message left claimed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenantq
import tenantq.aio
from tenantq import DeadLetter, Snooze
from tenantq.errors import InvalidArgument, TenantqError
from tenantq.message import Message as Delivery
from tenantq.router import Layer
from tenantq.testing import ManualClock
from tests.aio.running import WithStore


@tenantq.message("aio.worker.job")
class Job(msgspec.Struct):
    value: int


@tenantq.message("aio.worker.passing", durable=False)
class Passing(msgspec.Struct):
    value: int


class Gate:
    """An async handler that says that it began and waits until it may end."""

    def __init__(self) -> None:
        self.began = asyncio.Semaphore(0)
        self.may_end = asyncio.Event()

    async def __call__(self, message: tenantq.aio.Message[Any]) -> None:
        self.began.release()
        await self.may_end.wait()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_async_and_other_handlers_handle_every_layer_s_messages(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker = tenantq.aio.Worker(store)
        seen: list[object] = []

        @worker.on(Job)
        async def job(message: tenantq.aio.Message[Job]) -> None:
            await asyncio.sleep(0)
            seen.append((message.tenant, message.payload.value, threading.current_thread().name))

        @worker.on("plain")
        def plain(message: tenantq.Message[Any]) -> None:
            seen.append((message.tenant, message.payload, threading.current_thread().name[:20]))

        @worker.on(Passing)
        async def passing(message: tenantq.aio.Message[Passing]) -> None:
            seen.append((message.tenant, message.payload.value))
            await message.ack()

        for name in ("acme", "globex"):
            await store.tenant(name).send(Job(value=1))
            await store.tenant(name).enqueue("plain", 2)
        async with worker:
            await store.tenant("acme").send(Passing(value=3))
            await until(lambda: worker.counts.get("handled") == 5)
        main = threading.main_thread().name
        in_thread = "tenantq-aio-handlers"
        assert {*seen} == {
            ("acme", 1, main),
            ("globex", 1, main),
            ("acme", 2, in_thread),
            ("globex", 2, in_thread),
            ("acme", 3),
        }
        stats = await store.tenant("acme").stats()
        assert (stats.ready, stats.claimed, len(store.memory)) == (0, 0, 0)

    with_store(body)


@pytest.mark.parametrize("once", [True, False], ids=["run_once", "started"])
def test_the_end_of_a_handler_is_its_message_s_outcome(with_store: WithStore, once: bool) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker = tenantq.aio.Worker(store)

        @worker.on("mail")
        async def mail(message: tenantq.aio.Message[Any]) -> object:
            match message.payload:
                case "snooze":
                    return Snooze(1000)
                case "dead":
                    return DeadLetter("no use")
                case "fail":
                    raise ZeroDivisionError
                case "cancel":
                    raise asyncio.CancelledError
                case "acked":
                    async with store.tenant("acme").transaction() as tx:
                        await tx.ack(message)
            return None

        acme = store.tenant("acme")
        await acme.enqueue_many("mail", ["ok", "snooze", "dead", "fail", "cancel", "acked"], max_attempts=1)
        if once:
            assert await worker.run_once() == 6
        else:
            async with worker:
                await until(lambda: sum(worker.counts.get(f"tenant.{name}", 0) for name in NAMES) == 6)
        assert {name: worker.counts.get(name, 0) for name in NAMES} == {
            "handled": 2,
            "snoozed": 1,
            "dead": 1,
            "failed": 2,
        }
        stats = await acme.stats()
        assert (stats.ready, stats.claimed, stats.scheduled, stats.dead) == (0, 0, 1, 3)

    with_store(body)


NAMES = ("handled", "snoozed", "dead", "failed")


def test_hundreds_of_handlers_run_at_once_and_no_more_than_allowed(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker, gate = tenantq.aio.Worker(store, concurrency=200), Gate()
        worker.on("mail")(gate)
        await store.tenant("acme").enqueue_many("mail", range(300))
        async with worker:
            for _ in range(200):
                await gate.began.acquire()
            assert len(worker._tasks) == 200
            gate.may_end.set()
            await until(lambda: worker.counts.get("handled") == 300)

    with_store(body)


def test_handlers_that_do_not_end_in_time_give_their_messages_back(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker, gate = tenantq.aio.Worker(store, drain_timeout=0.01), Gate()
        worker.on("mail")(gate)
        acme = store.tenant("acme")
        await acme.enqueue_many("mail", range(3))
        await worker.start()
        for _ in range(3):
            await gate.began.acquire()
        await worker.stop()
        stats = await acme.stats()
        assert (stats.ready, stats.claimed) == (3, 0)
        assert [message.attempts for message in await acme.peek("mail")] == [0, 0, 0]
        await worker.stop()

    with_store(body)


def test_draining_lets_handlers_end(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker, gate = tenantq.aio.Worker(store), Gate()
        worker.on("mail")(gate)
        await store.tenant("acme").enqueue("mail", 1)
        await worker.start()
        await gate.began.acquire()
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: worker._engine.is_ending)
        assert not stopping.done()
        gate.may_end.set()
        await stopping
        assert worker.counts["handled"] == 1

    with_store(body)


def test_a_cancelled_run_drains_and_a_second_cancellation_hurries_it(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker, gate = tenantq.aio.Worker(store), Gate()
        worker.on("mail")(gate)
        acme = store.tenant("acme")
        await acme.enqueue("mail", 1)
        running = asyncio.create_task(worker.run())
        await gate.began.acquire()
        running.cancel()
        await until(lambda: worker._engine.is_ending)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await acme.stats()).claimed == 0

    with_store(body)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_a_second_one_cancels(with_store: WithStore, number: signal.Signals) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker, gate = tenantq.aio.Worker(store), Gate()
        worker.on("mail")(gate)
        acme = store.tenant("acme")
        await acme.enqueue("mail", 1)
        running = asyncio.create_task(worker.run())
        await gate.began.acquire()
        os.kill(os.getpid(), number)
        await until(lambda: worker._engine.is_ending)
        assert not running.done()
        os.kill(os.getpid(), number)
        await running
        stats = await acme.stats()
        assert (stats.ready, stats.claimed) == (1, 0)

    with_store(body)


def test_run_ends_at_once_if_it_was_asked_to_before(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker = tenantq.aio.Worker(store)
        worker.on("mail")(Gate())
        worker.request_stop()
        await worker.run()
        async with worker:  # the request was heeded
            assert worker._dispatcher is not None

    with_store(body)


def test_leases_are_kept_while_handlers_run(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker, gate = tenantq.aio.Worker(store, lease=0.2), Gate()
        worker.on("mail")(gate)
        acme = store.tenant("acme")
        await acme.enqueue("mail", 1)
        async with worker:
            await gate.began.acquire()
            (_source, delivery), *_ = worker._engine._running.values()
            first = delivery.lease_expires_ns
            await until(lambda: delivery.lease_expires_ns != first)
            gate.may_end.set()
            await until(lambda: worker.counts.get("handled") == 1)

    with_store(body)


class Bridge:
    """A shared layer that is a memory queue."""

    def __init__(self) -> None:
        self.queue = tenantq.MemoryQueue()

    def claim(self, queue: str, limit: int = 1, **options: Any) -> Sequence[Delivery[Any]]:
        return self.queue.claim(queue, limit, **options)

    def subscribe(self, queue: str, pattern: str) -> object:
        return queue, pattern


def test_a_shared_message_s_verbs_are_awaited_too(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        bridge: Any = Bridge()
        worker = tenantq.aio.Worker(store, bridge=bridge)

        @worker.on("billing", layer=Layer.SHARED)
        async def billing(message: tenantq.aio.Message[Any]) -> None:
            await message.extend(60)
            await message.ack()

        bridge.queue.enqueue("billing", 1)
        async with worker:
            await until(lambda: worker.counts.get("shared.handled") == 1)
        assert len(bridge.queue) == 0

    with_store(body)


def test_a_cancelled_run_once_leaves_nothing_claimed(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker, gate = tenantq.aio.Worker(store), Gate()
        worker.on("mail")(gate)
        acme = store.tenant("acme")
        await acme.enqueue_many("mail", range(2))
        once = asyncio.create_task(worker.run_once())
        await gate.began.acquire()
        once.cancel()
        with pytest.raises(asyncio.CancelledError):
            await once
        assert (await acme.stats()).ready == 2

    with_store(body)


def test_a_faulty_tenant_keeps_none_of_the_others_waiting(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        worker = tenantq.aio.Worker(store)
        seen: list[object] = []

        @worker.on("mail")
        async def mail(message: tenantq.aio.Message[Any]) -> None:
            seen.append(message.tenant)

        await store.tenant("good").enqueue("mail", 1)
        bad: Path = store.tenant("bad").path
        bad.parent.mkdir(exist_ok=True)
        bad.write_bytes(b"no database" * 1000)
        with pytest.raises(TenantqError):
            await worker.run_once()
        assert seen == ["good"]

    with_store(body)


def test_a_worker_without_handlers_does_not_start(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        with pytest.raises(InvalidArgument, match="no handlers"):
            await tenantq.aio.Worker(store).start()

    with_store(body)


def test_it_gives_every_tenant_the_fires_of_the_store_s_periodic_messages(
    with_store: WithStore,
) -> None:
    clock = ManualClock()

    async def body(store: tenantq.aio.Store) -> None:
        handled: list[str | None] = []
        worker = tenantq.aio.Worker(store)

        @worker.on("report")
        async def report(message: tenantq.aio.Message[Any]) -> None:
            handled.append(message.tenant)

        for name in ("acme", "globex"):
            await store.tenant(name).enqueue("other", 1)
        await store.periodic.add("hourly", "0 * * * *", "report", 1)
        clock.advance(3600)
        assert await worker.run_once() == 2
        clock.advance(3600)
        async with worker:
            await until(lambda: len(handled) == 4)
        assert sorted(map(str, handled)) == ["acme", "acme", "globex", "globex"]

    with_store(body, clock=clock)
