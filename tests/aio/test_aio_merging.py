"""The calls of one turn of the event loop are one commit of each tenant, and each has its own outcome."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenantq
import tenantq.aio
from tenantq.errors import InvalidArgument, InvalidName, LeaseLost, PayloadError, QueueFull, UnknownTenant
from tests.aio.running import Occupied, WithStore, turn


@tenantq.message("aio.mail")
class Mail(msgspec.Struct):
    to: str


@tenantq.message("aio.event", cross_host=True)
class Event(msgspec.Struct):
    number: int


@tenantq.message("aio.passing", durable=False)
class Passing(msgspec.Struct):
    number: int


def payloads(messages: list[tenantq.aio.Message[Any]]) -> list[object]:
    return [message.payload for message in messages]


def test_calls_of_one_turn_are_one_commit_a_tenant(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        tenants = [store.tenant(name) for name in ("acme", "globex")]
        for tenant in tenants:
            await tenant.enqueue("mail", "first")
        before = store.activity()
        ids = await asyncio.gather(*(tenant.enqueue("mail", n) for n in range(50) for tenant in tenants))
        after = store.activity()
        assert after.commits - before.commits == 2
        assert after.operations - before.operations == 100
        assert ids[::2] == list(range(2, 52))

    with_store(body)


def test_a_new_tenant_s_calls_keep_their_order(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        assert await asyncio.gather(*(acme.enqueue("mail", n) for n in range(20))) == list(range(1, 21))
        assert payloads(await acme.claim("mail", 20)) == list(range(20))

    with_store(body)


def test_calls_made_while_a_batch_runs_are_the_next_batch(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        occupied = Occupied()
        first = asyncio.create_task(acme._call(occupied))
        await occupied.begun()
        before = store.activity().commits
        later = []
        for n in range(10):
            later.append(asyncio.create_task(acme.enqueue("mail", n)))
            await turn()
        occupied.may_end.set()
        await first
        assert [await task for task in later] == list(range(2, 12))
        assert store.activity().commits - before == 1

    with_store(body)


def test_each_call_has_its_own_error_and_the_others_stand(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.limit("full", max_depth=1)
        await acme.enqueue("full", 0)
        outcomes = await asyncio.gather(
            acme.enqueue("mail", 1),
            acme.enqueue("mail", 2, priority=2**80),
            acme.enqueue("full", 3),
            acme.enqueue("mail", object()),
            acme.emit("bad\0topic", 1),
            acme.enqueue("mail", 4),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes[1:5]] == [
            InvalidArgument,
            QueueFull,
            PayloadError,
            InvalidName,
        ]
        assert payloads(await acme.peek("mail")) == [1, 4]

    with_store(body)


def test_an_operation_that_fails_in_the_transaction_is_undone_alone(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 0)
        outcomes = await asyncio.gather(
            acme.enqueue("mail", 1),
            acme.emit("topic", 1),
            acme.emit("topic", 2),
            acme.enqueue_many("mail", iter([2, 3])),
            return_exceptions=True,
        )
        assert isinstance(outcomes[2], QueueFull)
        assert payloads(await acme.peek("mail")) == [0, 1, 2, 3]
        assert (await acme.outbox.position()).pending == 1

    with_store(body, max_outbox=1)


def test_of_a_batch_of_acks_the_held_ones_stand_and_the_lost_are_listed(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue_many("mail", range(4))
        messages = await acme.claim("mail", 4)
        await messages[1].ack()
        outcomes = await asyncio.gather(
            acme.ack(messages[0], messages[1]), messages[2].ack(), acme.enqueue("mail", 9), return_exceptions=True
        )
        assert isinstance(outcomes[0], LeaseLost)
        assert outcomes[0].lost == (messages[1].id,)
        assert outcomes[1] is None
        assert [message.settled for message in messages] == [True, True, True, False]
        assert (await acme.stats()).claimed == 1

    with_store(body)


def test_an_ack_whose_transaction_fails_leaves_its_message_unsettled(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue_many("mail", range(2))
        messages = await acme.claim("mail", 2)
        async with acme.transaction() as tx:
            await tx.execute("CREATE TRIGGER stop BEFORE DELETE ON queue BEGIN SELECT raise(ROLLBACK, 'no'); END")
        outcomes = await asyncio.gather(*(message.ack() for message in messages), return_exceptions=True)
        assert all(isinstance(outcome, tenantq.TenantqError) for outcome in outcomes), outcomes
        assert [message.settled for message in messages] == [False, False]

    with_store(body)


def test_send_takes_each_type_to_its_layer(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await asyncio.gather(acme.send(Mail(to="ada")), acme.send(Event(number=1)), acme.send(Passing(number=2)))
        (mail,) = await acme.claim("aio.mail")
        (passing,) = await store.memory.claim("aio.passing")
        assert mail.payload == Mail(to="ada")
        assert (passing.payload, passing.tenant) == (Passing(number=2), "acme")
        assert (await acme.stats()).outbox == 1
        assert [event.topic for event in await acme.outbox.read(0, limit=5, max_bytes=100)] == ["aio.event"]

    with_store(body)


def test_claims_of_one_turn_get_different_messages_in_one_commit(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue_many("mail", range(10))
        before = store.activity().commits
        claimed = await asyncio.gather(*(acme.claim("mail") for _ in range(12)))
        assert store.activity().commits - before == 1
        assert sorted(message.payload for messages in claimed for message in messages) == list(range(10))

    with_store(body)


def test_claims_that_find_nothing_commit_nothing(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 1)
        before = store.activity().commits
        assert await asyncio.gather(*(acme.claim("other") for _ in range(5))) == [[]] * 5
        assert store.activity().commits == before

    with_store(body)


def test_what_acts_on_messages_makes_no_tenant(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        assert await asyncio.gather(acme.claim("mail"), acme.resume("mail"), acme.purge("mail")) == [[], None, 0]
        assert "acme" not in store
        with pytest.raises(UnknownTenant):
            store.tenant("acme", create=False)

    with_store(body)


def test_an_operator_s_verbs_work_in_the_order_of_their_calls(with_store: WithStore, tmp_path: Path) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        added, purged, _kept = await asyncio.gather(
            acme.enqueue_many("mail", range(5)), acme.purge("mail"), acme.enqueue("mail", 9)
        )
        assert (len(added), purged) == (5, 5)
        copy = await acme.backup(tmp_path / "copy.db")
        assert [tenant async for tenant in store.tenants()] == ["acme"]
        assert await store.delete("acme")
        assert not await store.delete("acme")
        await store.restore("acme", copy)
        assert payloads(await acme.claim("mail")) == [9]

    with_store(body)
