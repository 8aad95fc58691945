"""A tenant: the verbs on its queues, each of them one transaction on its file."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tenantq import _schema
from tenantq._file import STEP, TenantFile
from tenantq._handle import Handle, HandleGone
from tenantq._operations import (
    clean_text,
    decode_headers,
    emit_operation,
    enqueue_operation,
    fences,
    new_lease_token,
)
from tenantq._sqlite import Row
from tenantq.arguments import DEFAULT_MAX_ATTEMPTS, check_lease, check_limit, check_seconds
from tenantq.backup import backup_file
from tenantq.clock import NANOSECONDS, Clock, nanoseconds
from tenantq.errors import FileReplaced, InvalidArgument, LeaseLost, TenantFileError, UnknownTenant
from tenantq.message import Message
from tenantq.naming import check_name
from tenantq.outbox import Outbox
from tenantq.router import Layer, declaration_of, declared_type
from tenantq.stats import QueueStats, TenantStats
from tenantq.transaction import Transaction

if TYPE_CHECKING:
    from tenantq.store import Store

__all__ = ["Tenant"]

T = TypeVar("T")

LISTEN_INTERVAL = 0.02
"""Seconds between two looks of a waiting claim for what other processes committed."""


class Tenant:
    """One tenant of a store. Threads may share it; it holds no file open by itself.

    Every verb that changes something is committed when it returns: what that survives is the store's
    `durability`. Every verb raises StoreClosed, and the subclasses of TenantFileError for a file that is
    damaged, locked, full, not ours or replaced; none of them touches another tenant.
    """

    def __init__(self, store: Store, tenant_id: str, *, create: bool = True) -> None:
        self.id = tenant_id
        self.store = store
        self.clock: Clock = store.clock
        self.path: Path = _schema.path_of(store.root, tenant_id)
        """The tenant's file. While it is open, touch it only through tenantq."""
        self._create = create
        self._handle: Handle | None = None

    # Enqueue and send

    def enqueue(
        self,
        queue: str,
        payload: object,
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int = 0,
        key: str | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Commit one message and return its id; ids only grow.

        It is claimable after `delay` seconds or from the moment `at` (aware). Higher `priority` first, then
        time, then id. With `key`: while a message of the queue with this key is waiting or claimed, its id
        is returned and nothing is added. Raises InvalidArgument, PayloadError.
        """
        return self._write(
            enqueue_operation(
                self.clock,
                queue,
                [payload],
                delay=delay,
                at=at,
                priority=priority,
                key=key,
                max_attempts=max_attempts,
                headers=headers,
            ),
        )[0]

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[object],
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int = 0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        headers: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Commit messages in one transaction, all or none, and return their ids in the same order."""
        operation = enqueue_operation(
            self.clock,
            queue,
            list(payloads),
            delay=delay,
            at=at,
            priority=priority,
            key=None,
            max_attempts=max_attempts,
            headers=headers,
        )
        return self._write(operation)

    def send(
        self,
        message: object,
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int | None = None,
        key: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Send a declared message to the layer that its type needs, and return its id there.

        On return it is committed in the tenant's file, for the shared layer as an event in its outbox; for
        the memory layer it is in this process only. Raises DeclarationError for a type that was not
        declared with `@tenantq.message`, QueueFull where the memory layer has no room.
        """
        return self.route(
            message,
            delay=delay,
            at=at,
            priority=priority,
            key=key,
            max_attempts=max_attempts,
            headers=headers,
            enqueue=self.enqueue,
            emit=self.emit,
            remember=lambda action: int(action()),  # type: ignore[call-overload]
        )

    def emit(
        self,
        topic: str,
        payload: object,
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int = 0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Commit an event to the outbox and return its place there; the forwarder takes it to Postgres."""
        operation = emit_operation(
            self.clock,
            topic,
            payload,
            delay=delay,
            at=at,
            priority=priority,
            max_attempts=max_attempts,
            headers=headers,
        )
        return self._write(operation)

    def route(
        self,
        message: object,
        *,
        enqueue: Callable[..., int],
        emit: Callable[..., int],
        remember: Callable[[Callable[[], object]], int],
        key: str | None,
        priority: int | None,
        max_attempts: int | None,
        **options: Any,
    ) -> int:
        """Choose the layer of a declared message, and hand it to that layer's verb."""
        declaration = declaration_of(message)
        name = declaration.name
        options["priority"] = declaration.priority if priority is None else priority
        options["max_attempts"] = declaration.max_attempts if max_attempts is None else max_attempts
        match declaration.layer:
            case Layer.TENANT:
                return enqueue(name, message, key=key, **options)
            case Layer.SHARED:
                if key is not None:
                    raise InvalidArgument(
                        f"{name!r} crosses hosts: its message takes no key",
                        hint="give it an identity in its payload; every event is forwarded once anyway",
                        tenant=self.id,
                    )
                return emit(name, message, **options)
            case Layer.MEMORY:
                memory = self.store.memory
                return remember(
                    lambda: memory.enqueue(name, message, key=key, tenant=self.id, **options),
                )

    # Claim, and the ends of a delivery

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

        def operation(file: TenantFile) -> tuple[list[int], list[Row], int, int]:
            lost = [lost_id for of_queue, some in held.items() for lost_id in file.ack(of_queue, some)]
            now = self.clock.now_ns()
            if lost:
                return lost, [], 0, 0
            ready, due, paused = file.probe(queue, now)
            if due:
                file.settle_due(now)
            if paused or not (ready or due):
                return [], [], 0, 0
            token, expires = new_lease_token(), now + nanoseconds(lease)
            rows = file.claim(
                queue,
                limit,
                worker=name,
                now=now,
                lease_expires_at=expires,
                lease_token=token,
            )
            return [], rows, expires, token

        if not acked and not self._probe(queue)[0]:
            return []
        lost, rows, expires, token = self._write(operation)
        self._settle(acked, lost)
        return self._messages(queue, rows, expires, token)

    def ack(self, *messages: Message[Any]) -> None:
        """Remove messages: they are done. Raises LeaseLost for those not held; the others are removed."""
        held = fences(messages)
        if not held:
            return

        def operation(file: TenantFile) -> list[int]:
            return [lost for queue, some in held.items() for lost in file.ack(queue, some)]

        self._settle(messages, self._write(operation))

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

        self._settle([message], [] if self._write(operation) else [message.id])

    def dead_letter(self, message: Message[Any], *, error: str | None = None) -> None:
        """Move a message to the dead letters, whatever attempts are left. Raises LeaseLost."""
        text = clean_text(error)

        def operation(file: TenantFile) -> bool:
            fence = (message.id, message.lease_token)
            return file.dead_letter(message.queue, fence, now=self.clock.now_ns(), error=text)

        self._settle([message], [] if self._write(operation) else [message.id])

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

        self._settle(messages, self._write(operation))

    def extend(self, message: Message[Any], seconds: float) -> None:
        """Make a lease end `seconds` from now. Raises LeaseLost.

        One that has expired is held again, as long as nobody else has claimed the message meanwhile.
        """
        check_lease(seconds, "seconds")

        def operation(file: TenantFile) -> int:
            expires = self.clock.now_ns() + nanoseconds(seconds)
            fence = (message.id, message.lease_token)
            return expires if file.extend(fence, lease_expires_at=expires) else 0

        expires = self._write(operation)
        if not expires:
            raise LeaseLost(lost=[message.id], tenant=self.id, queue=message.queue)
        message.lease_expires_ns = expires

    def transaction(self) -> Transaction:
        """Return a transaction on the tenant's file; see Transaction."""
        return Transaction(self, self._begin)

    # What an operator needs

    def stats(self) -> TenantStats:
        """Return how many messages there are and how the file does; costs the same for one and a million."""
        handle = self._open(create=False)
        if handle is None:
            return TenantStats(tenant=self.id)
        now = self.clock.now_ns()

        def operation(file: TenantFile) -> tuple[list[Row], list[Row], dict[str, int | None], list[Row], int]:
            depths = file.depths()
            due = file.count_due(now)
            oldest = {row[0]: file.oldest_ready(row[0]) for row in depths if row[1]}
            return depths, due, oldest, file.paused(), file.outbox_position()[3]

        depths, due, oldest, paused, outbox = self._read(operation, default=([], [], {}, [], 0))
        queues = _queue_stats(depths, due, oldest, {row[0] for row in paused}, now)
        ages = [queue.oldest_age for queue in queues if queue.oldest_age is not None]
        database = handle.file.database
        return TenantStats(
            tenant=self.id,
            ready=sum(queue.ready for queue in queues),
            scheduled=sum(queue.scheduled for queue in queues),
            claimed=sum(queue.claimed for queue in queues),
            dead=sum(queue.dead for queue in queues),
            outbox=outbox,
            oldest_age=max(ages, default=None),
            file_bytes=_size(self.path),
            wal_bytes=_size(self.path.with_name(self.path.name + "-wal")),
            commits=handle.file.commits,
            operations=handle.operations,
            busy_waits=database.busy_waits,
            busy_seconds=database.busy_seconds,
            queues=tuple(queues),
        )

    def peek(self, queue: str, limit: int = 10) -> list[Message[Any]]:
        """Return what waits in a queue without claiming it, in the order of the claims, then of the delays."""
        check_name(queue)
        check_limit(limit)
        rows = self._read(lambda file: file.peek(queue, limit), default=[])
        return self._messages(queue, rows, None, None)

    def dead_letters(self, queue: str | None = None, limit: int = 100) -> list[Message[Any]]:
        """Return dead letters with their last errors, by id."""
        check_limit(limit)
        rows = self._read(lambda file: file.list_dead(queue, limit), default=[])
        return [
            self._message(row[1], (row[0], row[2], row[3], *row[4:]), None, None)
            for row in rows
        ]

    def redrive(self, *ids: int, queue: str | None = None) -> int:
        """Make dead letters ready again, under their ids and with no attempts counted; return how many.

        Those given, or all of a queue, or all. One whose key belongs to a live message stays dead.
        """
        if ids:
            return self._redrive_listed(ids, queue)
        moved, after = 0, -(2**63)
        while True:

            def operation(file: TenantFile, after: int = after) -> tuple[int, int | None]:
                rows = file.find_dead(queue, after)
                now = self.clock.now_ns()
                count = sum(file.redrive(*row, now=now) for row in rows)
                return count, rows[-1][0] if len(rows) == STEP else None

            count, last = self._write(operation, create=False, default=(0, None))
            moved += count
            if last is None:
                return moved
            after = last

    def purge(self, queue: str) -> int:
        """Remove what waits and is claimed in a queue; return how many. Dead letters stay."""
        check_name(queue)
        return self._in_steps(lambda file: file.purge(queue))

    def purge_dead(self, queue: str | None = None) -> int:
        """Remove dead letters, of one queue or of all; return how many."""
        return self._in_steps(lambda file: file.purge_dead(queue))

    def pause(self, queue: str) -> None:
        """Let claims find nothing in a queue until `resume`; what is claimed already may go on."""
        check_name(queue)
        self._write(lambda file: file.pause(queue, self.clock.now_ns()))

    def resume(self, queue: str) -> None:
        """Let claims find the queue's messages again."""
        check_name(queue)
        self._write(lambda file: file.resume(queue), create=False, default=None)

    def reap(self) -> int:
        """Take back leases that have expired; return how many. Claims do it too: this is for the figures.

        Their messages are ready again, or dead when their attempts are used up.
        """
        reaped = 0
        now = self.clock.now_ns()
        while True:
            moved, expired = self._write(lambda file: file.settle_due(now), create=False, default=(0, 0))
            reaped += expired
            if moved < STEP:
                return reaped

    def backup(self, dest: str | os.PathLike[str]) -> Path:
        """Write a complete, checked and synced copy of the tenant's file to `dest`, while all write on.

        It has every message acknowledged before the call. An older file at `dest` is replaced at the end, at
        once. Raises UnknownTenant, TenantFileError.
        """
        target = Path(dest).absolute()
        if target.is_dir():
            target = target / self.path.name
        if self._open(create=False) is None:
            raise UnknownTenant(f"tenant {self.id!r} has no file yet", tenant=self.id)
        if target.exists() and target.samefile(self.path):
            raise TenantFileError("a tenant cannot be backed up to its own file", tenant=self.id)
        database = _schema.open_database(self.path, self.id, self.store.config.busy_timeout)
        try:
            backup_file(database, target)
        finally:
            database.close()
        return target

    @property
    def outbox(self) -> Outbox:
        """The events that are on their way to the shared layer, for a forwarder."""
        return Outbox(self.id, self.clock, read=self._read, write=self._write)

    def next_due(self) -> float | None:
        """Return the seconds until a delayed message or an expired lease is claimable; None without one."""
        due = self._read(TenantFile.next_due, default=None)
        return None if due is None else max(0.0, (due - self.clock.now_ns()) / NANOSECONDS)

    def __repr__(self) -> str:
        return f"Tenant({self.id!r})"

    # Inside

    def _open(self, *, create: bool) -> Handle | None:
        handle = self._handle
        if handle is None or handle.is_closed or self.store.is_closed:
            handle = self._handle = self.store.handle(self.id, self.path, create=create)
        return handle

    def _write(self, operation: Callable[[TenantFile], T], *, create: bool = True, default: Any = None) -> T:
        while True:
            handle = self._open(create=create and self._create)
            if handle is None:
                if create:
                    raise UnknownTenant(f"the store has no tenant {self.id!r}", tenant=self.id)
                return default  # type: ignore[no-any-return]
            try:
                return handle.write(operation)
            except HandleGone:
                self._handle = None
            except FileReplaced:
                self._handle = None
                raise

    def _read(self, operation: Callable[[TenantFile], T], *, default: T) -> T:
        return self._reading(Handle.read, operation, default)

    def _read_one(self, operation: Callable[[TenantFile], T], *, default: T) -> T:
        return self._reading(Handle.read_one, operation, default)

    def _reading(
        self,
        read: Callable[[Handle, Callable[[TenantFile], T]], T],
        operation: Callable[[TenantFile], T],
        default: T,
    ) -> T:
        while True:
            handle = self._open(create=False)
            if handle is None:
                return default
            try:
                return read(handle, operation)
            except HandleGone:
                self._handle = None
            except FileReplaced:
                self._handle = None
                raise

    def _begin(self) -> Handle:
        while True:
            handle = self._open(create=self._create)
            if handle is None:
                raise UnknownTenant(f"the store has no tenant {self.id!r}", tenant=self.id)
            try:
                handle.begin()
            except HandleGone:
                self._handle = None
            except FileReplaced:
                self._handle = None
                raise
            else:
                return handle

    def _in_steps(self, operation: Callable[[TenantFile], int]) -> int:
        total = 0
        while True:
            count = self._write(operation, create=False, default=0)
            total += count
            if count < STEP:
                return total

    def _probe(self, queue: str) -> tuple[bool, bool]:
        """Tell whether a claim could find something, and whether something is due first."""
        now = self.clock.now_ns()
        ready, due, paused = self._read_one(lambda file: file.probe(queue, now), default=(False, False, False))
        return (ready or due) and not paused, due

    def _claim(self, queue: str, limit: int, lease: float, worker: str) -> list[Message[Any]]:
        while True:
            is_claimable, is_due = self._probe(queue)
            if not is_claimable:
                return []

            def operation(file: TenantFile, is_due: bool = is_due) -> tuple[bool, list[Row], int, int]:
                now = self.clock.now_ns()
                # What is due is ready before anything is claimed; in steps, so that others get their turns.
                if is_due and file.settle_due(now)[0] == STEP:
                    return False, [], 0, 0
                token, expires = new_lease_token(), now + nanoseconds(lease)
                rows = file.claim(
                    queue,
                    limit,
                    worker=worker,
                    now=now,
                    lease_expires_at=expires,
                    lease_token=token,
                )
                return True, rows, expires, token

            is_settled, rows, expires, token = self._write(operation)
            if is_settled:
                return self._messages(queue, rows, expires, token)

    def _claim_when_rung(
        self,
        queue: str,
        limit: int,
        lease: float,
        worker: str,
        wait: float,
    ) -> list[Message[Any]]:
        deadline = self.clock.monotonic() + wait
        bell = threading.Event()
        while True:
            handle = self._open(create=False)
            if handle is not None:
                handle.listen(bell)
            try:
                bell.clear()
                messages = self._claim(queue, limit, lease, worker)
                remaining = deadline - self.clock.monotonic()
                if messages or remaining <= 0:
                    return messages
                bell.wait(min(remaining, LISTEN_INTERVAL))
            finally:
                if handle is not None:
                    handle.unlisten(bell)

    def _redrive_listed(self, ids: tuple[int, ...], queue: str | None) -> int:
        def operation(file: TenantFile) -> int:
            now = self.clock.now_ns()
            rows = [row for message_id in ids for row in file.find_dead_message(message_id)]
            return sum(file.redrive(*row, now=now) for row in rows if queue in (None, row[1]))

        return self._write(operation, create=False, default=0)

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
        return [self._message(queue, row, lease_expires_ns, lease_token) for row in rows]

    def _message(
        self,
        queue: str,
        row: Row,
        lease_expires_ns: int | None,
        lease_token: int | None,
    ) -> Message[Any]:
        id_, priority, visible_at, attempts, max_attempts, enqueued_at, key, headers, error, payload = row
        return Message(
            None if lease_token is None else self,
            id=id_,
            tenant=self.id,
            queue=queue,
            body=payload,
            attempts=attempts,
            max_attempts=max_attempts,
            priority=priority,
            key=key,
            headers=decode_headers(headers),
            enqueued_ns=enqueued_at,
            visible_ns=visible_at,
            lease_expires_ns=lease_expires_ns,
            lease_token=lease_token,
            payload_type=declared_type(queue),
            error=error,
        )


_name: tuple[int, str] = (0, "")


def worker_name() -> str:
    """Return what this process is called beside its claims: its host and its process id."""
    global _name  # noqa: PLW0603 - a cache that a fork makes stale
    pid = os.getpid()
    if _name[0] != pid:
        _name = (pid, f"{socket.gethostname()[:100]}-{pid}")
    return _name[1]


def _queue_stats(
    depths: list[Row],
    due: list[Row],
    oldest: dict[str, int | None],
    paused: set[str],
    now: int,
) -> list[QueueStats]:
    was_scheduled = {row[0]: row[2] for row in due if not row[1]}
    was_claimed = {row[0]: row[2] for row in due if row[1]}
    queues = []
    for queue, ready, scheduled, claimed, dead in depths:
        from_scheduled, from_claimed = was_scheduled.get(queue, 0), was_claimed.get(queue, 0)
        since = oldest.get(queue)
        queues.append(
            QueueStats(
                queue=queue,
                ready=ready + from_scheduled + from_claimed,
                scheduled=scheduled - from_scheduled,
                claimed=claimed - from_claimed,
                dead=dead,
                oldest_age=None if since is None else max(0.0, (now - since) / NANOSECONDS),
                is_paused=queue in paused,
            ),
        )
    return queues


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _listed(ids: list[int]) -> str:
    shown = ", ".join(str(id_) for id_ in ids[:5])
    return f"message {shown}" if len(ids) == 1 else f"messages {shown}{', ...' if len(ids) > 5 else ''}"
