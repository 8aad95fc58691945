"""Periodic messages: enqueued again and again at the times of a cron expression, for one tenant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tenantq._cron import Cron
from tenantq._file import TenantFile
from tenantq._fires import Missed
from tenantq._operations import check_options, encode_headers
from tenantq._periods import PeriodicMessage
from tenantq._store_periods import StorePeriods
from tenantq.arguments import DEFAULT_MAX_ATTEMPTS
from tenantq.clock import Clock
from tenantq.errors import InvalidArgument
from tenantq.naming import check_name
from tenantq.payload import encode_payload
from tenantq.router import Layer, declaration_of

__all__ = ["Missed", "PeriodicMessage", "PeriodicMessages", "StorePeriodic", "TenantPeriodic"]

RESERVED = "tenantq-"
"""How the names of the headers begin that tell of a fire."""

_UNSET: Any = object()


class PeriodicMessages(ABC):
    """The periodic messages of a tenant, or of a store for all of its tenants: to add, list and remove."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def add(
        self,
        name: str,
        cron: str,
        target: object,
        payload: object = _UNSET,
        *,
        timezone: str = "UTC",
        missed: Missed | str = Missed.ONCE,
        priority: int | None = None,
        key: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PeriodicMessage:
        """Have a message enqueued at the times of a cron expression; kept when it returns, under its name.

        Each fire is one message, however many processes run. Adding what is there changes nothing, so that an
        application may add all it has whenever it starts; under a name that is there, it is changed.

        target: a declared message of the tenant's layer, or the name of a queue, and then `payload` is its
        payload.
        cron: minute, hour, day of the month, month and day of the week, in `timezone` (of the IANA database).
        missed: what becomes of fires that nobody was there to make. "once": one message for all of them, at the
        next chance; "all": one for each, 1,000 at the most; "skip": none for a fire more than a minute late.
        key: while a message of the queue with this key is waiting or claimed, a fire adds none.

        Raises InvalidCron, InvalidArgument, PayloadError, DeclarationError; CronMissing without the extra `cron`.
        """
        return self._put(
            _checked(
                name,
                target,
                payload,
                cron=cron,
                timezone=timezone,
                missed=missed,
                priority=priority,
                key=key,
                max_attempts=max_attempts,
                headers=headers,
            )
        )

    @abstractmethod
    def list(self) -> tuple[PeriodicMessage, ...]:
        """Return all, by name."""

    @abstractmethod
    def remove(self, name: str) -> bool:
        """Remove one, so that it fires no more; False if there was none. Messages that it made stay."""

    @abstractmethod
    def _put(self, wanted: PeriodicMessage) -> PeriodicMessage:
        """Keep one that was checked."""


