"""A delivery for coroutines: the core's message, with verbs that are awaited."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar, overload

from tenantq.message import Message as Delivery

__all__ = ["Message", "MessageVerbs"]

T = TypeVar("T")
V = TypeVar("V")


class MessageVerbs(Protocol):
    """The queue that a message was claimed from."""

    async def ack(self, *messages: Message[Any]) -> None:
        """End the messages: done."""
        ...

    async def nack(self, message: Message[Any], *, delay: float | None = None, error: str | None = None) -> None:
        """End the delivery: the attempt failed."""
        ...

    async def release(self, *messages: Message[Any], delay: float = 0) -> None:
        """End the deliveries without counting the attempts."""
        ...

    async def extend(self, message: Message[Any], seconds: float) -> None:
        """Make the lease end `seconds` from now."""
        ...

    async def dead_letter(self, message: Message[Any], *, error: str | None = None) -> None:
        """End the message: to the dead letters, whatever attempts are left."""
        ...


class _Field(Generic[V]):
    """A field of the delivery, read where it is."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self.__doc__ = f"See `tenantq.Message.{name}`."

    @overload
    def __get__(self, message: None, owner: type) -> _Field[V]: ...
    @overload
    def __get__(self, message: Message[Any], owner: type) -> V: ...
    def __get__(self, message: Message[Any] | None, owner: type) -> V | _Field[V]:
        if message is None:
            return self
        value: V = getattr(message.delivery, self._name)
        return value


class Message(Generic[T]):
    """A claimed message: its content, its history, and the lease that `ack` and the others act on.

    See `tenantq.Message`: the fields are the same.
    """

    __slots__ = ("_verbs", "delivery")

    id = _Field[int]()
    tenant = _Field[str | None]()
    queue = _Field[str]()
    body = _Field[str | bytes]()
    attempts = _Field[int]()
    max_attempts = _Field[int]()
    priority = _Field[int]()
    key = _Field[str | None]()
    headers = _Field[Mapping[str, str]]()
    enqueued_ns = _Field[int]()
    visible_ns = _Field[int]()
    lease_expires_ns = _Field[int | None]()
    lease_token = _Field[int | None]()
    payload_type = _Field[Any]()
    topic = _Field[str | None]()
    event_id = _Field[str | None]()
    error = _Field[str | None]()
    settled = _Field[bool]()
    enqueued_at = _Field[datetime]()
    visible_at = _Field[datetime]()
    lease_expires_at = _Field[datetime | None]()

    def __init__(self, delivery: Delivery[T], verbs: MessageVerbs) -> None:
        self.delivery = delivery
        """The same delivery for synchronous code, in a thread."""
        self._verbs = verbs

    @property
    def payload(self) -> T:
        """The payload, as its queue's declared type. Raises UndecodablePayload."""
        return self.delivery.payload

    async def ack(self) -> None:
        """Remove the message: it is done. Durable on return. Raises LeaseLost."""
        await self._verbs.ack(self._held())

    async def nack(self, *, delay: float | None = None, error: str | None = None) -> None:
        """Count the attempt as failed: wait `delay` seconds (backoff by default), or die. Raises LeaseLost."""
        await self._verbs.nack(self._held(), delay=delay, error=error)

    async def release(self, *, delay: float = 0) -> None:
        """Give the message back as if it had not been claimed, or for later. Raises LeaseLost."""
        await self._verbs.release(self._held(), delay=delay)

    async def extend(self, seconds: float) -> None:
        """Make the lease end `seconds` from now. Raises LeaseLost."""
        await self._verbs.extend(self._held(), seconds)

    async def dead_letter(self, *, error: str | None = None) -> None:
        """Move the message to the dead letters now, whatever attempts are left. Raises LeaseLost."""
        await self._verbs.dead_letter(self._held(), error=error)

    def _held(self) -> Message[T]:
        self.delivery._held()  # raises for what was read, not claimed
        return self

    def __repr__(self) -> str:
        return repr(self.delivery)
