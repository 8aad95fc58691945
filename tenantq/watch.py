"""Noticing which tenants have something new: commits of this process at once, those of others by a sweep."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tenantq import naming
from tenantq._doorbell import Doorbell, shard_of, slot_of
from tenantq.errors import TenantFileError

__all__ = ["Watch"]

Signature = tuple[int, int, int]

CLOCK_TICK_NS = 20_000_000
"""A file changed so short before a look at it may change again and keep its time: it is looked at once more."""

SWEEP_SHARE = 0.005
"""The share of one processor that the sweeps may take, however many tenants there are."""


RECENT_NS = 1_000_000_000
"""A file that was rung for and changed so short ago is taken for changed, whatever was seen of it."""


class Watch:
    """Which tenants may have something new since the last call of `wait`. A context manager.

    The doorbell tells of commits at once, whichever process made them. What is not rung for, a file copied into
    the store, a shell's commit, a process killed before its ring, is found by looking at the files' inode, size
    and time every `sweep_interval` seconds. No tenant is opened for either, and none costs a descriptor, a
    thread or a timer.
    """

    def __init__(
        self,
        root: Path,
        doorbell: Doorbell,
        *,
        sweep_interval: float,
        unsubscribe: Callable[[Watch], None],
        read_id: Callable[[Path], str | None],
    ) -> None:
        self._root = root
        self._interval = sweep_interval
        self._unsubscribe = unsubscribe
        self._read_id = read_id
        self._found: set[str] = set()
        self._rung: set[int] = set()
        self._condition = threading.Condition()
        self._is_woken = False
        self._next_sweep = time.monotonic()
        self._seen: dict[str, dict[str, Signature]] = {}
        self._tenants: dict[str, tuple[str, int]] = {}
        self._unlisten = doorbell.subscribe(self._on_ring)

    def wait(self, timeout: float) -> set[str]:
        """Return the ids of tenants that may have something new, at the latest after `timeout` seconds.

        The first call returns every tenant.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._condition:
                rung, self._rung = self._rung, set()
            for slot in rung:
                self._found |= self._look(self._root / shard_of(slot), slot)
            now = time.monotonic()
            if now >= self._next_sweep:
                self._found |= self._sweep()
                end = time.monotonic()
                self._next_sweep = end + max(self._interval, (end - now) / SWEEP_SHARE)
            with self._condition:
                pause = min(deadline, self._next_sweep) - time.monotonic()
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

    def _sweep(self) -> set[str]:
        changed: set[str] = set()
        for shard in list_shards(self._root):
            changed |= self._look(shard, None)
        return changed

    def _look(self, shard: Path, slot: int | None) -> set[str]:
        """Return the tenants of a shard, or of one slot in it, whose files are not as they were."""
        changed: set[str] = set()
        before = self._seen.get(shard.name, {})
        after: dict[str, Signature] = {} if slot is None else before
        now_ns = time.time_ns()
        try:
            entries = list(os.scandir(shard))
        except OSError:  # removed, or not ours to read: the next sweep tells
            return changed
        for entry in entries:
            # The file, or its -wal: one of the two changes with every commit.
            stem = entry.name.removesuffix("-wal")
            if entry.name.startswith(".") or not stem.endswith(naming.SUFFIX):
                continue
            tenant = self._tenants.get(stem) or self._tenant_of(shard / stem)
            if tenant is None or slot not in (None, tenant[1]):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            signature = (status.st_ino, status.st_size, status.st_mtime_ns)
            age_ns = abs(now_ns - status.st_mtime_ns)
            if before.get(entry.name) != signature or (slot is not None and age_ns < RECENT_NS):
                changed.add(tenant[0])
            if age_ns > CLOCK_TICK_NS:
                after[entry.name] = signature
            else:
                after.pop(entry.name, None)
        self._seen[shard.name] = after
        return changed

    def _tenant_of(self, path: Path) -> tuple[str, int] | None:
        """Return the id and the slot of a file's tenant, and remember them."""
        tenant_id = naming.tenant_id_of(path.name)
        if tenant_id is None and naming.is_hashed(path.name):
            tenant_id = self._read_id(path)
        if tenant_id is None:
            return None
        known = self._tenants[path.name] = (tenant_id, slot_of(tenant_id))
        return known


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
