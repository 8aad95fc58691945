"""Checkpoints beside the writers: one thread a store copies a grown -wal into its file, while all write on.

SQLite checkpoints inside of the COMMIT that makes the -wal long, so that one caller, and all behind it, wait for
the copy of 40 MB and a sync. Here that commit only asks for a checkpoint. The thread starts when one is asked for
and ends when none is left. It copies on a connection of its own, again and again while others write, until
little is left; that little it copies while it has the write turn, since only a -wal that is copied to its end
starts anew. What SQLite does by itself stays as the backstop, at the documents' 10,000 pages.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from tenantq import _schema
from tenantq._handle import Handle, HandleGone
from tenantq.errors import TenantqError

__all__ = ["Checkpointer", "checkpoint"]

logger = logging.getLogger("tenantq.checkpointer")

PASSES = 8
"""Copies beside the writers, each of what came during the last one."""

PASS_SECONDS = 0.002
"""The wait before the next one where nothing could be copied: somebody's transaction has to end first."""

ENOUGH_PAGES = 100
"""With no more than these left, another copy beside the writers gains nothing."""

LAST_PAGES = 1000
"""What may be left for the copy under the write turn: 4 MB. More is left only where a reader is in the way."""


def checkpoint(handle: Handle) -> None:
    """Copy all of a file's -wal into it, so that the next commit starts it anew; less where a reader needs it.

    Writers wait for the last part only.
    """
    database = _schema.open_database(handle.path, handle.file.tenant_id, handle.file.database.busy_timeout)
    try:
        left = database.checkpoint()
        for _ in range(PASSES):
            if left <= ENOUGH_PAGES:
                break
            before, left = left, database.checkpoint()
            if left >= before:
                time.sleep(PASS_SECONDS)
        if 0 < left <= LAST_PAGES:
            handle.begin()
            try:
                database.checkpoint()
            finally:
                handle.end(commit=False)
    finally:
        database.close()


class Checkpointer:
    """The tenants of a store that are to be checkpointed, and the thread that does it while there are any."""

    def __init__(self, work: Callable[[str], None]) -> None:
        self._work = work
        self._is_closed = False
        self._lock = threading.Lock()
        self._wanted: dict[str, None] = {}
        self._thread: threading.Thread | None = None

    def request(self, tenant_id: str) -> None:
        """Have a tenant's file checkpointed soon."""
        with self._lock:
            if self._is_closed:
                return
            self._wanted[tenant_id] = None
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="tenantq-checkpointer", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter ends, or has no thread to give
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Wait for the checkpoint that is under way; no other one begins."""
        with self._lock:
            self._is_closed = True
            self._wanted.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def after_fork(self) -> None:
        """Forget what belongs to the parent: its thread is not here."""
        self._lock = threading.Lock()
        self._wanted = {}
        self._thread = None

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                tenant_id = next(iter(self._wanted))
                del self._wanted[tenant_id]
            try:
                self._work(tenant_id)
            except (TenantqError, HandleGone):  # its next writer meets the fault; SQLite's own checkpoint remains
                logger.debug("no checkpoint", extra={"tenant": tenant_id}, exc_info=True)
            except Exception:
                logger.exception("a checkpoint failed", extra={"tenant": tenant_id})
