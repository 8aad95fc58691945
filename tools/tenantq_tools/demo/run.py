"""The demo's course: make, send, work, kill, restart, wait, copy, count, check."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

import tenantq
from tenantq_bridge import PostgresQueue
from tenantq_tools.demo import shop
from tenantq_tools.demo.report import Layer, Report, count

__all__ = ["Progress", "run_demo"]

KILL_AT = 0.3
"""The share of the mails that are done when a worker is killed; half of the orders are sent by then."""

PATIENCE = 120.0
"""Seconds without any progress after which the demo gives up and says what is missing."""

LOOK = 0.1
"""Seconds between two looks at how far the work is."""


class Progress(msgspec.Struct, frozen=True):
    """Where the demo says what it does: a line, or how much of a step is done."""

    say: Callable[[str], None]
    show: Callable[[str, int, int], None]


class DemoFailed(tenantq.TenantqError):
    """The demo could not go on."""


def run_demo(directory: Path, dsn: str, *, orders: int, progress: Progress) -> Report:
    """Run the demo in a directory against a Postgres; return what it counted and checked."""
    paths = Paths.under(directory)
    all_orders = list(shop.read_orders(orders))
    with PostgresQueue(dsn, schema=shop.SCHEMA) as queue, contextlib.ExitStack() as children:
        queue.migrate()
        queue.subscribe(shop.BILLING, "shop.order_*")
        queue.purge(shop.BILLING)
        with tenantq.open(paths.ledger) as ledger, ledger.tenant(shop.BILLING).transaction() as tx:
            tx.execute(shop.CREATE_INVOICES)
        with tenantq.open(paths.store) as store:
            _make_shops(store, all_orders, progress)
            forwarder = children.enter_context(_child("forwarder", paths, dsn))
            workers = [children.enter_context(_child("worker", paths, dsn)) for _ in range(2)]
            look = _Look(store, queue, len(all_orders), progress)
            half = len(all_orders) // 2
            look.send(all_orders[:half])
            look.wait_for(lambda: look.mails_done >= KILL_AT * len(all_orders), [forwarder, *workers])
            victim = _busiest(store, workers)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            workers.remove(victim)
            progress.say(
                f"killed worker {victim.pid} with SIGKILL, {look.mails_done} mails done; starting another"
            )
            workers.append(children.enter_context(_child("worker", paths, dsn)))
            look.send(all_orders[half:])
            look.wait_for(lambda: look.is_done, [forwarder, *workers])
        for process in (*workers, forwarder):
            process.terminate()
        for process in (*workers, forwarder):
            process.wait(timeout=60)
        return _check(paths, all_orders, queue, progress)


class Paths(msgspec.Struct, frozen=True):
    """Where the demo keeps its files."""

    store: Path
    ledger: Path
    journals: Path
    backup: Path
    restored: Path

    @classmethod
    def under(cls, directory: Path) -> Paths:
        """Return the places in a directory, and make those that nobody else makes."""
        paths = cls(
            store=directory / "tenants",
            ledger=directory / "ledger",
            journals=directory / "journals",
            backup=directory / "backup",
            restored=directory / "restored",
        )
        if paths.store.exists() and any(paths.store.iterdir()):
            raise DemoFailed(
                f"{paths.store} holds tenants already",
                hint="give --store an empty directory",
                path=str(paths.store),
            )
        paths.journals.mkdir(parents=True, exist_ok=True)
        paths.backup.mkdir(parents=True, exist_ok=True)
        return paths


class _Look:
    """How far the work is, read from the queues themselves."""

    def __init__(self, store: tenantq.Store, queue: PostgresQueue, total: int, progress: Progress) -> None:
        self._store = store
        self._tenants = [store.tenant(tenant_id) for tenant_id in store.tenants()]
        self._queue = queue
        self._total = total
        self._progress = progress
        self.sent = 0
        self.mails_done = 0
        self.events_waiting = 0
        self.invoices_waiting = 0

    @property
    def is_done(self) -> bool:
        """Whether everything is sent and nothing waits anywhere."""
        return self.mails_done == self._total and not self.events_waiting and not self.invoices_waiting

    def send(self, orders: list[shop.Order]) -> None:
        """Place orders, each with its mail and its event."""
        for order in orders:
            shop.place(self._store.tenant(order.tenant), order)
            self.sent += 1
            if self.sent % 100 == 0 or self.sent == self._total:
                self._progress.show("sending", self.sent, self._total)

    def wait_for(self, condition: Callable[[], bool], processes: list[subprocess.Popen[bytes]]) -> None:
        """Look until the condition holds; raise DemoFailed if a process dies or nothing moves."""
        moved_at = time.monotonic()
        before: tuple[int, int, int] | None = None
        while True:
            self._look()
            if condition():
                return
            now = (self.mails_done, self.events_waiting, self.invoices_waiting)
            if now != before:
                before, moved_at = now, time.monotonic()
            for process in processes:
                if process.poll() is not None:
                    raise DemoFailed(f"a child process ended by itself with status {process.returncode}")
            if time.monotonic() - moved_at > PATIENCE:
                raise DemoFailed(f"nothing moved for {PATIENCE:g} s: (mails, events, invoices) = {now}")
            time.sleep(LOOK)

    def _look(self) -> None:
        stats = [tenant.stats() for tenant in self._tenants]
        mails_waiting = sum(one.ready + one.scheduled + one.claimed for one in stats)
        self.mails_done = self.sent - mails_waiting
        self.events_waiting = sum(one.outbox for one in stats)
        billing = self._queue.stats(shop.BILLING)
        self.invoices_waiting = billing.ready + billing.scheduled + billing.claimed
        done = 2 * self.sent - mails_waiting - self.events_waiting - self.invoices_waiting
        self._progress.show("working", done, 2 * self._total)


def _make_shops(store: tenantq.Store, orders: list[shop.Order], progress: Progress) -> None:
    tenants = sorted({order.tenant for order in orders})
    for tenant_id in tenants:
        with store.tenant(tenant_id).transaction() as tx:
            tx.execute(shop.CREATE_SHOP_TABLES)
    progress.say(f"made {len(tenants)} shops: {', '.join(tenants)}")


def _busiest(store: tenantq.Store, workers: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Return the worker that holds most mails now: what it had claimed will be seen to come again."""
    held: Counter[str] = Counter()
    for tenant_id in store.tenants():
        with store.tenant(tenant_id).transaction() as tx:
            held.update(dict(tx.execute("SELECT claimed_by, count(*) FROM queue GROUP BY claimed_by")))
    return max(workers, key=lambda process: held[shop.worker_name(process.pid)])


