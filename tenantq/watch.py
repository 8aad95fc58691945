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
from tenantq.errors import TenantFileError

__all__ = ["Watch"]

Signature = tuple[int, int, int]

CLOCK_TICK_NS = 20_000_000
"""A file changed so short before a look at it may change again and keep its time: it is looked at once more."""

SWEEP_SHARE = 0.05
"""The share of one processor that the sweeps may take, however many tenants there are."""


class Watch:
    """Which tenants may have something new since the last call of `wait`. A context manager.

    A commit of this process is seen at once. Those of other processes, a file copied into the store and a
    shell's are found by looking at the files' inode, size and time every `sweep_interval` seconds: no
    tenant is opened for it, and none costs a descriptor, a thread or a timer.
    """

    def __init__(
        self,
        root: Path,
        *,
        sweep_interval: float,
        unsubscribe: Callable[[Watch], None],
        read_id: Callable[[Path], str | None],
    ) -> None:
        self._root = root
        self._interval = sweep_interval
        self._unsubscribe = unsubscribe
        self._read_id = read_id
        self._rung: set[str] = set()
        self._condition = threading.Condition()
        self._is_woken = False
        self._next_sweep = time.monotonic()
        self._seen: dict[str, dict[str, Signature]] = {}
        self._ids: dict[str, str] = {}

    def wait(self, timeout: float) -> set[str]:
        """Return the ids of tenants that may have something new, at the latest after `timeout` seconds.

        The first call returns every tenant.
        """
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            if now >= self._next_sweep:
                found = self._sweep()
                end = time.monotonic()
                self._next_sweep = end + max(self._interval, (end - now) / SWEEP_SHARE)
                if found:
                    with self._condition:
                        self._rung |= found
            with self._condition:
                if not (self._rung or self._is_woken):
                    pause = min(deadline, self._next_sweep) - time.monotonic()
                    if pause > 0:
                        self._condition.wait(pause)
                if self._rung or self._is_woken or time.monotonic() >= deadline:
                    rung, self._rung = self._rung, set()
                    self._is_woken = False
                    return rung

    def ring(self, tenant_id: str) -> None:
        """Say that a tenant has something new."""
        with self._condition:
            self._rung.add(tenant_id)
            self._condition.notify()

    def wake(self) -> None:
        """Let `wait` return, whatever there is."""
        with self._condition:
            self._is_woken = True
            self._condition.notify()

    def close(self) -> None:
        """End the watch."""
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
        now_ns = time.time_ns()
        for shard in list_shards(self._root):
            before = self._seen.get(shard.name, {})
            now: dict[str, Signature] = {}
            try:
                entries = list(os.scandir(shard))
            except OSError:  # removed, or not ours to read: the next sweep tells
                continue
            for entry in entries:
                # The file, or its -wal: one of the two changes with every commit.
                stem = entry.name.removesuffix("-wal")
                if entry.name.startswith(".") or not stem.endswith(naming.SUFFIX):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                signature = (status.st_ino, status.st_size, status.st_mtime_ns)
                if abs(now_ns - status.st_mtime_ns) > CLOCK_TICK_NS:
                    now[entry.name] = signature
                if before.get(entry.name) != signature:
                    tenant_id = self._id_of(shard / stem)
                    if tenant_id is not None:
                        changed.add(tenant_id)
            self._seen[shard.name] = now
        return changed

    def _id_of(self, path: Path) -> str | None:
        tenant_id = naming.tenant_id_of(path.name) or self._ids.get(path.name)
        if tenant_id is None and naming.is_hashed(path.name):
            tenant_id = self._read_id(path)
            if tenant_id is not None:
                self._ids[path.name] = tenant_id
        return tenant_id


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
