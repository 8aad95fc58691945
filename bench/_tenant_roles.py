"""The processes of `tenants`: each has one role on a store, and prints what it cost as JSON.

python -m bench._tenant_roles ROLE STORE COUNT SECONDS [DSN]
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec

import tenantq
from bench._measure import median
from bench._stores import tenant_name

__all__ = ["PRAGMAS", "SAMPLES", "come_to_rest"]

SAMPLES = 200
"""Tenants whose first call is timed, of each contender."""

BLOCK = 5
"""So many of one contender, then so many of the other."""

CALM = 0.05
"""The share of a core below which a process has come to rest."""

PATIENCE = 1800.0
"""Seconds that it may take to get there."""

INSERT = "INSERT INTO queue (queue, visible_at, enqueued_at, payload) VALUES ('other', 1, 1, '{}')"

CLEAR = "DELETE FROM queue WHERE queue = 'other'"
"""The store is left as it was."""

PRAGMAS = "PRAGMA synchronous = NORMAL; PRAGMA cache_size = -8192; PRAGMA temp_store = MEMORY;"


def cold(root: str, count: int, _seconds: float, _dsn: str) -> dict[str, float]:
    """Time the first call on tenants that are not open, and that another one is closed for it."""
    started = time.perf_counter()
    store = tenantq.open(root, max_open_tenants=1)
    next(store.tenants())
    first_id = time.perf_counter() - started
    with store:
        paths = [store.tenant(tenant_name(number)).path for number in range(count)]

        def enqueue(number: int) -> None:
            store.tenant(tenant_name(number)).enqueue("other", {})

        claimed: list[tenantq.Message[Any]] = []

        def claim(number: int) -> None:
            claimed.extend(store.tenant(tenant_name(number)).claim("other"))

        ours, theirs = in_blocks(count, enqueue, lambda number: raw(paths[number], INSERT))
        claims = [timed_us(claim, number) for number in blocks(count)[0]]
        assert len(claimed) == len(claims)
        for message in claimed:
            message.ack()
    for number in blocks(count)[1]:
        raw(paths[number], CLEAR)
    return {
        "first_id_ms": first_id * 1e3,
        "enqueue_us": median(ours),
        "raw_us": median(theirs),
        "claim_us": median(claims),
    }


def touch(root: str, count: int, _seconds: float, _dsn: str) -> dict[str, float]:
    """Enqueue, claim and ack on every tenant, as many of them open as a store has."""
    with tenantq.open(root) as store:
        before = resident_mib()
        for number in range(count):
            tenant = store.tenant(tenant_name(number))
            tenant.enqueue("touched", {})
            tenant.ack(*tenant.claim("touched"))
        return {
            "rss_mib": resident_mib(),
            "rss_grown_mib": resident_mib() - before,
            "descriptors": float(len(list(Path("/proc/self/fd").iterdir()))),
            "threads": float(threading.active_count()),
        }


def worker(root: str, _count: int, seconds: float, _dsn: str) -> dict[str, float]:
    """Serve tenants that have nothing to do."""
    with tenantq.open(root) as store:
        served = tenantq.Worker(store, concurrency=2)
        served.on("idle")(lambda _message: None)
        with served:
            return {"worker_cpu": idle_share(seconds)}


def forwarder(root: str, _count: int, seconds: float, dsn: str) -> dict[str, float]:
    """Forward from tenants that have no events."""
    bridge: Any = importlib.import_module("tenantq_bridge")
    with tenantq.open(root) as store, bridge.PostgresQueue(dsn) as queue, bridge.Forwarder(store, queue):
        return {"forwarder_cpu": idle_share(seconds)}


def idle_share(seconds: float) -> float:
    """Return the share of a core that this process takes once it has come to rest."""
    come_to_rest(min(1.0, seconds))
    return share_over(seconds)


def come_to_rest(seconds: float = 0.5) -> None:
    """Return when this process has taken next to nothing of a core for so long."""
    deadline = time.monotonic() + PATIENCE
    while share_over(seconds) > CALM and time.monotonic() < deadline:
        continue


def share_over(seconds: float) -> float:
    """Return the share of a core that this process takes in the next seconds."""
    before, started = cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds() - before) / (time.monotonic() - started)


def cpu_seconds() -> float:
    """Return the processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_mib() -> float:
    """Return the memory of this process that is not on the disk alone."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def raw(path: Path, statement: str) -> None:
    """Open a file, write to it and close it, by apsw alone."""
    connection = apsw.Connection(str(path))
    connection.execute(PRAGMAS)
    connection.execute(statement)
    connection.close()


def blocks(count: int) -> tuple[list[int], list[int]]:
    """Return the tenants of each of two contenders, in blocks that take turns."""
    numbers = range(min(count, 2 * SAMPLES))
    first = [number for number in numbers if number // BLOCK % 2 == 0]
    return first, [number for number in numbers if number // BLOCK % 2]


def in_blocks(
    count: int, ours: Callable[[int], None], theirs: Callable[[int], None]
) -> tuple[list[float], list[float]]:
    """Return the microseconds of each call of two contenders that take turns."""
    first, _second = map(set, blocks(count))
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(min(count, 2 * SAMPLES)):
        is_first = number in first
        found[0 if is_first else 1].append(timed_us(ours if is_first else theirs, number))
    return found


def timed_us(call: Callable[[int], None], number: int) -> float:
    """Return the microseconds of a call."""
    started = time.perf_counter_ns()
    call(number)
    return (time.perf_counter_ns() - started) / 1000


ROLES = {role.__name__: role for role in (cold, touch, worker, forwarder)}


def main(role: str, root: str, count: str, seconds: str, dsn: str = "") -> None:
    """Play a role and print what it cost."""
    with contextlib.suppress(KeyboardInterrupt):
        print(msgspec.json.encode(ROLES[role](root, int(count), float(seconds), dsn)).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
