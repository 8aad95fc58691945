"""Claims, and the four ways to end a delivery: each one transaction on the tenant's file."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import Any

from tenantq._access import TenantAccess
from tenantq._file import STEP, TenantFile
from tenantq._operations import clean_text, fences, new_lease_token
from tenantq._sqlite import Row
from tenantq.arguments import check_lease, check_limit, check_seconds
from tenantq.clock import NANOSECONDS, nanoseconds
from tenantq.errors import LeaseLost
from tenantq.message import Message, deliver
from tenantq.naming import check_name
from tenantq.router import declared_type

__all__ = ["TenantLeases", "worker_name"]

Claimed = tuple[list[Row], int, int]
"""Rows, the end of their leases, and the token of their delivery."""

NOTHING: Claimed = ([], 0, 0)

LOOK_INTERVAL = 1.0
"""Seconds between two looks of a waiting claim for what nobody rang the doorbell for."""

PAUSED_INTERVAL = 0.01
"""Seconds between two looks where something is due and stays so: the queue is paused."""


class TenantLeases(TenantAccess):
    """The verbs of a tenant that give out leases and act on them."""

    def claim(
        self,
        queue: str,
        limit: int = 1,
        *,
        lease: float = 60.0,
        worker: str | None = None,
        wait: float = 0.0,
    ) -> list[Message[Any]]:
        """Claim up to `limit` messages for `lease` seconds; each goes to one claimer.

        `worker` is written beside them for people to read; the lease is held by the delivery, not by that
        name. With `wait`, blocks for up to so many seconds until there is one. An empty claim takes no write
        lock. The lease runs from the moment of the claim's own transaction, not from the call.
        """
        check_name(queue)
        check_limit(limit)
        check_lease(lease)
        check_seconds(wait, "wait")
        name = worker_name() if worker is None else check_name(worker, "worker name")
        messages = self._claim(queue, limit, lease, name)
        if messages or wait == 0:
            return messages
        return self._claim_when_rung(queue, limit, lease, name, wait)

    def exchange(
        self,
        acks: Iterable[Message[Any]],
        queue: str,
        limit: int = 1,
        *,
        lease: float = 60.0,
        worker: str | None = None,
    ) -> list[Message[Any]]:
        """Ack messages and claim the next in one transaction.

        Raises LeaseLost when one of the acks lost its lease: the others are acked, and nothing is claimed.
        """
        check_name(queue)
        check_limit(limit)
        check_lease(lease)
        name = worker_name() if worker is None else check_name(worker, "worker name")
        acked = list(acks)
        held = fences(acked)

        def operation(file: TenantFile) -> tuple[list[int], Claimed]:
            lost = [lost_id for of_queue, some in held.items() for lost_id in file.ack(of_queue, some)]
            if lost:
                return lost, NOTHING
            times = self._times()
            if file.is_due(*times):
                file.settle_due(*times)
            return [], self._take(file, queue, limit, lease, name)

        if not acked and not self._has_claimable(queue):
            return []
        gone = [message.id for message in acked]
        lost, (rows, expires, token) = self._write_existing(operation, (gone, NOTHING))
        self._settle(acked, lost)
        return self._messages(queue, rows, expires, token)

    def ack(self, *messages: Message[Any]) -> None:
        """Remove messages: they are done. Raises LeaseLost for those not held; the others are removed."""
        held = fences(messages)
        if not held:
            return

        def operation(file: TenantFile) -> list[int]:
            return [lost for queue, some in held.items() for lost in file.ack(queue, some)]

        self._settle(messages, self._write_existing(operation, [message.id for message in messages]))

    def nack(self, message: Message[Any], *, delay: float | None = None, error: str | None = None) -> None:
        """Count the attempt as failed: the message waits `delay` seconds (None: the backoff), or is dead
        when its attempts are used up. Raises LeaseLost.
        """
        if delay is not None:
            check_seconds(delay, "delay")
        text = clean_text(error)
        fence = (message.id, message.lease_token)

        def operation(file: TenantFile) -> bool:
            now = self.clock.now_ns()
            if message.attempts >= message.max_attempts:
                return file.dead_letter(message.queue, fence, now=now, error=text)
            seconds = self.store.config.backoff.delay(message.attempts) if delay is None else delay
            visible_at = now + nanoseconds(seconds)
            return file.retry(message.queue, fence, now=now, visible_at=visible_at, error=text)

        self._settle([message], [] if self._write_existing(operation, False) else [message.id])

    def dead_letter(self, message: Message[Any], *, error: str | None = None) -> None:
        """Move a message to the dead letters, whatever attempts are left. Raises LeaseLost."""
        text = clean_text(error)

        def operation(file: TenantFile) -> bool:
            fence = (message.id, message.lease_token)
            return file.dead_letter(message.queue, fence, now=self.clock.now_ns(), error=text)

        self._settle([message], [] if self._write_existing(operation, False) else [message.id])

    def release(self, *messages: Message[Any], delay: float = 0) -> None:
        """Give messages back, the attempt not counted; with `delay` they are claimable after so many seconds.

        Without it they keep their place. Raises LeaseLost for those not held; the others are given back.
        """
        check_seconds(delay, "delay")
        if not messages:
            return

        def operation(file: TenantFile) -> list[int]:
            visible_at = self.clock.now_ns() + nanoseconds(delay)
            lost: list[int] = []
            for message in messages:
                fence = (message.id, message.lease_token)
                if delay:
                    is_held = file.snooze(message.queue, fence, visible_at=visible_at)
                else:
                    is_held = file.release(message.queue, fence)
                if not is_held:
                    lost.append(message.id)
            return lost

        self._settle(messages, self._write_existing(operation, [message.id for message in messages]))

    def extend(self, message: Message[Any], seconds: float) -> None:
        """Make a lease end `seconds` from now. Raises LeaseLost.

        One that has expired is held again, as long as nobody else has claimed the message meanwhile.
        """
        check_lease(seconds, "seconds")

        def operation(file: TenantFile) -> int:
            fence, lease_ns = (message.id, message.lease_token), nanoseconds(seconds)
            now, boottime = self._times()
            held = file.extend(message.queue, fence, leased_until=boottime + lease_ns, worker=worker_name())
            return now + lease_ns if held else 0

        expires = self._write_existing(operation, 0)
        if not expires:
            raise LeaseLost(lost=[message.id], tenant=self.id, queue=message.queue)
        message.lease_expires_ns = expires

    def next_due(self, *queues: str) -> float | None:
        """Return the seconds until a delayed message, an expired lease or one that a rate holds back is claimable.

        None without one. Rates are those of the queues given; by default of all.
        """

        def operation(file: TenantFile) -> tuple[int | None, int | None, int | None]:
            dues = file.next_due()
            file.refresh()
            if not file.limits.own():
                return *dues, None
            boottime = self._times()[1]
            tokens = [
                file.limits.next_token(queue, boottime) for queue in queues or [row[0] for row in file.depths()]
            ]
            return *dues, min((wait for wait in tokens if wait is not None), default=None)

        due_at, leased_until, token_in = self._read(operation, default=(None, None, None))
        now, boottime = self._times()
        waits = [] if due_at is None else [due_at - now]
        waits += [] if leased_until is None else [leased_until - boottime]
        waits += [] if token_in is None else [token_in]
        return max(0.0, min(waits) / NANOSECONDS) if waits else None

    @property
    def known_weight(self) -> float:
        """The tenant's weight as the last claim found it: reads nothing."""
        return 1.0 if self._handle is None else self._handle.file.limits.weight

    def _has_claimable(self, queue: str) -> bool:
        """Tell whether a claim could find something; takes no write lock."""
        times = self._times()
        ready, due, paused = self._read_one(lambda file: file.probe(queue, *times), default=(False, False, False))
        return (ready or due) and not paused and self._is_let_go(queue, due)

    def _is_let_go(self, queue: str, due: bool) -> bool:
        """Tell whether the limits let a claim find anything, where it is known that there are some."""
        handle = self._handle
        if due or handle is None or not handle.file.limits.are_set:
            return True

        def operation(file: TenantFile) -> bool:
            file.limits.forget()  # this reads what others wrote
            return file.limits.allowed(queue, 1, self._times()[1], {}) > 0

        return bool(self._read(operation, default=False))

    def _claim(self, queue: str, limit: int, lease: float, worker: str) -> list[Message[Any]]:
        def operation(file: TenantFile) -> Claimed | None:
            # What is due is ready before anything is claimed; in steps, so that others get their turns.
            times = self._times()
            if file.is_due(*times) and file.settle_due(*times)[0] == STEP:
                return None
            return self._take(file, queue, limit, lease, worker)

        while True:
            handle = self._handle
            # After a claim that left something, the next one goes without a look before.
            is_sure = handle is not None and handle.file.ready.get(queue) and not handle.file.limits.are_set
            if not is_sure and not self._has_claimable(queue):
                return []
            claimed = self._write_existing(operation, NOTHING)
            if claimed is not None:
                return self._messages(queue, *claimed)

    def _take(self, file: TenantFile, queue: str, limit: int, lease: float, worker: str) -> Claimed:
        token, lease_ns = new_lease_token(), nanoseconds(lease)
        now, boottime = self._times()  # of the transaction, not of the call that may have waited for it
        rows = file.claim(
            queue,
            limit,
            worker=worker,
            now=now,
            boottime=boottime,
            leased_until=boottime + lease_ns,
            lease_token=token,
        )
        return rows, now + lease_ns, token

    def _times(self) -> tuple[int, int]:
        return self.clock.now_ns(), self.clock.boottime_ns()

    def _claim_when_rung(
        self,
        queue: str,
        limit: int,
        lease: float,
        worker: str,
        wait: float,
    ) -> list[Message[Any]]:
        deadline = time.monotonic() + wait
        with self.store.listening(self.id) as bell:
            while True:
                bell.clear()  # before the look: what is committed behind it rings
                messages = self._claim(queue, limit, lease, worker)
                remaining = deadline - time.monotonic()
                if messages or remaining <= 0:
                    return messages
                due = self.next_due(queue)
                pause = LOOK_INTERVAL if due is None else due or PAUSED_INTERVAL
                bell.wait(min(remaining, LOOK_INTERVAL, pause))

    def _settle(self, messages: Iterable[Message[Any]], lost: list[int]) -> None:
        gone = set(lost)
        for message in messages:
            if message.id not in gone:
                message.settled = True
        if lost:
            raise LeaseLost(
                f"the lease of {_listed(lost)} was lost",
                lost=lost,
                tenant=self.id,
            )

    def _messages(
        self,
        queue: str,
        rows: list[Row],
        lease_expires_ns: int | None,
        lease_token: int | None,
    ) -> list[Message[Any]]:
        return deliver(
            rows,
            source=None if lease_token is None else self,
            tenant=self.id,
            queue=queue,
            payload_type=declared_type(queue),
            lease_expires_ns=lease_expires_ns,
            lease_token=lease_token,
        )


_name: tuple[int, str] = (0, "")


def worker_name() -> str:
    """Return what this process is called beside its claims: its host and its process id."""
    global _name  # noqa: PLW0603 - a cache that a fork makes stale
    pid = os.getpid()
    if _name[0] != pid:
        _name = (pid, f"{socket.gethostname()[:100]}-{pid}")
    return _name[1]


def _listed(ids: list[int]) -> str:
    shown = ", ".join(str(id_) for id_ in ids[:5])
    return f"message {shown}" if len(ids) == 1 else f"messages {shown}{', ...' if len(ids) > 5 else ''}"
