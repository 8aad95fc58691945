"""What only the tenant's file promises; what every layer does is in tests/contract."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tenantq
from tenantq._file import STEP
from tenantq.errors import LeaseLost, UnknownTenant
from tenantq.testing import ManualClock
from tests.children import Child

Settle = Callable[[tenantq.Tenant, tenantq.Message[Any]], object]


def ack_in_transaction(tenant: tenantq.Tenant, message: tenantq.Message[Any]) -> None:
    with tenant.transaction() as tx:
        tx.ack(message)


VERBS: dict[str, Settle] = {
    "ack": lambda tenant, message: tenant.ack(message),
    "nack": lambda tenant, message: tenant.nack(message),
    "release": lambda tenant, message: tenant.release(message),
    "snooze": lambda tenant, message: tenant.release(message, delay=1),
    "extend": lambda tenant, message: tenant.extend(message, 1),
    "dead_letter": lambda tenant, message: tenant.dead_letter(message),
    "exchange": lambda tenant, message: tenant.exchange([message], "mail"),
    "transaction": ack_in_transaction,
}


def copied(tenant: tenantq.Tenant, target: Path) -> sqlite3.Connection:
    """Copy the file of a tenant that nobody has open; the machine's own SQLite may read it."""
    assert [path.name for path in tenant.path.parent.iterdir()] == [tenant.path.name]
    shutil.copy(tenant.path, target)
    return sqlite3.connect(target)


# Fencing


@pytest.mark.parametrize("verb", VERBS)
def test_a_delivery_whose_message_is_another_claims_of_the_same_worker_changes_nothing(
    acme: tenantq.Tenant,
    clock: ManualClock,
    verb: str,
) -> None:
    acme.enqueue_many("mail", [1, 2])
    (old,) = acme.claim("mail", lease=1, worker="pod-1")
    clock.advance(1)
    (new,) = acme.claim("mail", lease=60, worker="pod-1")
    assert new.id == old.id
    before = acme.stats()
    with pytest.raises(LeaseLost) as caught:
        VERBS[verb](acme, old)
    assert caught.value.lost == (old.id,)
    assert not old.settled
    assert acme.stats().queues == before.queues
    new.ack()


@pytest.mark.parametrize("verb", VERBS)
def test_a_delivery_that_was_ended_cannot_be_ended_again(acme: tenantq.Tenant, verb: str) -> None:
    acme.enqueue("mail", 1)
    (message,) = acme.claim("mail")
    message.ack()
    with pytest.raises(LeaseLost):
        VERBS[verb](acme, message)


@pytest.mark.parametrize("verb", VERBS)
def test_an_expired_lease_is_good_while_nobody_else_has_the_message(
    acme: tenantq.Tenant,
    clock: ManualClock,
    verb: str,
) -> None:
    acme.enqueue("mail", 1, max_attempts=5)
    (message,) = acme.claim("mail", lease=1)
    clock.advance(2)
    acme.claim("other")  # notices that the lease is over, and takes nothing
    VERBS[verb](acme, message)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("exchange", "transaction")])
def test_a_verb_on_a_deleted_tenant_does_not_bring_it_back(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    verb: str,
) -> None:
    acme.enqueue("mail", 1)
    (message,) = acme.claim("mail")
    store.delete("acme")
    with pytest.raises(LeaseLost):
        VERBS[verb](acme, message)
    assert acme.claim("mail") == []
    assert acme.exchange([], "mail") == []
    assert "acme" not in store


def test_another_tenants_message_is_not_ended(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    other = store.tenant("other")
    for tenant in (acme, other):
        tenant.enqueue("mail", 1)
    (mine,), (theirs,) = acme.claim("mail"), other.claim("mail")
    assert mine.id == theirs.id
    for verb in VERBS.values():
        with pytest.raises(LeaseLost):
            verb(acme, theirs)
    mine.ack()
    theirs.ack()


def test_a_message_that_was_only_read_holds_no_lease(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)
    (seen,) = acme.peek("mail")
    with pytest.raises(LeaseLost):
        seen.ack()
    for verb in VERBS.values():
        with pytest.raises(LeaseLost):
            verb(acme, seen)


def test_a_batch_takes_effect_for_what_is_held_and_lists_the_rest(
    acme: tenantq.Tenant, clock: ManualClock
) -> None:
    for verb in (acme.ack, acme.release):
        acme.enqueue_many("a", range(3))
        acme.enqueue_many("b", range(2))
        messages = acme.claim("a", 9) + acme.claim("b", 9)
        lost = [messages[1], messages[4]]
        for message in lost:
            acme.dead_letter(message)
            message.settled = False
        with pytest.raises(LeaseLost) as caught:
            verb(*messages)
        assert sorted(caught.value.lost) == sorted(message.id for message in lost)
        assert [message.settled for message in messages] == [True, False, True, True, False]
        assert acme.stats().claimed == 0
        acme.purge("a")
        acme.purge("b")


def test_no_messages_are_ended_by_nothing(acme: tenantq.Tenant) -> None:
    acme.ack()
    acme.release()
    assert not acme.path.exists()


# Claims and leases


def test_a_lease_lasts_from_the_claims_own_transaction(tmp_path: Path) -> None:
    with tenantq.open(tmp_path) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)
        with Child(
            """
            tenant = tenantq.open(sys.argv[1]).tenant("acme")
            with tenant.transaction() as tx:
                say("locked")
                hear()
            """,
            store.root,
        ) as child:
            assert child.heard() == "locked"
            lock_lasts = 0.3
            timer = threading.Timer(lock_lasts, child.say)
            timer.start()
            before = store.clock.now_ns()
            (message,) = acme.claim("mail", lease=0.2)
            timer.join()
        assert message.lease_expires_ns is not None
        assert message.lease_expires_ns - before >= lock_lasts * 1e9
        assert acme.stats().busy_waits == 1


