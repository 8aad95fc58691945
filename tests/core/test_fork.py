"""A fork: the child opens what it uses, and neither process loses a lock of the other."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tenantq
from tenantq.errors import TenantFileError, TransactionError


def forked(child: Callable[[], object]) -> int:
    """Fork, run a function in the child, and return the child's process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads beside a fork
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        finally:
            os._exit(status)
    return pid


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def payloads(tenant: tenantq.Tenant) -> list[object]:
    return sorted(message.payload for message in tenant.peek("mail", 100))


def test_what_a_child_commits_stays_when_the_parent_closes_the_file(tmp_path: Path) -> None:
    store = tenantq.open(tmp_path)
    acme = store.tenant("acme")
    acme.enqueue("mail", 1)
    hear, say = os.pipe()
    heard, said = os.pipe()

    def child() -> None:
        acme.enqueue("mail", 2)
        os.write(said, b"x")
        os.read(hear, 1)
        acme.enqueue("mail", 3)

    pid = forked(child)
    os.read(heard, 1)
    acme.enqueue("mail", 4)
    store.close()
    os.write(say, b"x")
    assert status_of(pid) == 0
    for descriptor in (hear, say, heard, said):
        os.close(descriptor)
    with tenantq.open(tmp_path) as again:
        assert payloads(again.tenant("acme")) == [1, 2, 3, 4]


def test_a_parents_locks_stay_when_a_child_ends(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)

    def child() -> None:
        assert acme.claim("mail")[0].payload == 1
        acme.enqueue("mail", 2)
        store.close()

    assert status_of(forked(child)) == 0
    acme.enqueue("mail", 3)
    with tenantq.open(store.root) as again:
        assert payloads(again.tenant("acme")) == [2, 3]
    acme.enqueue("mail", 4)
    assert acme.stats().claimed == 1


def test_an_open_transaction_stays_the_parents(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    other = store.tenant("other")
    other.enqueue("mail", 1)
    with acme.transaction() as tx:
        tx.enqueue("mail", 1)

        def child() -> None:
            with pytest.raises(TransactionError):
                tx.enqueue("mail", 2)
            with pytest.raises(TransactionError):
                tx.__exit__(None, None, None)
            with pytest.raises(TenantFileError, match="forked"):
                acme.enqueue("mail", 3)
            with pytest.raises(TenantFileError, match="forked"):
                tenantq.open(store.root).tenant("acme").enqueue("mail", 3)
            other.enqueue("mail", 4)

        assert status_of(forked(child)) == 0
        tx.enqueue("mail", 5)
    assert payloads(acme) == [1, 5]
    assert payloads(other) == [1, 4]


def test_a_fork_while_other_threads_work_keeps_all_of_both(tmp_path: Path) -> None:
    count = 40
    with tenantq.open(tmp_path, max_open_tenants=3) as store:
        stop = threading.Event()

        def keep_on(number: int) -> int:
            done = 0
            while not stop.is_set():
                store.tenant(f"tenant-{number % 3}").enqueue("mail", number)
                done += 1
            return done

        with ThreadPoolExecutor(3) as pool:
            working = [pool.submit(keep_on, number) for number in range(3)]

            def child() -> None:
                for number in range(4):
                    for _ in range(5):
                        store.tenant(f"tenant-{number}").enqueue("child", 1)

            pids = [forked(child) for _ in range(count // 20)]
            statuses = [status_of(pid) for pid in pids]
            stop.set()
            done = sum(future.result() for future in working)
        assert statuses == [0] * len(pids)
        stats = {
            queue.queue: 0 for tenant_id in store.tenants() for queue in store.tenant(tenant_id).stats().queues
        }
        for tenant_id in store.tenants():
            for queue in store.tenant(tenant_id).stats().queues:
                stats[queue.queue] += queue.ready
        assert stats == {"mail": done, "child": count}
        for tenant_id in list(store.tenants()):
            assert tenantq.verify(store.tenant(tenant_id).path).ok


def test_threads_may_fork_at_once(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)

    def fork_some(_number: int) -> list[int]:
        return [status_of(forked(lambda: acme.enqueue("mail", 2))) for _ in range(5)]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(fork_some, range(3))) == [[0] * 5] * 3
    assert acme.stats().ready == 16
    with tenantq.open(store.root) as again:
        again.tenant("acme").enqueue("mail", 3)


def test_a_childs_memory_layer_is_its_own(store: tenantq.Store) -> None:
    store.memory.enqueue("mail", 1)

    def child() -> None:
        assert len(store.memory) == 0
        store.memory.enqueue("mail", 2)

    assert status_of(forked(child)) == 0
    assert len(store.memory) == 1
