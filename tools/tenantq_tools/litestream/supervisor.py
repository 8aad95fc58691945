"""The supervisor: keeps Litestream running on a store, and the tenants that change in its hot set."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import assert_never

from tenantq import Store, TenantqError
from tenantq._litestream import LitestreamSilent
from tenantq.backoff import Backoff
from tenantq.errors import UnknownTenant
from tenantq.service import Service
from tenantq.watch import Watch
from tenantq_tools.litestream.binary import Binary
from tenantq_tools.litestream.control import Control
from tenantq_tools.litestream.errors import LitestreamFailed, NotRegistered, ReplicaGap, SupervisorRuns
from tenantq_tools.litestream.hotset import HotSet, Step, Verb
from tenantq_tools.litestream.ledger import Entry, Ledger, position_of
from tenantq_tools.litestream.mover import Moved, Mover
from tenantq_tools.litestream.process import LitestreamProcess
from tenantq_tools.litestream.settings import Settings, directory_of

__all__ = ["HEARTBEAT_FILE", "Supervisor", "replication_lock"]

LOCK_FILE = "lock"
"""Held by whoever replicates the store."""

HEARTBEAT_FILE = "heartbeat"
"""Its time says when the supervisor last went round: a process that is there may do nothing."""

TICK = 0.5
"""Seconds of a round in which nothing is found."""

THREADS = 8
"""Steps under way at once: each waits for the replica most of its time."""

RESTART = Backoff(base=1.0, factor=2.0, cap=60.0, jitter=0.2)
"""Seconds until a Litestream that ended is started again, longer each time."""

STEADY_SECONDS = 60.0
"""After which a Litestream counts as running: the next restart is prompt again."""

SILENCES = 3
"""Requests in a row without an answer, after which Litestream is killed and started again."""

FAREWELL_SECONDS = 15.0
"""For the last changes of all tenants when the supervisor is stopped."""

SECONDS_PER_HOUR = 3600

logger = logging.getLogger("tenantq.litestream")


class Supervisor(Service):
    """Replicates the tenants of a store that change, until it is stopped; one a store."""

    name = "litestream"

    def __init__(self, store: Store, settings: Settings, binary: Binary) -> None:
        super().__init__(interval=TICK)
        settings.check(store.root)
        self._store = store
        self._settings = settings
        self._binary = binary
        self._directory = directory_of(store.root)
        self._process = LitestreamProcess(binary, store.root, settings)
        self._ledger = Ledger(self._directory)
        self._hot = HotSet(settings.hot, settings.idle)
        self._results: SimpleQueue[tuple[Step, Moved | TenantqError]] = SimpleQueue()
        self._found: set[str] = set()
        self._under_way = 0
        self._mover: Mover | None = None
        self._watch: Watch
        self._threads: ThreadPoolExecutor
        self._attempts = 0
        self._started_at = 0.0
        self._next_start = 0.0
        self._silences = 0
        self.rounds = 0
        """How often it went round since it was made."""
        self.restarts = 0
        """How often Litestream had to be started again."""

    def run(self) -> None:
        """Replicate until the role is to stop. Raises SupervisorRuns, and LitestreamFailed at the first start."""
        with ExitStack() as stack:
            stack.enter_context(replication_lock(self._store))
            self._ledger = Ledger.read(self._directory)
            stack.callback(self._ledger.close)
            self._watch = stack.enter_context(self._store.watch())
            self._threads = stack.enter_context(ThreadPoolExecutor(THREADS, "tenantq-litestream"))
            stack.callback(self._process.stop)
            self._start_process()
            super().run()
            self._let_all_go()

    def run_once(self) -> int:
        """Go round once: keep Litestream running, and move the tenants that are to be moved."""
        self._keep_running()
        self._found |= self._watch.wait(TICK)
        while self._found:  # one that fails here is looked at again in the next round
            tenant_id = next(iter(self._found))
            self._notice(tenant_id)
            self._found.discard(tenant_id)
        self._collect()
        if self._mover is not None:
            for step in self._hot.begin(time.monotonic()):
                self._submit(step)
        with suppress(OSError):  # `status` says then that it stands still
            (self._directory / HEARTBEAT_FILE).touch(mode=0o600)
        self.rounds += 1
        return 1

    @property
    def idle(self) -> float:
        """Seconds without a change until a tenant is let go."""
        return self._hot.idle

    @idle.setter
    def idle(self, seconds: float) -> None:
        self._hot.idle = seconds

    @property
    def hot(self) -> int:
        """How many tenants Litestream has."""
        return len(self._hot)

    @property
    def waiting(self) -> int:
        """How many tenants wait for a place, or for their next try."""
        return self._hot.waiting

    @property
    def is_settled(self) -> bool:
        """Whether all that was seen to change is in the replica."""
        return self._hot.is_settled

    @property
    def litestream_pid(self) -> int | None:
        """The process id of Litestream."""
        return self._process.pid

    def _notice(self, tenant_id: str) -> None:
        """Compare a tenant's file with what is known to be in the replica."""
        position = position_of(self._store.tenant(tenant_id).path)
        if not position:
            self._ledger.forget(tenant_id)
        elif position != self._ledger.of(tenant_id).position:
            self._ledger.fall_behind(tenant_id)
            self._hot.change(tenant_id)

    def _submit(self, step: Step) -> None:
        assert self._mover is not None
        self._under_way += 1
        self._threads.submit(self._do, step, self._mover, self._ledger.of(step.tenant))

    def _do(self, step: Step, mover: Mover, entry: Entry) -> None:
        """Take a step, in a thread of the pool."""
        try:
            match step.verb:
                case Verb.ADMIT:
                    moved = mover.admit(step.tenant)
                case Verb.CONFIRM:
                    moved = mover.confirm(step.tenant)
                case Verb.RELEASE:
                    age = time.time() - (entry.snapshot_at or time.time())
                    is_old = age > self._settings.snapshot_hours * SECONDS_PER_HOUR
                    moved = mover.release(step.tenant, with_snapshot=is_old)
                case _:
                    assert_never(step.verb)
            if entry.is_broken and step.verb != Verb.RELEASE:  # which looks anyway
                mover.look(step.tenant, moved.txid)
            self._results.put((step, moved))
        except TenantqError as exc:
            self._results.put((step, exc))
        except OSError as exc:  # a directory that was taken away
            self._results.put((step, TenantqError(str(exc), tenant=step.tenant)))
        except BaseException as exc:
            logger.exception("a step failed", extra={"tenant": step.tenant})
            self._results.put((step, TenantqError(f"{type(exc).__name__}: {exc}", tenant=step.tenant)))
            raise
        finally:
            self._watch.wake()

    def _collect(self) -> None:
        """Take in the steps that have ended."""
        while True:
            try:
                step, outcome = self._results.get_nowait()
            except Empty:
                return
            self._under_way -= 1
            if isinstance(outcome, Moved):
                self._silences = 0
                self._hot.succeed(step, time.monotonic(), has_news=outcome.has_news)
                self._ledger.confirm(
                    step.tenant, outcome.position, outcome.txid, has_snapshot=outcome.has_snapshot
                )
                self._notice(step.tenant)
            else:
                self._take_failure(step, outcome)

    def _take_failure(self, step: Step, error: TenantqError) -> None:
        match error:
            case UnknownTenant():
                self._hot.drop(step, is_changed=False)
                self._ledger.forget(step.tenant)
            case NotRegistered():  # a restore or a delete took it
                self._hot.drop(step, is_changed=False)
                self._notice(step.tenant)
            case LitestreamSilent():
                self._silences += 1
                self._hot.fail(step, time.monotonic())
            case _:
                self._hot.fail(step, time.monotonic())
                is_broken = isinstance(error, ReplicaGap) or self._ledger.of(step.tenant).is_broken
                if self._ledger.fail(step.tenant, error.message, is_broken=is_broken):
                    logger.error("%s", error.message, extra={"tenant": step.tenant})

    def _keep_running(self) -> None:
        """See that Litestream runs: what ended, or does not answer, is started again."""
        if self._mover is not None:
            if self._silences >= SILENCES:
                logger.error("Litestream does not answer and is killed")
                self._process.kill()
            if not self._process.has_ended:
                return
            logger.error("Litestream ended (%s); it is started again", self._process.describe_end())
            self._forget_process()
        if time.monotonic() >= self._next_start:
            try:
                self._start_process()
                self.restarts += 1
            except LitestreamFailed as exc:
                logger.error("%s", exc.message)
                self._put_off()

    def _start_process(self) -> None:
        control = Control(self._process.start())
        self._mover = Mover(self._store, control, self._settings, self._binary)
        self._started_at = time.monotonic()
        self._silences = 0
        logger.info("Litestream %s runs as %s", self._binary.version, self._process.pid)

    def _forget_process(self) -> None:
        self._mover = None
        while self._under_way:  # each of them ends with an error now
            self._watch.wait(TICK)
            self._collect()
        self._hot.clear()
        self._process.stop()
        if time.monotonic() - self._started_at > STEADY_SECONDS:
            self._attempts = 0
        self._put_off()

    def _put_off(self) -> None:
        self._next_start = time.monotonic() + RESTART.delay(self._attempts)
        self._attempts += 1

    def _let_all_go(self) -> None:
        """Send the last changes of all tenants, so that the next start finds nothing to do."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        while self._mover is not None and time.monotonic() < deadline and not self._process.has_ended:
            self._collect()
            for step in self._hot.begin_to_end():
                self._submit(step)
            if not self._under_way:
                return
            self._watch.wait(TICK)


@contextmanager
def replication_lock(store: Store) -> Iterator[None]:
    """Be the one that replicates a store. Raises SupervisorRuns."""
    descriptor = os.open(directory_of(store.root) / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SupervisorRuns(f"another process replicates the store {store.root}") from None
        yield
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
