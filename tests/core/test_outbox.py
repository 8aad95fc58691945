from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

import tenantq
from tenantq._file import STEP
from tenantq.clock import nanoseconds
from tenantq.errors import InvalidArgument, InvalidName, PayloadError
from tenantq.testing import ManualClock


def read(
    tenant: tenantq.Tenant, after: int = 0, limit: int = 10_000, max_bytes: int = 10**9
) -> list[tenantq.Event]:
    return tenant.outbox.read(after, limit=limit, max_bytes=max_bytes)


def test_an_event_is_kept_as_it_was_emitted(acme: tenantq.Tenant, clock: ManualClock) -> None:
    acme.emit("order.placed", {"id": 1}, priority=3, max_attempts=7, headers={"trace": "ä"}, delay=5)
    acme.emit("raw", b"\x00\xff")
    first, second = read(acme)
    assert first == tenantq.Event(
        seq=1,
        event_id=first.event_id,
        topic="order.placed",
        body='{"id":1}',
        headers='{"trace": "\\u00e4"}',
        priority=3,
        max_attempts=7,
        visible_ns=clock.now_ns() + nanoseconds(5),
        emitted_ns=clock.now_ns(),
    )
    assert (second.seq, second.body, second.headers, second.visible_ns) == (2, b"\x00\xff", None, None)
    assert uuid.UUID(first.event_id).version == uuid.UUID(second.event_id).version == 7


def test_events_are_in_the_order_of_their_commits_and_each_is_one(acme: tenantq.Tenant) -> None:
    def emit_some(number: int) -> list[int]:
        seqs = [acme.emit("topic", [number, index]) for index in range(20)]
        with acme.transaction() as tx:
            seqs += [tx.emit("topic", [number, index]) for index in range(20, 25)]
        return seqs

    with ThreadPoolExecutor(4) as pool:
        seqs = list(pool.map(emit_some, range(4)))
    events = read(acme)
    assert sorted(seq for own in seqs for seq in own) == [event.seq for event in events] == list(range(1, 101))
    assert len({event.event_id for event in events}) == 100
    for number, own in enumerate(seqs):
        assert own == sorted(own)
        bodies = [event.body for event in events if event.body.startswith(f"[{number},")]  # type: ignore[arg-type]
        assert bodies == [f"[{number},{index}]" for index in range(25)]


def test_an_undone_event_leaves_its_place_to_the_next(acme: tenantq.Tenant) -> None:
    acme.emit("topic", 1)
    with pytest.raises(ZeroDivisionError), acme.transaction() as tx:
        tx.emit("topic", 2)
        raise ZeroDivisionError
    acme.emit("topic", 3)
    assert [event.body for event in read(acme)] == ["1", "3"]
    assert acme.outbox.position().pending == 2


def test_events_are_read_in_pages_of_messages_or_of_bytes(acme: tenantq.Tenant) -> None:
    for size in (10, 10, 100, 10, 10):
        acme.emit("topic", b"x" * size)
    assert [event.seq for event in read(acme, limit=2)] == [1, 2]
    assert [event.seq for event in read(acme, after=3)] == [4, 5]
    assert [event.seq for event in read(acme, max_bytes=20)] == [1, 2]
    assert [event.seq for event in read(acme, after=2, max_bytes=20)] == [3]
    assert [event.seq for event in read(acme, after=3, max_bytes=1)] == [4]
    assert read(acme, after=5) == []
    acme.emit("topic", "€€€€")
    acme.emit("topic", "€€€€")
    assert [event.seq for event in read(acme, after=5, max_bytes=20)] == [6]
    with pytest.raises(InvalidArgument):
        read(acme, limit=0)


def test_a_tenant_without_a_file_has_nothing(acme: tenantq.Tenant) -> None:
    assert read(acme) == []
    assert acme.outbox.event_id_at(1) is None
    assert acme.outbox.prune(older_than=0) == 0
    assert acme.outbox.position() == tenantq.OutboxPosition(
        file_id="",
        forwarded_seq=0,
        forwarded_event_id=None,
        last_seq=0,
        pending=0,
    )
    assert not acme.path.exists()


def test_a_mark_may_go_forth_and_back_and_pending_follows(acme: tenantq.Tenant) -> None:
    for number in range(10):
        acme.emit("topic", number)
    events = read(acme)
    for seq, pending in ((4, 6), (10, 0), (10, 0), (3, 7), (0, 10), (7, 3)):
        event_id = events[seq - 1].event_id if seq else None
        acme.outbox.mark_forwarded(seq, event_id)
        position = acme.outbox.position()
        assert (position.forwarded_seq, position.forwarded_event_id) == (seq, event_id)
        assert (position.last_seq, position.pending) == (10, pending)
        assert acme.stats().outbox == pending
        assert acme.outbox.event_id_at(seq) == event_id
    acme.emit("topic", 11)
    assert acme.outbox.position().pending == 4


def test_only_forwarded_events_are_pruned_and_never_the_last_of_them(
    acme: tenantq.Tenant,
    clock: ManualClock,
) -> None:
    for number in range(5):
        acme.emit("topic", number)
        clock.advance(10)
    assert acme.outbox.prune(older_than=0) == 0
    acme.outbox.mark_forwarded(4, read(acme)[3].event_id)
    assert acme.outbox.prune(older_than=45) == 1
    assert acme.outbox.prune(older_than=0) == 2
    assert acme.outbox.prune(older_than=0) == 0
    assert [event.seq for event in read(acme)] == [4, 5]
    assert acme.outbox.position().pending == 1
    acme.outbox.mark_forwarded(0, None)
    assert acme.outbox.position().pending == 2


def test_a_pruned_place_is_not_given_again(acme: tenantq.Tenant) -> None:
    acme.emit("topic", 1)
    acme.emit("topic", 2)
    acme.outbox.mark_forwarded(2, read(acme)[1].event_id)
    acme.outbox.prune(older_than=0)
    assert acme.emit("topic", 3) == 3


def test_prune_goes_through_more_than_one_step(acme: tenantq.Tenant, clock: ManualClock) -> None:
    count = STEP + 10
    with acme.transaction() as tx:
        for number in range(count):
            tx.emit("topic", number)
    acme.outbox.mark_forwarded(count, "x")
    clock.advance(1)
    assert acme.outbox.prune(older_than=0) == count - 1


def test_what_an_event_cannot_hold_is_refused(acme: tenantq.Tenant) -> None:
    with pytest.raises(InvalidName, match="topic"):
        acme.emit("", 1)
    with pytest.raises(PayloadError):
        acme.emit("topic", object())
    with pytest.raises(InvalidArgument, match="NUL"):
        acme.emit("topic", 1, headers={"a": "\0"})
    assert not acme.path.exists()