class TenantPeriodic(PeriodicMessages):
    """The periodic messages of one tenant. They lie in its file, and go where it goes.

    A claim makes the fires that are due before it looks for messages: the message and the step to the next fire
    are one transaction. A file that was restored from a backup goes on from the backup's next fire.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        read: Callable[..., Any],
        write: Callable[..., Any],
    ) -> None:
        super().__init__(clock)
        self._read = read
        self._write = write

    def list(self) -> tuple[PeriodicMessage, ...]:
        """Return all, by name."""
        found: tuple[PeriodicMessage, ...] = self._read(lambda file: file.periods.list(), default=())
        return found

    def remove(self, name: str) -> bool:
        """Remove one, so that it fires no more; False if there was none. Messages that it made stay."""
        check_name(name, "name")

        def operation(file: TenantFile) -> bool:
            is_removed = file.periods.remove(name)
            file.look_again()
            return is_removed

        removed: bool = self._write(operation, create=False, default=False)
        return removed

    def make_fires(self, period: PeriodicMessage, times: Sequence[int], missed_from: int | None) -> int:
        """Make the fires of one of the store's that the tenant has not had; return how many.

        The last of them is kept in the transaction that makes them, so that none is made twice. Raises QueueFull,
        TenantFileError.
        """
        # Read first: who repeats what a killed process began takes no write locks for what it had done.
        if self._read(lambda file: file.periods.has_fired(period, times[-1]), default=True):
            return 0

        def operation(file: TenantFile) -> int:
            now = self._clock.now_ns()
            return file.periods.fire_of_store(file.enqueue, period, times, missed_from, now)

        made: int = self._write(operation, create=False, default=0)
        return made

    def _put(self, wanted: PeriodicMessage) -> PeriodicMessage:
        def operation(file: TenantFile) -> PeriodicMessage:
            period, is_changed = file.periods.put(wanted, self._clock.now_ns())
            if is_changed:
                file.look_again()
            return period

        found: PeriodicMessage | None = self._read(lambda file: file.periods.find(wanted.name), default=None)
        if found is not None and found.definition == wanted.definition:
            return found
        period: PeriodicMessage = self._write(operation)
        return period


class StorePeriodic(PeriodicMessages):
    """The periodic messages for all tenants of a store. They lie in a file of its own beside the tenants.

    Workers take each fire to every tenant, in the background and a shard of the tenants at a time; the tenant's
    file keeps the last that it was given, in the transaction that enqueues the message.
    """

    def __init__(
        self, clock: Clock, open_file: Callable[..., AbstractContextManager[StorePeriods | None]]
    ) -> None:
        super().__init__(clock)
        self._open_file = open_file

    def list(self) -> tuple[PeriodicMessage, ...]:
        """Return all, by name."""
        with self._open_file() as file:
            return () if file is None else file.periods.list()

    def remove(self, name: str) -> bool:
        """Remove one; False if there was none. Tenants that a fire has not come to yet are not given it."""
        check_name(name, "name")
        with self._open_file() as file:
            return file is not None and file.remove(name)

    def _put(self, wanted: PeriodicMessage) -> PeriodicMessage:
        with self._open_file(create=True) as file:
            assert file is not None  # it was to be made
            return file.put(wanted)


def _checked(
    name: str,
    target: object,
    payload: object,
    *,
    cron: str,
    timezone: str,
    missed: Missed | str,
    priority: int | None,
    key: str | None,
    max_attempts: int | None,
    headers: Mapping[str, str] | None,
) -> PeriodicMessage:
    """Return what was asked for, checked, or raise what is wrong with it."""
    check_name(name, "name")
    if isinstance(target, str):
        if payload is _UNSET:
            raise InvalidArgument(f"periodic message {name!r} has no payload", hint="give one behind its queue")
        queue, body = target, encode_payload(payload)
        priority = 0 if priority is None else priority
        max_attempts = DEFAULT_MAX_ATTEMPTS if max_attempts is None else max_attempts
    else:
        declaration = declaration_of(target)
        if payload is not _UNSET:
            raise InvalidArgument(f"{declaration.name!r} is a message, which takes no other payload")
        if declaration.layer is not Layer.TENANT:
            raise InvalidArgument(
                f"{declaration.name!r} does not wait in the tenant's file, and only what does can be periodic",
                hint="let the handler of a periodic message send it",
            )
        queue, body = declaration.name, encode_payload(target)
        priority = declaration.priority if priority is None else priority
        max_attempts = declaration.max_attempts if max_attempts is None else max_attempts
    check_options(queue, delay=0, at=None, priority=priority, key=key, max_attempts=max_attempts, headers=headers)
    for header in headers or {}:
        if header.startswith(RESERVED):
            raise InvalidArgument(f"header {header!r} begins with {RESERVED!r}, as those do that tell of the fire")
    try:
        policy = Missed(missed)
    except ValueError:
        choices = ", ".join(repr(choice.value) for choice in Missed)
        raise InvalidArgument(f"missed {missed!r} is none of {choices}") from None
    Cron(cron, timezone).check()
    return PeriodicMessage(
        name=name,
        queue=queue,
        cron=cron,
        timezone=timezone,
        missed=policy,
        priority=priority,
        max_attempts=max_attempts,
        key=key,
        encoded_headers=encode_headers(headers),
        body=body,
    )
