"""Work-stealing deques: every thread has its own, and takes from another's only when its own is empty.

Nothing here locks: the owner of the deques does.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["PriorityDeques", "StealingDeques"]

T = TypeVar("T")


class StealingDeques(Generic[T]):
    """The deques of one priority, by thread. A deque is here only while it holds something.

    Because an empty deque is dropped, a thread that has died leaves nothing behind but what it had put in,
    and a thief never looks at a deque in vain.
    """

    __slots__ = ("_by_owner", "_lifo")

    def __init__(self, *, lifo: bool) -> None:
        self._by_owner: dict[int, deque[T]] = {}
        self._lifo = lifo

    def push(self, owner: int, item: T) -> None:
        """Add an item as the owner's newest."""
        own = self._by_owner.get(owner)
        if own is None:
            self._by_owner[owner] = deque((item,))
        else:
            own.append(item)

    def give_back(self, owner: int, item: T) -> None:
        """Add an item as the one that the owner takes next."""
        if self._lifo or owner not in self._by_owner:
            self.push(owner, item)
        else:
            self._by_owner[owner].appendleft(item)

    def take(self, owner: int) -> T:
        """Remove an item: from the owner's own end, else from the other end of another thread's deque.

        The victim is the thread that has had something for longest. There must be an item.
        """
        deques = self._by_owner
        own = deques.get(owner)
        if own is None:
            owner = next(iter(deques))
            own = deques[owner]
            item = own.popleft() if self._lifo else own.pop()
        else:
            item = own.pop() if self._lifo else own.popleft()
        if not own:
            del deques[owner]
        return item

    def owns(self, owner: int) -> bool:
        """Tell whether the owner's own deque holds something."""
        return owner in self._by_owner

    def in_order(self, owner: int) -> Iterator[T]:
        """Yield the items in the order in which the owner would take them all."""
        own = self._by_owner.get(owner, ())
        yield from (reversed(own) if self._lifo else own)
        for other, items in self._by_owner.items():
            if other != owner:
                yield from (items if self._lifo else reversed(items))

    def __bool__(self) -> bool:
        return bool(self._by_owner)


KEPT_LEVELS = 16
"""Priorities whose deques are kept when they are empty: making them anew costs more than all the rest."""


class PriorityDeques(Generic[T]):
    """Work-stealing deques for each priority. A higher priority goes first, even if it has to be stolen."""

    __slots__ = ("_levels", "_lifo", "_priorities", "_size", "top")

    def __init__(self, *, lifo: bool) -> None:
        self._lifo = lifo
        self._levels: dict[int, StealingDeques[T]] = {}
        self._priorities: list[int] = []  # those with an item, the highest last
        self._size = 0
        self.top: int | None = None
        """The highest priority of all items; None when there is none."""

    def push(self, priority: int, owner: int, item: T) -> None:
        """Add an item as the owner's newest of its priority."""
        self._level(priority).push(owner, item)
        self._size += 1

    def give_back(self, priority: int, owner: int, item: T) -> None:
        """Add an item as the one of its priority that the owner takes next."""
        self._level(priority).give_back(owner, item)
        self._size += 1

    def take(self, owner: int) -> T:
        """Remove an item of the highest priority, the owner's own if there is one. There must be an item."""
        priority = self._priorities[-1]
        level = self._levels[priority]
        item = level.take(owner)
        self._size -= 1
        if not level:
            self._priorities.pop()
            self.top = self._priorities[-1] if self._priorities else None
            if len(self._levels) > KEPT_LEVELS:
                del self._levels[priority]
        return item

    def owns_top(self, owner: int) -> bool:
        """Tell whether the owner's own deque holds something of the highest priority."""
        return self.top is not None and self._levels[self.top].owns(owner)

    def in_order(self, owner: int) -> Iterator[T]:
        """Yield the items in the order in which the owner would take them all."""
        for priority in reversed(self._priorities):
            yield from self._levels[priority].in_order(owner)

    def clear(self) -> None:
        """Remove everything."""
        self._levels.clear()
        self._priorities.clear()
        self._size = 0
        self.top = None

    def __len__(self) -> int:
        return self._size

    def _level(self, priority: int) -> StealingDeques[T]:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = StealingDeques(lifo=self._lifo)
        if not level:
            insort(self._priorities, priority)
            self.top = self._priorities[-1]
        return level
