"""The worker among many tenants: noisy ones, ones whose handlers hang, and several processes on one store."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import tenantq
from tenantq._tenant_source import TenantSource
from tenantq.errors import InvalidArgument
from tests.children import Child

PATIENCE = 30


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.002)


@pytest.mark.parametrize("most", [0, -1, 1.5, True])
def test_what_is_no_cap_is_refused(live: tenantq.Store, most: Any) -> None:
    with pytest.raises(InvalidArgument):
        tenantq.Worker(live, max_concurrency=most)


def test_a_small_tenant_is_served_before_what_is_claimed_ahead_of_a_noisy_one(live: tenantq.Store) -> None:
    noisy, small = live.tenant("noisy"), live.tenant("small")
    noisy.enqueue_many("mail", range(3000))
    handled: list[str] = []
    is_served = threading.Event()
    worker = tenantq.Worker(live, concurrency=2)

    @worker.on("mail")
    def handle(message: tenantq.Message[int]) -> None:
        handled.append(message.tenant or "")
        time.sleep(0.001)
        if message.tenant == "small":
            is_served.set()

    with worker:
        wait_for(lambda: len(handled) > 200)
        before = len(handled)
        small.enqueue("mail", 1)
        assert is_served.wait(PATIENCE)
    assert handled.index("small") - before < 200, "not behind a buffer of a hundred and a file of thousands"


@pytest.mark.parametrize("hangs_in_transaction", [False, True])
def test_handlers_of_one_tenant_that_hang_keep_no_other_waiting(
    live: tenantq.Store, hangs_in_transaction: bool
) -> None:
    hung, release = threading.Semaphore(0), threading.Event()
    served: list[str] = []
    worker = tenantq.Worker(live, concurrency=3)

    @worker.on("mail")
    def handle(message: tenantq.Message[int]) -> None:
        if message.tenant != "hangs":
            served.append(message.tenant or "")
            return
        if hangs_in_transaction and message.payload == 0:
            with live.tenant("hangs").transaction():
                hung.release()
                assert release.wait(PATIENCE)
            return
        hung.release()
        assert release.wait(PATIENCE)

    live.tenant("first").enqueue("mail", 1)
    with worker:
        wait_for(lambda: served == ["first"])
        live.tenant("hangs").enqueue_many("mail", range(100))
        assert hung.acquire(timeout=PATIENCE)
        assert hung.acquire(timeout=PATIENCE)
        began = time.monotonic()
        for number in range(20):
            live.tenant(f"small-{number}").enqueue("mail", 1)
        wait_for(lambda: len(served) == 21)
        assert time.monotonic() - began < live.config.busy_timeout
        release.set()


def test_a_tenant_has_no_more_threads_than_its_cap(live: tenantq.Store) -> None:
    live.tenant("acme").enqueue_many("mail", range(50))
    lock, running, most = threading.Lock(), [0], [0]
    worker = tenantq.Worker(live, concurrency=4, max_concurrency=2)

    @worker.on("mail")
    def handle(message: tenantq.Message[int]) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.002)
        with lock:
            running[0] -= 1

    with worker:
        wait_for(lambda: worker.counts.get("handled", 0) == 50)
    assert most == [2]


def test_a_worker_keeps_a_tenants_own_cap(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.limit(max_claimed=1)
    acme.enqueue_many("mail", range(20))
    lock, running, most = threading.Lock(), [0], [0]
    worker = tenantq.Worker(live, concurrency=4)

    @worker.on("mail")
    def handle(message: tenantq.Message[int]) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.001)
        with lock:
            running[0] -= 1

    with worker:
        wait_for(lambda: worker.counts.get("handled", 0) == 20)
    assert most == [1]


def test_all_queues_of_a_tenant_are_served_while_one_never_ends(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.enqueue_many("flood", range(5000))
    worker = tenantq.Worker(live, concurrency=2)
    is_served = threading.Event()
    floods: list[int] = []
    worker.on("flood")(lambda message: floods.append(message.payload))
    worker.on("mail")(lambda _message: is_served.set())
    with worker:
        wait_for(lambda: len(floods) > 100)
        acme.enqueue("mail", 1)
        assert is_served.wait(PATIENCE)
        assert len(floods) < 5000


WORKER = """
import time
tenantq_store = tenantq.open(sys.argv[1])
worker = tenantq.Worker(tenantq_store, concurrency=2)

