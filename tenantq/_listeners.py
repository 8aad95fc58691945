"""Threads of this process that wait for a tenant's bell."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from tenantq._doorbell import Doorbell, slot_of

__all__ = ["Listeners"]


class Listeners:
    """Those who wait, by the slots of their tenants. The first of them lets the doorbell listen."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._lock = threading.Lock()
        self._waiting: dict[int, set[threading.Event]] = {}
        self._unsubscribe: Callable[[], None] | None = None

    @contextlib.contextmanager
    def listening(self, tenant_id: str) -> Iterator[threading.Event]:
        """Yield an event that is set whenever the bell may have been rung for a tenant."""
        event, slot = threading.Event(), slot_of(tenant_id)
        with self._lock:
            if self._unsubscribe is None:
                self._unsubscribe = self._doorbell.subscribe(self._on_ring)
            self._waiting.setdefault(slot, set()).add(event)
        try:
            yield event
        finally:
            with self._lock:
                waiting = self._waiting.get(slot, set())
                waiting.discard(event)
                if not waiting:
                    self._waiting.pop(slot, None)

    def _on_ring(self, slots: frozenset[int]) -> None:
        with self._lock:
            events = [event for slot in slots for event in self._waiting.get(slot, ())]
        for event in events:
            event.set()
