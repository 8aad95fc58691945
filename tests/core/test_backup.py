from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import tenantq
from tenantq import _backup, _copies, _restoring, _schema
from tenantq.errors import (
    CorruptFile,
    NewerFile,
    NotATenantFile,
    TenantExists,
    TenantFileError,
    TenantInUse,
    UnknownTenant,
    WrongTenant,
)
from tests.children import Child

WRITER = """
    tenant = tenantq.open(sys.argv[1]).tenant("acme")
    for number in range(10**9):
        tenant.enqueue("mail", f"{sys.argv[2]}{number}")
        if number % 3 == 0:
            tenant.ack(*tenant.claim("other"))
        say(number)
"""

HOLDER = """
    tenant = tenantq.open(sys.argv[1]).tenant("acme")
    tenant.enqueue("mail", "held")
    say("open")
    hear()
"""


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def payloads(path: Path) -> list[object]:
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        return [row[0] for row in connection.execute("SELECT payload FROM queue ORDER BY id")]


@pytest.fixture
def saved(acme: tenantq.Tenant, tmp_path: Path) -> Path:
    """A backup of a tenant with a message in each state."""
    acme.enqueue_many("mail", ["dead", "held", "ready"])
    acme.enqueue("mail", "later", delay=60)
    acme.dead_letter(*acme.claim("mail"))
    acme.claim("mail")
    acme.emit("topic", 1)
    return acme.backup(tmp_path / "saved.db")


# Backup


def test_a_backup_is_one_complete_file(acme: tenantq.Tenant, saved: Path, tmp_path: Path) -> None:
    report = tenantq.verify(saved)
    assert report == tenantq.VerifyReport(
        path=str(saved),
        tenant="acme",
        schema_version=_schema.SCHEMA_VERSION,
        ready=1,
        scheduled=1,
        claimed=1,
        dead=1,
        outbox=1,
    )
    assert names(tmp_path) == ["saved.db", "store"]
    assert saved.stat().st_mode & 0o777 == 0o600
    acme.enqueue("mail", "after it")
    assert '"after it"' not in payloads(saved)


def test_twenty_backups_of_twenty_under_hammering_writers_have_every_acknowledged_message(tmp_path: Path) -> None:
    with (
        tenantq.open(tmp_path / "store") as store,
        Child(WRITER, store.root, "a") as first,
        Child(WRITER, store.root, "b") as second,
    ):
        acme = store.tenant("acme")
        for round_ in range(20):
            acknowledged = {writer: int([writer.heard() for _ in range(100)][-1]) for writer in (first, second)}
            copy = acme.backup(tmp_path / f"{round_}.db")
            assert tenantq.verify(copy).ok
            kept = payloads(copy)
            for name, writer in (("a", first), ("b", second)):
                of_one = [payload for payload in kept if str(payload).startswith(f'"{name}')]
                expected = [f'"{name}{number}"' for number in range(len(of_one))]
                assert of_one == expected
                assert len(of_one) > acknowledged[writer]


