from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import tenantq
from tenantq import watch as watch_module
from tests.children import Child
from tests.watching import NEVER, look


@pytest.fixture(autouse=True)
def _files_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file count as just changed, so that a look finds what is new and nothing else."""
    monkeypatch.setattr(watch_module, "CLOCK_TICK_NS", -1)


def test_the_first_wait_returns_every_tenant(store: tenantq.Store) -> None:
    ids = {"acme", "Globex Corp", "é" * 128}
    for tenant_id in ids:
        store.tenant(tenant_id).enqueue("mail", 1)
    with store.watch(NEVER) as watch:
        assert look(watch) == ids
        assert watch.wait(0) == set()


@pytest.mark.parametrize("how", ["enqueue", "emit", "release", "redrive", "resume", "transaction", "merged"])
def test_what_this_process_commits_is_seen_at_once(store: tenantq.Store, acme: tenantq.Tenant, how: str) -> None:
    acme.enqueue("mail", 1)
    dead = acme.enqueue("mail", 2, priority=1)
    acme.dead_letter(*acme.claim("mail"))
    (message,) = acme.claim("mail")
    with store.watch(NEVER) as watch:
        look(watch)
        match how:
            case "enqueue":
                acme.enqueue("mail", 3)
            case "emit":
                acme.emit("topic", 3)
            case "release":
                message.release()
            case "redrive":
                acme.redrive(dead)
            case "resume":
                acme.resume("mail")
            case "transaction":
                with acme.transaction() as tx:
                    tx.enqueue("mail", 3)
                    assert watch.wait(0) == set()
            case "merged":
                with ThreadPoolExecutor(4) as pool:
                    list(pool.map(lambda _: acme.enqueue("mail", 3), range(40)))
        assert watch.wait(60) == {"acme"}
        assert watch.wait(0) == set()


@pytest.mark.parametrize("how", ["ack", "extend", "nothing"])
def test_what_brings_nothing_new_rings_nobody(store: tenantq.Store, acme: tenantq.Tenant, how: str) -> None:
    acme.enqueue("mail", 1)
    (message,) = acme.claim("mail")
    with store.watch(NEVER) as watch:
        look(watch)
        match how:
            case "ack":
                message.ack()
            case "extend":
                message.extend(5)
            case "nothing":
                with pytest.raises(ZeroDivisionError), acme.transaction() as tx:
                    tx.enqueue("mail", 1)
                    raise ZeroDivisionError
        assert watch.wait(0) == set()


def test_a_wait_is_woken(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)
    with store.watch(NEVER) as watch, ThreadPoolExecutor(1) as pool:
        look(watch)
        waiting = pool.submit(watch.wait, 60)
        acme.enqueue("mail", 2)
        assert waiting.result(10) == {"acme"}
        waiting = pool.submit(watch.wait, 60)
        watch.wake()
        assert waiting.result(10) == set()
        waiting = pool.submit(watch.wait, 60)
        watch.close()
        assert waiting.result(10) == set()


def test_no_commit_is_missed_between_two_waits(store: tenantq.Store) -> None:
    tenants = [store.tenant(f"tenant-{number}") for number in range(40)]
    for tenant in tenants:
        tenant.enqueue("mail", 1)
    with store.watch(NEVER) as watch, ThreadPoolExecutor(4) as pool:
        look(watch)
        writing = [pool.submit(tenant.enqueue, "mail", 2) for tenant in tenants]
        heard: set[str] = set()
        while len(heard) < len(tenants):
            found = watch.wait(60)
            assert found
            heard |= found
        assert all(future.result() == 2 for future in writing)


def test_a_closed_watch_is_not_rung(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    watch = store.watch(NEVER)
    watch.wait(0)
    watch.close()
    assert watch.wait(0) == set()
    acme.enqueue("mail", 1)
    assert watch.wait(0) == set()
    assert store._watches == ()


def test_what_another_process_commits_is_found_by_the_sweep(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    acme.enqueue("mail", 1)
    with (
        store.watch(0.001) as watch,
        Child(
            """
        store = tenantq.open(sys.argv[1])
        while command := hear():
            store.tenant(command).enqueue("mail", 1)
            say("done")
        store.close()
        """,
            store.root,
        ) as child,
    ):
        look(watch)
        known: set[str] = set()
        for tenant_id in ("acme", "new", "acme", "Other Ü"):
            known.add(tenant_id)
            child.say(tenant_id)
            found: set[str] = set()
            while tenant_id not in found:
                found |= watch.wait(60)
            assert found <= known  # one that was made just now may be told of once more
            assert child.heard() == "done"


def test_a_file_that_was_copied_into_the_store_is_found(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    acme.enqueue("mail", 1)
    saved = acme.backup(tmp_path / "x.db")
    store.close()
    acme.path.unlink()
    with tenantq.open(store.root) as again, again.watch(0) as watch:
        assert look(watch) == set()
        shutil.copy(saved, acme.path)
        assert watch.wait(60) == {"acme"}


def test_a_file_that_just_changed_is_looked_at_once_more(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acme.enqueue("mail", 1)
    with store.watch(NEVER) as watch:
        assert look(watch) == {"acme"}
        assert look(watch) == set()
        monkeypatch.setattr(watch_module, "CLOCK_TICK_NS", 10**12)
        os.utime(acme.path)
        assert look(watch) == {"acme"}
        monkeypatch.setattr(watch_module, "CLOCK_TICK_NS", -1)
        assert look(watch) == {"acme"}
        assert look(watch) == set()


def test_a_sweep_takes_only_a_share_of_the_time(store: tenantq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def sweep() -> Iterator[None]:
        nonlocal now
        now += 2
        yield

    with store.watch(0.25) as watch:
        monkeypatch.setattr(watch_module, "time", SimpleNamespace(monotonic=lambda: now))
        monkeypatch.setattr(watch, "_sweep", sweep)
        look(watch)
        assert watch._next_sweep == 1002 + 2 / watch_module.SWEEP_SHARE
        monkeypatch.undo()


def test_an_idle_watch_opens_nothing(store: tenantq.Store) -> None:
    for number in range(20):
        store.tenant(f"tenant-{number}").enqueue("mail", 1)
    store.close()
    threads = threading.active_count()
    with tenantq.open(store.root) as again, again.watch(0) as watch:
        assert len(look(watch)) == 20
        assert look(watch) == set()
        assert again._handles == {}
        assert threading.active_count() <= threads + 1  # the doorbell's, for all tenants
