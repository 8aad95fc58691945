"""The bounds of a tenant's queues: whom they bind, what counts, and how producers wait for room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenantq
from tenantq import _producers
from tenantq.errors import InvalidArgument, InvalidName, PayloadError, QueueFull, StoreClosed, TransactionError
from tests.children import Child
from tests.core.test_handle import handle_of, together

PATIENCE = 20.0
"""What a call waits for room; one that is let in only then was not told of it."""


@tenantq.message("bounds.note")
class Note(msgspec.Struct):
    text: str


@tenantq.message("bounds.kept", durable=False)
class Kept(msgspec.Struct):
    text: str


@pytest.fixture
def no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for room by himself: a call that waits goes on because it is told, or never."""
    monkeypatch.setattr(_producers, "LOOK_INTERVAL", 1_000_000.0)


def line_of(tenant: tenantq.Tenant, queue: str) -> int:
    """Return how many calls stand behind the first that waits; -1 where none waits."""
    rooms = tenant.store.rooms
    if not rooms.is_waited_for(tenant.id, queue):
        return -1
    room = rooms.room(tenant.id, queue)
    return len(room.waiting) if room._is_full else -1  # the first has looked


def told(call: Callable[[], Any]) -> Any:
    """Make a call, which is not to be let in by its own last look."""
    began = time.monotonic()
    result = call()
    assert time.monotonic() - began < PATIENCE, "nobody told of room"
    return result


