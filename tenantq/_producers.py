"""Producers of a full queue: they stand in line for room, and one of them listens and looks for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakValueDictionary

from tenantq._access import TenantAccess
from tenantq._bounds import Admitted, Full, ids_of
from tenantq._doorbell import Doorbell, slot_of
from tenantq._file import TenantFile
from tenantq._handle import MERGE, Handle
from tenantq._line import Line, Waiting
from tenantq._listeners import Listeners
from tenantq.arguments import check_seconds

__all__ = ["Rooms", "TenantProducers"]

LOOK_INTERVAL = 0.25
"""Seconds between two looks for room that was not told of: too little of it, or its process was killed."""

Enqueue = Callable[[TenantFile], Admitted]


class Room(Line):
    """The calls that wait until a queue has room for them, in the order in which they came.

    The first has the turn: it listens for messages that leave, and enqueues for those behind it too, in one
    transaction, as far as there is room. A call that finds no room ends that: nobody overtakes a large one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_full = False

    def place(self, operation: Enqueue) -> Waiting[Admitted | None]:
        """Return a place for a call; its work is None where somebody before it found no room."""

        def run(file: TenantFile) -> Admitted | None:
            if waiting.has_turn:
                self._is_full = False  # the first of all that are tried, and tried again
            elif self._is_full:
                return None
            admitted = operation(file)
            self._is_full = not _is_final(admitted)
            return admitted

        waiting: Waiting[Admitted | None] = Waiting(run)
        return waiting


class Rooms:
    """The queues of a store that calls of this process wait for, and the bell that tells of room in them.

    It is another bell than that of the messages: each enqueue would wake those who wait to enqueue.
    """

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._listeners = Listeners(doorbell)
        self._lock = threading.Lock()
        self._rooms: WeakValueDictionary[tuple[str, str], Room] = WeakValueDictionary()

    def is_waited_for(self, tenant_id: str, queue: str) -> bool:
        """Tell whether calls wait for room in a queue."""
        return (tenant_id, queue) in self._rooms

    def room(self, tenant_id: str, queue: str) -> Room:
        """Return the line for a queue; it lasts for as long as somebody has it."""
        with self._lock:
            room = self._rooms.get((tenant_id, queue))
            if room is None:
                room = self._rooms[tenant_id, queue] = Room()
            return room

    def listening(self, tenant_id: str) -> AbstractContextManager[threading.Event]:
        """Give an event that is set when a tenant's queues may have room."""
        return self._listeners.listening(tenant_id)

    def bell_of(self, tenant_id: str) -> Callable[[], None]:
        """Return what tells all processes that a tenant's queues may have room."""
        slot = slot_of(tenant_id)
        return lambda: self._doorbell.ring(slot)


class TenantProducers(TenantAccess):
    """How a tenant lets messages in."""

    def _admit(self, queue: str, count: int, key: str | None, enqueue: Enqueue, wait: float) -> list[int]:
        """Enqueue so many messages, within `wait` seconds. Raises QueueFull."""
        admitted: Admitted | None
        if check_seconds(wait, "wait") and count and self.store.rooms.is_waited_for(self.id, queue):
            # Not before those who wait, unless it is clear already what it comes to.
            admitted = self._read(lambda file: file.foresee(queue, count, key), default=None)
        else:
            admitted = self._write(enqueue)
        if wait and not _is_final(admitted):
            admitted = self._enqueue_in_line(queue, enqueue, wait)
        assert admitted is not None
        return ids_of(admitted, self.id)

    def _enqueue_in_line(self, queue: str, enqueue: Enqueue, wait: float) -> Admitted:
        deadline = time.monotonic() + wait
        room = self.store.rooms.room(self.id, queue)
        waiting = room.place(enqueue)
        if not room.wait(waiting, wait):
            return self._write(enqueue)  # its time is over: what it finds now is its answer
        if not waiting.has_turn:
            return _answer(waiting)
        try:
            with self.store.rooms.listening(self.id) as bell:
                while True:
                    bell.clear()  # before the look: what leaves behind it rings
                    self._enqueue_all(room, waiting)
                    remaining = deadline - time.monotonic()
                    if waiting.is_done or remaining <= 0:
                        return _answer(waiting)
                    bell.wait(min(remaining, LOOK_INTERVAL))
        finally:
            room.hand_over()

    def _enqueue_all(self, room: Room, first: Waiting[Any]) -> None:
        along = room.take_along(MERGE - 1)
        batch = [first, *along]
        try:
            self._use(True, Handle.write_all, batch, None)
        finally:
            for waiting in batch:
                if waiting.is_done and waiting.error is None:
                    waiting.is_done = _is_final(waiting.result)
            room.bring_back(along)


def _is_final(admitted: Admitted | None) -> bool:
    """Tell whether waiting would change nothing."""
    return admitted is not None and (not isinstance(admitted, Full) or admitted.is_for_good)


def _answer(waiting: Waiting[Admitted | None]) -> Admitted:
    admitted = waiting.outcome()
    assert admitted is not None
    return admitted
