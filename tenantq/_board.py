"""A small file of the store that all its processes map: a few words for every few tenants.

Who waits for a tenant's file stands there (`_turns.py`), how busy it has been (`_load.py`), and who asks the
others to let go of it (`_departures.py`). Nothing in it has to be true or to last: no process waits for another
one's word for long, and a store without it works.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from pathlib import Path

from tenantq._doorbell import SLOTS

__all__ = ["FILE_NAME", "FIRST_REQUEST_WORD", "Board", "new_slot"]

logger = logging.getLogger("tenantq.board")

FILE_NAME = ".board"

FIRST_REQUEST_WORD = 9

SLOT_WORDS = 11
"""Of eight bytes: three of `Turn`, six of `Load`, two of `Departures`."""

_SLOT_BYTES = SLOT_WORDS * 8


class Board:
    """The slots of one store in this process: one map, whatever the number of tenants."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE_NAME
        self._lock = threading.Lock()
        self._map: memoryview | None = None
        self._is_refused = False

    def slot(self, number: int) -> memoryview | None:
        """Return the bytes of a slot, good for as long as somebody has them; None where there is no map."""
        with self._lock:
            if self._map is None and not self._is_refused:
                try:
                    self._map = _map(self._path)
                except (OSError, ValueError):  # a full disk, say
                    self._is_refused = True
                    logger.warning("processes cannot tell each other of their turns", exc_info=True)
            return None if self._map is None else self._map[number * _SLOT_BYTES : (number + 1) * _SLOT_BYTES]

    def after_fork(self) -> None:
        """Renew, in a child, what a thread of the parent may have held."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Give the map up; it goes with the last slot that somebody has."""
        with self._lock:
            self._map = None


def new_slot() -> memoryview:
    """Return the bytes of a slot that no other process sees."""
    return memoryview(bytearray(_SLOT_BYTES))


def _map(path: Path) -> memoryview:
    size = SLOTS * _SLOT_BYTES
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Written, not only as long as that: a write to a hole on a full disk would end the process.
        if os.fstat(descriptor).st_size < size and os.pwrite(descriptor, bytes(size), 0) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return memoryview(mmap.mmap(descriptor, size))
    finally:
        os.close(descriptor)