@contextmanager
def blocked(tenant: tenantq.Tenant, *calls: Callable[[], Any], queue: str = "mail") -> Iterator[list[Future[Any]]]:
    """Have calls wait for room, in this order; they stand in line when the block begins."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = []
        for number, call in enumerate(calls):
            futures.append(pool.submit(told, call))
            while line_of(tenant, queue) < number:
                threading.Event().wait(0.001)
        yield futures


def put(tenant: tenantq.Tenant, payload: object, *, queue: str = "mail", **options: Any) -> Callable[[], int]:
    return lambda: tenant.enqueue(queue, payload, wait=PATIENCE, **options)


# Whom a bound binds


def test_a_queue_holds_no_more_than_its_bound_and_others_do_not_care(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=2)
    acme.enqueue_many("mail", range(2))
    with pytest.raises(QueueFull, match="queue 'mail' of tenant 'acme' is full: it holds 2 of 2") as caught:
        acme.enqueue("mail", 3)
    full = caught.value
    assert (full.tenant, full.queue, full.depth, full.max_depth) == ("acme", "mail", 2, 2)
    assert full.hint
    acme.enqueue_many("other", range(10))
    assert acme.stats().ready == 12


def test_a_tenant_holds_no_more_than_its_bound_in_all_its_queues(acme: tenantq.Tenant) -> None:
    acme.limit(max_depth=3)
    acme.enqueue_many("mail", range(2))
    acme.enqueue("other", 3)
    with pytest.raises(QueueFull, match="tenant 'acme' is full: it holds 3 of 3") as caught:
        acme.enqueue("third", 4)
    assert (caught.value.queue, caught.value.depth, caught.value.max_depth) == ("third", 3, 3)
    acme.ack(*acme.claim("mail"))
    acme.enqueue("third", 4)


def test_a_queue_without_a_bound_of_its_own_has_the_stores(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_depth=1) as store:
        acme, globex = store.tenant("acme"), store.tenant("globex")
        acme.limit("large", max_depth=2)
        acme.enqueue_many("large", range(2))
        acme.enqueue("small", 1)
        globex.enqueue("large", 1)
        for tenant, queue in ((acme, "large"), (acme, "small"), (globex, "large")):
            with pytest.raises(QueueFull):
                tenant.enqueue(queue, 3)
        acme.limit("large", max_depth=None)
        acme.ack(*acme.claim("large", 2))
        acme.enqueue("large", 1)
        with pytest.raises(QueueFull):
            acme.enqueue("large", 2)


@pytest.mark.parametrize("max_depth", [0, -1, 1.5, True, "9"])
def test_what_is_no_bound_is_refused(acme: tenantq.Tenant, tmp_path: Path, max_depth: Any) -> None:
    with pytest.raises(InvalidArgument):
        acme.limit("mail", max_depth=max_depth)
    with pytest.raises(InvalidArgument):
        tenantq.open(tmp_path, max_depth=max_depth)
    with pytest.raises(InvalidName):
        acme.limit("", max_depth=1)


def test_stats_say_the_bounds(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_depth=9) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)
        acme.limit("report", max_depth=5)
        assert {queue.queue: queue.max_depth for queue in acme.stats().queues} == {"mail": 9, "report": 5}
        assert acme.stats().max_depth is None
        acme.limit(max_depth=7)
        assert acme.stats().max_depth == 7
    with tenantq.open(tmp_path) as store:
        acme = store.tenant("acme")
        assert {queue.queue: queue.max_depth for queue in acme.stats().queues} == {"mail": None, "report": 5}
        assert acme.stats().max_depth == 7


def test_a_bound_binds_the_processes_that_have_the_tenant_open(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)
    with Child(
        """
        tenant = tenantq.open(sys.argv[1]).tenant("acme")
        tenant.enqueue("mail", 2)
        say("open")
        while command := hear():
            try:
                say(tenant.enqueue("mail", 3))
            except tenantq.QueueFull as exc:
                say("full", exc.depth, exc.max_depth)
        """,
        acme.store.root,
    ) as child:
        assert child.heard() == "open"
        acme.limit("mail", max_depth=2)
        child.say("enqueue")
        assert child.heard() == "full 2 2"
        acme.limit("mail", max_depth=None)
        child.say("enqueue")
        assert child.heard() == "3"
        child.say()


def test_a_bound_survives_a_backup(acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 1)
    copy = acme.backup(tmp_path / "acme.db")
    acme.store.restore("acme", copy)
    with pytest.raises(QueueFull):
        acme.enqueue("mail", 2)


# What counts


def test_dead_letters_and_events_take_no_room(acme: tenantq.Tenant) -> None:
    acme.limit(max_depth=1)
    acme.enqueue("mail", 1)
    acme.dead_letter(*acme.claim("mail"))
    acme.emit("topic", 1)
    acme.enqueue("mail", 2)
    acme.emit("topic", 2)
    with pytest.raises(QueueFull):
        acme.enqueue("mail", 3)


def test_what_was_dead_comes_back_into_a_full_queue(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 1)
    acme.dead_letter(*acme.claim("mail"))
    acme.enqueue("mail", 2)
    assert acme.redrive() == 1
    assert acme.stats().ready == 2
    for _ in range(2):
        with pytest.raises(QueueFull):
            acme.enqueue("mail", 3)
        acme.ack(*acme.claim("mail"))
    acme.enqueue("mail", 3)


def test_a_lower_bound_takes_nothing_out(acme: tenantq.Tenant) -> None:
    acme.enqueue_many("mail", range(5))
    acme.limit("mail", max_depth=2)
    with pytest.raises(QueueFull) as caught:
        acme.enqueue("mail", 6)
    assert (caught.value.depth, caught.value.max_depth) == (5, 2)
    assert len(acme.claim("mail", 10)) == 5


def test_a_batch_larger_than_the_bound_is_refused_at_once_and_told_why(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=3)
    with pytest.raises(QueueFull, match="at most 3 messages, not 4 at once") as caught:
        acme.enqueue_many("mail", range(4), wait=600)
    assert "enqueue fewer at once" in caught.value.hint
    assert acme.stats().ready == 0


def test_what_a_bound_counts_is_what_is_in_the_file(acme: tenantq.Tenant, clock: Any) -> None:
    acme.limit("mail", max_depth=4)
    acme.enqueue_many("mail", range(2), max_attempts=1)
    acme.enqueue("mail", 2, delay=30)
    acme.claim("mail", 2, lease=10)
    clock.advance(20)
    assert acme.claim("mail") == []  # the two are dead
    acme.enqueue_many("mail", range(3))
    with pytest.raises(QueueFull):
        acme.enqueue("mail", 1)
    with pytest.raises(PayloadError):
        acme.enqueue("mail", object())


# Transactions and group commit


def test_a_transaction_is_refused_at_once_and_stays_whole(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=2)
    with acme.transaction() as tx:
        tx.execute("CREATE TABLE app (a)")
        tx.enqueue("mail", 1)
        tx.enqueue("mail", 2)
        for refused in (lambda: tx.enqueue("mail", 3), lambda: tx.enqueue_many("mail", [3])):
            with pytest.raises(QueueFull) as caught:
                refused()
            assert (caught.value.tenant, caught.value.depth) == ("acme", 2)
        tx.execute("INSERT INTO app VALUES (1)")
    assert acme.stats().ready == 2
    with pytest.raises(QueueFull), acme.transaction() as tx:
        tx.execute("INSERT INTO app VALUES (2)")
        tx.enqueue("mail", 3)
    with acme.transaction() as tx:
        assert tx.execute("SELECT a FROM app") == [(1,)]


def test_a_transaction_counts_what_it_adds_to_other_queues_for_the_tenants_bound(acme: tenantq.Tenant) -> None:
    acme.limit(max_depth=3)
    acme.enqueue("mail", 1)
    with acme.transaction() as tx:
        tx.enqueue("mail", 2)
        tx.enqueue("other", 3, delay=60)
        with pytest.raises(QueueFull, match="tenant 'acme' is full: it holds 3 of 3"):
            tx.enqueue("third", 4)
    assert acme.stats().ready + acme.stats().scheduled == 3


def test_an_ack_in_a_transaction_makes_room_in_it(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 1)
    (held,) = acme.claim("mail")
    with acme.transaction() as tx:
        tx.ack(held)
        tx.enqueue("mail", 2)
    assert [message.payload for message in acme.peek("mail")] == [2]


def test_a_transaction_that_is_undone_gives_its_room_back(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    with pytest.raises(ZeroDivisionError), acme.transaction() as tx:
        tx.enqueue("mail", 1)
        raise ZeroDivisionError
    acme.enqueue("mail", 2)


def test_a_call_that_waits_is_refused_inside_of_this_threads_transaction(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 1)
    with blocked(acme, put(acme, 2)):
        with acme.transaction(), pytest.raises(TransactionError):
            acme.enqueue("mail", 3, wait=PATIENCE)
        acme.purge("mail")


def test_a_full_queue_fails_no_other_call_of_a_group_commit_and_undoes_nothing(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=3)
    acme.enqueue("mail", 0)
    (held,) = acme.claim("mail")
    before, rollbacks = acme.stats(), []
    file = handle_of(acme).file
    rollback = file.rollback

    def counted_rollback() -> None:
        rollbacks.append(1)
        rollback()

    def arm() -> None:
        file.rollback = counted_rollback  # type: ignore[method-assign]

    mails = [lambda: acme.enqueue("mail", 1)] * 6
    with together(acme, *mails, lambda: acme.enqueue("other", 1), lambda: held.extend(60), before_commit=arm) as (
        *enqueued,
        other,
        extended,
    ):
        outcomes = [future.exception() or future.result() for future in enqueued]
        assert sum(isinstance(outcome, QueueFull) for outcome in outcomes) == 4
        assert sum(isinstance(outcome, int) for outcome in outcomes) == 2
        assert isinstance(other.result(), int)
        assert extended.result() is None
    after = acme.stats()
    assert len(rollbacks) == 1, "of `together` itself"
    assert after.commits - before.commits == 1
    assert (after.ready, after.claimed) == (3, 1)


# Waiting for room


@pytest.mark.usefixtures("no_look")
@pytest.mark.parametrize(
    "how",
    ["ack", "exchange", "transaction", "dead_letter", "exhausted", "purge", "raise", "remove", "ack many"],
)
@pytest.mark.parametrize("of_tenant", [False, True])
def test_a_call_that_waits_is_told_of_room(live: tenantq.Store, how: str, of_tenant: bool) -> None:
    acme = live.tenant("acme")
    acme.limit(None if of_tenant else "mail", max_depth=2)
    acme.enqueue("mail", 1, max_attempts=1)
    acme.enqueue("mail", 2)
    held = acme.claim("mail", 2, lease=0.01 if how == "exhausted" else 60)
    with blocked(acme, put(acme, 3)) as (waiting,):
        match how:
            case "ack":
                acme.ack(held[1])
            case "ack many":
                acme.ack(*held)
            case "exchange":
                acme.exchange(held, "mail")
            case "transaction":
                with acme.transaction() as tx:
                    tx.ack(held[0])
            case "dead_letter":
                held[1].dead_letter()
            case "exhausted":
                while not acme.reap():
                    pass
            case "purge":
                acme.purge("mail")
            case "raise":
                acme.limit(None if of_tenant else "mail", max_depth=3)
            case "remove":
                acme.limit(None if of_tenant else "mail", max_depth=None)
        assert waiting.result() == 3
    assert tenantq.verify(acme.path).ok


@pytest.mark.usefixtures("no_look")
def test_a_batch_waits_until_there_is_room_for_all_of_it(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=4)
    acme.enqueue_many("mail", range(4))
    with blocked(acme, lambda: acme.enqueue_many("mail", range(4), wait=PATIENCE)) as (waiting,):
        for _ in range(4):
            assert not waiting.done()
            acme.ack(*acme.claim("mail"))
        assert waiting.result() == [5, 6, 7, 8]


@pytest.mark.usefixtures("no_look")
def test_calls_that_wait_are_served_in_the_order_in_which_they_came(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 0)
    with blocked(acme, *[put(acme, number) for number in range(1, 9)]) as futures:
        for number, future in enumerate(futures, 1):
            acme.ack(*acme.claim("mail"))
            assert future.result() == number + 1
    assert acme.stats().ready == 1


@pytest.mark.usefixtures("no_look")
def test_calls_that_wait_are_let_in_together_when_there_is_room(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=20)
    acme.enqueue_many("mail", range(20))
    with blocked(acme, *[put(acme, number) for number in range(20)]) as futures:
        before = acme.stats().commits
        acme.ack(*acme.claim("mail", 20))
        assert [future.result() for future in futures] == list(range(21, 41))
        assert acme.stats().commits - before == 3, "the claim, the ack, and all of them"


@pytest.mark.usefixtures("no_look")
def test_a_large_batch_is_not_overtaken_by_calls_that_came_later(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=3)
    acme.enqueue_many("mail", range(3))
    with blocked(acme, lambda: acme.enqueue_many("mail", range(3), wait=PATIENCE), put(acme, "late")) as (
        batch,
        late,
    ):
        acme.ack(*acme.claim("mail", 2))
        assert not batch.done()
        assert not late.done()
        acme.ack(*acme.claim("mail"))
        assert batch.result() == [4, 5, 6]
        acme.ack(*acme.claim("mail"))
        assert late.result() == 7


@pytest.mark.usefixtures("no_look")
def test_who_gives_up_makes_way_for_those_behind(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=2)
    acme.enqueue_many("mail", range(1))
    calls = (lambda: acme.enqueue_many("mail", range(2), wait=0.3), put(acme, "small"))
    with blocked(acme, *calls) as (giving_up, small):
        with pytest.raises(QueueFull):
            giving_up.result()
        assert small.result() == 2


@pytest.mark.usefixtures("no_look")
def test_a_call_gives_up_in_the_middle_of_the_line(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 0)
    calls = (put(acme, 1), lambda: acme.enqueue("mail", 2, wait=0.2), put(acme, 3))
    with blocked(acme, *calls) as (first, second, third):
        with pytest.raises(QueueFull, match="1 of 1"):
            second.result()
        for future in (first, third):
            acme.ack(*acme.claim("mail"))
            future.result()
    assert [message.payload for message in acme.peek("mail")] == [3]


@pytest.mark.usefixtures("no_look")
def test_a_call_that_fails_in_line_fails_alone(acme: tenantq.Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    acme.limit("mail", max_depth=3)
    acme.enqueue_many("mail", range(3))
    file = handle_of(acme).file
    enqueue = file.enqueue

    def fail_for_two(queue: str, bodies: Any, **options: Any) -> Any:
        if bodies == ["2"]:
            raise PayloadError("no")
        return enqueue(queue, bodies, **options)

    monkeypatch.setattr(file, "enqueue", fail_for_two)
    with blocked(acme, put(acme, 1), put(acme, 2), put(acme, 3)) as (first, second, third):
        acme.ack(*acme.claim("mail", 3))
        assert isinstance(second.exception(), PayloadError)
        assert third.result() > first.result() > 3
    assert acme.stats().ready == 2


@pytest.mark.usefixtures("no_look")
def test_a_key_that_is_there_does_not_stand_in_line(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    first = acme.enqueue("mail", 1, key="k")
    with blocked(acme, put(acme, 2, key="other")) as (waiting,):
        assert acme.enqueue("mail", 3, key="k", wait=PATIENCE) == first
        assert acme.enqueue("mail", 3, key="k") == first
        acme.ack(*acme.claim("mail"))
        second = waiting.result()
    assert acme.enqueue("mail", 4, key="other", wait=PATIENCE) == second


@pytest.mark.usefixtures("no_look")
def test_what_no_room_would_change_does_not_stand_in_line(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=2)
    acme.enqueue_many("mail", range(2))
    with blocked(acme, put(acme, 2)):
        with pytest.raises(QueueFull, match="at most 2 messages, not 3 at once"):
            acme.enqueue_many("mail", range(3), wait=PATIENCE)
        assert acme.enqueue_many("mail", [], wait=PATIENCE) == []
        acme.purge("mail")


@pytest.mark.usefixtures("no_look")
def test_a_call_that_a_lower_bound_shuts_out_for_good_waits_no_longer(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=4)
    acme.enqueue_many("mail", range(3))
    with blocked(acme, lambda: acme.enqueue_many("mail", range(3), wait=PATIENCE), put(acme, 1)) as (batch, one):
        acme.limit("mail", max_depth=2)
        assert isinstance(batch.exception(), QueueFull)
        acme.purge("mail")
        one.result()


def test_calls_that_wait_for_different_queues_do_not_wait_for_each_other(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    acme.limit("other", max_depth=1)
    acme.enqueue("mail", 1)
    acme.enqueue("other", 1)
    with (
        blocked(acme, put(acme, 2)) as (mail,),
        blocked(acme, put(acme, 2, queue="other"), queue="other") as (other,),
    ):
        acme.ack(*acme.claim("other"))
        assert other.result() == 3
        assert not mail.done()
        acme.ack(*acme.claim("mail"))
        assert mail.result() == 4


def test_room_that_nobody_told_of_is_found(acme: tenantq.Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acme.store._room_bell, "ring", lambda slot: None)
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 1)
    with blocked(acme, put(acme, 2)) as (waiting,):
        acme.ack(*acme.claim("mail"))
        assert waiting.result() == 2


def test_nobody_is_told_of_what_leaves_a_queue_without_a_bound(
    acme: tenantq.Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[int] = []
    monkeypatch.setattr(acme.store._room_bell, "ring", rung.append)
    acme.enqueue_many("mail", range(2))
    acme.ack(*acme.claim("mail"))
    acme.limit("other", max_depth=1)
    rung.clear()
    acme.ack(*acme.claim("mail"))
    assert rung == []


def test_a_large_queue_tells_of_a_share_of_room_and_not_of_every_message(
    acme: tenantq.Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme.limit("mail", max_depth=1600)
    acme.enqueue_many("mail", range(1600))
    held = acme.claim("mail", 1600)
    acme.ack(held.pop())
    rung: list[int] = []
    monkeypatch.setattr(acme.store._room_bell, "ring", rung.append)
    monkeypatch.setattr("tenantq._bounds.RING_INTERVAL", 1_000_000.0)
    for _ in range(99):
        acme.ack(held.pop())
    assert rung == []
    acme.ack(held.pop())
    assert len(rung) == 1
    monkeypatch.setattr("tenantq._bounds.RING_INTERVAL", 0.0)
    acme.ack(held.pop())
    assert len(rung) == 2
    monkeypatch.setattr("tenantq._bounds.RING_INTERVAL", 1_000_000.0)
    acme.ack(*held)
    assert len(rung) == 3


def test_a_wait_ends_with_the_store(tmp_path: Path) -> None:
    store = tenantq.open(tmp_path)
    acme = store.tenant("acme")
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 1)
    with blocked(acme, put(acme, 2), put(acme, 3)) as futures:
        store.close()
        assert all(isinstance(future.exception(), StoreClosed) for future in futures)


def test_a_wait_outlives_the_eviction_of_the_file(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 1)
    with blocked(acme, put(acme, 2), put(acme, 3)) as (first, second):
        with acme.store.exclusive("acme"):
            pass
        acme.ack(*acme.claim("mail"))
        assert first.result() == 2
        acme.ack(*acme.claim("mail"))
        assert second.result() == 3


def test_send_waits_for_room_in_the_layer_that_it_goes_to(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_depth=1, memory_depth=1) as store:
        acme = store.tenant("acme")
        for message, queue in ((Note("a"), "bounds.note"), (Kept("a"), "bounds.kept")):
            acme.send(message)
            with pytest.raises(QueueFull):
                acme.send(message, wait=0.01)
            source: Any = acme if isinstance(message, Note) else store.memory
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(acme.send, message, wait=PATIENCE)
                source.ack(*source.claim(queue))
                assert waiting.result() == 2


# Many processes

PRODUCER = """
import time
from tenantq import _producers
_producers.LOOK_INTERVAL = 1_000_000.0
tenant = tenantq.open(sys.argv[1]).tenant("acme")
for number in range(int(sys.argv[2])):
    began = time.monotonic()
    message_id = tenant.enqueue("mail", [os.getpid(), number], wait=30)
    assert time.monotonic() - began < 30, "nobody told of room"
    say(message_id)
