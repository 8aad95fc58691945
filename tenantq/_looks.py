"""How tenants' files look from outside: which may have changed since an earlier look, none of them opened."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tenantq import naming
from tenantq.errors import TenantFileError
from tenantq.watch import CLOCK_TICK_NS, list_shards

__all__ = ["Look", "list_looks"]

COARSE_TICK_NS = 2_000_000_000
"""What a file system may take for a moment that keeps times in whole seconds."""

SECOND_NS = 1_000_000_000


class Look(NamedTuple):
    """One file with a tenant's name."""

    directory: str
    """Its shard, and its name without `.db`."""
    path: Path
    facts: list[int] | None
    """What each commit to the file changes; None where one of this very moment would not."""


def list_looks(root: Path) -> Iterator[Look]:
    """Yield a look at each file of a store whose name is a tenant's, or ends like one. Raises TenantFileError."""
    for shard in list_shards(root):
        try:
            with os.scandir(shard) as scan:
                entries = {entry.name: entry for entry in scan}
            for name in sorted(entries):
                if name.endswith(naming.SUFFIX):
                    facts = _facts(entries[name], entries.get(f"{name}-wal"))
                    yield Look(f"{shard.name}/{name.removesuffix(naming.SUFFIX)}", shard / name, facts)
        except OSError as exc:
            raise TenantFileError(f"{shard} cannot be listed: {exc}", path=str(shard)) from exc


def _facts(file: os.DirEntry[str], wal: os.DirEntry[str] | None) -> list[int] | None:
    """Return inode, size and times of a file and its -wal, if both have been at rest for a moment.

    A commit changes the size or the time of one of them. Of the file, the time of the inode is among these:
    `cp -p` and `touch` cannot set that one (SQLite sets it of a -wal whenever it opens one). But a clock has
    ticks: a file that was changed in this one may be changed again and look the same.
    """
    now = time.time_ns()
    found: list[int] = []
    try:
        for entry in (file, wal):
            status = None if entry is None else os.stat(entry.path, follow_symlinks=False)  # noqa: PTH116 - many
            if status is None or (entry is wal and not status.st_size):
                continue  # an empty -wal holds nothing, and comes and goes with readers
            tick = COARSE_TICK_NS if status.st_mtime_ns % SECOND_NS == 0 else CLOCK_TICK_NS
            times = (status.st_mtime_ns,) if entry is wal else (status.st_mtime_ns, status.st_ctime_ns)
            if abs(now - max(times)) <= tick:
                return None
            found += (status.st_ino, status.st_size, *times)
    except OSError:  # a file that comes or goes at this moment
        return None
    return found
