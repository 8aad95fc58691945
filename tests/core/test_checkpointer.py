"""Checkpoints: beside the writers, by a thread that exists only meanwhile; a warning where none gets through."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import tenantq
from tenantq import _budget, _sqlite, stats
from tenantq._checkpointer import Checkpointer, checkpoint
from tests.children import Child
from tests.core.test_fork import forked, status_of
from tests.core.test_handle import handle_of

PAGES = 50

READER = """
import apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM queue").fetchall()
say("reading")
hear()
connection.close()
"""

COMMITTER = """
import apsw, mmap
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
header = mmap.mmap(os.open(sys.argv[1] + "-shm", os.O_RDWR), 4096)
header[0] ^= 1  # one of the two copies of the index's header: as in the middle of a commit
say("half")
hear()
header[0] ^= 1
say("done")
hear()
"""


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is due after a few pages."""
    monkeypatch.setattr(_sqlite, "CHECKPOINT_SHARE", PAGES / _sqlite.WAL_PAGES)
    monkeypatch.setattr(_sqlite, "CHECKPOINT_INTERVAL", 0.0)


def fill(tenant: tenantq.Tenant, pages: int) -> None:
    for _ in range(pages // 10 + 1):
        tenant.enqueue_many("mail", ["x" * 3000] * 10)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def checkpointers() -> Iterator[threading.Thread]:
    return (thread for thread in threading.enumerate() if thread.name == "tenantq-checkpointer")


@pytest.mark.usefixtures("early")
def test_a_grown_wal_is_copied_by_a_thread_that_ends_with_it(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    fill(acme, 2 * PAGES)
    until(lambda: acme.stats().wal_pages_pending < PAGES)
    until(lambda: not any(checkpointers()))
    acme.enqueue("mail", 1)
    assert tenantq.verify(acme.path).ok


def test_a_short_wal_starts_no_thread(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    fill(acme, PAGES)
    assert acme.stats().wal_pages_pending >= PAGES
    assert not any(checkpointers())


def test_a_wal_starts_anew_behind_a_checkpoint_while_others_write(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    fill(acme, PAGES)
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            acme.enqueue("mail", "x" * 3000)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    before = acme.stats().ready
    checkpoint(handle_of(acme))
    until(lambda: acme.stats().ready > before + 10)
    is_over.set()
    for thread in threads:
        thread.join()
    # Without the last copy under the write turn it would grow for as long as they write.
    assert acme.stats().wal_pages_pending < acme.stats().wal_bytes / 4096
    assert tenantq.verify(acme.path).ok


@pytest.mark.usefixtures("early")
def test_a_store_closes_and_leaves_one_file_while_a_checkpoint_is_under_way(tmp_path: Path) -> None:
    for number in range(10):
        store = tenantq.open(tmp_path)
        acme = store.tenant(f"acme-{number}")
        fill(acme, PAGES)
        store.close()
        assert [path.name for path in acme.path.parent.iterdir() if path.name.startswith(acme.path.name)] == [
            acme.path.name
        ]
        assert not any(checkpointers())


@pytest.mark.usefixtures("early")
def test_tenants_are_evicted_deleted_and_forked_away_beside_checkpoints(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_open_tenants=2) as store:
        for number in range(12):
            tenant = store.tenant(f"t{number}")
            fill(tenant, PAGES)
            if number % 4 == 0:
                assert store.delete(tenant.id)
            if number % 4 == 1:
                assert status_of(forked(partial(fill, tenant, PAGES))) == 0
        for tenant_id in store.tenants():
            assert tenantq.verify(store.tenant(tenant_id).path).ok


@pytest.mark.usefixtures("early")
def test_a_reader_that_stays_open_is_warned_of_and_the_wal_shrinks_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 64 * 4096
    monkeypatch.setattr(_budget, "MIN_WAL_PAGES", 1)
    monkeypatch.setattr(stats, "BLOCKED_PAGES", 4 * PAGES)
    with tenantq.open(tmp_path, max_wal_bytes=limit) as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", 1)
        assert acme.stats().warnings == ()
        with Child(READER, acme.path) as reader:
            assert reader.heard() == "reading"
            fill(acme, 5 * PAGES)
            blocked = acme.stats()
            assert blocked.is_checkpoint_blocked
            assert blocked.wal_pages_pending >= 4 * PAGES
            (warning,) = blocked.warnings
            assert warning.startswith(
                f"a reader keeps {blocked.wal_pages_pending:,} pages from being checkpointed"
            )
            reader.say()
            assert reader.end() == 0
        until(lambda: acme.enqueue("mail", 1) > 0 and acme.stats().wal_bytes <= limit)
        after = acme.stats()
        assert not after.is_checkpoint_blocked
        assert after.warnings == ()


def test_a_checkpoint_that_fails_keeps_no_other_from_running() -> None:
    done = threading.Event()

    def work(tenant_id: str) -> None:
        if tenant_id == "broken":
            raise tenantq.TenantqError("broken")
        done.set()

    checkpointer = Checkpointer(work)
    checkpointer.request("broken")
    checkpointer.request("sound")
    assert done.wait(30)
    checkpointer.close()
    checkpointer.request("sound")
    assert not any(checkpointers())


def test_the_pages_of_a_wal_are_counted_when_a_commit_that_was_half_written_is_done(
    live: tenantq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = live.tenant("acme")
    acme.enqueue("mail", 1)
    expected = acme.stats().wal_pages_pending
    rest, waits = time.sleep, list[float]()
    with Child(COMMITTER, acme.path) as child:
        assert child.heard() == "half"

        def go_on(seconds: float) -> None:
            if not waits:
                child.say("go on")
                assert child.heard() == "done"
            waits.append(seconds)
            rest(seconds)

        monkeypatch.setattr(time, "sleep", go_on)
        assert handle_of(acme).file.database.wal_pages() == expected
    assert waits