"""


@pytest.mark.usefixtures("no_look")
def test_an_ack_wakes_the_producer_of_another_process(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 0)
    with Child(PRODUCER, acme.store.root, 20) as child:
        for number in range(20):
            acme.ack(*acme.claim("mail", wait=PATIENCE))
            assert child.heard() == str(number + 2)
        assert child.end() == 0


def test_producers_of_many_processes_keep_the_bound_and_lose_nothing(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=7)
    children = [Child(PRODUCER, acme.store.root, 60) for _ in range(3)]
    try:
        received: list[int] = []
        while len(received) < 180:
            held = acme.claim("mail", 3, wait=PATIENCE)
            assert held, "they are woken by each ack, and by nothing else"
            stats = acme.stats()
            assert stats.ready + stats.claimed <= 7
            received += [message.id for message in held]
            acme.ack(*held)
        given = [int(line) for child in children for line in child.heard_all()]
        assert [child.end() for child in children] == [0, 0, 0]
    finally:
        for child in children:
            child.__exit__(None, None, None)
    assert sorted(given) == sorted(received)
    assert acme.stats().ready == 0


def test_the_room_of_a_killed_consumers_messages_comes_back_with_their_leases(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.limit("mail", max_depth=2)
    acme.enqueue_many("mail", range(2))
    with Child(
        """
        held = tenantq.open(sys.argv[1]).tenant("acme").claim("mail", 2, lease=0.2)
        stop_here("claimed")
        """,
        live.root,
    ) as consumer:
        assert consumer.heard() == "claimed"
        with blocked(acme, put(acme, 3)) as (waiting,):
            consumer.kill()
            assert not waiting.done()
            acme.ack(*acme.claim("mail", 2, wait=PATIENCE))
            assert waiting.result() == 3


def test_a_consumer_killed_before_it_could_tell_of_room_stops_nobody(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 1)
    with (
        Child(
            """
        from tenantq._sqlite import Database
        tenant = tenantq.open(sys.argv[1]).tenant("acme")
        held = tenant.claim("mail")
        commit = Database.commit
        def commit_and_stop(self):
            commit(self)
            stop_here("committed")
        Database.commit = commit_and_stop
        hear()
        tenant.ack(*held)
        """,
            acme.store.root,
        ) as consumer,
        blocked(acme, put(acme, 2)) as (waiting,),
    ):
        consumer.say()
        assert consumer.heard() == "committed"
        consumer.kill()
        assert waiting.result() == 2


def test_a_killed_producer_leaves_room_to_the_others(acme: tenantq.Tenant) -> None:
    acme.limit("mail", max_depth=1)
    acme.enqueue("mail", 0)
    with Child(
        """
        tenant = tenantq.open(sys.argv[1]).tenant("acme")
        rooms = tenant.store.rooms
        threading.Thread(target=lambda: tenant.enqueue("mail", 1, wait=60), daemon=True).start()
        while not rooms.is_waited_for("acme", "mail"):
            pass
        stop_here("waiting")
        """,
        acme.store.root,
    ) as producer:
        assert producer.heard() == "waiting"
        producer.kill()
    with blocked(acme, put(acme, 2)) as (waiting,):
        acme.ack(*acme.claim("mail"))
        assert waiting.result() == 2
