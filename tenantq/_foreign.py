"""Tell whether something else in this process has a tenant's file open.

A second SQLite library (the `sqlite3` module, Django, SQLAlchemy) has a lock table of its own, and POSIX drops
all of a process's locks on a file when any of its descriptors for it is closed: committed rows are lost
without an error. A plain `open(file).close()` does that too. Where there is a /proc, descriptors that are not
ours can be counted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

from tenantq.errors import ForeignHandle, TenantBusy

__all__ = ["Identity", "check_alone", "closed", "is_open", "opening", "reading"]

Identity = tuple[int, int] | None
"""The device and the inode of a file."""

MAX_DESCRIPTORS = 512
"""A process with more is not searched: it would take longer than the work that it guards."""

CROWDED_INTERVAL = 10.0
"""Seconds until a process that has more is looked at again: to list thousands takes milliseconds, and each of
its files asks once a second.
"""

LOOK_SHARE = 0.02
"""The share of time that the looks may take: a process that opens one file after another asks for each."""

LOOK_BURST = 0.1
"""Seconds of looks that a process may take at once, after so many of none."""

_lock = threading.Lock()
_next_look = [0.0]
_allowance = [LOOK_BURST, 0.0]
"""Seconds of looks that are left, as of when."""
_open: Counter[tuple[Identity, bool]] = Counter()
_read: set[Identity] = set()
"""The files that this process reads by other means at this moment, none of which is open."""
_most: dict[tuple[Identity, bool], int] = {}


def opening(identity: Identity, *, read_only: bool) -> None:
    """Say that this process opens a file through us. Raises TenantBusy while it reads it otherwise."""
    with _lock:
        if identity in _read and identity is not None:
            raise TenantBusy("the file is being copied by this process")
        _open[identity, read_only] += 1
        _most[identity, read_only] = max(_most.get((identity, read_only), 0), _open[identity, read_only])


def closed(identity: Identity, *, read_only: bool) -> None:
    """Say that it has closed it."""
    with _lock:
        _open[identity, read_only] -= 1
        if not _open[identity, True] and not _open[identity, False]:
            for is_read_only in (True, False):
                _open.pop((identity, is_read_only), None)
                _most.pop((identity, is_read_only), None)


def is_open(identity: Identity) -> bool:
    """Tell whether this process has a file open through us."""
    return (identity, True) in _most or (identity, False) in _most


@contextlib.contextmanager
def reading(identity: Identity) -> Iterator[bool]:
    """Keep this process from opening a file through SQLite while it reads it otherwise; False if it has it
    open."""
    with _lock:
        is_free = not is_open(identity) and identity not in _read
        if is_free:
            _read.add(identity)
    try:
        yield is_free
    finally:
        if is_free:
            with _lock:
                _read.discard(identity)


def check_alone(identity: Identity, path: str, tenant: str | None) -> None:
    """Raise ForeignHandle if more descriptors lead to the file than we ever had open at once.

    SQLite keeps the descriptor of a closed connection while another one to the same file is open, and uses
    it again for one that reads or writes as the first did: there are never more than that.
    """
    now = time.monotonic()
    left = min(LOOK_BURST, _allowance[0] + (now - _allowance[1]) * LOOK_SHARE)
    if now < _next_look[0] or left <= 0:
        return
    try:
        found = _count(identity, now)
    finally:
        _allowance[:] = left - (time.monotonic() - now), now
    if found > sum(_most.get((identity, read_only), 0) for read_only in (True, False)):
        raise ForeignHandle(
            f"this process has {path} open by other means than tenantq",
            path=path,
            tenant=tenant,
        )


def _count(identity: Identity, now: float) -> int:
    """Return how many descriptors of this process lead to a file; 0 where that cannot be told."""
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names are enough
    except OSError:
        return 0
    if len(names) > MAX_DESCRIPTORS:
        _next_look[0] = now + CROWDED_INTERVAL
        return 0
    found = 0
    for name in names:
        try:
            status = os.fstat(int(name))  # less than half of what a stat through /proc takes
        except OSError:
            continue
        found += (status.st_dev, status.st_ino) == identity
    return found
