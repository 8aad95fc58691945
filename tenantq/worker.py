"""The worker: handlers for the messages of all three layers, run by a few threads until it is told to stop."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from tenantq._handlers import Handlers
from tenantq._leases import worker_name
from tenantq._sources import ClaimingSource, MemorySource, SharedQueue, SharedSource, Source
from tenantq._tenant_source import TenantSource
from tenantq._walk import PeriodicWalk
from tenantq.arguments import check_lease, check_limit, check_seconds
from tenantq.errors import InvalidArgument, LeaseLost, TenantqError
from tenantq.message import Message
from tenantq.naming import check_name
from tenantq.router import Layer
from tenantq.service import SIGNAL_INTERVAL
from tenantq.store import Store

__all__ = ["Worker"]

logger = logging.getLogger("tenantq.worker")

F = TypeVar("F", bound=Callable[[Message[Any]], object])

EXTENSIONS = 3
"""Times that a lease is extended in its own length: two may fail before it ends."""

IDLE_WAIT = 1.0
"""Seconds that a thread without work waits before it looks again by itself."""


class Worker:
    """Runs handlers: of every tenant of a store, of the memory layer, and of the shared layer given a bridge.

    A handler takes a Message and ends it by its outcome: returning acks it, `Snooze` and `DeadLetter` do as
    they say, an exception is a failed attempt. A handler that writes, emits and acks in one
    `store.tenant(message.tenant).transaction()` has had its effect exactly once; any other is run again if
    its process dies before the ack, so it should bear that.
    """

    def __init__(
        self,
        store: Store,
        *,
        concurrency: int = 4,
        max_concurrency: int | None = None,
        bridge: SharedQueue | None = None,
        lease: float = 60.0,
        name: str | None = None,
        drain_timeout: float = 30.0,
    ) -> None:
        """Make a worker of `concurrency` threads.

        max_concurrency: how many of them may handle messages of one tenant at once. By default all but one, as
        soon as the worker has heard of a second tenant: handlers of one tenant that hang leave it to the others.
        bridge: a `tenantq_bridge.PostgresQueue`, for handlers of types that cross hosts.
        lease: seconds; extended while a handler runs, so it bounds only how long the messages of a worker
        that died wait.
        drain_timeout: seconds that running handlers get to end after SIGTERM.
        """
        self.store = store
        self.concurrency = check_limit(concurrency, "concurrency")
        self.max_concurrency = max_concurrency
        if max_concurrency is not None:
            check_limit(max_concurrency, "max_concurrency")
        self.bridge = bridge
        self.lease = check_lease(lease)
        self.name = worker_name() if name is None else check_name(name, "worker name")
        self.drain_timeout = check_seconds(drain_timeout, "drain_timeout")
        self._handlers = Handlers()
        self._sources: list[Source] = []
        self._running: dict[int, tuple[Source, Message[Any]]] = {}
        self._threads: list[threading.Thread] = []
        self._lease_keeper = threading.Thread()
        self._walk = PeriodicWalk(store)
        # A signal handler may interrupt the very thread that holds an Event's lock; this queue's put cannot.
        self._requests: SimpleQueue[None] = SimpleQueue()
        self._is_drained = threading.Event()
        self._is_ending = False
        self._work = threading.Condition()
        self._has_rung = 0

    def on(self, target: type | str, *, queue: str | None = None, layer: Layer | None = None) -> Callable[[F], F]:
        """Register the decorated function for a declared message type, or for a queue by its name.

        For a type that crosses hosts, `queue` names the Postgres queue to take it from; without it the type
        has a queue of its own name there, subscribed to its topic when the worker starts. For a queue by
        name, `layer` says where it is (the tenants' files by default).
        """

        def register(function: F) -> F:
            self._handlers.add(target, function, queue=queue, layer=layer)
            return function

        return register

    def run(self) -> None:
        """Handle messages until SIGTERM or SIGINT, then drain: finish what runs, give back what waits."""
        previous = self._install_signals()
        try:
            self.start()
            while not self._is_asked_to_stop():
                pass
        finally:
            try:
                self.stop()
            finally:
                for number, handler in previous.items():
                    signal.signal(number, handler)

    def start(self) -> Self:
        """Start the threads and return; a second call changes nothing."""
        if self._threads:
            return self
        self._is_drained.clear()
        self._is_ending = False
        self._sources = self._make_sources()
        for source in self._sources:
            source.start()
        self._threads = [
            threading.Thread(target=self._work_off, name=f"tenantq-worker-{number}", daemon=True)
            for number in range(self._count_threads())
        ]
        self._lease_keeper = threading.Thread(target=self._keep_leases, name="tenantq-leases", daemon=True)
        for thread in (*self._threads, self._lease_keeper):
            thread.start()
        self._walk = PeriodicWalk(self.store).start()
        return self

    def stop(self) -> None:
        """Claim no more, give back what is not begun, and wait `drain_timeout` seconds for the handlers.

        A handler that takes longer keeps its lease until it runs out: its message is then another's.
        """
        self.request_stop()
        threads, self._threads = self._threads, []
        if not threads:
            return
        self._is_ending = True  # from here on no thread begins anything
        logger.info("draining")
        self._walk.request_stop()
        for source in self._sources:
            _give_back(source.stop())
        self._ring()
        deadline = time.monotonic() + self.drain_timeout
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._walk.stop()
        self._is_drained.set()
        self._lease_keeper.join()
        self._requests = SimpleQueue()  # heeded: what is asked from now on is asked of the next run
        if any(thread.is_alive() for thread in threads):
            logger.warning("handlers still run after %g s of draining", self.drain_timeout)

    def run_once(self) -> int:
        """Handle what is claimable now, in this thread, one by one; return how many messages that were.

        A tenant whose file fails keeps none of the others from being served; its error is raised at the end.
        """
        handled = 0
        failures: dict[str, TenantqError] = {}
        self._walk_once(failures)
        is_done = False
        while not is_done:
            is_done = True
            for layer, message in self._claim_round(failures):
                self._handlers.handle(layer, message)
                handled += 1
                is_done = False
        for failure in failures.values():
            raise failure
        return handled

    def request_stop(self) -> None:
        """Let `run` end, at once if it has not begun; returns at once, and may be called from a signal handler."""
        self._requests.put(None)

    @property
    def counts(self) -> dict[str, int]:
        """What was done so far: handled, failed, snoozed, dead, lost; and each by layer, as `tenant.handled`."""
        return self._handlers.tally.counts()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _make_sources(self) -> list[Source]:
        queues = self._queues()
        sources: list[Source] = []
        if queues[Layer.TENANT]:
            sources.append(
                TenantSource(
                    self.store,
                    queues[Layer.TENANT],
                    threads=self.concurrency,
                    lease=self.lease,
                    worker=self.name,
                    ring=self._ring,
                    tell=self._handlers.tell,
                    max_concurrency=self.max_concurrency,
                ),
            )
        if queues[Layer.MEMORY]:
            sources.append(
                MemorySource(self.store.memory, queues[Layer.MEMORY], lease=self.lease, ring=self._ring),
            )
        subscriptions = self._handlers.subscriptions()
        for queue in queues[Layer.SHARED]:
            assert self.bridge is not None  # _queues has checked it
            sources.append(
                SharedSource(
                    self.bridge,
                    queue,
                    topics=[topic for topic in subscriptions if topic == queue],
                    threads=self.concurrency,
                    lease=self.lease,
                    worker=self.name,
                    ring=self._ring,
                ),
            )
        return sources

    def _queues(self) -> dict[Layer, list[str]]:
        queues = {layer: self._handlers.queues(layer) for layer in Layer}
        if not any(queues.values()):
            raise InvalidArgument("the worker has no handlers", hint="register some with @worker.on(Type)")
        if queues[Layer.SHARED] and self.bridge is None:
            raise InvalidArgument(
                f"the worker has handlers for the shared layer ({', '.join(queues[Layer.SHARED])}) and no bridge",
                hint="give it Worker(bridge=tenantq_bridge.PostgresQueue(dsn))",
            )
        return queues

    def _walk_once(self, failures: dict[str, TenantqError]) -> None:
        try:
            PeriodicWalk(self.store).run_once()
        except TenantqError as exc:
            failures[""] = exc  # of no tenant

    def _claim_round(self, failures: dict[str, TenantqError]) -> Iterator[tuple[Layer, Message[Any]]]:
        """Claim one message of each queue that has one, each when the one before it was handled."""
        queues = self._queues()
        for tenant_id in self.store.tenants() if queues[Layer.TENANT] else ():
            if tenant_id in failures:
                continue
            tenant = self.store.tenant(tenant_id)
            try:
                for queue in queues[Layer.TENANT]:
                    for message in tenant.claim(queue, lease=self.lease, worker=self.name):
                        yield Layer.TENANT, message
            except TenantqError as exc:
                failures[tenant_id] = exc
        if queues[Layer.MEMORY]:
            for message in self.store.memory.claim_any(queues[Layer.MEMORY], lease=self.lease):
                yield Layer.MEMORY, message
        if self.bridge is not None:
            for topic in self._handlers.subscriptions():
                self.bridge.subscribe(topic, topic)
            for queue in queues[Layer.SHARED]:
                for message in self.bridge.claim(queue, lease=self.lease, worker=self.name):
                    yield Layer.SHARED, message

    def _count_threads(self) -> int:
        return self.concurrency

    def _work_off(self) -> None:
        """Take messages from the sources in turns and handle them: one thread's whole life."""
        turn = 0
        while not self._is_ending:
            rung = self._has_rung
            for offset in range(len(self._sources)):
                source = self._sources[(turn + offset) % len(self._sources)]
                message = source.take()
                if message is not None:
                    turn += offset + 1
                    self._handle(source, message)
                    break
            else:
                with self._work:
                    if self._has_rung == rung:
                        self._work.wait(self._idle_wait())

    def _handle(self, source: Source, message: Message[Any]) -> None:
        started = self._begin(source, message)
        is_acked_later = False
        try:
            is_acked_later = self._handlers.handle(source.layer, message, source.finish)
        finally:
            self._end(source, message, started, is_acked_later=is_acked_later)

    def _begin(self, source: Source, message: Message[Any]) -> float:
        """Keep a message's lease from here on; return when that is."""
        self._running[id(message)] = (source, message)
        return time.monotonic()

    def _end(self, source: Source, message: Message[Any], started: float, *, is_acked_later: bool) -> None:
        """Say that a message's handler has ended, and its outcome is written or passed on."""
        del self._running[id(message)]
        source.worked(time.monotonic() - started, message)
        if not is_acked_later:
            source.done()

    def _idle_wait(self) -> float:
        dues = [source.next_due() for source in self._sources if isinstance(source, MemorySource)]
        return min([IDLE_WAIT, *(due for due in dues if due is not None)])

    def _ring(self) -> None:
        with self._work:
            self._has_rung += 1
            self._work.notify_all()

    def _keep_leases(self) -> None:
        """Extend the leases of all that is claimed, until the last handler has ended."""
        while not self._is_drained.wait(self.lease / EXTENSIONS):
            held = list(self._running.values())
            for source in self._sources:
                if isinstance(source, ClaimingSource):
                    held += [(source, message) for message in source.buffered()]
            failed: set[tuple[Layer, str | None]] = set()  # a locked file is waited for once in a round
            for source, message in held:
                where = source.layer, message.tenant
                if not message.settled and where not in failed and not self._extend(source, message):
                    failed.add(where)

    def _extend(self, source: Source, message: Message[Any]) -> bool:
        about = {"tenant": message.tenant, "queue": message.queue, "message_id": message.id}
        try:
            message.extend(self.lease)
        except LeaseLost:
            # Of one that runs, its outcome will tell: it may be about to say that it has just been acked.
            if isinstance(source, ClaimingSource) and source.drop(message):
                logger.warning("a lease was lost before its handler began", extra=about)
        except Exception:
            logger.warning("a lease could not be extended yet", exc_info=True, extra=about)
            return False
        return True

    def _is_asked_to_stop(self) -> bool:
        # Not for longer at once: a signal that comes just before a thread blocks is not handled while it does.
        with contextlib.suppress(Empty):
            self._requests.get(timeout=SIGNAL_INTERVAL)
            return True
        return False

    def _install_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        is_signalled = False

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            nonlocal is_signalled
            if is_signalled:
                raise KeyboardInterrupt  # the second time: do not wait for the handlers
            is_signalled = True
            self.request_stop()

        return {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}


def _give_back(messages: list[Message[Any]]) -> None:
    for message in messages:
        try:
            message.release()
        except TenantqError:
            logger.warning("a message could not be given back; its lease runs out", exc_info=True)