def test_a_killed_workers_message_can_be_claimed_as_soon_as_its_lease_is_over(
    acme: tenantq.Tenant,
    clock: ManualClock,
) -> None:
    acme.enqueue("mail", 1)
    acme.claim("mail", lease=10)
    clock.advance(9.999)
    assert acme.claim("mail") == []
    assert acme.next_due() == pytest.approx(0.001)
    clock.advance(0.001)
    assert acme.next_due() == 0
    (message,) = acme.claim("mail")
    assert message.attempts == 2


def test_an_extended_lease_lasts_from_now(acme: tenantq.Tenant, clock: ManualClock) -> None:
    acme.enqueue("mail", 1)
    (message,) = acme.claim("mail", lease=10)
    clock.advance(9)
    message.extend(10)
    assert message.lease_expires_at == datetime(2026, 1, 1, 0, 0, 19, tzinfo=UTC)
    clock.advance(9)
    assert acme.claim("mail") == []
    message.extend(0.5)
    clock.advance(0.5)
    assert len(acme.claim("mail")) == 1


def test_a_poison_message_dies_after_its_attempts_without_any_reaper(
    acme: tenantq.Tenant, clock: ManualClock
) -> None:
    acme.enqueue("mail", "poison", max_attempts=3)
    attempts = []
    while claimed := acme.claim("mail", lease=1):
        attempts.append(claimed[0].attempts)
        clock.advance(1)
    assert attempts == [1, 2, 3]
    (dead,) = acme.dead_letters()
    assert (dead.attempts, dead.error) == (3, "the lease of the last attempt expired")


def test_a_claim_settles_more_than_one_step_of_what_is_due_first(acme: tenantq.Tenant, clock: ManualClock) -> None:
    acme.enqueue_many("mail", range(STEP + 10), delay=1)
    acme.enqueue("mail", "first", priority=1, delay=2)
    clock.advance(2)
    assert acme.claim("mail")[0].payload == "first"


def test_released_and_snoozed_attempts_are_not_counted(acme: tenantq.Tenant, clock: ManualClock) -> None:
    acme.enqueue("mail", 1, max_attempts=1)
    for _ in range(3):
        (message,) = acme.claim("mail")
        message.release()
        (message,) = acme.claim("mail")
        message.release(delay=5)
        assert acme.claim("mail") == []
        assert (acme.stats().scheduled, acme.next_due()) == (1, 5)
        clock.advance(5)
    (message,) = acme.claim("mail")
    assert message.attempts == 1
    message.nack(error="no")
    assert [dead.error for dead in acme.dead_letters()] == ["no"]


def test_a_released_message_keeps_its_place(acme: tenantq.Tenant, clock: ManualClock) -> None:
    acme.enqueue("mail", "first")
    clock.advance(1)
    acme.enqueue("mail", "second")
    (message,) = acme.claim("mail")
    message.release()
    assert [message.payload for message in acme.claim("mail", 2)] == ["first", "second"]


def test_a_failed_message_waits_for_its_backoff_with_its_error(acme: tenantq.Tenant, clock: ManualClock) -> None:
    acme.enqueue("mail", 1)
    for wait in (2, 4, 8):
        (message,) = acme.claim("mail")
        message.nack(error="boom\0\ud800")
        clock.advance(wait - 0.001)
        assert acme.claim("mail") == []
        clock.advance(0.001)
    (message,) = acme.claim("mail")
    assert message.error == "boom\N{SYMBOL FOR NULL}?"


