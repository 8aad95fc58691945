"""Salvage: what is left of a damaged file, nothing that was not in it, and a list of the rest."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

import tenantq
from tenantq._btree import BTree, free_pages
from tenantq._pages import Pages
from tenantq.errors import (
    CorruptFile,
    InvalidTenantId,
    NewerFile,
    NotATenantFile,
    TenantFileError,
    TenantInUse,
    UnknownTenant,
    WrongTenant,
)
from tests.children import Child

PAGE = 4096
TOKEN = re.compile(rb"<(\d+)>")

Rows = dict[str, dict[int, tuple[object, ...]]]

QUERIES = {
    "queue": "SELECT id, queue, priority, visible_at, due_at, max_attempts, key, headers, payload FROM queue",
    "dead": "SELECT id, queue, error, payload FROM tenantq_dead",
    "outbox": "SELECT seq, event_id, topic, payload FROM tenantq_outbox",
    "app": "SELECT id, name, note FROM app",
}


def text_of(number: int, length: int) -> str:
    """Return a text that names its row in every page that has a part of it."""
    token = f"<{number}>"
    return token * (length // len(token) + 1)


@contextmanager
def pages_of(path: Path) -> Iterator[Pages]:
    with path.open("rb") as file:
        yield Pages(file.fileno(), path)


def rows_of(path: Path) -> Rows:
    found: Rows = {}
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        for name, query in QUERIES.items():
            try:
                found[name] = {row[0]: row[1:] for row in connection.execute(query)}
            except sqlite3.OperationalError:
                found[name] = {}
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed file with some of everything, and with pages that hold what is gone."""
    chance = random.Random(7)
    with tenantq.open(tmp_path_factory.mktemp("whole")) as store:
        acme = store.tenant("acme")
        with acme.transaction() as tx:
            tx.execute("CREATE TABLE app (id INTEGER PRIMARY KEY, name TEXT, note TEXT)")
            tx.execute("CREATE INDEX app_name ON app (name)")
        for number in range(1, 700):
            text = text_of(number, chance.choice([10, 100, 800, 6000, 20_000]))
            body = text.encode() if number % 3 == 0 else text
            acme.enqueue(
                f"q{number % 5}",
                body,
                priority=number % 2,
                key=f"key-{number}" if number % 7 == 0 else None,
                headers={"n": str(number)} if number % 4 == 0 else None,
                delay=60 if number % 11 == 0 else 0,
            )
        for number in range(1, 60):
            with acme.transaction() as tx:
                tx.emit("topic", text_of(number, 300))
                tx.execute("INSERT INTO app VALUES (?, ?, ?)", (number, f"n{number}", text_of(number, 200)))
        for message in acme.claim("q1", 30):
            acme.dead_letter(message, error="no")
        acme.ack(*acme.claim("q2", 60))
        acme.claim("q3", 5)
        acme.pause("q4")
        acme.limit("q4", max_depth=500)
        first = acme.outbox.read(0, limit=1, max_bytes=1)[0]
        acme.outbox.mark_forwarded(first.seq, first.event_id)
    return acme.path


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "damaged.db"))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def salvaged(path: Path, tenant: str | None = None) -> tuple[tenantq.SalvageReport, Rows]:
    """Salvage a file, and check what holds for every one."""
    before = path.read_bytes()
    dest = path.with_name("salvaged.db")
    report = tenantq.salvage(path, dest, tenant=tenant)
    assert path.read_bytes() == before
    verified = tenantq.verify(dest)
    assert verified.problems == ()
    assert (verified.tenant, verified.claimed) == (report.tenant, 0)
    assert (verified.ready + verified.scheduled, verified.dead) == (report.messages, report.dead)
    assert msgspec.json.encode(report)
    return report, rows_of(dest)


def assert_nothing_is_invented(found: Rows, original: Rows) -> None:
    for name, rows in found.items():
        for row_id, row in rows.items():
            assert original[name].get(row_id) == row, (name, row_id)