@contextlib.contextmanager
def _child(role: str, paths: Paths, dsn: str) -> Iterator[subprocess.Popen[bytes]]:
    journal = paths.journals / f"{role}-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "tenantq_tools.demo.child", role]
    process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
        [*command, str(paths.store), str(paths.ledger), dsn, str(journal)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _check(paths: Paths, orders: list[shop.Order], queue: PostgresQueue, progress: Progress) -> Report:
    progress.say("copying one shop's file with cp, now that no process has it open")
    copied = _copy_one(paths, orders[0].tenant)
    billing = queue.stats(shop.BILLING)
    report = count(paths.store, paths.ledger, paths.journals, orders)
    report.check("no dead letter in the shared layer", billing.dead == 0, f"{billing.dead}")
    with tenantq.open(paths.restored) as restored:
        restored.restore(orders[0].tenant, copied)
        with restored.tenant(orders[0].tenant).transaction() as tx:
            found = tx.execute("SELECT count(*) FROM orders")[0][0]
    expected = sum(order.tenant == orders[0].tenant for order in orders)
    report.check("the copied file, restored, has all orders of its shop", found == expected, f"{found}")
    return report


def _copy_one(paths: Paths, tenant_id: str) -> Path:
    with tenantq.open(paths.store, create=False) as store:
        source = store.tenant(tenant_id, create=False).path
    target = paths.backup / source.name
    shutil.copyfile(source, target)
    return target


__all__ += ["DemoFailed", "Layer"]
