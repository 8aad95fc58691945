"""Turns between processes: who waits for a tenant's file says so, and who has had it long enough makes way.

SQLite's lock has no line: whoever asks first after a commit gets it, and that is the process that has just
committed. The store's board has a slot for every few tenants. A process that finds a file locked writes there that
it waits, tries again a few times, and then sleeps on the slot (a futex, where the system has one). One that has
committed reads the slot. While somebody waits it wakes the one that has slept longest: that one is next, and looks
in short steps whether the turn is over before it tries. When its own turn is over, a process stands behind the
others. So one looks on at a time, the others sleep in their order, nobody is passed over, and whoever has the turn
commits again and again: a lock that changes hands with every transaction lies idle half of the time.

These are hints: SQLite's lock alone decides who writes. A process that is killed leaves nothing that another one
would wait for, since every sleep is short; two tenants of one slot cost each other a short rest; and where the
file cannot be made, processes wait at random as if it were not there.
"""

from __future__ import annotations

import ctypes
import platform
import random
import sys
import time

__all__ = ["Turn", "random_wait"]

TURN_NS = 2_000_000
"""How long a process may commit transaction after transaction while another one waits."""

REST_SECONDS = 0.002
"""How long it makes way then, at most: the next in line has tried by then, if there still is one."""

HEED_SECONDS = 0.1
"""How long a process heeds that others use their turns, one after another, before it asks the lock itself."""

TRY_SECONDS = (0.0002, 0.0022)
"""A random wait between two tries. SQLite's own ladder starves some of many processes."""

NEXT_SECONDS = (0.0001, 0.0003)
"""The same for the one that was woken: the lock is about to be free."""

IDLE_NS = 500_000
"""After so long without a commit nobody uses the turn, whether it is over or not."""

NEXT_TRIES = 50
"""After so many in vain it sleeps again: the transaction is a long one."""

FIRST_TRIES = 2
"""So many of a process that has only begun to wait come soon: most transactions are over by then."""

SLEEP_SECONDS = (0.010, 0.020)
"""A sleep in the line ends by itself after this, for locks that wake nobody: a killed process's, a shell's."""

STALE_NS = 30_000_000
"""Who waits says so again at each try: an older word is of a process that is gone."""

_SAID, _BELL, _USED = 0, 1, 2
"""Words of a slot: when somebody last said that it waits, and who; what they sleep on, and who had it last; when
the turn was last used while somebody waited, and by whom, 0 when it is over."""

_NAME_BITS = 16
_NAME = (1 << _NAME_BITS) - 1
_FUTEX_WORD = 0xFFFF_FFFF

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine())
"""The number of the system call; another machine sleeps without being woken."""

_FUTEX_WAIT, _FUTEX_WAKE = 0, 1


def random_wait(seconds: tuple[float, float], at_most: float) -> float:
    """Return a random part of a range, so that processes do not try in step."""
    return min(random.uniform(*seconds), at_most)