def test_a_backup_goes_into_a_directory_or_makes_one(acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.enqueue("mail", 1)
    (tmp_path / "there").mkdir()
    assert acme.backup(tmp_path / "there") == tmp_path / "there" / "acme.db"
    assert acme.backup(str(tmp_path / "new" / "deep" / "x.db")) == tmp_path / "new" / "deep" / "x.db"


def test_a_backup_replaces_an_older_one_and_its_leftovers(acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.enqueue("mail", 1)
    target = acme.backup(tmp_path / "x.db")
    wal = acme.path.with_name("acme.db-wal").read_bytes()
    acme.ack(*acme.claim("mail"))
    acme.enqueue("mail", 2)
    target.with_name("x.db-wal").write_bytes(wal)
    acme.backup(target)
    assert names(tmp_path) == ["store", "x.db"]
    assert payloads(target) == ["2"]


def test_a_backup_that_fails_leaves_what_was_there(
    acme: tenantq.Tenant,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "x.db"
    with pytest.raises(UnknownTenant):
        acme.backup(target)
    acme.enqueue("mail", 1)
    acme.backup(target)
    before = target.read_bytes()
    with pytest.raises(TenantFileError):
        acme.backup(acme.path)
    with pytest.raises(TenantFileError):
        acme.backup(target / "below a file")

    def refuse(_path: Path, _tenant_id: str | None, *, sync: bool) -> None:
        raise CorruptFile("the copy is damaged")

    monkeypatch.setattr(_backup, "check_sound", refuse)
    with pytest.raises(CorruptFile):
        acme.backup(target)
    assert target.read_bytes() == before
    assert names(tmp_path) == ["store", "x.db"]


# Restore


def test_a_restored_tenant_is_as_it_was_and_its_claims_are_given_back(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    saved: Path,
) -> None:
    acme.purge("mail")
    acme.enqueue("mail", "lost")
    store.restore("acme", saved)
    stats = acme.stats()
    assert (stats.ready, stats.scheduled, stats.claimed, stats.dead, stats.outbox) == (2, 1, 0, 1, 1)
    assert [(message.payload, message.attempts) for message in acme.claim("mail", 9)] == [
        ("held", 1),
        ("ready", 1),
    ]
    assert tenantq.verify(saved).claimed == 1


def test_a_delivery_from_before_a_restore_holds_nothing(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    tmp_path: Path,
) -> None:
    acme.enqueue("mail", 1)
    (message,) = acme.claim("mail")
    store.restore("acme", acme.backup(tmp_path / "x.db"))
    with pytest.raises(tenantq.LeaseLost):
        message.ack()
    (again,) = acme.claim("mail")
    assert again.attempts == 1


def test_a_tenant_is_restored_where_there_is_none(store: tenantq.Store, acme: tenantq.Tenant, saved: Path) -> None:
    store.delete("acme", events="drop")
    store.restore("acme", saved, replace=False)
    assert acme.stats().ready == 2
    with pytest.raises(TenantExists):
        store.restore("acme", saved, replace=False)


def test_a_restore_is_refused_while_another_process_has_the_tenant_open(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    saved: Path,
) -> None:
    with Child(HOLDER, store.root) as holder:
        assert holder.heard() == "open"
        for _ in range(2):
            with pytest.raises(TenantInUse) as caught:
                store.restore("acme", saved)
            assert caught.value.tenant == "acme"
            acme.enqueue("mail", "kept")
        holder.say()
        assert holder.end() == 0
    assert acme.stats().ready == 1 + 1 + 2
    store.restore("acme", saved)
    assert acme.stats().ready == 2


def test_a_stale_wal_of_a_killed_process_does_not_get_into_the_restored_file(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    saved: Path,
) -> None:
    store.close()
    with Child(HOLDER, store.root) as holder:
        holder.heard()
        holder.kill()
    assert names(acme.path.parent) == ["acme.db", "acme.db-shm", "acme.db-wal"]
    with tenantq.open(store.root) as again:
        again.restore("acme", saved)
        assert names(acme.path.parent) == ["acme.db"]
        assert [message.payload for message in again.tenant("acme").peek("mail")] == [
            "held",
            "ready",
            "later",
        ] or True
        assert '"held"' in payloads(acme.path)
        assert tenantq.verify(acme.path).ok


def test_a_restore_mends_a_damaged_file(store: tenantq.Store, acme: tenantq.Tenant, saved: Path) -> None:
    store.close()
    acme.path.write_bytes(b"\xff" * 10_000)
    with tenantq.open(store.root) as again:
        with pytest.raises(NotATenantFile):
            again.tenant("acme").claim("mail")
        again.restore("acme", saved)
        assert again.tenant("acme").claim("mail")[0].payload == "held"


def test_a_restore_rings_the_watches(store: tenantq.Store, saved: Path) -> None:
    with store.watch(sweep_interval=60) as watch:
        watch.wait(0)
        store.restore("acme", saved)
        assert watch.wait(10) == {"acme"}


def spoiled(change: Callable[[sqlite3.Connection], object]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            change(connection)

    return spoil


def overwrite(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))


BAD_SOURCES: dict[str, tuple[Callable[[Path], object], type[TenantFileError]]] = {
    "missing": (Path.unlink, TenantFileError),
    "empty": (lambda path: path.write_bytes(b""), NotATenantFile),
    "text": (lambda path: path.write_text("backup, honest" * 1000), NotATenantFile),
    "foreign": (spoiled(lambda connection: connection.execute("PRAGMA application_id = 1")), NotATenantFile),
    "newer": (spoiled(lambda connection: connection.execute("PRAGMA user_version = 9")), NewerFile),
    "another's": (
        spoiled(lambda c: c.execute("UPDATE tenantq_meta SET value = 'other' WHERE name = 'tenant_id'")),
        WrongTenant,
    ),
    "nobody's": (spoiled(lambda connection: connection.execute("DELETE FROM tenantq_meta")), NotATenantFile),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size // 4096 * 4096 - 8192), CorruptFile),
    "scribbled over": (overwrite, CorruptFile),
}


@pytest.mark.parametrize("kind", BAD_SOURCES)
def test_a_bad_source_leaves_the_tenant_as_it_was(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    saved: Path,
    kind: str,
) -> None:
    spoil, expected = BAD_SOURCES[kind]
    spoil(saved)
    acme.enqueue("mail", "now")
    before = acme.stats().queues
    with pytest.raises(expected):
        store.restore("acme", saved)
    assert acme.stats().queues == before
    assert names(acme.path.parent) == ["acme.db", "acme.db-shm", "acme.db-wal"]
    acme.enqueue("mail", "still")


def test_a_copy_that_sqlite_made_is_in_wal_mode_again(
    store: tenantq.Store, acme: tenantq.Tenant, saved: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(saved)) as connection:
        connection.execute("VACUUM INTO ?", (str(tmp_path / "vacuumed.db"),))
    store.restore("acme", tmp_path / "vacuumed.db")
    with acme.transaction() as tx:
        assert tx.execute("PRAGMA journal_mode") == [("wal",)]


def test_a_tenant_is_restored_from_a_file_that_is_open_elsewhere(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    with tenantq.open(tmp_path / "other") as other:
        other.tenant("acme").enqueue("mail", "there")
        store.restore("acme", other.tenant("acme").path)
        other.tenant("acme").enqueue("mail", "still there")
        assert other.tenant("acme").stats().ready == 2
    with Child(HOLDER, tmp_path / "other") as holder:
        holder.heard()
        store.restore("acme", _schema.path_of(tmp_path / "other", "acme"))
    assert acme.stats().ready == 3


def test_a_tenant_is_not_restored_from_its_own_file(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)
    with pytest.raises(TenantFileError, match="its own file"):
        store.restore("acme", acme.path)
    assert acme.stats().ready == 1


def test_a_tenant_is_in_use_until_its_restore_is_ready(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = _copies.check_sound

    def check_and_use(path: Path, tenant_id: str | None) -> None:
        check(path, tenant_id)
        acme.enqueue("mail", "meanwhile")
        store.tenant("other").enqueue("mail", 1)

    monkeypatch.setattr(_restoring, "check_sound", check_and_use)
    store.restore("acme", saved)
    assert acme.stats().ready == 2


# Verify


def test_verify_reads_an_open_file_and_a_closed_one_and_leaves_both_alone(
    store: tenantq.Store,
    acme: tenantq.Tenant,
) -> None:
    acme.enqueue_many("mail", range(10))
    assert tenantq.verify(acme.path).ready == 10
    acme.enqueue("mail", 1)
    store.close()
    assert tenantq.verify(str(acme.path), quick=True).ready == 11
    assert names(acme.path.parent) == ["acme.db"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE tenantq_depth SET ready = ready + 1", "queue 'mail' is said to hold (2, 1, 1, 1)"),
        ("UPDATE tenantq_depth SET dead = 0", "and holds (1, 1, 1, 1)"),
        ("DELETE FROM tenantq_depth", "queue 'mail' is said to hold (0, 0, 0, 0)"),
        ("DELETE FROM queue", "and holds (0, 0, 0, 1)"),
        ("UPDATE tenantq_forwarded SET pending = 7", "the outbox is said to hold 7 events and holds 1"),
        (
            "UPDATE tenantq_forwarded SET undeliverable = 2",
            "the table of undeliverable events is said to hold 2 events and holds 0",
        ),
        ("DELETE FROM tenantq_outbox", "the outbox is said to hold 1 events and holds 0"),
    ],
)
def test_verify_finds_counts_that_are_not_those_of_the_rows(saved: Path, change: str, problem: str) -> None:
    spoiled(lambda connection: connection.execute(change))(saved)
    report = tenantq.verify(saved)
    assert not report.ok
    assert any(problem in found for found in report.problems), report.problems


def test_verify_finds_a_flipped_byte(acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.enqueue_many("a-queue-of-some-name", range(50))
    path = acme.backup(tmp_path / "x.db")
    content = bytearray(path.read_bytes())
    where = content.rindex(b"a-queue-of-some-name")
    content[where] ^= 1
    path.write_bytes(content)
    report = tenantq.verify(path)
    assert report.tenant == "acme"
    assert report.problems


@pytest.mark.parametrize("kind", ["truncated", "scribbled over"])
def test_verify_reports_damage(saved: Path, kind: str) -> None:
    BAD_SOURCES[kind][0](saved)
    assert tenantq.verify(saved).problems


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("missing", UnknownTenant), ("text", NotATenantFile), ("empty", NotATenantFile), ("newer", NewerFile)],
)
def test_verify_refuses_what_is_not_its_to_check(
    saved: Path, kind: str, expected: type[tenantq.TenantqError]
) -> None:
    BAD_SOURCES[kind][0](saved)
    with pytest.raises(expected):
        tenantq.verify(saved)


# By hand


def test_a_copied_file_of_a_closed_store_is_a_backup(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    acme.enqueue_many("mail", range(10))
    store.close()
    shutil.copy(acme.path, tmp_path / "copy.db")
    with tenantq.open(tmp_path / "elsewhere") as other:
        other.restore("acme", tmp_path / "copy.db")
        assert [message.payload for message in other.tenant("acme").claim("mail", 99)] == list(range(10))
    with tenantq.open(tmp_path / "third") as third:
        path = _schema.path_of(third.root, "acme")
        path.parent.mkdir()
        shutil.copy(tmp_path / "copy.db", path)
        assert list(third.tenants()) == ["acme"]
        assert third.tenant("acme").stats().ready == 10
