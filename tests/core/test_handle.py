"""Group commit: the calls of many threads in one transaction, each as if it were alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tenantq
from tenantq import _handle, _line
from tenantq._file import TenantFile
from tenantq._handle import Handle
from tenantq.errors import DiskFull, FileReplaced, InvalidArgument, LeaseLost, TenantBusy, TransactionError
from tests.children import Child


def handle_of(tenant: tenantq.Tenant) -> Handle:
    handle = tenant._open(create=True)
    assert handle is not None
    return handle


@contextmanager
def together(
    tenant: tenantq.Tenant,
    *calls: Callable[[], Any],
    before_commit: Callable[[], object] = lambda: None,
) -> Iterator[list[Future[Any]]]:
    """Have the calls wait for a busy file, so that whoever gets it first commits them all in one transaction."""
    handle = handle_of(tenant)
    handle.begin()
    with ThreadPoolExecutor(len(calls)) as pool:
        try:
            futures = [pool.submit(call) for call in calls]
            while len(handle._line.waiting) < len(calls):
                threading.Event().wait(0.001)
            before_commit()
        finally:
            handle.end(commit=False)
        yield futures


def test_calls_that_wait_for_a_busy_file_are_committed_together(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 0)
    before = acme.stats()
    with together(acme, *[lambda: acme.enqueue("mail", 1)] * 8) as futures:
        ids = [future.result() for future in futures]
    after = acme.stats()
    assert sorted(ids) == list(range(2, 10))
    assert (after.commits - before.commits, after.operations - before.operations) == (1, 8)


def insert(file: TenantFile, *bodies: Any) -> list[int]:
    ids = file.enqueue("mail", bodies, now=1, visible_at=1, priority=0, max_attempts=1, key=None, headers=None)
    assert isinstance(ids, list)
    return ids


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_call_that_comes_before_the_commit_goes_along_and_fails_alone(
    acme: tenantq.Tenant,
    is_sound: bool,
) -> None:
    acme.enqueue("mail", 0)
    before = acme.stats()
    late: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as pool:

        def first(file: TenantFile) -> list[int]:
            if not late:
                late.append(pool.submit(acme._write, lambda file: insert(file, "1" if is_sound else 2**70)))
                while not handle_of(acme)._line.waiting:
                    threading.Event().wait(0.001)
            return insert(file, "0")

        ids = acme._write(first)
        assert (late[0].exception() is None) == is_sound
    after = acme.stats()
    assert after.ready == 2 + is_sound
    assert after.commits - before.commits == 1
    assert {1, *ids} == {message.id for message in acme.peek("mail") if message.payload == 0}


def test_alike_calls_that_are_inserted_in_one_go_return_each_its_own_ids(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", "before")
    calls: list[Callable[[], Any]] = [
        *(lambda number=number: acme.enqueue_many("mail", [number] * number) for number in range(4)),
        lambda: acme.enqueue("mail", "urgent", priority=1),
        lambda: acme.enqueue("mail", "keyed", key="k"),
        lambda: acme.enqueue("mail", "keyed", key="k"),
    ]
    with together(acme, *calls) as futures:
        *many, urgent, keyed, again = [future.result() for future in futures]
    with acme.transaction() as tx:
        kept: dict[int, str] = dict(tx.execute("SELECT id, payload FROM queue"))
    assert [[kept[id_] for id_ in ids] for ids in many] == [[str(number)] * number for number in range(4)]
    assert (kept[urgent], kept[keyed]) == ('"urgent"', '"keyed"')
    assert keyed == again
    assert len(kept) == 1 + 6 + 2


def test_a_call_that_fails_is_undone_alone(acme: tenantq.Tenant) -> None:
    acme.enqueue_many("mail", range(2))
    held, lost = acme.claim("mail", 2)
    acme.ack(lost)

    def fail(file: TenantFile) -> None:
        insert(file, "half", 2**70)

    calls: list[Callable[[], Any]] = [
        lambda: acme.enqueue("mail", "before"),
        lambda: acme._write(fail),
        lambda: acme.ack(lost),
        lambda: acme.ack(held),
        lambda: acme.enqueue("mail", "after"),
    ]
    with together(acme, *calls) as futures:
        assert isinstance(futures[1].exception(), InvalidArgument)
        assert isinstance(futures[2].exception(), LeaseLost)
        assert futures[3].result() is None
        assert len({futures[0].result(), futures[4].result()}) == 2
    assert sorted(message.payload for message in acme.peek("mail")) == ["after", "before"]
    assert (acme.stats().ready, acme.stats().claimed) == (2, 0)


def test_one_call_that_is_too_large_for_the_disk_fails_alone(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", "x" * 4000)
    with acme.transaction() as tx:
        ((pages,),) = tx.execute("PRAGMA page_count")
    database = handle_of(acme).file.database
    database.execute(f"PRAGMA max_page_count = {pages + 10}")
    calls = [lambda: acme.enqueue("mail", "small"), lambda: acme.enqueue("mail", "x" * 400_000)]
    with together(acme, *calls, *[calls[0]] * 3) as futures:
        assert isinstance(futures[1].exception(), DiskFull)
        for future in (futures[0], *futures[2:]):
            assert future.result() > 1
    assert acme.stats().ready == 5
    database.execute("PRAGMA max_page_count = 1000000")
    acme.enqueue("mail", "x" * 400_000)


def test_many_threads_get_distinct_ids_that_are_there(acme: tenantq.Tenant) -> None:
    def enqueue_some(number: int) -> list[int]:
        ids = []
        for index in range(100):
            ids.append(acme.enqueue(f"queue-{number % 3}", [number, index]))
            if index % 10 == 0:
                with pytest.raises(LeaseLost):
                    acme.ack(*acme.peek(f"queue-{number % 3}", 1))
            if index % 25 == 0:
                with acme.transaction() as tx:
                    ids.append(tx.enqueue("tx", [number, index]))
        return ids

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(enqueue_some, range(8)))
    given = [id_ for ids in results for id_ in ids]
    assert len(given) == len(set(given)) == 8 * 104
    assert all(ids == sorted(ids) for ids in results)
    with acme.transaction() as tx:
        assert tx.execute("SELECT id FROM queue ORDER BY id") == [(id_,) for id_ in sorted(given)]
    assert acme.stats().operations >= acme.stats().commits


def test_threads_share_out_the_messages_and_none_gets_one_twice(acme: tenantq.Tenant) -> None:
    ids = acme.enqueue_many("mail", range(400))

    def work_off(_number: int) -> list[int]:
        done: list[int] = []
        held = acme.claim("mail", 3)
        while held:
            done += [message.id for message in held]
            held = acme.exchange(held, "mail", 3)
        return done

    with ThreadPoolExecutor(6) as pool:
        handled = [id_ for done in pool.map(work_off, range(6)) for id_ in done]
    assert sorted(handled) == ids
    assert acme.stats().ready == acme.stats().claimed == 0


class Interrupt(BaseException):
    """What a signal handler may raise anywhere."""


def test_an_interrupt_behind_the_commit_repeats_nobodys_call(
    acme: tenantq.Tenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acme.enqueue("mail", 0)
    file = handle_of(acme).file
    commit = file.database.commit

    def commit_and_interrupt() -> None:
        monkeypatch.undo()
        commit()
        raise Interrupt

    def arm() -> None:
        monkeypatch.setattr(file.database, "commit", commit_and_interrupt)

    with together(acme, *[lambda: acme.enqueue("mail", 1)] * 4, before_commit=arm) as futures:
        outcomes = [future.exception() or future.result() for future in futures]
    assert sum(isinstance(outcome, Interrupt) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 3
    assert acme.stats().ready == 5


@pytest.mark.parametrize("point", ["begin", "operation", "commit", "rollback"])
@pytest.mark.parametrize("merged", [False, True])
def test_an_interrupt_leaves_no_lock_and_no_transaction(
    acme: tenantq.Tenant,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    merged: bool,
) -> None:
    acme.enqueue("mail", 0)
    database = handle_of(acme).file.database
    begin, rollback = database.begin, database.rollback

    def interrupt() -> None:
        raise Interrupt

    def begin_and_interrupt() -> None:
        begin()
        interrupt()

    def rollback_late() -> None:
        monkeypatch.setattr(database, "rollback", rollback)
        interrupt()

    def arm() -> None:
        match point:
            case "begin":
                monkeypatch.setattr(database, "begin", begin_and_interrupt)
            case "commit":
                monkeypatch.setattr(database, "commit", interrupt)

    def operation(file: TenantFile) -> None:
        insert(file, "no")
        if point == "rollback":
            monkeypatch.setattr(database, "rollback", rollback_late)
        if point in ("operation", "rollback"):
            interrupt()

    if merged:
        with together(acme, lambda: acme._write(operation), before_commit=arm) as (future,):
            assert isinstance(future.exception(), Interrupt)
    else:
        arm()
        with pytest.raises(Interrupt):
            acme._write(operation)
    monkeypatch.undo()
    acme.enqueue("mail", 1)
    assert [message.payload for message in acme.peek("mail")] == [0, 1]
    assert not database.in_transaction


def test_an_interrupted_waiters_call_is_made_by_nobody(
    acme: tenantq.Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting:
        def acquire(self, timeout: float = -1) -> bool:
            raise Interrupt

    def interrupted(operation: Any) -> _line.Waiting[Any]:
        waiting = waiting_type(operation)
        waiting.wake = Interrupting()  # type: ignore[assignment]
        return waiting

    handle, waiting_type = handle_of(acme), _line.Waiting
    assert handle._line.try_take()
    monkeypatch.setattr(_handle, "Waiting", interrupted)
    with pytest.raises(Interrupt):
        acme.enqueue("mail", "nobody waits for it")
    handle._line.hand_over()
    monkeypatch.undo()
    acme.enqueue("mail", 1)
    assert acme.stats().ready == 1


def test_a_locked_file_is_waited_for_once_by_all_that_wait_together(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, busy_timeout=0.5) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 0)
        with Child(
            """
            tenant = tenantq.open(sys.argv[1]).tenant("acme")
            with tenant.transaction() as tx:
                say("locked")
                hear()
            """,
            tmp_path,
        ) as child:

            def lock() -> None:
                handle_of(acme).file.rollback()
                child.heard()

            before = store.clock.monotonic()
            with together(acme, *[lambda: acme.enqueue("mail", 1)] * 6, before_commit=lock) as futures:
                errors = [future.exception() for future in futures]
            assert store.clock.monotonic() - before < 6 * 0.5
            child.say()
            child.end()
        assert all(isinstance(error, TenantBusy) for error in errors)
        assert len({id(error) for error in errors}) == 6
        assert acme.enqueue("mail", 1) == 2


def test_a_long_transaction_of_a_thread_is_waited_for_no_longer_than_the_timeout(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, busy_timeout=0.05) as store:
        acme = store.tenant("acme")
        with acme.transaction() as tx, ThreadPoolExecutor(1) as pool:
            tx.enqueue("mail", 1)
            for call in (lambda: acme.enqueue("mail", 2), acme.stats, lambda: acme.claim("mail")):
                assert isinstance(pool.submit(call).exception(), TenantBusy)
        assert acme.stats().ready == 1


def test_a_replaced_file_is_told_to_all_that_wait_together(acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 0)
    with together(
        acme,
        *[lambda: acme.enqueue("mail", 1)] * 3,
        before_commit=acme.path.unlink,
    ) as futures:
        assert all(isinstance(future.exception(), FileReplaced) for future in futures)
    assert acme.enqueue("mail", 1) == 1


def test_a_verb_inside_of_this_threads_transaction_is_refused(acme: tenantq.Tenant) -> None:
    with acme.transaction() as tx:
        tx.enqueue("mail", 1)
        for verb in (
            lambda: acme.enqueue("mail", 2),
            lambda: acme.claim("mail"),
            lambda: acme.claim("mail", wait=5),
            acme.stats,
            lambda: acme.transaction().__enter__(),
            lambda: acme.peek("mail"),
        ):
            with pytest.raises(TransactionError, match="has a transaction open"):
                verb()
    assert acme.stats().ready == 1
