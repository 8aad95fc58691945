from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

import tenantq
from tenantq import DeadLetter, Snooze, _handlers
from tenantq.errors import InvalidArgument, LeaseLost, TenantBusy, TenantqError
from tenantq.router import Layer
from tenantq.testing import ManualClock
from tests.children import Child

PATIENCE = 30
"""Seconds that something may take that should come at once."""


@tenantq.message("worker.job")
class Job(msgspec.Struct):
    value: int


@tenantq.message("worker.memory", durable=False)
class Passing(msgspec.Struct):
    value: int


@tenantq.message("worker.shared", cross_host=True)
class Everywhere(msgspec.Struct):
    value: int


class Gate:
    """A handler that says that it began and waits until it may end."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.messages: list[tenantq.Message[Any]] = []

    def __call__(self, message: tenantq.Message[Any]) -> None:
        self.messages.append(message)
        self.began.release()
        assert self.may_end.wait(PATIENCE)

    def wait(self) -> None:
        assert self.began.acquire(timeout=PATIENCE)


# What a handler's end does


@pytest.mark.parametrize(
    ("outcome", "count", "state"),
    [
        (lambda: None, "handled", (0, 0, 0)),
        (lambda: "anything", "handled", (0, 0, 0)),
        (lambda: Snooze(60), "snoozed", (0, 1, 0)),
        (lambda: DeadLetter("no such customer"), "dead", (0, 0, 1)),
        (lambda: 1 / 0, "failed", (0, 1, 0)),
        (lambda: Snooze(-1), "failed", (0, 1, 0)),
        (lambda: (_ for _ in ()).throw(SystemExit(3)), "failed", (0, 1, 0)),
    ],
)
def test_an_outcome_is_what_becomes_of_the_message(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    outcome: Callable[[], object],
    count: str,
    state: tuple[int, int, int],
) -> None:
    worker = tenantq.Worker(store)
    worker.on(Job)(lambda _message: outcome())
    acme.send(Job(value=1))
    assert worker.run_once() == 1
    stats = acme.stats()
    assert (stats.ready, stats.scheduled, stats.dead, stats.claimed) == (*state, 0)
    assert worker.counts == {count: 1, f"tenant.{count}": 1}


def test_a_snoozed_attempt_is_not_counted_and_a_failed_one_is(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    clock: ManualClock,
) -> None:
    worker = tenantq.Worker(store)
    outcomes: list[object] = [Snooze(5), Snooze(5), ValueError("boom"), None]
    attempts: list[tuple[int, str | None]] = []

    @worker.on("mail")
    def handle(message: tenantq.Message[Any]) -> object:
        attempts.append((message.attempts, message.error))
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    acme.enqueue("mail", 1)
    while outcomes:
        worker.run_once()
        clock.advance(5)
    assert attempts == [(1, None), (1, None), (1, None), (2, "ValueError: boom")]


def test_a_message_that_always_fails_dies_with_its_last_error(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    clock: ManualClock,
) -> None:
    worker = tenantq.Worker(store)

    @worker.on("mail")
    def handle(message: tenantq.Message[Any]) -> None:
        raise ValueError(f"attempt {message.attempts}")

    acme.enqueue("mail", 1, max_attempts=3)
    while acme.stats().dead == 0:
        worker.run_once()
        clock.advance(60)
    (dead,) = acme.dead_letters()
    assert (dead.error, dead.attempts) == ("ValueError: attempt 3", 3)


def test_a_payload_that_does_not_decode_is_a_failed_attempt(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    worker = tenantq.Worker(store)
    handled: list[Job] = []
    worker.on(Job)(lambda message: handled.append(message.payload))
    acme.enqueue("worker.job", {"value": "not a number"}, max_attempts=1)
    acme.enqueue("worker.job", {"value": 2})
    assert worker.run_once() == 2
    assert handled == [Job(value=2)]
    (dead,) = acme.dead_letters()
    assert dead.error is not None
    assert dead.error.startswith("UndecodablePayload: a stored payload does not decode as Job")


def test_a_handler_may_ack_in_its_own_transaction(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    worker = tenantq.Worker(store)

    @worker.on(Job)
    def handle(message: tenantq.Message[Job]) -> None:
        assert message.tenant is not None
        with store.tenant(message.tenant).transaction() as tx:
            tx.execute("CREATE TABLE done (value)")
            tx.execute("INSERT INTO done VALUES (?)", (message.payload.value,))
            tx.emit("done", 1)
            tx.ack(message)

    acme.send(Job(value=7))
    assert worker.run_once() == 1
    assert worker.counts["handled"] == 1
    with acme.transaction() as tx:
        assert tx.execute("SELECT value FROM done") == [(7,)]
    assert (acme.stats().outbox, acme.stats().claimed) == (1, 0)


def test_a_lost_lease_is_logged_and_changes_nothing(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = tenantq.Worker(store, lease=1)
    taken: list[tenantq.Message[Any]] = []

    @worker.on(Job)
    def handle(message: tenantq.Message[Job]) -> None:
        clock.advance(2)
        taken.extend(acme.claim("worker.job"))

    acme.send(Job(value=1))
    worker.run_once()
    assert worker.counts["lost"] == 1
    assert "the lease was lost while a handler ran" in caplog.text
    assert acme.stats().claimed == 1
    taken[0].ack()


def test_an_outcome_is_written_again_when_the_file_was_busy(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_handlers, "SETTLE_PAUSES", (0, 0, 0))
    worker = tenantq.Worker(store)
    ack = tenantq.Tenant.ack
    failures = [TenantBusy("locked"), TenantBusy("locked")]

    def busy_ack(self: tenantq.Tenant, *messages: tenantq.Message[Any]) -> None:
        if failures:
            raise failures.pop()
        ack(self, *messages)

    monkeypatch.setattr(tenantq.Tenant, "ack", busy_ack)
    worker.on(Job)(lambda _message: None)
    acme.send(Job(value=1))
    worker.run_once()
    assert worker.counts["handled"] == 1
    assert acme.stats().claimed == 0


# Handlers


def test_handlers_are_checked(store: tenantq.Store) -> None:
    worker = tenantq.Worker(store)
    with pytest.raises(InvalidArgument, match="no handlers"):
        worker.run_once()
    worker.on(Job)(print)
    with pytest.raises(InvalidArgument, match="has a handler"):
        worker.on("worker.job")(print)
    with pytest.raises(InvalidArgument, match="queue of its own"):
        worker.on(Passing, queue="other")
        worker.on(Passing, queue="other")(print)
    worker.on(Everywhere)(print)
    with pytest.raises(InvalidArgument, match="no bridge") as caught:
        worker.start()
    assert "bridge=" in caught.value.hint
    with pytest.raises(tenantq.DeclarationError):
        worker.on(int)(print)


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"lease": 0}, {"drain_timeout": -1}, {"name": ""}, {"concurrency": 1.5}],
)
def test_the_options_of_a_worker_are_checked(store: tenantq.Store, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        tenantq.Worker(store, **options)


def test_the_shared_layer_is_served_given_a_bridge(store: tenantq.Store) -> None:
    """Over the memory layer, which has the verbs too: the bridge's own tests have a Postgres."""

    class Bridge(tenantq.MemoryQueue):
        subscribed: list[tuple[str, str]] = []  # noqa: RUF012 - one bridge in one test

        def claim(self, queue: str, limit: int = 1, **options: Any) -> list[tenantq.Message[Any]]:
            messages = super().claim(queue, limit, **options)
            for message in messages:
                message.topic = queue
            return messages

        def subscribe(self, queue: str, pattern: str) -> None:  # type: ignore[override]
            self.subscribed.append((queue, pattern))

    bridge = Bridge()
    worker = tenantq.Worker(store, bridge=bridge)
    handled: list[object] = []
    worker.on(Everywhere)(lambda message: handled.append(message.payload))
    worker.on("reports", layer=Layer.SHARED)(lambda message: handled.append(message.payload))
    bridge.enqueue("worker.shared", Everywhere(value=1))
    bridge.enqueue("reports", "r")
    assert worker.run_once() == 2
    assert sorted(map(str, handled)) == ["Everywhere(value=1)", "r"]
    assert set(bridge.subscribed) == {("worker.shared", "worker.shared")}
    assert worker.counts["shared.handled"] == 2


