"""A tenant: the verbs on its queues, each of them one transaction on its file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from tenantq import _foreign
from tenantq._backup import backup_file, opened_for_backup
from tenantq._destination import check_destination
from tenantq._file import STEP, TenantFile
from tenantq._leases import TenantLeases
from tenantq._limits import UNCHANGED, Limit, Unchanged, check_weight
from tenantq._load import LoadStats
from tenantq._operations import check_options, emit_operation, enqueue_operation
from tenantq._producers import TenantProducers
from tenantq._sqlite import identity_of
from tenantq.arguments import DEFAULT_MAX_ATTEMPTS, check_lease, check_limit, check_seconds
from tenantq.clock import NANOSECONDS, nanoseconds
from tenantq.errors import InvalidArgument, UnknownTenant
from tenantq.inbox import Inbox
from tenantq.message import Message
from tenantq.naming import check_name
from tenantq.outbox import Outbox
from tenantq.periodic import TenantPeriodic
from tenantq.router import Layer, declaration_of
from tenantq.stats import TenantStats, is_blocked, read_stats, size_of, warnings_of
from tenantq.transaction import Transaction

__all__ = ["Tenant"]


class Tenant(TenantLeases, TenantProducers):
    """One tenant of a store. Threads may share it; it holds no file open by itself.

    Every verb that changes something is committed when it returns: what that survives is the store's
    `durability`. Every verb raises StoreClosed, and the subclasses of TenantFileError for a file that is
    damaged, locked, full, not ours or replaced; none of them touches another tenant.
    """

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
        wait: float = 0.0,
    ) -> int:
        """Commit one message and return its id; ids only grow.

        It is claimable after `delay` seconds or from the moment `at` (aware). Higher `priority` first, then
        time, then id. With `key`: while a message of the queue with this key is waiting or claimed, its id
        is returned and nothing is added. Into a bounded queue that is full it goes when there is room, within
        `wait` seconds. Raises InvalidArgument, PayloadError, QueueFull.
        """
        operation = enqueue_operation(
            self.clock,
            queue,
            [payload],
            delay=delay,
            at=at,
            priority=priority,
            key=key,
            max_attempts=max_attempts,
            headers=headers,
        )
        return self._admit(queue, 1, key, operation, wait)[0]

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
        wait: float = 0.0,
    ) -> list[int]:
        """Commit messages in one transaction, all or none, and return their ids in the same order.

        Raises QueueFull if there is no room for all of them within `wait` seconds.
        """
        listed = list(payloads)
        operation = enqueue_operation(
            self.clock,
            queue,
            listed,
            delay=delay,
            at=at,
            priority=priority,
            key=None,
            max_attempts=max_attempts,
            headers=headers,
        )
        return self._admit(queue, len(listed), None, operation, wait)

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
        wait: float = 0.0,
    ) -> int:
        """Send a declared message to the layer that its type needs, and return its id there.

        On return it is committed in the tenant's file, for the shared layer as an event in its outbox; for
        the memory layer it is in this process only. Raises DeclarationError for a type that was not
        declared with `@tenantq.message`, QueueFull where its queue or the memory layer has no room within
        `wait` seconds. The outbox has no bound.
        """
        check_seconds(wait, "wait")
        return self.route(
            message,
            delay=delay,
            at=at,
            priority=priority,
            key=key,
            max_attempts=max_attempts,
            headers=headers,
            enqueue=partial(self.enqueue, wait=wait),
            emit=self.emit,
            remember=lambda action: int(action()),  # type: ignore[call-overload]
            wait=wait,
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
        """Commit an event to the outbox and return its place there; the forwarder takes it to Postgres.

        Raises InvalidArgument and PayloadError for what Postgres would refuse, and QueueFull where the store
        was opened with `max_outbox` and so many of the tenant's events wait already.
        """
        operation = emit_operation(
            self.clock,
            topic,
            payload,
            delay=delay,
            at=at,
            priority=priority,
            max_attempts=max_attempts,
            headers=headers,
            max_outbox=self.store.config.max_outbox,
        )
        return self._write(operation)

    def notify(self) -> None:
        """Tell the workers and forwarders of all processes that something was committed without tenantq.

        To be called behind the COMMIT of what `tenantq.statements` enqueued; a sweep finds it too, later. Opens
        no file. Raises UnknownTenant, and ForeignHandle where this process has the file open by two libraries.
        """
        identity = identity_of(self.path)
        if identity is None:
            raise UnknownTenant(f"the store has no tenant {self.id!r}", tenant=self.id)
        self.store.announce(self.id)
        if _foreign.is_open(identity):
            _foreign.check_alone(identity, str(self.path), self.id)

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
        wait: float = 0.0,
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
                check_options(name, key=key, **options)  # now, not behind the commit of a transaction
                memory = self.store.memory
                return remember(
                    lambda: memory.enqueue(name, message, key=key, tenant=self.id, wait=wait, **options),
                )

    def transaction(self) -> Transaction:
        """Return a transaction on the tenant's file; see Transaction."""
        return Transaction(self, self._begin)

    # What an operator needs

    def stats(self) -> TenantStats:
        """Return how many messages there are and how the file does; costs the same for one and a million."""
        handle = self._open(create=False)
        if handle is None:
            return TenantStats(tenant=self.id)
        now, boottime = self.clock.now_ns(), self.clock.boottime_ns()
        queues, max_depth, whole, outbox, undeliverable = self._read(
            lambda file: read_stats(file, now, boottime), default=((), None, Limit(), 0, 0)
        )
        pending, load = self._read_one(
            lambda file: (file.database.wal_pages(), file.database.load.read()), default=(0, LoadStats())
        )
        wal_bytes = size_of(self.path.with_name(self.path.name + "-wal"))
        ages = [queue.oldest_age for queue in queues if queue.oldest_age is not None]
        return TenantStats(
            tenant=self.id,
            ready=sum(queue.ready for queue in queues),
            scheduled=sum(queue.scheduled for queue in queues),
            claimed=sum(queue.claimed for queue in queues),
            dead=sum(queue.dead for queue in queues),
            outbox=outbox,
            undeliverable=undeliverable,
            oldest_age=max(ages, default=None),
            max_depth=max_depth,
            max_claimed=whole.max_claimed,
            rate=whole.rate,
            per=None if whole.per is None else whole.per / NANOSECONDS,
            weight=1.0 if whole.weight is None else whole.weight,
            file_bytes=size_of(self.path),
            wal_bytes=wal_bytes,
            wal_pages_pending=pending,
            is_checkpoint_blocked=is_blocked(pending),
            commits=handle.file.commits,
            operations=handle.operations,
            busy_waits=handle.file.database.busy_waits,
            busy_seconds=handle.file.database.busy_seconds,
            busy_longest=handle.file.database.busy_longest,
            utilisation=load.utilisation,
            utilisation_minute=load.utilisation_minute,
            headroom=1.0 - load.utilisation,
            operations_per_second=load.operations_per_second,
            capacity=load.capacity,
            warnings=warnings_of(wal_bytes=wal_bytes, pages_pending=pending),
            queues=queues,
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
            message
            for id_, of_queue, *rest in rows
            for message in self._messages(of_queue, [(id_, *rest)], None, None)
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

    def limit(
        self,
        queue: str | None = None,
        *,
        max_depth: int | Unchanged | None = UNCHANGED,
        max_claimed: int | Unchanged | None = UNCHANGED,
        rate: int | Unchanged | None = UNCHANGED,
        per: float = 1.0,
        weight: float | Unchanged | None = UNCHANGED,
    ) -> None:
        """Limit a queue, or all queues of the tenant together; None removes a limit, what is left out stays.

        Every process obeys from its next call on.

        max_depth: how many messages it holds. Ready, scheduled and claimed ones count, dead letters do not. More
        than that waits for room or raises QueueFull, except what is in already or comes back: nack, release and
        redrive are never refused. A queue without a bound of its own has the store's `max_depth`.
        max_claimed: how many messages are under a lease at once. Those of a worker that died count until their
        leases have ended.
        rate, per: how many messages are claimed in `per` seconds, every attempt for itself. After a rest as many
        as `rate` come at once: a token bucket.
        weight: of the whole tenant only. A worker gives a tenant of weight 2 twice the handler time of one of
        weight 1, as long as both have something to do.
        """
        if queue is not None:
            check_name(queue)
        values = (max_depth, max_claimed, rate, weight)
        if all(isinstance(value, Unchanged) for value in values):
            raise InvalidArgument("there is nothing to limit", hint="give max_depth, max_claimed, rate or weight")
        for name, value in (("max_depth", max_depth), ("max_claimed", max_claimed), ("rate", rate)):
            if not isinstance(value, Unchanged | None):
                check_limit(value, name)
        if not isinstance(weight, Unchanged):
            check_weight(queue, weight)
        rated = rate if isinstance(rate, Unchanged | None) else (rate, nanoseconds(check_lease(per, "per")))

        def operation(file: TenantFile) -> None:
            if not isinstance(max_depth, Unchanged):
                file.bound(queue, max_depth)
            if not all(isinstance(value, Unchanged) for value in values[1:]):
                boottime = self.clock.boottime_ns()
                file.limit(queue, boottime, max_claimed=max_claimed, rate=rated, weight=weight)

        self._write(operation)

    def reap(self) -> int:
        """Take back leases that have expired; return how many. Claims find them too, without it.

        Their messages are ready again, or dead when their attempts are used up.
        """
        reaped = 0
        times = self._times()
        while True:
            moved, expired = self._write(
                lambda file: file.settle_due(*times, forget=True), create=False, default=(0, 0)
            )
            reaped += expired
            if moved < STEP:
                return reaped

    def backup(self, dest: str | os.PathLike[str]) -> Path:
        """Write a complete, checked and synced copy of the tenant's file to `dest`, while all write on.

        It has every message acknowledged before the call. It is checked: SQLite's integrity check (every row
        against every index), our schema, and the tenant's id. An older backup of the tenant at `dest` is replaced
        at the end, at once; nothing else is. A directory gets the copy under the name of the tenant's file.

        Raises UnknownTenant, DiskFull, CorruptFile, and for a `dest` that is open, in a store, or something else:
        TenantInUse, WrongTenant, NotATenantFile, TenantFileError; what was there is there still.
        """
        target = Path(dest).absolute()
        if target.is_dir():
            target = target / self.path.name
        if self.id not in self.store:
            raise UnknownTenant(f"tenant {self.id!r} has no file yet", tenant=self.id)
        check_destination(target, self.id, self.store.root)
        with opened_for_backup(self.path, self.id, self.store.config.busy_timeout) as database:
            backup_file(database, target)
        return target

    @property
    def outbox(self) -> Outbox:
        """The events that are on their way to the shared layer, for a forwarder."""
        return Outbox(self.id, self.clock, read=self._read, write=self._write)

    @property
    def inbox(self) -> Inbox:
        """What the shared layer sent to the tenant, for a deliverer."""
        return Inbox(self.id, self.clock, read=self._read, write=self._write)

    @property
    def periodic(self) -> TenantPeriodic:
        """The tenant's periodic messages: `add`, `list` and `remove`. They lie in its file."""
        return TenantPeriodic(self.clock, read=self._read, write=self._write)

    def __repr__(self) -> str:
        return f"Tenant({self.id!r})"

    def _redrive_listed(self, ids: tuple[int, ...], queue: str | None) -> int:
        def operation(file: TenantFile) -> int:
            now = self.clock.now_ns()
            rows = [row for message_id in ids for row in file.find_dead_message(message_id)]
            return sum(file.redrive(*row, now=now) for row in rows if queue in (None, row[1]))

        return self._write(operation, create=False, default=0)
