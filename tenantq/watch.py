"""Noticing which tenants have something: doorbell and schedule tell, and a sweep finds what they do not know."""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tenantq import naming
from tenantq._doorbell import SLOTS, Doorbell, shard_of
from tenantq._schedule import Record, Schedule, Work, sign
from tenantq.clock import NANOSECONDS, Clock
from tenantq.errors import TenantFileError

__all__ = ["Watch", "Work"]

CLOCK_TICK_NS = 20_000_000
"""A file changed so short before a look at it may change again and keep its time: it is looked at once more."""

SWEEP_SHARE = 0.005
"""The share of one processor that the sweeps may take, however many tenants there are."""

STEP_SECONDS = 0.005
"""A sweep lets go after this, for those that are found by then."""

SLOTS_OF_SHARD = SLOTS // 256

Reasons = tuple[int, int, int]

FOUND: Reasons = (1, 0, 0)
"""Of a tenant that has work and never rang, such as one whose record was made by whoever looked at it first."""


class Watch:
    """Which tenants may have something new since the last call of `wait`. A context manager.

    The doorbell tells of commits at once, whichever process made them, and the schedule when a tenant's delayed
    messages are due and its leases end. What neither knows, a file copied into the store, a shell's commit, a
    process killed before its ring, is found by looking at the files' inode, size and time every
    `sweep_interval` seconds. No tenant is opened for any of it, and none costs a descriptor, a thread or a timer.
    """

    def __init__(
        self,
        root: Path,
        doorbell: Doorbell,
        schedule: Schedule,
        clock: Clock,
        *,
        only: Work | None,
        sweep_interval: float,
        unsubscribe: Callable[[Watch], None],
        read_id: Callable[[Path], str | None],
    ) -> None:
        self._root = root
        self._schedule = schedule
        self._clock = clock
        self._only = only
        # Plain numbers: each record is asked, and a flag's operators take longer than all the rest.
        self._work = 0 if only is None else only.value
        self._is_timed = bool(self._work & Work.MESSAGES.value)
        self._interval = sweep_interval
        self._unsubscribe = unsubscribe
        self._read_id = read_id
        self._found: set[str] = set()
        self._rung: set[int] = set()
        self._condition = threading.Condition()
        self._is_woken = False
        self._next_sweep = time.monotonic()
        self._sweeping: Iterator[None] | None = None
        self._swept_for = 0.0
        self._is_first = True
        self._names: dict[str, dict[int, str]] = {}
        self._seen: dict[str, dict[int, int]] = {}
        self._told: dict[int, Reasons] = {}
        self._line: list[tuple[float, int]] = []
        self._due: dict[int, float] = {}
        self._unlisten = doorbell.subscribe(self._on_ring)

    def wait(self, timeout: float) -> set[str]:
        """Return the ids of tenants that may have something new, at the latest after `timeout` seconds.

        The first calls return all that the watch is for: every tenant, or those that have what was asked for.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._condition:
                rung, self._rung = self._rung, set()
            for slot in rung:
                self._hear(slot)
            self._hear_due()
            self._sweep_on(deadline)
            with self._condition:
                until = min(deadline, self._line[0][0] if self._line else deadline)
                pause = min(until, time.monotonic() if self._sweeping else self._next_sweep) - time.monotonic()
                if not (self._found or self._rung or self._is_woken) and pause > 0:
                    self._condition.wait(pause)
                if self._found or self._is_woken or time.monotonic() >= deadline:
                    found, self._found = self._found, set()
                    self._is_woken = False
                    return found

    def _on_ring(self, slots: frozenset[int]) -> None:
        with self._condition:
            self._rung |= slots
            self._condition.notify()

    def wake(self) -> None:
        """Let `wait` return, whatever there is."""
        with self._condition:
            self._is_woken = True
            self._condition.notify()

    def close(self) -> None:
        """End the watch."""
        self._unlisten()
        self._unsubscribe(self)
        self.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # What the schedule says

    def _hear(self, slot: int) -> list[Record]:
        """Read the records of a slot, find those of tenants that have something, and when the next one will."""
        now, boottime = self._clock.now_ns(), self._clock.boottime_ns()
        records = list(self._schedule.records(slot))
        next_due = 0
        for record in records:
            reasons = self._reasons(record, now, boottime)
            is_news = any(reasons) and self._told.get(record.key) != reasons
            if is_news and self._find(shard_of(slot), record.key):
                self._told[record.key] = reasons
            if self._is_timed:
                if now < record.due_at and not 0 < next_due <= record.due_at - now:
                    next_due = record.due_at - now
                if boottime < record.leased_until and not 0 < next_due <= record.leased_until - boottime:
                    next_due = record.leased_until - boottime
        if next_due:
            moment = time.monotonic() + next_due / NANOSECONDS
            if moment < self._due.get(slot, float("inf")):
                self._due[slot] = moment
                heapq.heappush(self._line, (moment, slot))
        if not records and not self._schedule.is_there:
            self._look(shard_of(slot), {})
        return records

    def _reasons(self, record: Record, now: int, boottime: int) -> Reasons:
        """Return why a tenant is to be told of; each reason counts once."""
        if self._only is None:
            return (record.rung_at, 0, 0)
        rung_at = record.rung_at or 1
        if not self._is_timed:
            return (rung_at if record.work & self._work else 0, 0, 0)
        return (
            rung_at if record.work & self._work else 0,
            record.due_at if record.due_at <= now else 0,
            record.leased_until if record.leased_until <= boottime else 0,
        )

    def _hear_due(self) -> None:
        now = time.monotonic()
        while self._line and self._line[0][0] <= now:
            moment, slot = heapq.heappop(self._line)
            if self._due.get(slot) == moment:
                del self._due[slot]
            self._hear(slot)

    def _find(self, shard: str, key: int) -> bool:
        """Tell of the tenant with a key; False if its file is not there, or its folder not ours to read."""
        name = self._names.get(shard, {}).get(key)
        if name is None:
            with contextlib.suppress(TenantFileError):
                name = self._list(shard).get(key)
        if name is None:
            return False
        self._add(shard, name)
        return True

    def _add(self, shard: str, name: str) -> None:
        tenant_id = naming.tenant_id_of(name)
        if tenant_id is None:
            tenant_id = self._read_id(self._root / shard / name)
        if tenant_id is not None:
            self._found.add(tenant_id)

    # What the files look like

    def _sweep_on(self, deadline: float) -> None:
        """Go on with a sweep for some time, or until something is found; begin one when it is time to."""
        began = now = time.monotonic()
        if self._sweeping is None:
            if now < self._next_sweep:
                return
            self._sweeping, self._swept_for = self._sweep(), 0.0
        try:
            while now - began < STEP_SECONDS or not (self._found or self._rung or now >= deadline):
                next(self._sweeping)
                now = time.monotonic()
        except StopIteration:
            self._sweeping = None
        except BaseException:
            self._sweeping = None
            raise
        finally:
            now = time.monotonic()
            self._swept_for += now - began
            self._next_sweep = now + max(self._interval, self._swept_for / SWEEP_SHARE)

    def _sweep(self) -> Iterator[None]:
        if self._is_first:
            # What is known to wait comes first, and the look at all the files behind it.
            for slot in self._schedule.slots():
                self._hear(slot)
                yield
        for shard in list_shards(self._root):
            first = int(shard.name, 16) * SLOTS_OF_SHARD
            records = [record for slot in range(first, first + SLOTS_OF_SHARD) for record in self._hear(slot)]
            self._look(shard.name, {record.key: record for record in records})
            yield
        self._is_first = False

    def _look(self, shard: str, records: dict[int, Record]) -> None:
        """Find the tenants of a shard whose files are not as the schedule or the last look knows them."""
        before = self._seen.get(shard, {})
        after: dict[int, int] = {}
        now_ns = time.time_ns()
        try:
            entries = {entry.name: entry for entry in os.scandir(self._root / shard)}
        except OSError:  # removed, or not ours to read: the next sweep tells
            return
        for key, name in self._list(shard, entries).items():
            wal = entries.get(f"{name}-wal")
            try:
                status = entries[name].stat(follow_symlinks=False)
                wal_status = None if wal is None else wal.stat(follow_symlinks=False)
            except OSError:
                continue
            signature = sign(status, wal_status)
            record = records.get(key)
            if self._only is not None and record is not None and record.signature == signature:
                continue
            if before.get(key) != signature:
                self._add(shard, name)
                if self._only is not None and (record is None or not record.rung_at):
                    self._told[key] = FOUND  # whoever looks makes a record, which is no news by itself
            changed_ns = max(status.st_mtime_ns, wal_status.st_mtime_ns if wal_status is not None else 0)
            if abs(now_ns - changed_ns) > CLOCK_TICK_NS:
                after[key] = signature
        self._seen[shard] = after
        # A tenant that is deleted and made again in this very moment has its news found by the sweeps alone.
        for key in records.keys() - self._names[shard].keys():
            self._told.pop(key, None)
            self._schedule.drop(key)

    def _list(self, shard: str, names: Iterable[str] | None = None) -> dict[int, str]:
        """Return the names of a shard's files by the keys of their tenants, and remember them."""
        if names is None:
            names = list_names(self._root / shard)
        known = {name: key for key, name in self._names.get(shard, {}).items()}
        listed: dict[int, str] = {}
        for name in names:
            if not name.endswith(naming.SUFFIX):
                continue
            key = known.get(name)
            if key is None:
                key = naming.key_of_file(name)
            if key is not None and f"{key >> 56:02x}" == shard:
                listed[key] = name
        self._names[shard] = listed
        return listed


def list_shards(root: Path) -> list[Path]:
    """Return the shard directories of a store, in order."""
    return [root / name for name in sorted(list_names(root)) if naming.is_shard(name)]


def list_names(directory: Path) -> list[str]:
    """Return the names in a directory; none where there is none. Raises TenantFileError."""
    try:
        return os.listdir(directory)  # noqa: PTH208 - names are enough
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise TenantFileError(f"{directory} cannot be listed: {exc}", path=str(directory)) from exc
