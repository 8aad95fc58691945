"""Writing a large new file out while it grows, so that its fsync has little left to wait for.

An fsync of a gigabyte holds up the file system's journal, and with it every process whose write needs the journal:
writers of a tenant waited 250 ms for the end of its backup. Where the system can (Linux), what was written is sent
to the disk piece by piece, without the journal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

__all__ = ["written_back"]

PIECE_BYTES = 8 << 20
"""Sent at once. What came two pieces before has to be on the disk by then, so little is ever under way."""

LOOK_SECONDS = 0.01
"""Between two looks at how far the file has grown."""

_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


@contextlib.contextmanager
def written_back(path: Path) -> Iterator[None]:
    """Write a file out in a thread while the block writes to it, and its rest at the end. It is no sync."""
    if _sync_file_range is None:
        yield
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    is_whole = threading.Event()
    thread = threading.Thread(target=_follow, args=(descriptor, is_whole), name="tenantq-writeback", daemon=True)
    try:
        thread.start()
        try:
            yield
        finally:
            is_whole.set()
            thread.join()
    finally:
        os.close(descriptor)


def _follow(descriptor: int, is_whole: threading.Event) -> None:
    # What fails here (a file system without it, a bad disk) is the fsync's to tell.
    assert _sync_file_range is not None
    sent = 0
    while not is_whole.wait(LOOK_SECONDS):
        while os.fstat(descriptor).st_size - sent >= PIECE_BYTES and not is_whole.is_set():
            _sync_file_range(descriptor, sent, PIECE_BYTES, _WRITE)
            if sent >= 2 * PIECE_BYTES:
                before = sent - 2 * PIECE_BYTES
                _sync_file_range(descriptor, before, PIECE_BYTES, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)
            sent += PIECE_BYTES
    if sent:
        _sync_file_range(descriptor, 0, 0, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)
