"""What an application's tests need: time that only they move, a worker that runs dry, and a look at what waits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tenantq.arguments import check_seconds
from tenantq.clock import NANOSECONDS, SystemClock, nanoseconds, to_unix_ns
from tenantq.payload import decode_payload
from tenantq.router import Layer, declaration_of
from tenantq.tenant import Tenant
from tenantq.worker import Worker

__all__ = ["ManualClock", "assert_enqueued", "drain"]

SHOWN = 5
"""Payloads that a failed assertion shows."""

Where = Callable[[Any], object] | Mapping[str, object]
"""A predicate of payloads, or the values of some of their fields."""


class ManualClock:
    """A clock that stands still until it is advanced. A call that waits does so in real time all the same.

    >>> clock = ManualClock()
    >>> before = clock.monotonic()
    >>> clock.advance(1.5)
    >>> clock.monotonic() - before
    1.5
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._wall_ns = to_unix_ns(start)
        self._monotonic_ns = 0
        self._boottime_ns = SystemClock().boottime_ns()

    def now_ns(self) -> int:
        """Return the wall time in Unix nanoseconds."""
        return self._wall_ns

    def monotonic(self) -> float:
        """Return the seconds it was advanced by."""
        return self._monotonic_ns / NANOSECONDS

    def boottime_ns(self) -> int:
        """Return the time since the boot as it was when the clock was made, and what it was advanced by."""
        return self._boottime_ns + self._monotonic_ns

    def boot_id(self) -> str:
        """Return the machine's: another process's leases on the same file count."""
        return SystemClock().boot_id()

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back: no time passes."""
        self._wall_ns += nanoseconds(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass, by every clock."""
        step = nanoseconds(check_seconds(seconds, "seconds"))
        self._wall_ns += step
        self._monotonic_ns += step


def drain(worker: Worker) -> int:
    """Handle all that is claimable now, and what its handlers add, in this thread; return how many that were.

    A failed or snoozed message counts each time that it is handled. What waits for its time stays: advance the
    clock, then drain again. Raises what `Worker.run_once` raises.
    """
    handled = 0
    while count := worker.run_once():
        handled += count
    return handled


def assert_enqueued(
    tenant: Tenant,
    target: type | str,
    *,
    where: Where | None = None,
    count: int | None = None,
) -> list[Any]:
    """Assert that messages wait, ready or scheduled, and return their payloads.

    target: a declared message type, looked for in its layer (one that crosses hosts: in the tenant's outbox,
    for as long as that keeps it), or the name of a queue in the tenant's file.
    where: only payloads that it is true of, or whose fields have these values.
    count: exactly so many, 0 for none; without it, at least one.
    """
    payloads = _waiting(tenant, target)
    found = [payload for payload in payloads if where is None or _matches(payload, where)]
    if len(found) == count or (count is None and found):
        return found
    wanted = "at least one message" if count is None else f"{count} message{'' if count == 1 else 's'}"
    name = target if isinstance(target, str) else declaration_of(target).name
    condition = "" if where is None else " where it is true" if callable(where) else f" where {dict(where)!r}"
    shown = "".join(f"\n  {payload!r}" for payload in payloads[:SHOWN])
    more = f"\n  and {len(payloads) - SHOWN} more" if len(payloads) > SHOWN else ""
    raise AssertionError(
        f"expected {wanted} of {name!r} in tenant {tenant.id!r}{condition}, found {len(found)}; "
        f"{'nothing waits there' if not payloads else f'what waits there:{shown}{more}'}",
    )


def _waiting(tenant: Tenant, target: type | str) -> list[Any]:
    everything = sys.maxsize
    if isinstance(target, str):
        return [message.payload for message in tenant.peek(target, everything)]
    declaration = declaration_of(target)
    match declaration.layer:
        case Layer.TENANT:
            return [message.payload for message in tenant.peek(declaration.name, everything)]
        case Layer.SHARED:
            events = tenant.outbox.read(0, limit=everything, max_bytes=everything)
            return [
                decode_payload(event.body, target)
                for event in events
                if event.topic == declaration.name and not event.is_undeliverable
            ]
        case Layer.MEMORY:
            remembered = tenant.store.memory.peek(declaration.name, everything)
            return [message.payload for message in remembered if message.tenant == tenant.id]


def _matches(payload: Any, where: Where) -> bool:
    if callable(where):
        return bool(where(payload))
    missing = object()
    fields = payload if isinstance(payload, Mapping) else None
    return all(
        (getattr(payload, name, missing) if fields is None else fields.get(name, missing)) == value
        for name, value in where.items()
    )
