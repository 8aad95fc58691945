"""How long a thread waits for a file: the store's `busy_timeout`, or less where it has others to serve."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["at_most", "impatient", "is_impatient"]

_local = threading.local()


@contextmanager
def impatient(seconds: float) -> Iterator[None]:
    """Let this thread wait so many seconds for a lock or a turn, and no longer: then TenantBusy is raised."""
    _local.seconds = seconds
    try:
        yield
    finally:
        del _local.seconds


def is_impatient() -> bool:
    """Tell whether this thread may not do the work of others, who can wait longer than it."""
    return hasattr(_local, "seconds")


def at_most(seconds: float) -> float:
    """Return how long this thread waits where others wait so many seconds."""
    return min(seconds, getattr(_local, "seconds", seconds))
