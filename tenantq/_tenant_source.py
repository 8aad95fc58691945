"""The tenants of a store as a worker's source: fair turns, and acks that go with the next claim."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tenantq._schedule import Work
from tenantq._sources import IDLE_WAIT, ClaimingSource
from tenantq.errors import LeaseLost, NewerFile, OlderFile
from tenantq.message import Message
from tenantq.router import Layer
from tenantq.store import Store

__all__ = ["TenantSource"]

logger = logging.getLogger("tenantq.worker")


class TenantSource(ClaimingSource):
    """The tenants of a store, in turns: each gets a share of the room, then goes to the end of the line.

    What was handled meanwhile is acked in the transaction that claims the next: the faster the handlers, the
    more messages go into one.
    """

    layer = Layer.TENANT

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        *,
        threads: int,
        lease: float,
        worker: str,
        ring: Callable[[], None],
        tell: Callable[[Message[Any], LeaseLost | None], None],
    ) -> None:
        super().__init__("tenants", threads=threads, lease=lease, worker=worker, ring=ring)
        self._store = store
        self._tell = tell
        self._finished: list[Message[Any]] = []
        self._acking: list[Message[Any]] = []
        self._stragglers: list[threading.Thread] = []
        self._queues = list(queues)
        self._watch = store.watch(only=Work.MESSAGES)
        self._line: deque[str] = deque()
        self._in_line: set[str] = set()
        self._of_other_versions: set[str] = set()
        self._schedule: list[tuple[float, str]] = []
        self._scheduled_at: dict[str, float] = {}

    def finish(self, message: Message[Any]) -> bool:
        """Ack a message with the next claim; its lease is kept until then."""
        with self._changed:
            if self._is_stopped:
                return False
            self._finished.append(message)
            self._changed.notify()
        self._watch.wake()
        return True

    def stop(self) -> list[Message[Any]]:
        """Claim no more, ack what is finished, and end the watch."""
        left = super().stop()
        self._exchange_finished()
        for straggler in self._stragglers:
            straggler.join()
        self._watch.close()
        return left

    def buffered(self) -> list[Message[Any]]:
        """Return what is claimed and not taken yet, and what waits for its ack."""
        return [*super().buffered(), *self._finished, *self._acking]

    def _wake(self) -> None:
        self._watch.wake()

    def _has_work(self) -> bool:
        return bool(self._finished)

    def _exchange_finished(self) -> None:
        with self._changed:
            self._acking, self._finished = self._finished, []
        groups: dict[tuple[str, str], list[Message[Any]]] = {}
        for message in self._acking:
            groups.setdefault((message.tenant or "", message.queue), []).append(message)
        for (tenant_id, queue), messages in groups.items():
            self._exchange(tenant_id, queue, messages)
        self._acking = []

    def _exchange(self, tenant_id: str, queue: str, messages: list[Message[Any]]) -> None:
        """Ack messages of one queue, and claim the next in the same transaction, as far as no others wait."""
        share = 0 if self._is_stopped else len(messages) // (1 + len(self._line))
        lost: LeaseLost | None = None
        try:
            tenant = self._store.tenant(tenant_id)
            if share:
                self._put(tenant.exchange(messages, queue, share, lease=self._lease, worker=self._worker))
            else:
                tenant.ack(*messages)
        except LeaseLost as exc:
            lost = exc
        except Exception:
            logger.warning("acks could not be written yet", exc_info=True, extra={"tenant": tenant_id})
            # Elsewhere, since each is tried for some seconds: no other tenant is to wait for this one's file.
            straggler = threading.Thread(target=self._ack_each, args=(messages,), name="tenantq-acks", daemon=True)
            straggler.start()
            self._stragglers = [*(one for one in self._stragglers if one.is_alive()), straggler]
            return
        for message in messages:
            self._tell(message, lost)
        self._free(len(messages))
        self._queue_up(tenant_id)  # there may be more, in this queue or another

    def _ack_each(self, messages: list[Message[Any]]) -> None:
        for message in messages:
            self._tell(message, None)
            self._free(1)

    def _claim(self, room: int) -> int:
        if self._finished:
            self._exchange_finished()
            with self._changed:
                room = self._room
        for tenant_id in self._watch.wait(0 if self._line or self._finished else self._until_due()):
            self._queue_up(tenant_id)
        self._queue_up_due()
        claimed = 0
        for _turn in range(len(self._line)):
            if claimed >= room or self._is_stopped:
                break
            tenant_id = self._line.popleft()
            self._in_line.discard(tenant_id)
            share = max(1, (room - claimed) // (len(self._line) + 1))
            claimed += self._claim_of(tenant_id, share)
        return claimed

    def _claim_of(self, tenant_id: str, share: int) -> int:
        claimed = 0
        try:
            tenant = self._store.tenant(tenant_id)
            self._queues.append(self._queues.pop(0))  # another queue has the first turn next time
            for queue in self._queues:
                messages = tenant.claim(queue, share - claimed, lease=self._lease, worker=self._worker)
                self._put(messages)
                claimed += len(messages)
                if claimed >= share:
                    self._queue_up(tenant_id)  # there may be more
                    return claimed
            due = tenant.next_due()
            if due == 0:
                tenant.reap()  # in a queue that no handler claims from
                due = tenant.next_due()
            if due is not None:
                self._put_on_schedule(tenant_id, due)
        except (NewerFile, OlderFile) as exc:
            if tenant_id not in self._of_other_versions:  # said once: it lasts until this process is replaced
                self._of_other_versions.add(tenant_id)
                logger.warning("a tenant is not served by this version: %s", exc, extra={"tenant": tenant_id})
            self._put_on_schedule(tenant_id, self._store.failing_tenants.note(tenant_id, exc))
        except Exception as exc:
            logger.warning("a tenant could not be served", exc_info=True, extra={"tenant": tenant_id})
            self._put_on_schedule(tenant_id, self._store.failing_tenants.note(tenant_id, exc))
        else:
            self._store.failing_tenants.clear(tenant_id)
        return claimed

    def _queue_up(self, tenant_id: str) -> None:
        if tenant_id not in self._in_line:
            self._in_line.add(tenant_id)
            self._line.append(tenant_id)

    def _put_on_schedule(self, tenant_id: str, seconds: float) -> None:
        moment = time.monotonic() + seconds
        if moment < self._scheduled_at.get(tenant_id, float("inf")):
            self._scheduled_at[tenant_id] = moment
            heapq.heappush(self._schedule, (moment, tenant_id))

    def _queue_up_due(self) -> None:
        now = time.monotonic()
        while self._schedule and self._schedule[0][0] <= now:
            moment, tenant_id = heapq.heappop(self._schedule)
            if self._scheduled_at.get(tenant_id) == moment:
                del self._scheduled_at[tenant_id]
            self._queue_up(tenant_id)

    def _until_due(self) -> float:
        if not self._schedule:
            return IDLE_WAIT
        return min(IDLE_WAIT, max(0.0, self._schedule[0][0] - time.monotonic()))