def assert_kept_but_for(found: Rows, original: Rows, content: bytes, pages: set[int]) -> None:
    """Every row is there that has no part in the damaged pages."""
    touched = {int(number) for page in pages for number in TOKEN.findall(content[(page - 1) * PAGE : page * PAGE])}
    for name, rows in original.items():
        assert set(rows) - set(found[name]) <= touched, name


# Whole files


def test_of_a_sound_file_everything_is_brought_over(whole: Path, damaged: Path) -> None:
    report, found = salvaged(damaged)
    assert report.is_complete
    assert (report.lost, report.problems) == ((), ())
    assert found == rows_of(whole)
    assert report.outbox == 58
    with tenantq.open(damaged.parent / "store") as store:
        store.restore("acme", report.dest)
        acme = store.tenant("acme")
        assert acme.claim("q4") == []
        (q4,) = [queue for queue in acme.stats().queues if queue.queue == "q4"]
        assert q4.is_paused
        assert q4.max_depth == 500
        assert acme.outbox.position().forwarded_seq == 1


def test_what_lies_in_the_wal_is_brought_over(tmp_path: Path) -> None:
    script = """
        tenant = tenantq.open(sys.argv[1]).tenant("acme")
        tenant.enqueue_many("mail", [{"n": n, "text": "x" * 3000} for n in range(50)])
        tenant.ack(*tenant.claim("mail", 10))
        stop_here(tenant.path)
    """
    with Child(script, tmp_path / "store") as child:
        path = Path(child.heard())
        child.kill()
    wal = path.with_name("acme.db-wal")
    assert wal.stat().st_size
    report, _found = salvaged(path)
    assert (report.messages, report.is_complete) == (40, True)
    # The last commit is damaged: the one before it is what there is.
    content = bytearray(wal.read_bytes())
    content[-100] ^= 1
    wal.write_bytes(content)
    path.with_name("salvaged.db").unlink()
    report, _found = salvaged(path)
    assert report.messages == 50
    assert any("the -wal is damaged at byte" in problem for problem in report.problems)


# Damage


