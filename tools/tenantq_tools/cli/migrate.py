"""`tenantq migrate`: brings tenants' files to this version's schema, ahead of whoever opens them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import click
import msgspec

from tenantq import Store, TenantBusy, TenantqError
from tenantq_tools.cli._failures import PROBLEM
from tenantq_tools.cli._options import open_store, with_json, with_store
from tenantq_tools.cli._output import note, print_json
from tenantq_tools.cli._overview import tenants_and_strays
from tenantq_tools.cli._progress import progress
from tenantq_tools.cli._signals import on_signals

__all__ = ["migrate"]

BUSY_TIMEOUT = 1.0
"""Seconds that a busy tenant's lock is waited for; it is tried once more when all others are done."""

AHEAD = 50
"""Tenants for each job that are handed out before their results are told."""


class Found(msgspec.Struct, frozen=True):
    """What became of one tenant's file."""

    tenant: str
    version: int | None = None
    """The one that it had, where it was migrated."""
    error: TenantqError | None = None


class Totals(msgspec.Struct):
    """What became of all of them."""

    tenants: int
    migrated: int = 0
    current: int = 0
    failed: int = 0
    left: int = 0
    """Not reached before the command was stopped."""


@click.command()
@click.argument("tenants", metavar="TENANT... | --all", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every tenant of the store.")
@click.option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Files at once.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Migrate at most N files a second."
)
@with_store()
@with_json
@click.pass_context
def migrate(
    ctx: click.Context,
    *,
    tenants: tuple[str, ...],
    is_all: bool,
    jobs: int,
    rate: float | None,
    store_path: str,
    as_json: bool,
) -> None:
    """Bring tenants' files to this version's schema, while everything runs.

    Every file is migrated anyway when a process of this version opens it; this does the rest, in the background.
    Each file is migrated whole or not at all, so the command may be stopped and given again: what is done is only
    looked at. A process of an older version that has a tenant open can no longer work on it (NewerFile). A tenant
    that fails, or stays busy, is named, the others go on, and the exit status is 1.

    \b
    Examples:
      tenantq migrate acme
      tenantq migrate --all --jobs 2 --rate 50
    """
    if bool(tenants) == is_all:
        raise click.UsageError("give tenants, or --all", ctx)
    with open_store(store_path, busy_timeout=BUSY_TIMEOUT, migrate=False) as store:
        ids, strays = tenants_and_strays(store) if is_all else (list(tenants), [])
        totals = _migrate_all(store, ids, jobs=jobs, rate=rate, as_json=as_json)
    for stray in strays:
        problem = f"{stray} is no tenant's file, or cannot be read"
        totals.failed += 1
        note(problem)
        if as_json:
            print_json({"tenant": None, "from": None, "error": problem})
    if totals.left:
        note(f"Stopped: {totals.left} tenants were not reached. Give the command again to go on.")
    if as_json:
        print_json(totals)
    else:
        click.echo(f"{totals.migrated} files migrated, {totals.current} were current; {totals.failed} failed")
    if totals.failed or totals.left:
        ctx.exit(PROBLEM)


def _migrate_all(store: Store, ids: list[str], *, jobs: int, rate: float | None, as_json: bool) -> Totals:
    totals = Totals(tenants=len(ids), left=len(ids))
    stopping = threading.Event()
    pace = _Pace(rate, stopping)
    busy: list[str] = []
    with on_signals(stopping.set), progress("migrating", len(ids)) as advance, ThreadPoolExecutor(jobs) as pool:

        def one(tenant_id: str) -> Found | None:
            return None if stopping.is_set() else _migrate_one(store, tenant_id, pace)

        def results(of: list[str]) -> Iterator[Found]:
            waiting = iter(of)
            while some := list(itertools.islice(waiting, jobs * AHEAD)):
                yield from (found for found in pool.map(one, some) if found is not None)

        for found in results(ids):
            if isinstance(found.error, TenantBusy):
                busy.append(found.tenant)
                continue
            _tell(found, totals, as_json=as_json)
            advance(1)
        for found in results(busy):
            _tell(found, totals, as_json=as_json)
            advance(1)
    return totals


def _migrate_one(store: Store, tenant_id: str, pace: _Pace) -> Found:
    try:
        version = store.migrate(tenant_id)
    except TenantqError as exc:
        return Found(tenant_id, error=exc)
    if version is not None:
        pace.rest()
    return Found(tenant_id, version=version)


def _tell(found: Found, totals: Totals, *, as_json: bool) -> None:
    """Count a result, and print it if the file was migrated or failed."""
    totals.left -= 1
    if found.error is None and found.version is None:
        totals.current += 1
        return
    if found.error is None:
        totals.migrated += 1
    else:
        totals.failed += 1
        note(f"{found.tenant}: {found.error.message}")
    if as_json:
        error = None if found.error is None else found.error.message
        print_json({"tenant": found.tenant, "from": found.version, "error": error})


class _Pace:
    """Keeps the jobs together to so many files a second."""

    def __init__(
        self,
        rate: float | None,
        stopping: threading.Event,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval = 0.0 if rate is None else 1 / rate
        self._stopping = stopping
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._next = 0.0

    def rest(self) -> None:
        """Wait until the next file's time, or until the command is stopped."""
        with self._lock:
            self._next = max(self._next, self._monotonic()) + self._interval
            moment = self._next
        self._stopping.wait(max(0.0, moment - self._monotonic()))