class Turn:
    """One connection's place among those that want the same file. For one thread at a time."""

    def __init__(self, slot: memoryview) -> None:
        self._words = slot.cast("Q")
        self._futex = _futex_of(self._words[_BELL : _BELL + 1])
        self._name = random.randrange(1, _NAME)
        self._began_ns = 0
        self._has_woken = False
        self._rests_until = 0.0
        self._tries_as_next = 0
        self._is_in_line = False

    def wait(self, tries: int, at_most: float) -> None:
        """Wait between two tries for the lock: in the line, or, for one that is new or next in it, shortly."""
        until = time.monotonic() + min(at_most, HEED_SECONDS)
        if not self._tries_as_next:
            is_new = self._futex is None or (tries < FIRST_TRIES and not self._is_in_line)
            if not is_new:
                self._sleep_in_line(random_wait(SLEEP_SECONDS, at_most), until)
            elif self._sleep(random_wait(TRY_SECONDS, at_most)):
                self._tries_as_next = NEXT_TRIES
            return
        self._tries_as_next -= 1
        self._stand_by(until)

    @property
    def is_over(self) -> bool:
        """Whether another one is to go first now."""
        if not self._rests_until:
            return False
        if time.monotonic() < self._rests_until:
            return True
        self._start()  # the others have had time enough
        return False

    def rest(self) -> None:
        """Make way: stand behind those that wait."""
        now = time.monotonic()
        left = max(0.0, self._rests_until - now)
        self._start()
        self._is_in_line = True
        self._sleep_in_line(left, now + HEED_SECONDS)

    def take(self) -> None:
        """Say that this connection has the lock that it waited for."""
        words = self._words
        if words[_SAID] & _NAME == self._name:  # nobody else waits, as far as is known
            words[_SAID] = 0
        words[_BELL] = self._name << 32 | words[_BELL] & _FUTEX_WORD
        words[_USED] = time.monotonic_ns() & ~_NAME | self._name
        self._tries_as_next = 0
        self._is_in_line = False
        self._start()

    def end(self) -> None:
        """Say that a transaction has ended; this is all that one costs where nobody waits."""
        said = self._words[_SAID]
        if not said or said & _NAME == self._name:
            return
        now = time.monotonic_ns()
        if abs(now - said) > STALE_NS:  # what is of another boot may lie in the future
            self._words[_SAID] = 0
            return
        is_over = now - self._began_ns >= TURN_NS
        self._words[_USED] = 0 if is_over else now & ~_NAME | self._name
        # One is awake at a time: another one only if that one has had its turn meanwhile.
        if not self._has_woken or (is_over and self._words[_BELL] >> 32 != self._name):
            self._has_woken = True
            self._wake()
        if is_over:
            self._rests_until = now / 1e9 + REST_SECONDS

    def _sleep_in_line(self, seconds: float, until: float) -> None:
        """Sleep for so long, and on while another one uses its turn; whoever is woken is next."""
        while not self._sleep(seconds):
            left = until - time.monotonic()
            if left <= 0 or not self._is_in_use():
                return
            self._is_in_line = True
            seconds = random_wait(TRY_SECONDS if self._futex is None else SLEEP_SECONDS, left)
        self._tries_as_next = NEXT_TRIES
        self._stand_by(until)

    def _stand_by(self, until: float) -> None:
        """Look on until the turn is over, or nobody uses it."""
        while True:
            left = until - time.monotonic()
            self._sleep(random_wait(NEXT_SECONDS, max(0.0, left)))
            if left <= 0 or not self._is_in_use():
                return

    def _is_in_use(self) -> bool:
        used = self._words[_USED]
        return used != 0 and used & _NAME != self._name and abs(time.monotonic_ns() - used) < IDLE_NS

    def _start(self) -> None:
        self._began_ns = time.monotonic_ns()
        self._has_woken = False
        self._rests_until = 0.0

    def _sleep(self, seconds: float) -> bool:
        """Say that we wait, and sleep until woken, for so long at most; return whether somebody woke us."""
        self._words[_SAID] = time.monotonic_ns() & ~_NAME | self._name
        if self._futex is None:
            time.sleep(seconds)
            return False
        bell = ctypes.c_uint32(self._words[_BELL] & _FUTEX_WORD)
        until = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        return bool(_syscall(_FUTEX, self._futex, _FUTEX_WAIT, bell, ctypes.byref(until), None, 0) == 0)

    def _wake(self) -> None:
        self._words[_BELL] = self._name << 32 | (self._words[_BELL] + 1) & _FUTEX_WORD
        if self._futex is not None:
            _syscall(_FUTEX, self._futex, _FUTEX_WAKE, 1, None, None, 0)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_syscall = ctypes.CDLL(None).syscall
_syscall.restype = ctypes.c_long


def _futex_of(word: memoryview) -> ctypes.c_void_p | None:
    """Return where sleepers sleep, good for as long as the word is; None where there is no such call."""
    if _FUTEX is None or not sys.platform.startswith("linux") or sys.byteorder != "little":
        return None
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(word)))