# While it runs


def test_all_tenants_and_the_memory_layer_are_served(live: tenantq.Store) -> None:
    count = 30
    done = threading.Semaphore(0)
    handled: list[tuple[str | None, int]] = []
    lock = threading.Lock()
    worker = tenantq.Worker(live, concurrency=3)

    @worker.on(Job)
    @worker.on(Passing)
    def handle(message: tenantq.Message[Any]) -> None:
        with lock:
            handled.append((message.tenant, message.payload.value))
        done.release()

    for value in range(count):
        live.tenant(f"tenant-{value % 7}").send(Job(value=value))
    with worker:
        for value in range(count, 2 * count):
            live.tenant(f"tenant-{value % 7}").send(Job(value=value))
            live.tenant(f"tenant-{value % 7}").send(Passing(value=value + count))
        for _ in range(3 * count):
            assert done.acquire(timeout=PATIENCE)
    assert sorted(handled, key=lambda item: item[1]) == [
        (f"tenant-{(value if value < 2 * count else value - count) % 7}", value) for value in range(3 * count)
    ]
    assert worker.counts["handled"] == 3 * count
    assert all(live.tenant(tenant_id).stats().claimed == 0 for tenant_id in live.tenants())


def test_a_lease_is_kept_while_a_handler_runs_for_several(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    gate = Gate()
    worker = tenantq.Worker(live, concurrency=1, lease=0.2)
    worker.on(Job)(gate)
    acme.send(Job(value=1))
    acme.send(Job(value=2))
    with worker:
        gate.wait()
        (message,) = gate.messages
        first = message.lease_expires_ns
        assert first is not None
        end = live.clock.now_ns() + 800_000_000
        while live.clock.now_ns() < end:
            assert acme.claim("worker.job", wait=0.05) == []
        assert message.lease_expires_ns is not None
        assert message.lease_expires_ns > first + 400_000_000
        gate.may_end.set()
        gate.wait()
    assert worker.counts == {"handled": 2, "tenant.handled": 2}


def test_a_buffered_message_whose_lease_was_lost_is_not_handled(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    gate = Gate()
    worker = tenantq.Worker(live, concurrency=1, lease=0.3)
    worker.on(Job)(gate)
    ids = [acme.send(Job(value=value)) for value in range(2)]
    with worker:
        gate.wait()
        (source,) = worker._sources
        while not source.buffered():  # type: ignore[attr-defined]
            threading.Event().wait(0.005)
        acme.purge("worker.job")
        while source.buffered():  # type: ignore[attr-defined]
            threading.Event().wait(0.005)
        gate.may_end.set()
    assert [message.id for message in gate.messages] == ids[:1]
    assert worker.counts["lost"] == 1


def test_a_delayed_message_is_handled_on_time(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    handled: dict[int, int] = {}
    done = threading.Semaphore(0)
    worker = tenantq.Worker(live, concurrency=1)

    @worker.on(Job)
    @worker.on(Passing)
    def handle(message: tenantq.Message[Any]) -> None:
        handled[message.payload.value] = live.clock.now_ns() - message.visible_ns
        done.release()

    with worker:
        acme.send(Job(value=1), delay=0.2)
        acme.send(Passing(value=2), delay=0.2)
        acme.send(Job(value=3), delay=0.1)
        for _ in range(3):
            assert done.acquire(timeout=PATIENCE)
    assert all(late >= 0 for late in handled.values())
    assert len(handled) == 3


def test_what_a_dead_worker_held_is_handled_when_its_lease_is_over(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.send(Job(value=1))
    acme.claim("worker.job", lease=0.3)
    done = threading.Event()
    worker = tenantq.Worker(live)
    worker.on(Job)(lambda _message: done.set())
    with worker:
        assert done.wait(PATIENCE)


def test_what_another_process_enqueues_is_handled(live: tenantq.Store) -> None:
    done = threading.Semaphore(0)
    worker = tenantq.Worker(live)
    worker.on("mail")(lambda _message: done.release())
    with (
        worker,
        Child(
            """
        store = tenantq.open(sys.argv[1])
        while command := hear():
            store.tenant(command).enqueue("mail", 1)
        """,
            live.root,
        ) as child,
    ):
        for tenant_id in ("acme", "new", "acme"):
            child.say(tenant_id)
            assert done.acquire(timeout=PATIENCE)


def test_one_corrupt_tenant_does_not_stop_the_others(
    live: tenantq.Store,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for tenant_id in ("aaa", "zzz"):
        live.tenant(tenant_id).enqueue("mail", 1)
    live.close()
    with tenantq.open(live.root) as store:
        store.tenant("aaa").path.write_bytes(b"\xff" * 5000)
        done = threading.Semaphore(0)
        worker = tenantq.Worker(store)
        worker.on("mail")(lambda _message: done.release())
        with worker:
            for _ in range(3):
                assert done.acquire(timeout=PATIENCE)
                store.tenant("zzz").enqueue("mail", 1)
        assert "a tenant could not be served" in caplog.text


def test_one_corrupt_tenant_is_raised_when_the_others_were_served(live: tenantq.Store) -> None:
    for tenant_id in ("aaa", "zzz"):
        live.tenant(tenant_id).enqueue_many("mail", range(3))
    live.close()
    with tenantq.open(live.root) as store:
        store.tenant("aaa").path.write_bytes(b"\xff" * 5000)
        worker = tenantq.Worker(store)
        worker.on("mail")(lambda _message: None)
        with pytest.raises(TenantqError) as caught:
            worker.run_once()
        assert caught.value.tenant == "aaa"
        assert worker.counts["handled"] == 3


@pytest.mark.parametrize(
    "error", [OSError("too many open files"), RuntimeError("unforeseen"), TenantqError("ours")]
)
def test_a_claim_that_fails_in_any_way_is_tried_again(
    live: tenantq.Store,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    failures = [error, error]
    wait = tenantq.Watch.wait

    def failing_wait(self: tenantq.Watch, timeout: float) -> set[str]:
        if failures:
            raise failures.pop()
        return wait(self, timeout)

    monkeypatch.setattr(tenantq.Watch, "wait", failing_wait)
    done = threading.Event()
    worker = tenantq.Worker(live)
    worker.on("mail")(lambda _message: done.set())
    live.tenant("acme").enqueue("mail", 1)
    with worker:
        assert done.wait(PATIENCE)


def test_a_handler_that_exits_does_not_end_the_worker(live: tenantq.Store) -> None:
    done = threading.Event()
    worker = tenantq.Worker(live, concurrency=1)

    @worker.on("mail")
    def handle(message: tenantq.Message[Any]) -> None:
        if message.attempts == 1:
            raise SystemExit(1)
        done.set()

    live.tenant("acme").enqueue("mail", 1)
    with worker:
        assert done.wait(PATIENCE)


# The end


def test_a_stop_finishes_what_runs_and_gives_back_what_is_not_begun(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    gate = Gate()
    worker = tenantq.Worker(live, concurrency=2)
    worker.on(Job)(gate)
    for value in range(10):
        acme.send(Job(value=value))
    worker.start()
    gate.wait()
    gate.wait()
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(worker.stop)
        while acme.stats().ready < 8:
            threading.Event().wait(0.005)
        assert not stopping.done()
        gate.may_end.set()
        assert stopping.result(PATIENCE) is None
    assert worker.counts["handled"] == len(gate.messages) == 2
    assert [message.attempts for message in acme.claim("worker.job", 99)] == [1] * 8
    worker.stop()


def test_a_stopped_worker_may_be_started_again(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    done = threading.Semaphore(0)
    worker = tenantq.Worker(live)
    worker.on(Job)(lambda _message: done.release())
    threads = threading.active_count()
    for _ in range(2):
        with worker:
            assert worker.start() is worker
            acme.send(Job(value=1))
            assert done.acquire(timeout=PATIENCE)
    assert threading.active_count() <= threads + 1  # the doorbell's, of the store
    assert live._watches == ()


def test_a_handler_that_does_not_end_is_left_behind(live: tenantq.Store, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    worker = tenantq.Worker(live, concurrency=1, drain_timeout=0.05)
    worker.on(Job)(gate)
    live.tenant("acme").send(Job(value=1))
    worker.start()
    thread = worker._threads[0]
    gate.wait()
    worker.stop()
    assert "handlers still run" in caplog.text
    gate.may_end.set()
    thread.join(PATIENCE)


def test_run_ends_when_it_is_asked_to(live: tenantq.Store) -> None:
    worker = tenantq.Worker(live)
    done = threading.Event()
    worker.on(Job)(lambda _message: done.set())
    live.tenant("acme").send(Job(value=1))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run)
        assert done.wait(PATIENCE)
        worker.request_stop()
        assert running.result(PATIENCE) is None


WORKER = """
    store = tenantq.open(sys.argv[1])
    worker = tenantq.Worker(store, concurrency=2, drain_timeout=float(sys.argv[2]))
    go = threading.Event()

    @worker.on("mail")
    def handle(message):
        say("began", message.id)
        go.wait()
        say("ended", message.id)

    def listen():
        hear()
        go.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        worker.run()
    except KeyboardInterrupt:
        say("interrupted")
    store.close()
    say("closed")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(live: tenantq.Store, number: signal.Signals) -> None:
    acme = live.tenant("acme")
    acme.enqueue_many("mail", range(6))
    with Child(WORKER, live.root, 30) as child:
        began = {child.heard(), child.heard()}
        assert began == {"began 1", "began 2"}
        child.process.send_signal(number)
        while acme.stats().ready < 4:
            threading.Event().wait(0.005)
        child.say("go")
        assert sorted([child.heard(), child.heard()]) == ["ended 1", "ended 2"]
        assert child.heard() == "closed"
        assert child.end() == 0
    assert [message.attempts for message in acme.claim("mail", 9)] == [1] * 4
    assert acme.stats().claimed == 4


def test_a_second_signal_waits_for_nobody(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.enqueue("mail", 1)
    with Child(WORKER, live.root, 3600) as child:
        assert child.heard() == "began 1"
        child.process.send_signal(signal.SIGTERM)
        acme.enqueue("other", 1)
        threading.Event().wait(0.3)
        child.process.send_signal(signal.SIGTERM)
        assert child.heard() == "interrupted"
        assert child.heard() == "closed"
        assert child.end() == 0
    assert acme.stats().claimed == 1


def test_signals_in_a_storm_never_hang_the_worker(live: tenantq.Store) -> None:
    for _ in range(3):
        with Child(WORKER, live.root, 30) as child:
            live.tenant("acme").enqueue("mail", 1)
            assert child.heard().startswith("began")
            child.say("go")
            assert child.heard().startswith("ended")
            for _again in range(2):
                child.process.send_signal(signal.SIGTERM)
            # Nothing, where the second one came when the worker had ended and given the signal back.
            assert child.heard() in ("closed", "interrupted", "")
            child.end()


def test_the_log_names_what_it_is_about(
    store: tenantq.Store,
    acme: tenantq.Tenant,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = tenantq.Worker(store)
    worker.on(Job)(lambda _message: 1 / 0)
    message_id = acme.send(Job(value=1))
    with caplog.at_level(logging.WARNING, logger="tenantq.worker"):
        worker.run_once()
    (record,) = [record for record in caplog.records if record.message == "a handler failed"]
    about = {key: getattr(record, key) for key in ("tenant", "queue", "message_id", "attempt")}
    assert about == {"tenant": "acme", "queue": "worker.job", "message_id": message_id, "attempt": 1}


def test_a_failing_extension_leaves_the_other_tenants_leases_alone(
    live: tenantq.Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    kept = threading.Event()
    extend = tenantq.Tenant.extend

    def slow_extend(self: tenantq.Tenant, message: tenantq.Message[Any], seconds: float) -> None:
        if self.id == "locked":
            tried.append(self.id)
            raise RuntimeError("unforeseen")
        extend(self, message, seconds)
        kept.set()

    monkeypatch.setattr(tenantq.Tenant, "extend", slow_extend)
    gate = Gate()
    worker = tenantq.Worker(live, concurrency=4, lease=0.3)
    worker.on(Job)(gate)
    for tenant_id in ("locked", "locked", "locked", "acme"):
        live.tenant(tenant_id).send(Job(value=1))
    with worker:
        for _ in range(4):
            gate.wait()
        tried.clear()
        kept.clear()
        assert kept.wait(PATIENCE)
        gate.may_end.set()
    assert 1 <= len(tried) <= 4


def test_leases_are_lost_for_good(live: tenantq.Store) -> None:
    acme = live.tenant("acme")
    acme.enqueue("mail", 1)
    (message,) = acme.claim("mail")
    acme.purge("mail")
    with pytest.raises(LeaseLost):
        message.extend(1)
