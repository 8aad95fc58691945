from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import structs

import tenantq
from tenantq._file import STEP
from tenantq.clock import nanoseconds
from tenantq.errors import InvalidArgument, InvalidName, PayloadError, PayloadTooLarge, QueueFull
from tenantq.payload import MAX_PAYLOAD_BYTES
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
    with pytest.raises(InvalidArgument, match="surrogate"):
        acme.emit("topic", 1, headers={"\ud800": "a"})
    with pytest.raises(PayloadTooLarge, match="headers"):
        acme.emit("topic", 1, headers={"a": "x" * MAX_PAYLOAD_BYTES})
    with pytest.raises(PayloadTooLarge):
        acme.emit("topic", "x" * MAX_PAYLOAD_BYTES)
    with pytest.raises(PayloadError):
        acme.emit("topic", "\ud800")
    with pytest.raises(InvalidName):
        acme.emit("a\0b", 1)
    assert not acme.path.exists()
    acme.emit("topic", "a\0b", headers={"spelled": "\\u0000", "more": "\U0001f40c"})
    assert read(acme)[0].body == '"a\\u0000b"'


def test_a_bounded_outbox_refuses_what_it_has_no_room_for(tmp_path: Path) -> None:
    with tenantq.open(tmp_path / "bounded", max_outbox=3) as store:
        acme = store.tenant("acme")
        acme.emit("topic", 1)
        with acme.transaction() as tx:
            tx.emit("topic", 2)
            tx.emit("topic", 3)
            with pytest.raises(QueueFull) as caught:
                tx.emit("topic", 4)
            tx.enqueue("queue", "all but the event is committed")
        assert caught.value.tenant == "acme"
        with pytest.raises(QueueFull, match="3 events of tenant 'acme' wait"):
            acme.emit("topic", 4)
        store.tenant("other").emit("topic", 1)
        acme.outbox.confirm(1, read(acme)[0].event_id)
        acme.emit("topic", 4)
        assert [event.body for event in read(acme)] == ["1", "2", "3", "4"]
        assert (acme.stats().outbox, acme.stats().ready) == (3, 1)
    with pytest.raises(InvalidArgument, match="max_outbox"):
        tenantq.open(tmp_path / "bounded", max_outbox=0)


def test_of_emits_at_once_no_more_are_taken_than_there_is_room(tmp_path: Path) -> None:
    with tenantq.open(tmp_path / "bounded", max_outbox=20) as store:

        def emit_some(_number: int) -> int:
            taken = 0
            for _ in range(10):
                try:
                    store.tenant("acme").emit("topic", 1)
                    taken += 1
                except QueueFull:
                    pass
            return taken

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(emit_some, range(8))) == 20
        assert store.tenant("acme").outbox.position().pending == 20


def test_a_page_is_what_the_file_says_at_one_moment(acme: tenantq.Tenant, clock: ManualClock) -> None:
    assert acme.outbox.read_page(None, limit=5, max_bytes=100) == tenantq.OutboxPage()
    first_ns = clock.now_ns()
    for number in range(4):
        acme.emit("topic", number)
        clock.advance(1)
    ids = [event.event_id for event in read(acme)]
    acme.outbox.confirm(2, ids[1])
    page = acme.outbox.read_page(None, limit=5, max_bytes=100)
    assert (page.event_id_there, page.oldest_ns, page.size) == (ids[1], first_ns, 2)
    assert [event.seq for event in page.events] == [3, 4]
    assert page.position == acme.outbox.position()
    assert acme.outbox.read_page(1, limit=1, max_bytes=100).events == read(acme)[1:2]
    assert acme.outbox.read_page(9, limit=1, max_bytes=100).event_id_there is None
    known = acme.outbox.read_page(1, limit=1, max_bytes=100, unless=page.position)
    assert known == tenantq.OutboxPage(position=page.position)


def test_what_is_confirmed_is_never_taken_back_nor_of_another_file(acme: tenantq.Tenant) -> None:
    for number in range(3):
        acme.emit("topic", number)
    ids = [event.event_id for event in read(acme)]
    assert not acme.outbox.confirm(2, ids[0])
    assert not acme.outbox.confirm(4, ids[0])
    assert acme.outbox.position().pending == 3
    assert acme.outbox.confirm(2, ids[1])
    assert not acme.outbox.confirm(1, ids[0])
    assert not acme.outbox.confirm(2, ids[1])
    position = acme.outbox.position()
    assert (position.forwarded_seq, position.forwarded_event_id, position.pending) == (2, ids[1], 1)


def test_an_undeliverable_event_leaves_its_place_and_comes_back_under_its_id(
    acme: tenantq.Tenant, clock: ManualClock, tmp_path: Path
) -> None:
    acme.emit("topic", 1, headers={"a": "b"}, delay=5)
    acme.emit("topic", 2)
    first, second = read(acme)
    assert not acme.outbox.keep_undeliverable(structs.replace(first, event_id="other"), "no")
    assert acme.outbox.keep_undeliverable(first, "no: \0")
    assert not acme.outbox.keep_undeliverable(first, "no")
    [kept] = acme.outbox.undeliverable()
    assert (kept.seq, kept.event_id, kept.body, kept.headers) == (1, first.event_id, "1", '{"a": "b"}')
    assert (kept.visible_ns, kept.refused_ns, kept.error) == (first.visible_ns, clock.now_ns(), "no: \u2400")
    empty, after = read(acme)
    assert (empty.seq, empty.event_id, empty.body, empty.is_undeliverable) == (1, first.event_id, "", True)
    assert after == second
    assert (acme.stats().outbox, acme.stats().undeliverable) == (2, 1)
    assert acme.outbox.redeliver(2, 7) == 0
    assert acme.outbox.redeliver(1, 1) == 1
    resent = read(acme)[-1]
    assert (resent.seq, resent.event_id, resent.body, resent.is_resent) == (3, first.event_id, "1", True)
    assert acme.outbox.undeliverable() == []
    assert tenantq.verify(acme.backup(tmp_path / "copy.db")).problems == ()


def test_undeliverable_events_are_resent_and_discarded_in_steps(acme: tenantq.Tenant) -> None:
    count = STEP + 10
    with acme.transaction() as tx:
        for number in range(count):
            tx.emit("topic", number)
    events = read(acme)
    for event in events:
        acme.outbox.keep_undeliverable(event, "no")
    assert acme.outbox.redeliver() == count
    assert [event.event_id for event in read(acme, after=count)] == [event.event_id for event in events]
    for event in read(acme, after=count):
        acme.outbox.keep_undeliverable(event, "no")
    assert acme.stats().undeliverable == count
    assert acme.outbox.discard() == count
    assert (acme.outbox.undeliverable(), acme.stats().undeliverable) == ([], 0)