def test_exchange_acks_and_claims_in_one_commit(acme: tenantq.Tenant) -> None:
    acme.enqueue_many("mail", range(5))
    held = acme.claim("mail", 2)
    commits = acme.stats().commits
    held = acme.exchange(held, "mail", 2, lease=5)
    assert [message.payload for message in held] == [2, 3]
    assert acme.stats().commits == commits + 1
    assert [message.payload for message in acme.exchange(held, "mail", 2)] == [4]
    assert acme.exchange([], "empty") == []


def test_exchange_claims_nothing_when_an_ack_is_lost(acme: tenantq.Tenant) -> None:
    acme.enqueue_many("mail", range(3))
    one, two = acme.claim("mail", 2)
    acme.dead_letter(one)
    with pytest.raises(LeaseLost) as caught:
        acme.exchange([one, two], "mail")
    assert caught.value.lost == (one.id,)
    assert two.settled
    assert [(queue.ready, queue.claimed) for queue in acme.stats().queues] == [(1, 0)]


def test_an_empty_claim_writes_nothing(acme: tenantq.Tenant) -> None:
    assert acme.claim("mail") == []
    assert not acme.path.exists()
    acme.enqueue("other", 1)
    commits = acme.stats().commits
    for _ in range(10):
        assert acme.claim("mail") == acme.exchange([], "mail") == []
    assert acme.stats().commits == commits


# Ids


