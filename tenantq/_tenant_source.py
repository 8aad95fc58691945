"""The tenants of a store as a worker's source: fair shares, and acks that go with the next claim."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tenantq._fair_buffer import STUCK, FairBuffer
from tenantq._patience import impatient
from tenantq._schedule import Work
from tenantq._sources import IDLE_WAIT, ClaimingSource
from tenantq.errors import LeaseLost, NewerFile, OlderFile, TenantBusy
from tenantq.message import Message
from tenantq.router import Layer
from tenantq.store import Store
from tenantq.tenant import Tenant

__all__ = ["TenantSource"]

logger = logging.getLogger("tenantq.worker")

PATIENCE = 0.02
"""Seconds that a tenant's file is waited for at once: the others are not to wait for a transaction that hangs."""

BUSY_PAUSE = 0.2
"""Seconds until a tenant whose file somebody else kept for longer is tried again."""

ACK_ALONE = 4
"""One exchange in so many claims nothing, where there are several queues: their turn comes with a claim."""


class TenantSource(ClaimingSource):
    """The tenants of a store, each with its share of the threads and of what is claimed ahead: see FairBuffer.

    What was handled meanwhile is acked in the transaction that claims the next: the faster the handlers, the
    more messages go into one. However much is claimed of a tenant, one that comes is claimed from at once.
    """

    layer = Layer.TENANT

    _waits_itself = True

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
        max_concurrency: int | None = None,
    ) -> None:
        super().__init__("tenants", threads=threads, lease=lease, worker=worker, ring=ring)
        self._store = store
        self._tell = tell
        self._fair = FairBuffer(threads=threads, most=max_concurrency, monotonic=time.monotonic)
        self._reserve = 2 * threads
        self._finished: list[Message[Any]] = []
        self._last = threading.local()
        self._acking: list[Message[Any]] = []
        self._late: dict[str, list[Message[Any]]] = {}
        """Acks that a thread of their own writes, since their tenant's file kept this one waiting."""
        self._stragglers: list[threading.Thread] = []
        self._queues = list(queues)
        self._of_other_versions: set[str] = set()
        self._exchanges = 0
        self._look_for_stuck_at = time.monotonic() + STUCK
        self._watch = store.watch(only=Work.MESSAGES)
        self._schedule: list[tuple[float, str]] = []
        self._scheduled_at: dict[str, float] = {}

    def take(self) -> Message[Any] | None:
        """Return the next message of the tenant whose turn it is."""
        return self._fair.take()

    def finish(self, message: Message[Any]) -> bool:
        """Ack a message with the next claim; its lease is kept until then."""
        self._fair.ended(message)  # first: whoever acks it may claim the next one for its thread
        self._last.finished = message
        with self._changed:
            if self._is_stopped:
                return False
            is_first = not self._finished
            self._finished.append(message)
        if is_first:  # else the thread has been woken for the one before, and looks at this one too
            self._watch.wake()
        return True

    def worked(self, seconds: float, message: Message[Any]) -> None:
        """Charge the message's tenant, and learn how far to claim ahead."""
        if getattr(self._last, "finished", None) is not message:
            self._fair.ended(message)
        super().worked(seconds, message)

    def done(self) -> None:
        """Make room for another message."""
        super().done()
        self._watch.wake()

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
        late = [message for messages in list(self._late.values()) for message in messages]
        return [*self._fair.messages(), *self._finished, *self._acking, *late]

    def drop(self, message: Message[Any]) -> bool:
        """Forget a message that is another claim's by now; False if a thread took it meanwhile."""
        is_dropped = self._fair.drop(message)
        if is_dropped:
            self.done()
        return is_dropped

    def _add(self, messages: list[Message[Any]]) -> None:
        self._fair.put(messages[0].tenant or "", messages)

    def _keep(self, tenant: Tenant, messages: list[Message[Any]]) -> None:
        """Keep what was claimed, and the weight that came with it."""
        self._put(messages)
        self._fair.weigh(tenant.id, tenant.known_weight)

    def _drain(self) -> list[Message[Any]]:
        return self._fair.drain()

    def _wake(self) -> None:
        self._watch.wake()

    def _exchange_finished(self) -> None:
        with self._changed:
            self._acking, self._finished = self._finished, []
        groups: dict[tuple[str, str], list[Message[Any]]] = {}
        for message in self._acking:
            groups.setdefault((message.tenant or "", message.queue), []).append(message)
        for (tenant_id, queue), messages in groups.items():
            with self._changed:
                is_late = tenant_id in self._late
                if is_late:
                    self._late[tenant_id] += messages
            if not is_late:
                self._exchange(tenant_id, queue, messages)
        self._acking = []

    def _exchange(self, tenant_id: str, queue: str, messages: list[Message[Any]]) -> None:
        """Ack messages of one queue, and claim the next in the same transaction, up to the tenant's share."""
        share = 0 if self._is_stopped else self._fair.wanted(tenant_id, self._room + len(messages))
        self._exchanges += 1
        if len(self._queues) > 1 and self._exchanges % ACK_ALONE == 0:
            share = 0
        lost: LeaseLost | None = None
        try:
            tenant = self._store.tenant(tenant_id)
            with impatient(PATIENCE):
                if share:
                    claimed = tenant.exchange(messages, queue, share, lease=self._lease, worker=self._worker)
                    self._keep(tenant, claimed)
                else:
                    tenant.ack(*messages)
        except LeaseLost as exc:
            lost = exc
        except Exception as exc:
            if not isinstance(exc, TenantBusy):
                logger.warning("acks could not be written yet", exc_info=True, extra={"tenant": tenant_id})
            self._late[tenant_id] = messages
            straggler = threading.Thread(
                target=self._ack_late, args=(tenant_id,), name="tenantq-acks", daemon=True
            )
            straggler.start()
            self._stragglers = [*(one for one in self._stragglers if one.is_alive()), straggler]
            return
        for message in messages:
            self._tell(message, lost)
        self._free(len(messages))
        self._queue_up(tenant_id)  # there may be more, in this queue or another

    def _ack_late(self, tenant_id: str) -> None:
        """Ack what has been waiting and what comes meanwhile, with all the patience that a file may need."""
        while True:
            with self._changed:
                messages = list(self._late[tenant_id])
                if not messages:
                    del self._late[tenant_id]
                    break
            try:
                self._store.tenant(tenant_id).ack(*messages)
            except LeaseLost:
                pass  # told of each below
            except Exception:  # each is tried for some seconds, and told of
                logger.warning("acks could not be written yet", exc_info=True, extra={"tenant": tenant_id})
            for message in messages:
                self._tell(message, None)
            with self._changed:
                del self._late[tenant_id][: len(messages)]
            self._free(len(messages))
        self._queue_up(tenant_id)
        self._watch.wake()

    def _claim(self, room: int) -> int:  # noqa: ARG002 - acks make more of it
        """Ack what is finished, hear the news, and claim from the tenant whose turn it is.

        From one only, so that acks and news are never kept waiting for more than one tenant's file.
        """
        if self._finished:
            self._exchange_finished()
        has_work = self._finished or self._fair.is_behind(self._room, self._reserve)
        for tenant_id in self._watch.wait(0 if has_work else self._until_due()):
            self._queue_up(tenant_id)
        self._queue_up_due()
        self._give_back_stuck()
        turn = None if self._is_stopped else self._fair.next_to_claim(self._room, self._reserve)
        if turn is None or turn[0] in self._late:  # the thread that acks them says when there may be more
            return 0
        with impatient(PATIENCE):
            return self._claim_of(*turn)

    def _claim_of(self, tenant_id: str, share: int) -> int:
        claimed = 0
        try:
            tenant = self._store.tenant(tenant_id)
            self._queues.append(self._queues.pop(0))  # another queue has the first turn next time
            for queue in self._queues:
                messages = tenant.claim(queue, share - claimed, lease=self._lease, worker=self._worker)
                self._keep(tenant, messages)
                claimed += len(messages)
                if claimed >= share:
                    self._queue_up(tenant_id)  # there may be more
                    return claimed
            due = tenant.next_due(*self._queues)
            if due == 0:
                tenant.reap()  # in a queue that no handler claims from
                due = tenant.next_due(*self._queues)
            if due is not None:
                self._put_on_schedule(tenant_id, due)
        except TenantBusy:
            self._put_on_schedule(tenant_id, BUSY_PAUSE)
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

    def _give_back_stuck(self) -> None:
        """Let other processes have what is claimed ahead where no thread comes to it: its handlers may hang."""
        now = time.monotonic()
        if now < self._look_for_stuck_at:
            return
        self._look_for_stuck_at = now + STUCK / 2
        stuck: dict[str, list[Message[Any]]] = {}
        for message in self._fair.remove_stuck():
            stuck.setdefault(message.tenant or "", []).append(message)
        for tenant_id, messages in stuck.items():
            try:
                with impatient(PATIENCE):
                    self._store.tenant(tenant_id).release(*messages)
            except LeaseLost:
                pass  # another has them already
            except TenantBusy:
                self._fair.put(tenant_id, messages)  # they stay for now
                continue
            except Exception:
                logger.warning(
                    "messages could not be given back; their leases run out",
                    exc_info=True,
                    extra={"tenant": tenant_id},
                )
            self._free(len(messages))

    def _queue_up(self, tenant_id: str) -> None:
        self._fair.queue_up(tenant_id)

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
