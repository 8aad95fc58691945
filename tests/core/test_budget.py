from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenantq
from tenantq import _budget
from tenantq._budget import Budget
from tenantq.config import StoreConfig
from tenantq.errors import TenantFileError
from tenantq.testing import ManualClock
from tests.children import Child

MIB = 2**20


def shares(store: tenantq.Store) -> list[tuple[int, int, int]]:
    """Return the KiB of cache, the pages and the bytes of -wal that each open tenant may have."""
    pragmas = ("cache_size", "wal_autocheckpoint", "journal_size_limit")
    return [
        (-found[0], found[1], found[2])
        for handle in store._handles.values()
        for found in [[handle.file.database.execute(f"PRAGMA {name}")[0][0] for name in pragmas]]
    ]


def test_one_that_was_opened_first_has_no_more_than_the_others(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_cache_bytes=64 * MIB, max_wal_bytes=64 * MIB) as store:
        store.tenant("t0").enqueue("mail", 1)
        assert shares(store) == [(65536, 10_000, 40_960_000)]
        for number in range(1, 9):
            store.tenant(f"t{number}").enqueue("mail", 1)
        assert shares(store) == [(4096, 1024, 4 * MIB)] * 9


def test_the_shares_of_all_come_to_no_more_than_the_budget() -> None:
    budget = Budget(StoreConfig(max_open_tenants=5000), ManualClock())
    for number in range(1, 2000):
        budget.is_shared_anew(number)
        assert number * budget.share.cache_kib <= 2**20
        assert number * budget.share.wal_pages * 4096 <= 2**32
    assert budget.share.cache_kib == 512


def test_shares_grow_when_few_are_left_open_and_not_at_every_change() -> None:
    budget = Budget(StoreConfig(), ManualClock())
    counts = [1, 2, 3, 5, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert [count for count in counts if budget.is_shared_anew(count)] == [5, 9, 4]
    assert budget.share.cache_kib == _budget.CACHE_KIB


def test_a_tenant_in_use_gets_its_share_when_it_is_free(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_cache_bytes=8 * MIB) as store:
        with store.tenant("t0").transaction() as tx:
            tx.enqueue("mail", 1)
            for number in range(1, 4):
                store.tenant(f"t{number}").enqueue("mail", 1)
            assert tx.execute("PRAGMA cache_size") == [(-8192,)]
        store.tenant("t4").enqueue("mail", 1)
        assert {share[0] for share in shares(store)} == {1024}


@pytest.mark.parametrize("option", ["max_cache_bytes", "max_wal_bytes"])
def test_a_budget_is_a_number_of_bytes(tmp_path: Path, option: str) -> None:
    with pytest.raises(tenantq.InvalidArgument):
        tenantq.open(tmp_path, **{option: 0})  # type: ignore[arg-type]


def test_the_limit_comes_back_after_a_shortage() -> None:
    clock = ManualClock()
    budget = Budget(StoreConfig(max_open_tenants=100), clock)
    budget.lower(40)
    assert budget.limit() == 30
    seen = set()
    for _ in range(20):
        clock.advance(_budget.RAISE_SECONDS)
        seen.add(budget.limit())
    assert max(seen) == 100


def take_all() -> list[int]:
    """Take every descriptor that this process may still have."""
    taken: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    return taken


def give_back(taken: list[int], count: int) -> None:
    """Close some of them."""
    for _ in range(count):
        os.close(taken.pop())


@pytest.fixture
def taken() -> Iterator[list[int]]:
    """Leave this process twenty descriptors; the others are in the list."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))
    taken = take_all()
    give_back(taken, 20)
    yield taken
    give_back(taken, len(taken))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_without_descriptors_has_fewer_tenants_open(tmp_path: Path, taken: list[int]) -> None:
    with tenantq.open(tmp_path, max_open_tenants=100) as store:
        for number in range(40):
            store.tenant(f"t{number}").enqueue("mail", number)
        assert 1 <= store.activity().open_tenants < 20
        for number in range(40):
            assert [message.payload for message in store.tenant(f"t{number}").claim("mail")] == [number]
        assert len(taken) > 100


def test_a_process_without_any_descriptor_is_told_what_to_do(tmp_path: Path, taken: list[int]) -> None:
    with tenantq.open(tmp_path) as store:
        store.tenant("t0").enqueue("mail", 0)
        assert store.delete("t0")
        taken += take_all()
        with pytest.raises(TenantFileError, match="no file descriptor left") as caught:
            store.tenant("t1").enqueue("mail", 1)
        assert "ulimit -n" in caught.value.hint
        give_back(taken, 20)
        store.tenant("t1").enqueue("mail", 1)


def test_opening_one_at_the_limit_looks_at_few_of_the_others(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_open_tenants=50) as store:
        looks = 0
        evict = store._evict

        def count(*arguments: object) -> None:
            nonlocal looks
            looks += 1
            evict(*arguments)  # type: ignore[arg-type]

        store._evict = count  # type: ignore[assignment,method-assign]
        for number in range(200):
            store.tenant(f"t{number}").enqueue("mail", 1)
        assert looks == 150
        assert store.activity().open_tenants == 50


def test_threads_open_more_tenants_than_may_be_open(tmp_path: Path) -> None:
    with tenantq.open(tmp_path, max_open_tenants=5, max_cache_bytes=MIB) as store:

        def work(first: int) -> None:
            for number in range(60):
                store.tenant(f"t{(first * 7 + number) % 30}").enqueue("mail", number)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.activity().open_tenants <= 8
        assert sum(store.tenant(f"t{number}").stats().ready for number in range(30)) == 240


LIMITED = """
import resource
count = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
with tenantq.open(sys.argv[1]) as store:
    for number in range(count):
        store.tenant(f"t{number}").enqueue("mail", number)
    handled, is_done = [], threading.Event()
    worker = tenantq.Worker(store, concurrency=4)

    @worker.on("mail")
    def handle(message):
        handled.append(message.payload)
        if len(handled) == count:
            is_done.set()

    with worker:
        is_done.wait(600)
    say(sorted(handled) == list(range(count)), worker.counts.get("failed", 0), len(store.failing()))
    say(sum(store.tenant(tenant_id).stats().ready for tenant_id in store.tenants()))
"""


@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.slow)])
def test_256_descriptors_are_enough_for_any_number_of_tenants(tmp_path: Path, count: int) -> None:
    with Child(LIMITED, tmp_path, count) as child:
        assert child.heard_all() == ["True 0 0", "0"]
        assert child.end() == 0