@worker.on("mail")
def handle(message):
    time.sleep(0.002)
    say(message.tenant, message.id)

say("ready")
hear()
with worker:
    hear()
"""


def test_several_processes_share_the_tenants_and_handle_nothing_twice(live: tenantq.Store) -> None:
    noisy = live.tenant("noisy")
    noisy.enqueue_many("mail", range(1500))
    for number in range(30):
        live.tenant(f"small-{number}").enqueue_many("mail", range(3))
    children = [Child(WORKER, live.root) for _ in range(3)]
    try:
        for child in children:
            assert child.heard() == "ready"
        for child in children:
            child.say("go")
        wait_for(lambda: noisy.stats().ready == 0 and noisy.stats().claimed == 0)
        wait_for(lambda: all(live.tenant(f"small-{n}").stats().ready == 0 for n in range(30)))
        for child in children:
            child.say("end")
        lines = [child.heard_all() for child in children]
        assert [child.end() for child in children] == [0, 0, 0]
    finally:
        for child in children:
            child.__exit__(None, None, None)
    handled = [line for some in lines for line in some]
    assert len(handled) == len(set(handled)) == 1500 + 90
    assert min(len(some) for some in lines) > 100, "all of them were busy"


def test_what_a_hanging_process_claimed_ahead_goes_to_another_one(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.enqueue_many("mail", range(60))
    release = threading.Event()
    worker = tenantq.Worker(live, concurrency=2)
    handled: list[int] = []

    @worker.on("mail")
    def handle(message: tenantq.Message[int]) -> None:
        handled.append(message.payload)
        if message.payload >= 30:
            assert release.wait(PATIENCE)

    with worker:
        wait_for(lambda: len(handled) >= 32)
        others: list[int] = []
        while len(others) + len(handled) < 60:
            for message in acme.claim("mail", 60, wait=PATIENCE):
                others.append(message.payload)
                message.ack()
        release.set()
    assert sorted(handled + others) == list(range(60))


def test_a_file_that_somebody_keeps_locked_keeps_no_other_tenant_waiting(live: tenantq.Store) -> None:
    slow = live.tenant("slow")
    slow.enqueue_many("mail", range(20))
    began, release = threading.Event(), threading.Event()
    served: list[str] = []
    worker = tenantq.Worker(live, concurrency=3, max_concurrency=1)

    @worker.on("mail")
    def handle(message: tenantq.Message[int]) -> None:
        if message.tenant == "slow" and not began.is_set():
            began.set()
            assert release.wait(PATIENCE)
        served.append(message.tenant or "")

    with worker:
        assert began.wait(PATIENCE)
        with Child(
            """
            with tenantq.open(sys.argv[1]).tenant("slow").transaction():
                say("locked")
                hear()
            """,
            live.root,
        ) as child:
            assert child.heard() == "locked"
            release.set()
            wait_for(lambda: "slow" in served)
            since = time.monotonic()
            for number in range(10):
                live.tenant(f"small-{number}").enqueue("mail", 1)
            wait_for(lambda: len([one for one in served if one != "slow"]) == 10)
            assert time.monotonic() - since < live.config.busy_timeout / 2
            child.say("end")
            wait_for(lambda: worker.counts.get("handled", 0) == 30)
    stats = slow.stats()
    assert (stats.ready, stats.claimed) == (0, 0)


def test_a_tenants_weight_comes_with_what_is_claimed_of_it(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.limit(weight=3)
    acme.enqueue("mail", 1)
    is_claimed = threading.Event()
    source = TenantSource(
        live,
        ["mail"],
        threads=2,
        lease=60,
        worker="w",
        ring=is_claimed.set,
        tell=lambda _message, _lost: None,
    )
    source.start()
    assert is_claimed.wait(PATIENCE)
    wait_for(lambda: source._fair._accounts["acme"].weight == 3.0)
    (left,) = source.stop()
    left.release()
