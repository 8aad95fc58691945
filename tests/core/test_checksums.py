"""Checksums: a byte of a payload that has changed on the disk is found, and nothing else is taken for one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tenantq


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tenantq.Store]:
    with tenantq.open(tmp_path / "store", checksums=True) as opened:
        yield opened


@pytest.fixture
def acme(store: tenantq.Store) -> tenantq.Tenant:
    return store.tenant("acme")


def flip(path: Path, text: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.rindex(text)] ^= 1
    path.write_bytes(content)


def fill(acme: tenantq.Tenant) -> None:
    """Have a message or an event in each table."""
    acme.enqueue_many("mail", [f"message {number}" for number in range(100)], headers={"a": "header"})
    acme.enqueue("mail", b"\0bytes")
    for message in acme.claim("mail", 2):
        acme.dead_letter(message)
    acme.emit("topic", "event")
    acme.emit("topic", "refused")
    (event, refused) = acme.outbox.read(0, limit=9, max_bytes=1000)
    acme.outbox.mark_forwarded(event.seq, event.event_id)
    acme.outbox.keep_undeliverable(refused, "no")
    acme.redrive(*[message.id for message in acme.dead_letters("mail")][:1])


def test_every_message_and_event_is_checked_wherever_it_went(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    fill(acme)
    report = tenantq.verify(acme.path)
    assert report.problems == ()
    assert report.checked == 103
    assert tenantq.verify(acme.path, quick=True).checked == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"message 77", "message 78 is not what its checksum says"),
        (b'"message 1"', "dead letter 2 is not what its checksum says"),
        (b'"event"', "event 1 is not what its checksum says"),
        (b'"refused"', "undeliverable event 2 is not what its checksum says"),
    ],
)
def test_a_flipped_byte_is_found(store: tenantq.Store, acme: tenantq.Tenant, text: bytes, problem: str) -> None:
    fill(acme)
    path = acme.path
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")  # no older copy of a row lies in the file
    flip(path, text)
    report = tenantq.verify(path)
    assert report.problems == (problem,)
    assert tenantq.verify(path, quick=True).ok


def test_a_changed_header_is_found_by_salvage_too(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    acme.enqueue("mail", 1, headers={"name": "ada"})
    acme.enqueue("mail", 2)
    store.close()
    flip(acme.path, b"ada")
    assert tenantq.verify(acme.path).problems == ("message 1 is not what its checksum says",)
    report = tenantq.salvage(acme.path, tmp_path / "x.db")
    assert report.messages == 1
    (lost,) = report.lost
    assert (lost.first_id, lost.reason) == (1, "it is not what its checksum says")


def test_what_is_written_without_is_not_checked(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", "with")
    with tenantq.open(store.root) as other:
        other.tenant("acme").enqueue("mail", "without")
        other.tenant("acme").emit("topic", 1)
    with acme.transaction() as tx:
        tx.execute("INSERT INTO queue (visible_at, enqueued_at, payload) VALUES (0, 0, 'by hand')")
        tx.enqueue("mail", "in a transaction")
        tx.emit("topic", 1)
    report = tenantq.verify(acme.path)
    assert report.checked == 3
    assert [problem for problem in report.problems if "checksum" in problem] == []


def test_a_checksum_survives_backup_and_restore(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    fill(acme)
    store.restore("acme", acme.backup(tmp_path / "x.db"), as_="look")
    report = tenantq.verify(store.tenant("look").path)
    assert (report.problems, report.checked) == ((), 102)  # but for the forwarded event
