"""The worker for asyncio: async handlers as tasks of the event loop, others in a few threads beside it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from tenantq import worker as core
from tenantq._handlers import Function, Handlers, Verdict, check_payload, failure, unhandled, verdict_of
from tenantq._sources import SharedQueue, Source
from tenantq.aio._bells import Line, Waiter
from tenantq.aio._pool import to_the_end
from tenantq.aio.message import Message, MessageVerbs
from tenantq.aio.store import Store
from tenantq.arguments import check_limit
from tenantq.errors import TenantqError
from tenantq.message import Message as Delivery
from tenantq.router import Layer

__all__ = ["Worker"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

MOST_WRITERS = 16
"""Threads that write outcomes, at the most: each may wait for a locked file."""


class Worker:
    """Runs handlers, many at once: of every tenant of a store, of the memory layer, of the shared layer.

    `async def` handlers get a `tenantq.aio.Message` and run as tasks of the event loop; others get a
    `tenantq.Message` and run in `threads` threads. Outcomes are as for `tenantq.Worker`. A handler that is
    cancelled at the end of draining gives its message back, the attempt not counted.
    """

    def __init__(
        self,
        store: Store,
        *,
        concurrency: int = 100,
        max_concurrency: int | None = None,
        bridge: SharedQueue | None = None,
        lease: float = 60.0,
        name: str | None = None,
        drain_timeout: float = 30.0,
        threads: int = 4,
    ) -> None:
        """Make a worker that runs up to `concurrency` handlers at once.

        threads: of those that are not async, so many at once. The rest is as for `tenantq.Worker`.
        """
        self.store = store
        self.threads = check_limit(threads, "threads")
        self._engine = _Engine(
            store,
            self._ring_from_thread,
            concurrency=concurrency,
            max_concurrency=max_concurrency,
            bridge=bridge,
            lease=lease,
            name=name,
            drain_timeout=drain_timeout,
        )
        self.concurrency = self._engine.concurrency
        self.max_concurrency = max_concurrency
        self.bridge = bridge
        self.lease = self._engine.lease
        self.name = self._engine.name
        self.drain_timeout = self._engine.drain_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell = Waiter(Line())
        self._dispatcher: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_asked_to_stop = False
        self._asked = asyncio.Event()

    def on(self, target: type | str, *, queue: str | None = None, layer: Layer | None = None) -> Callable[[F], F]:
        """Register the decorated function, async or not, for a declared type or a queue by its name.

        See `tenantq.Worker.on`.
        """
        return self._engine.on(target, queue=queue, layer=layer)

    async def run(self) -> None:
        """Handle messages until SIGTERM or SIGINT, then drain: finish what runs, give back what waits.

        A second signal, and a cancellation while it drains, cancels the handlers.
        """
        loop = asyncio.get_running_loop()
        signals = self._install_signals(loop)
        try:
            await self.start()
            await self._asked.wait()
        finally:
            try:
                await self.stop()
            finally:
                for number in signals:
                    loop.remove_signal_handler(number)

    async def start(self) -> Self:
        """Begin to handle messages and return; a second call changes nothing."""
        if self._dispatcher is not None:
            return self
        self.store._check()
        self._loop = asyncio.get_running_loop()
        self._asked.clear()
        if self._is_asked_to_stop:
            self._asked.set()
        self._writers = ThreadPoolExecutor(MOST_WRITERS, thread_name_prefix="tenantq-aio-outcomes")
        self._handler_threads = ThreadPoolExecutor(self.threads, thread_name_prefix="tenantq-aio-handlers")
        starting = self._in_thread(self._engine.start)
        is_cancelled = await to_the_end(starting)
        if (error := starting.exception()) is not None:
            self._shut_down()
            raise error
        self._dispatcher = asyncio.create_task(self._dispatch(), name="tenantq-worker")
        self._dispatcher.add_done_callback(lambda _dispatcher: self._asked.set())
        if is_cancelled:
            await self.stop()
            raise asyncio.CancelledError
        return self

    async def stop(self) -> None:
        """Claim no more, give back what is not begun, and wait `drain_timeout` seconds for the handlers.

        Async handlers that take longer are cancelled. Others keep their leases until these run out.
        """
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is None:
            self._is_asked_to_stop = False
            return
        self.request_stop()
        stopping = self._in_thread(self._engine.stop)
        is_cancelled = False
        while not stopping.done():
            try:
                await asyncio.wait((stopping,))
            except asyncio.CancelledError:
                is_cancelled = True
                self._cancel_handlers()
        self._cancel_handlers()
        while not dispatcher.done():
            is_cancelled |= await to_the_end(dispatcher)
        self._shut_down()
        self._is_asked_to_stop = False  # heeded: what is asked from now on is asked of the next run
        if is_cancelled or dispatcher.cancelled():
            raise asyncio.CancelledError
        stopping.result()
        dispatcher.result()

    async def run_once(self) -> int:
        """Handle what is claimable now, one by one; return how many messages that were.

        A tenant whose file fails keeps none of the others from being served; its error is raised at the end.
        """
        self.store._check()
        handled = 0
        failures: dict[str, TenantqError] = {}
        thread = ThreadPoolExecutor(1, thread_name_prefix="tenantq-aio-once")
        try:
            walking = asyncio.get_running_loop().run_in_executor(thread, self._engine.walk_once, failures)
            if await to_the_end(walking):
                raise asyncio.CancelledError
            walking.result()
            while count := await self._run_round(self._engine.claim_round(failures), thread):
                handled += count
        finally:
            thread.shutdown(wait=False)
        for failed in failures.values():
            raise failed
        return handled

    def request_stop(self) -> None:
        """Let `run` end, at once if it has not begun; returns at once, and may be called from any thread."""
        self._is_asked_to_stop = True
        self._ring_from_thread()

    @property
    def counts(self) -> dict[str, int]:
        """What was done so far: handled, failed, snoozed, dead, lost; and each by layer, as `tenant.handled`."""
        return self._engine.counts

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _dispatch(self) -> None:
        """Start a task for each message that the sources give, in turns; then wait for the last of them."""
        try:
            while not self._engine.is_ending:
                self._bell.clear()
                while len(self._tasks) < self.concurrency and not self._engine.is_ending:
                    taken = self._engine.take_next()
                    if taken is None:
                        break
                    task = asyncio.create_task(self._handle(*taken))
                    self._tasks.add(task)
                    task.add_done_callback(self._ended)
                await self._bell.sleep(self._engine.idle_wait())
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._engine.is_worked_off.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._bell.ring()

    async def _handle(self, source: Source, delivery: Delivery[Any]) -> None:
        engine = self._engine
        handlers = engine.handlers
        started = engine.begin(source, delivery)
        is_acked_later: bool | None = False
        try:
            verdict = await self._run_handler(source.layer, delivery, self._handler_threads)
            if verdict is None:
                return
            is_acked_later = handlers.pass_on(source.layer, delivery, verdict, source.finish)
            if is_acked_later is None:
                writing = self._in_thread(lambda: handlers.write(source.layer, delivery, verdict))
                await to_the_end(writing)
        finally:
            engine.end(source, delivery, started, is_acked_later=bool(is_acked_later))

    async def _run_round(self, claims: Iterator[tuple[Layer, Delivery[Any]]], thread: ThreadPoolExecutor) -> int:
        loop, handlers = asyncio.get_running_loop(), self._engine.handlers
        count = 0
        while True:
            claiming = loop.run_in_executor(thread, next, claims, None)
            is_cancelled = await to_the_end(claiming)
            claimed = claiming.result()
            if claimed is not None:
                layer, delivery = claimed
                verdict: Verdict | None = ("released", delivery.release)
                if not is_cancelled:
                    verdict = await self._run_handler(layer, delivery, thread)
                    is_cancelled = _is_cancelled()
                if verdict is not None:
                    if handlers.pass_on(layer, delivery, verdict, lambda _message: False) is None:
                        await to_the_end(loop.run_in_executor(thread, handlers.write, layer, delivery, verdict))
                    count += 1
            if is_cancelled:
                raise asyncio.CancelledError
            if claimed is None:
                return count

    async def _run_handler(
        self, layer: Layer, delivery: Delivery[Any], threads: ThreadPoolExecutor
    ) -> Verdict | None:
        """Run a message's handler; None where nothing may be said of it, as it still runs in a thread."""
        function = self._engine.handlers.find(layer, delivery)
        if function is None:
            return unhandled(delivery)
        is_async = _is_async(function)
        try:
            check_payload(delivery)
            if is_async:
                outcome = await self._awaited(function, layer, delivery, threads)
            else:
                loop = asyncio.get_running_loop()
                outcome = await loop.run_in_executor(threads, function, delivery)
        except asyncio.CancelledError as exc:
            if not _is_cancelled():  # it raised that itself
                return failure(delivery, exc)
            return ("released", delivery.release) if is_async else None
        except BaseException as exc:
            return failure(delivery, exc)
        return verdict_of(delivery, outcome)

    async def _awaited(
        self, function: Callable[..., Any], layer: Layer, delivery: Delivery[Any], threads: ThreadPoolExecutor
    ) -> object:
        return await function(Message(delivery, self._verbs_of(layer, delivery, threads)))

    def _verbs_of(self, layer: Layer, delivery: Delivery[Any], threads: ThreadPoolExecutor) -> MessageVerbs:
        match layer:
            case Layer.TENANT:
                assert delivery.tenant is not None
                return self.store.tenant(delivery.tenant)
            case Layer.MEMORY:
                return self.store.memory
            case Layer.SHARED:
                return _InThread(threads)

    def _in_thread(self, action: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._writers, action)

    def _cancel_handlers(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _shut_down(self) -> None:
        self._writers.shutdown(wait=False)
        self._handler_threads.shutdown(wait=False, cancel_futures=True)

    def _ring_from_thread(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._bell.ring()
        if self._is_asked_to_stop:
            self._asked.set()

    def _install_signals(self, loop: asyncio.AbstractEventLoop) -> tuple[signal.Signals, ...]:
        if threading.current_thread() is not threading.main_thread():
            return ()

        def on_signal() -> None:
            if self._is_asked_to_stop:
                self._cancel_handlers()  # the second time: do not wait for the handlers
            self.request_stop()

        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, on_signal)
        return numbers


class _Engine(core.Worker):
    """The core's worker with an event loop in the place of its threads: its sources, leases and draining."""

    def __init__(self, store: Store, ring: Callable[[], None], **options: Any) -> None:
        super().__init__(store.core, **options)
        self._tell_loop = ring
        self._next_turn = 0
        self.handlers: Handlers = self._handlers
        self.is_worked_off = threading.Event()
        """Whether the last handler has ended."""
        self.begin = self._begin
        self.end = self._end
        self.walk_once = self._walk_once
        self.claim_round = self._claim_round
        self.idle_wait = self._idle_wait

    def start(self) -> Self:
        """Start the sources and what keeps the leases."""
        self.is_worked_off.clear()
        return super().start()

    @property
    def is_ending(self) -> bool:
        """Whether nothing is to be begun any more."""
        return self._is_ending

    def take_next(self) -> tuple[Source, Delivery[Any]] | None:
        """Return a claimed message of the source whose turn it is, or of another that has one."""
        for offset in range(len(self._sources)):
            source = self._sources[(self._next_turn + offset) % len(self._sources)]
            message = source.take()
            if message is not None:
                self._next_turn += offset + 1
                return source, message
        return None

    def _count_threads(self) -> int:
        return 1  # in the place of the event loop: it ends when the last handler has

    def _work_off(self) -> None:
        self.is_worked_off.wait()

    def _ring(self) -> None:
        self._tell_loop()


class _InThread:
    """The verbs of a message of the shared layer, in a thread."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads

    async def ack(self, *messages: Message[Any]) -> None:
        """End the messages: done."""
        for message in messages:
            await self._run(message.delivery.ack)

    async def nack(self, message: Message[Any], *, delay: float | None = None, error: str | None = None) -> None:
        """End the delivery: the attempt failed."""
        await self._run(lambda: message.delivery.nack(delay=delay, error=error))

    async def release(self, *messages: Message[Any], delay: float = 0) -> None:
        """End the deliveries without counting the attempts."""
        for message in messages:
            await self._run(partial(message.delivery.release, delay=delay))

    async def extend(self, message: Message[Any], seconds: float) -> None:
        """Make the lease end `seconds` from now."""
        await self._run(lambda: message.delivery.extend(seconds))

    async def dead_letter(self, message: Message[Any], *, error: str | None = None) -> None:
        """End the message: to the dead letters, whatever attempts are left."""
        await self._run(lambda: message.delivery.dead_letter(error=error))

    async def _run(self, verb: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, verb)


def _is_cancelled() -> bool:
    """Whether somebody has cancelled this task, whatever its handler has made of that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
    )