@pytest.mark.parametrize("seed", range(40))
def test_damaged_pages_cost_their_own_rows_and_no_others(whole: Path, damaged: Path, seed: int) -> None:
    chance = random.Random(seed)
    content, original = whole.read_bytes(), rows_of(whole)
    pages = {chance.randrange(2, len(content) // PAGE + 1) for _ in range(chance.choice([1, 3, 20]))}
    for page in pages:
        overwrite(damaged, (page - 1) * PAGE, chance.choice([bytes(PAGE), chance.randbytes(PAGE), b"\xff" * PAGE]))
    report, found = salvaged(damaged, tenant="acme")
    assert_nothing_is_invented(found, original)
    free = _free(whole)
    if not pages & free and 1 not in pages and all(_is_leaf_or_ours(content, page) for page in pages):
        assert_kept_but_for(found, original, content, pages)
    lost = len(original["queue"]) - len(found["queue"]) + len(original["dead"]) - len(found["dead"])
    assert not lost or report.lost


def _free(path: Path) -> set[int]:
    with pages_of(path) as pages:
        return free_pages(pages) or set()


def _is_leaf_or_ours(content: bytes, page: int) -> bool:
    """Whether it is no page of the schema, and not the only page of a small table."""
    return page > 40


def test_the_pages_below_a_lost_one_are_found(whole: Path, damaged: Path) -> None:
    original = rows_of(whole)
    with pages_of(whole) as pages:
        interior = [number for number in range(2, pages.count + 1) if (pages.get(number) or b"")[0] == 5]
    assert interior
    for page in interior:
        overwrite(damaged, (page - 1) * PAGE, bytes(PAGE))
    _report, found = salvaged(damaged)
    assert_nothing_is_invented(found, original)
    assert found["queue"] == original["queue"]
    assert found["outbox"] == original["outbox"]


@pytest.mark.parametrize("with_what", [b"\0", b"\xff", None], ids=["zeros", "ones", "noise"])
def test_a_lost_header_page_costs_no_message(whole: Path, damaged: Path, with_what: bytes | None) -> None:
    original = rows_of(whole)
    overwrite(damaged, 0, random.Random(1).randbytes(PAGE) if with_what is None else with_what * PAGE)
    report, found = salvaged(damaged)
    assert report.tenant == "acme"
    assert found | {"app": {}} == original | {"app": {}}
    assert any("first page" in problem for problem in report.problems)
    assert not report.is_complete


@pytest.mark.parametrize("seed", range(15))
def test_a_file_that_was_cut_off_keeps_what_is_before_the_cut(whole: Path, damaged: Path, seed: int) -> None:
    content, original = whole.read_bytes(), rows_of(whole)
    size = random.Random(seed).randrange(60 * PAGE, len(content))
    os.truncate(damaged, size)
    report, found = salvaged(damaged)
    assert_nothing_is_invented(found, original)
    if _free(whole) == set() or max(_free(whole)) <= size // PAGE:
        assert_kept_but_for(found, original, content, set(range(size // PAGE + 1, len(content) // PAGE + 1)))
    assert report.problems
    assert not report.is_complete


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bytes_change_no_row_of_another_page(whole: Path, damaged: Path, seed: int) -> None:
    chance = random.Random(seed)
    content, original = bytearray(whole.read_bytes()), rows_of(whole)
    places = [chance.randrange(len(content)) for _ in range(chance.choice([1, 10, 200]))]
    for place in places:
        content[place] ^= 1 << chance.randrange(8)
    damaged.write_bytes(content)
    pages = {place // PAGE + 1 for place in places}
    try:
        _report, found = salvaged(damaged, tenant="acme")
    except (NotATenantFile, NewerFile, WrongTenant):
        assert pages & {1, 2, 3, 4}
        return
    touched = {
        int(number)
        for page in pages
        for number in TOKEN.findall(whole.read_bytes()[(page - 1) * PAGE : page * PAGE])
    }
    for name, rows in found.items():
        for row_id, row in rows.items():
            if row_id not in touched and row_id in original[name]:
                assert original[name][row_id] == row, (name, row_id)


def test_it_is_listed_what_was_lost(whole: Path, damaged: Path) -> None:
    content, original = whole.read_bytes(), rows_of(whole)
    at = next(
        page
        for page in range(40, len(content) // PAGE)
        if content[page * PAGE] == 13 and b"<500>" in content[page * PAGE : (page + 1) * PAGE]
    )
    overwrite(damaged, at * PAGE, bytes(PAGE))
    report, found = salvaged(damaged)
    gone = set(original["queue"]) - set(found["queue"])
    assert 500 in gone
    (lost,) = report.lost
    assert (lost.table, lost.is_range) == ("queue", True)
    assert lost.reason == f"page {at + 1}: it is no page of a table"
    assert lost.first_id is not None
    assert lost.last_id is not None
    assert lost.first_id <= min(gone) <= max(gone) <= lost.last_id
    assert sum(queue.missing or 0 for queue in report.queues) == len(gone)


def test_ids_and_places_that_were_given_out_are_not_given_again(whole: Path, damaged: Path) -> None:
    report, _found = salvaged(damaged)
    with tenantq.open(damaged.parent / "store") as store:
        store.restore("acme", report.dest)
        acme = store.tenant("acme")
        assert acme.enqueue("new", 1) > 699
        acme.emit("topic", 1)
        assert acme.outbox.position().last_seq == 60


# Whose it is


def _without_tenant(path: Path) -> None:
    content = path.read_bytes()
    overwrite(path, content.index(b"tenant_idacme"), b"\0" * 4)
    with pages_of(path) as pages:
        for number in range(1, pages.count + 1):
            if b"tenant_idacme" in (pages.get(number) or b""):
                overwrite(path, (number - 1) * PAGE, bytes(PAGE))
    at = content.index(b"tenant_idacme") // PAGE
    overwrite(path, at * PAGE, bytes(PAGE))


def test_a_file_that_does_not_tell_its_tenant_is_asked_for(whole: Path, damaged: Path) -> None:
    _without_tenant(damaged)
    with pytest.raises(CorruptFile) as caught:
        tenantq.salvage(damaged, damaged.with_name("salvaged.db"))
    assert "--tenant" in caught.value.hint
    report, found = salvaged(damaged, tenant="acme")
    assert report.tenant == "acme"
    assert found == rows_of(whole)
    assert ("tenantq_meta", True) in [(lost.table, lost.is_range) for lost in report.lost]


def test_the_tenant_that_is_named_must_be_the_file_s(damaged: Path) -> None:
    with pytest.raises(WrongTenant):
        tenantq.salvage(damaged, damaged.with_name("salvaged.db"), tenant="other")
    with pytest.raises(InvalidTenantId):
        tenantq.salvage(damaged, damaged.with_name("salvaged.db"), tenant="")


# What cannot be salvaged


def _foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (a)")


REFUSED: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "missing": (Path.unlink, UnknownTenant),
    "empty": (lambda path: path.write_bytes(b""), NotATenantFile),
    "text": (lambda path: path.write_text("backup, honest" * 10_000), NotATenantFile),
    "zeros": (lambda path: path.write_bytes(bytes(100_000)), NotATenantFile),
    "foreign": (_foreign, NotATenantFile),
    "newer": (lambda path: overwrite(path, 60, b"\0\0\0\x09"), NewerFile),
    "only a header": (lambda path: os.truncate(path, PAGE), CorruptFile),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_tenant_s_file_is_refused(damaged: Path, kind: str) -> None:
    spoil, expected = REFUSED[kind]
    spoil(damaged)
    with pytest.raises(expected):
        tenantq.salvage(damaged, damaged.with_name("salvaged.db"))
    assert not damaged.with_name("salvaged.db").exists()
    assert [path.name for path in damaged.parent.iterdir()] == ([] if kind == "missing" else ["damaged.db"])


def test_a_file_that_is_open_is_refused(tmp_path: Path) -> None:
    with tenantq.open(tmp_path / "store") as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)
        with pytest.raises(TenantInUse):
            tenantq.salvage(acme.path, tmp_path / "x.db")
        acme.enqueue("mail", 2)
    with Child("t = tenantq.open(sys.argv[1]).tenant('acme'); t.stats(); stop_here('open')", store.root) as child:
        child.heard()
        with pytest.raises(TenantInUse):
            tenantq.salvage(acme.path, tmp_path / "x.db")
    assert tenantq.salvage(acme.path, tmp_path / "x.db").messages == 2


def test_what_is_there_is_not_replaced(damaged: Path) -> None:
    with pytest.raises(TenantFileError):
        tenantq.salvage(damaged, damaged)
    damaged.with_name("there.db").write_text("mine")
    with pytest.raises(TenantFileError):
        tenantq.salvage(damaged, damaged.with_name("there.db"))
    assert damaged.with_name("there.db").read_text() == "mine"


def test_pages_that_lead_in_circles_end(whole: Path, damaged: Path) -> None:
    with pages_of(whole) as pages:
        root = next(number for number in range(2, pages.count + 1) if (pages.get(number) or b"")[0] == 5)
    overwrite(damaged, (root - 1) * PAGE + 8, root.to_bytes(4, "big"))
    with pages_of(damaged) as pages:
        tree = BTree(pages, root, set())
        assert list(tree.walk()) is not None
        assert "another page leads to it too" in [damage.reason for damage in tree.damage]