def test_an_id_is_never_given_twice(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    seen = [acme.enqueue("mail", 1)]

    def grows() -> None:
        seen.append(acme.enqueue("mail", 1))
        assert seen[-1] > seen[-2]

    acme.ack(*acme.claim("mail"))
    grows()
    acme.purge("mail")
    grows()
    acme.dead_letter(*acme.claim("mail"))
    grows()
    acme.purge("mail")
    acme.purge_dead()
    grows()
    acme.purge("mail")
    with tenantq.open(store.root) as again:  # another connection gives one out and takes it away
        other = again.tenant("acme")
        seen.append(other.enqueue("other", 1))
        other.purge("other")
    grows()


def test_an_id_of_another_process_is_not_given_again(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    ids = [acme.enqueue("mail", 1)]
    with Child(
        """
        tenant = tenantq.open(sys.argv[1]).tenant("acme")
        while hear():
            id = tenant.enqueue("mail", 2)
            tenant.ack(*tenant.claim("mail", 100))
            say(id)
        """,
        store.root,
    ) as child:
        for _ in range(3):
            child.say("next")
            ids.append(int(child.heard()))
            ids.append(acme.enqueue("mail", 1))
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("how", ["inside", "outside"])
def test_a_row_that_was_inserted_by_hand_is_a_message_and_its_id_is_taken(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    how: str,
) -> None:
    sql = 'INSERT INTO queue (payload, visible_at, enqueued_at) VALUES (\'{"by": "hand"}\', 1, 1) RETURNING id'
    first = acme.enqueue("default", 1)
    if how == "inside":
        with acme.transaction() as tx:
            ((by_hand,),) = tx.execute(sql)
            then = tx.enqueue("default", 2)
    else:
        store.close()
        with closing(sqlite3.connect(acme.path)) as connection, connection:
            ((by_hand,),) = connection.execute(sql).fetchall()
        store = tenantq.open(store.root)
        acme = store.tenant("acme")
        then = acme.enqueue("default", 2)
    assert first < by_hand < then < acme.enqueue("default", 3)
    assert [message.id for message in acme.claim("default", 1)] == [by_hand]
    store.close()
    acme.path.unlink()  # the depths count only what tenantq inserts


# Keys


def test_a_key_is_the_live_messages_in_every_state(acme: tenantq.Tenant, clock: ManualClock) -> None:
    first = acme.enqueue("mail", 1, key="k", delay=10)
    assert acme.enqueue("mail", 2, key="k") == first
    clock.advance(10)
    (message,) = acme.claim("mail", lease=5)
    assert acme.enqueue("mail", 2, key="k", delay=1) == first
    clock.advance(5)
    assert acme.enqueue("mail", 2, key="k") == first
    (message,) = acme.claim("mail")
    message.nack()
    assert acme.enqueue("mail", 2, key="k") == first
    clock.advance(60)
    acme.dead_letter(*acme.claim("mail"))
    second = acme.enqueue("mail", 2, key="k")
    assert second > first
    assert acme.redrive(first) == 0
    acme.ack(*acme.claim("mail"))
    assert acme.redrive(first) == 1
    assert acme.enqueue("mail", 3, key="k") == first
    assert [(stats.ready, stats.dead) for stats in acme.stats().queues] == [(1, 0)]


# What an operator does


def test_redrive_and_purge_take_more_than_one_step(acme: tenantq.Tenant) -> None:
    count = STEP + 5
    acme.enqueue_many("mail", range(count), max_attempts=1)
    for message in acme.claim("mail", count):
        message.dead_letter()
    assert acme.redrive(queue="other") == 0
    assert acme.redrive(queue="mail") == count
    assert acme.purge("mail") == count
    assert acme.stats().ready == 0


def test_dead_letters_are_purged_of_one_queue_or_of_all(acme: tenantq.Tenant) -> None:
    for queue in ("a", "b", "c"):
        acme.enqueue(queue, 1)
        acme.dead_letter(*acme.claim(queue), error="no")
    assert acme.purge_dead("a") == 1
    assert [message.queue for message in acme.dead_letters()] == ["b", "c"]
    assert acme.purge_dead() == 2
    assert acme.stats().dead == 0


def test_peek_shows_what_is_ready_and_then_what_is_scheduled(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", "later", delay=20)
    acme.enqueue("mail", "soon", delay=10)
    acme.enqueue("mail", "low")
    acme.enqueue("mail", "high", priority=1)
    acme.enqueue("other", "other", delay=1)
    acme.enqueue("mail", "claimed", priority=9)
    acme.claim("mail")
    assert [message.payload for message in acme.peek("mail")] == ["high", "low", "soon", "later"]
    assert [message.payload for message in acme.peek("mail", 3)] == ["high", "low", "soon"]


def test_stats_say_how_each_queue_is(acme: tenantq.Tenant, clock: ManualClock) -> None:
    assert acme.stats() == tenantq.TenantStats(tenant="acme")
    assert not acme.path.exists()
    acme.enqueue("mail", 1)
    clock.advance(5)
    acme.enqueue("mail", 2, priority=7)
    acme.enqueue("later", 3, delay=10)
    acme.pause("stopped")
    acme.emit("topic", 1)
    clock.advance(1)
    stats = acme.stats()
    assert (stats.ready, stats.scheduled, stats.claimed, stats.dead, stats.outbox) == (2, 1, 0, 0, 1)
    assert stats.oldest_age == 6
    assert {queue.queue: queue.is_paused for queue in stats.queues} == {
        "later": False,
        "mail": False,
        "stopped": True,
    }
    assert stats.file_bytes > 0
    assert stats.wal_bytes > 0
    assert stats.commits == stats.operations == 5
    clock.advance(9)
    later = acme.stats().queues[0]
    assert (later.queue, later.ready, later.scheduled) == ("later", 1, 0)


def test_a_moment_is_kept_to_the_microsecond(acme: tenantq.Tenant, clock: ManualClock) -> None:
    at = datetime(2026, 1, 1, 0, 0, 1, 1, tzinfo=UTC)
    acme.enqueue("mail", 1, at=at)
    clock.advance(1)
    assert acme.claim("mail") == []
    clock.advance(0.000_001)
    (message,) = acme.claim("mail")
    assert message.visible_at == at
    assert message.enqueued_at == at - timedelta(seconds=1, microseconds=1)


# The file


def test_a_closed_tenant_is_one_file_that_any_sqlite_reads(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    tmp_path: Path,
) -> None:
    acme.enqueue("mail", {"to": "ada"}, priority=2)
    acme.enqueue("mail", b"\x00\xff")
    acme.claim("mail", worker="w-1")
    store.close()
    with closing(copied(acme, tmp_path / "copy.db")) as copy:
        rows = copy.execute(
            "SELECT id, payload, visible_at, claimed_by, claimed_at, attempts, enqueued_at FROM queue"
        )
        now = store.clock.now_ns()
        assert rows.fetchall() == [
            (1, '{"to":"ada"}', now, "w-1", now, 1, now),
            (2, b"\x00\xff", now, None, None, 0, now),
        ]
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert copy.execute("PRAGMA application_id").fetchone() == (0x746E7471,)
        assert copy.execute("PRAGMA user_version").fetchone() == (2,)


def test_a_file_is_for_its_owner_alone(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)
    assert {path.stat().st_mode & 0o777 for path in acme.path.parent.iterdir()} == {0o600}
    assert acme.path.parent.stat().st_mode & 0o777 == 0o700


def test_an_unknown_tenant_is_refused_without_create(store: tenantq.Store) -> None:
    with pytest.raises(UnknownTenant) as caught:
        store.tenant("nobody", create=False)
    assert caught.value.hint
    tenant = store.tenant("acme")
    tenant.enqueue("mail", 1)
    strict = store.tenant("acme", create=False)
    store.delete("acme")
    with pytest.raises(UnknownTenant):
        strict.enqueue("mail", 1)
    assert strict.claim("mail") == []
    assert "acme" not in store
