"""One delivery of a message, whichever layer it came from, and the four ways to end it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar, cast

from tenantq.clock import to_datetime
from tenantq.errors import LeaseLost
from tenantq.payload import decode_payload

__all__ = ["Message", "MessageSource", "deliver"]

T = TypeVar("T")

_UNSET: Any = object()


class MessageSource(Protocol):
    """The queue that a message was claimed from, and that its verbs go back to."""

    def ack(self, *messages: Message[Any]) -> None:
        """End the messages: done."""
        ...

    def nack(self, message: Message[Any], *, delay: float | None = None, error: str | None = None) -> None:
        """End the delivery: the attempt failed."""
        ...

    def release(self, *messages: Message[Any], delay: float = 0) -> None:
        """End the deliveries without counting the attempts."""
        ...

    def extend(self, message: Message[Any], seconds: float) -> None:
        """Make the lease end `seconds` from now."""
        ...

    def dead_letter(self, message: Message[Any], *, error: str | None = None) -> None:
        """End the message: to the dead letters, whatever attempts are left."""
        ...


class Message(Generic[T]):
    """A claimed message: its content, its history, and the lease that `ack` and the others act on.

    The payload is decoded when it is first asked for, so that one that does not decode is a failed attempt
    of its handler and never a failed claim. A message read with `peek` or `dead_letters` holds no lease.
    """

    __slots__ = (
        "_payload",
        "_source",
        "attempts",
        "body",
        "enqueued_ns",
        "error",
        "event_id",
        "headers",
        "id",
        "key",
        "lease_expires_ns",
        "lease_token",
        "max_attempts",
        "payload_type",
        "priority",
        "queue",
        "settled",
        "tenant",
        "topic",
        "visible_ns",
    )

    def __init__(
        self,
        source: MessageSource | None,
        *,
        id: int,  # noqa: A002 - the public name of the field
        tenant: str | None,
        queue: str,
        body: str | bytes,
        attempts: int,
        max_attempts: int,
        priority: int,
        key: str | None,
        headers: Mapping[str, str] | None,
        enqueued_ns: int,
        visible_ns: int,
        lease_expires_ns: int | None = None,
        lease_token: int | None = None,
        payload_type: Any = None,
        payload: Any = _UNSET,
        topic: str | None = None,
        event_id: str | None = None,
        error: str | None = None,
    ) -> None:
        self._source = source
        self.id = id
        self.tenant = tenant
        self.queue = queue
        self.body = body
        """The payload as it is kept: JSON text or bytes."""
        self.attempts = attempts
        """How often it was claimed, this time included."""
        self.max_attempts = max_attempts
        self.priority = priority
        self.key = key
        self.headers: Mapping[str, str] = headers or {}
        self.enqueued_ns = enqueued_ns
        self.visible_ns = visible_ns
        self.lease_expires_ns = lease_expires_ns
        self.lease_token = lease_token
        """Names this one delivery: a lease that was lost and claimed again has another token."""
        self.payload_type = payload_type
        self.topic = topic
        self.event_id = event_id
        self.error = error
        """The error of the last failed attempt."""
        self.settled = False
        """Whether this delivery was ended by ack, nack, release or dead_letter."""
        self._payload = payload

    @property
    def payload(self) -> T:
        """The payload, as its queue's declared type. Raises UndecodablePayload."""
        if self._payload is _UNSET:
            self._payload = decode_payload(self.body, self.payload_type)
        return cast("T", self._payload)

    @property
    def enqueued_at(self) -> datetime:
        """When it was enqueued (UTC)."""
        return to_datetime(self.enqueued_ns)

    @property
    def visible_at(self) -> datetime:
        """Before when it could not be claimed (UTC)."""
        return to_datetime(self.visible_ns)

    @property
    def lease_expires_at(self) -> datetime | None:
        """When another claim may take it (UTC); None where no lease is held."""
        return None if self.lease_expires_ns is None else to_datetime(self.lease_expires_ns)

    def ack(self) -> None:
        """Remove the message: it is done. Durable on return. Raises LeaseLost."""
        self._held().ack(self)

    def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        """Count the attempt as failed: wait `delay` seconds (backoff by default), or die. Raises LeaseLost."""
        self._held().nack(self, delay=delay, error=error)

    def release(self, *, delay: float = 0) -> None:
        """Give the message back as if it had not been claimed, or for later. Raises LeaseLost."""
        self._held().release(self, delay=delay)

    def extend(self, seconds: float) -> None:
        """Make the lease end `seconds` from now. Raises LeaseLost."""
        self._held().extend(self, seconds)

    def dead_letter(self, *, error: str | None = None) -> None:
        """Move the message to the dead letters now, whatever attempts are left. Raises LeaseLost."""
        self._held().dead_letter(self, error=error)

    def _held(self) -> MessageSource:
        if self._source is None:
            raise LeaseLost("this message was read, not claimed", lost=[self.id], queue=self.queue)
        return self._source

    def __repr__(self) -> str:
        return (
            f"Message(id={self.id}, tenant={self.tenant!r}, queue={self.queue!r}, "
            f"attempts={self.attempts}/{self.max_attempts})"
        )


def deliver(
    rows: Iterable[tuple[Any, ...]],
    *,
    source: MessageSource | None,
    tenant: str,
    queue: str,
    payload_type: Any,
    lease_expires_ns: int | None,
    lease_token: int | None,
) -> list[Message[Any]]:
    """Return the messages of a tenant's rows: id, priority, visible_at, attempts, max_attempts, enqueued_at, key,
    headers, error, payload.

    A claim may give out many: the fields are set here, since a call with twenty arguments for each of them takes
    as long as SQLite does.
    """
    messages = []
    for row in rows:
        message: Message[Any] = Message.__new__(Message)
        (
            message.id,
            message.priority,
            message.visible_ns,
            message.attempts,
            message.max_attempts,
            message.enqueued_ns,
            message.key,
            headers,
            message.error,
            message.body,
        ) = row
        message.headers = {} if headers is None else json.loads(headers)
        message.tenant = tenant
        message.queue = queue
        message.payload_type = payload_type
        message.lease_expires_ns = lease_expires_ns
        message.lease_token = lease_token
        message.topic = message.event_id = None
        message.settled = False
        message._source = source
        message._payload = _UNSET
        messages.append(message)
    return messages
