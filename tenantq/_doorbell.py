"""The doorbell of a store: whoever commits for a tenant wakes whoever listens, in any process of this host.

One small file in the store has a slot for every few tenants. A commit writes the time into its tenant's slot: one
system call, whatever the number of tenants and listeners. A listener maps the file, and is woken by the kernel
(inotify) when it is written; the slots that differ from its own copy are those with news. Nothing is lost
by a listener that is slow: a slot keeps its last time, and many rings of a slot are one piece of news.

What is not rung for, a process killed between its commit and its ring, or a shell, is found by the sweep of a
`tenantq.watch.Watch`. Where there is no inotify, the listener looks at the map at short intervals.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tenantq.naming import key_of

__all__ = ["SLOTS", "Doorbell", "shard_of", "slot_of", "slot_of_key"]

logger = logging.getLogger("tenantq.doorbell")

SLOTS = 4096
"""A tenant's slot is twelve bits of its id's hash; the first eight are its shard directory."""

_SLOT_SHIFT = 64 - (SLOTS - 1).bit_length()

FILE_NAME = ".doorbell"

LOOK_INTERVAL = 0.005
"""Seconds between two looks at the map where the kernel does not tell of writes."""

_TIME = struct.Struct("=Q")
_BYTES = SLOTS * _TIME.size
_IN_MODIFY = 0x2
_EVENT_BYTES = 4096

Subscriber = Callable[[frozenset[int]], None]


def slot_of(tenant_id: str) -> int:
    """Return a tenant's slot."""
    return slot_of_key(key_of(tenant_id))


def slot_of_key(key: int) -> int:
    """Return the slot of the tenant with a key."""
    return key >> _SLOT_SHIFT


def shard_of(slot: int) -> str:
    """Return the shard directory that a slot's tenants lie in."""
    return f"{slot >> 4:02x}"


class Doorbell:
    """The bell of one store in this process: to ring it costs a write, to listen one thread for all."""

    def __init__(self, root: Path, name: str = FILE_NAME, overhear: Subscriber | None = None) -> None:
        """overhear: called with the slots that others rang too, if anybody here listens at all."""
        self._path = root / name
        self._overhear = overhear
        self._lock = threading.Lock()
        self._descriptor = -1
        self._subscribers: tuple[Subscriber, ...] = ()
        self._listener: _Listener | None = None

    def ring(self, slot: int) -> None:
        """Tell the listeners that the tenants of a slot may have something new: those of this process at once."""
        listener = self._listener
        try:
            if self._descriptor < 0:
                with self._lock:
                    if self._descriptor < 0:
                        self._descriptor = _open(self._path)
            if listener is None:
                os.pwrite(self._descriptor, _TIME.pack(time.monotonic_ns()), slot * _TIME.size)
            else:
                listener.write(self._descriptor, slot)
        except OSError:  # a full disk, say: the commit stands, and the sweep finds it
            logger.warning("the doorbell could not be rung", exc_info=True)
        if self._subscribers:
            self._tell(frozenset((slot,)))

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call back with the slots that were rung, in the listener's thread; return what ends that.

        From the return on no ring is missed.
        """

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(other for other in self._subscribers if other is not subscriber)

        with self._lock:
            self._subscribers = (*self._subscribers, subscriber)
            if self._listener is None:
                try:
                    self._listener = _Listener(self._path, self._tell)
                except OSError:
                    logger.warning("the doorbell cannot be heard; the sweep finds all, later", exc_info=True)
        return unsubscribe

    def close(self) -> None:
        """End the listener and close the file."""
        with self._lock:
            listener, self._listener = self._listener, None
            descriptor, self._descriptor = self._descriptor, -1
        if listener is not None:
            listener.stop()
        if descriptor >= 0:
            os.close(descriptor)

    def after_fork(self) -> None:
        """Forget what belongs to the parent: its listener's thread is not here."""
        self._lock = threading.Lock()
        self._subscribers = ()
        self._listener = None

    def _tell(self, slots: frozenset[int]) -> None:
        overhear = () if self._overhear is None else (self._overhear,)
        for subscriber in (*overhear, *self._subscribers):
            try:
                subscriber(slots)
            except Exception:
                logger.exception("a subscriber of the doorbell failed")


class _Listener:
    """A thread that waits for writes to the bell's file and tells which slots they changed."""

    def __init__(self, path: Path, tell: Callable[[frozenset[int]], None]) -> None:
        self._tell = tell
        descriptor = _open(path)
        try:
            self._map = mmap.mmap(descriptor, _BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        # Watched before the copy is taken: a write after it is either in the copy or told of.
        self._inotify = _watch(path)
        self._lock = threading.Lock()
        self._copy = bytearray(self._map)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="tenantq-doorbell", daemon=True)
        self._thread.start()

    def write(self, descriptor: int, slot: int) -> None:
        """Ring for the other processes. This one is told by its caller, after the write: what another process
        rang for in this slot before it is told with it, what it rings for behind it is a change again.
        """
        rung_at = _TIME.pack(time.monotonic_ns())
        place = slot * _TIME.size
        with self._lock:
            os.pwrite(descriptor, rung_at, place)
            self._copy[place : place + _TIME.size] = rung_at

    def stop(self) -> None:
        """End the thread and give back what it held."""
        self._is_stopped = True
        os.write(self._wake_write, b"x")
        if self._thread is not threading.current_thread():
            self._thread.join()
        for descriptor in (self._wake_read, self._wake_write, self._inotify):
            if descriptor >= 0:
                os.close(descriptor)
        self._map.close()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._inotify >= 0:
            poll.register(self._inotify, select.POLLIN)
        while not self._is_stopped:
            poll.poll(None if self._inotify >= 0 else LOOK_INTERVAL * 1000)
            if self._inotify >= 0:
                # What it says does not matter, that it says something does; an overflow is no loss.
                with contextlib.suppress(BlockingIOError):
                    os.read(self._inotify, _EVENT_BYTES)
            changed = self._changed()
            if changed:
                self._tell(changed)

    def _changed(self) -> frozenset[int]:
        with self._lock:
            now = self._map[:]
            before, self._copy = self._copy, bytearray(now)
        if now == before:
            return frozenset()
        view, old = memoryview(now).cast("Q"), memoryview(before).cast("Q")
        changed: set[int] = set()
        for start in range(0, SLOTS, 64):  # most of the file is as it was: compare it in pieces first
            if view[start : start + 64] != old[start : start + 64]:
                changed.update(slot for slot in range(start, start + 64) if view[slot] != old[slot])
        return frozenset(changed)


def _open(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.fstat(descriptor).st_size < _BYTES:
        os.truncate(descriptor, _BYTES)
    return descriptor


def _watch(path: Path) -> int:
    """Return an inotify descriptor for writes to a file; -1 where the system has none to give."""
    if not sys.platform.startswith("linux"):
        return -1
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        logger.warning("no inotify: the doorbell is looked at every %g s", LOOK_INTERVAL)
        return -1
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(descriptor)
        return -1
    return descriptor
