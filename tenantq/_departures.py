"""Requests to let go of a tenant for a moment: one process asks, those that have its file open close it.

The request stands on the store's board, in the slot of the tenant, and ends by itself. A process that listens
to the doorbell (a worker, a watch, a claim that waits) hears of it at once; another one finds it at its next
call on the tenant. Until the request is over, none of them opens the tenant anew. One that neither listens nor
calls keeps the file open.
"""

from __future__ import annotations

import time

from tenantq._board import FIRST_REQUEST_WORD, Board, new_slot
from tenantq._doorbell import slot_of_key

__all__ = ["REQUEST_SECONDS", "Departures", "Request"]

REQUEST_SECONDS = 1.0
"""How long a request stands that is not renewed: its process may have been killed."""

LOOK_SECONDS = 0.005
"""Between two looks of who waits for its end."""

_KEY, _UNTIL = FIRST_REQUEST_WORD, FIRST_REQUEST_WORD + 1
"""Words of a slot: of which tenant others are to let go, and until when (monotonic nanoseconds)."""


class Request:
    """Whether somebody asks for one tenant, for who looks often."""

    __slots__ = ("_key", "_words", "word")

    def __init__(self, slot: memoryview, key: int) -> None:
        self._words = slot.cast("Q")
        self._key = key
        self.word = self._words[_UNTIL : _UNTIL + 1]
        """Not 0 where `stands` is to be asked."""

    @classmethod
    def none(cls) -> Request:
        """Return one that never stands."""
        return cls(new_slot(), 0)

    def stands(self) -> bool:
        """Tell whether somebody asks for the tenant now."""
        if _stands(self.word[0]):
            return bool(self._words[_KEY] == self._key)
        self.word[0] = 0  # of a process that was killed; one that is alive asks again
        return False


class Departures:
    """The requests of one store. Of two tenants of one slot, the last one's stands; the other is asked for
    again."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def ask(self, key: int) -> None:
        """Ask all processes to let go of a tenant, from now on for REQUEST_SECONDS."""
        words = self._words(key)
        if words is not None:
            words[_UNTIL] = 0  # no look in between takes the one's key with the other's time
            words[_KEY] = key
            words[_UNTIL] = time.monotonic_ns() + int(REQUEST_SECONDS * 1e9)

    def withdraw(self, key: int) -> None:
        """End a request."""
        words = self._words(key)
        if words is not None and words[_KEY] == key:
            words[_UNTIL] = 0

    def request(self, key: int) -> Request:
        """Return what tells of requests for a tenant."""
        place = self._board.slot(slot_of_key(key))
        return Request.none() if place is None else Request(place, key)

    def is_asked(self, key: int) -> bool:
        """Tell whether somebody asks for a tenant."""
        words = self._words(key)
        return words is not None and words[_KEY] == key and _stands(words[_UNTIL])

    def asked_in(self, slot: int) -> int | None:
        """Return the key of the tenant of a slot that somebody asks for."""
        place = self._board.slot(slot)
        if place is None:
            return None
        words = place.cast("Q")
        return words[_KEY] if _stands(words[_UNTIL]) else None

    def wait_for_end(self, key: int, seconds: float) -> bool:
        """Wait until nobody asks for a tenant; False if that takes longer than so many seconds."""
        deadline = time.monotonic() + seconds
        while self.is_asked(key):
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def _words(self, key: int) -> memoryview | None:
        place = self._board.slot(slot_of_key(key))
        return None if place is None else place.cast("Q")


def _stands(until: int) -> bool:
    # A time further ahead is of another boot.
    left = until - time.monotonic_ns()
    return 0 < left <= REQUEST_SECONDS * 1e9
