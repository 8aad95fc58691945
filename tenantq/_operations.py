"""Verbs as operations: arguments checked and payloads encoded at once, run later in somebody's transaction."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from tenantq._bounds import Admitted, Full
from tenantq._file import TenantFile
from tenantq.arguments import DEFAULT_MAX_ATTEMPTS, check_headers, check_max_attempts, check_priority, visible_ns
from tenantq.clock import Clock
from tenantq.errors import InvalidArgument, PayloadTooLarge, QueueFull
from tenantq.message import Message
from tenantq.naming import check_name
from tenantq.payload import MAX_PAYLOAD_BYTES, encode_payload

__all__ = [
    "check_options",
    "clean_text",
    "emit_operation",
    "enqueue_operation",
    "fences",
    "new_event_id",
    "new_lease_token",
]

EnqueueOptions = tuple[str, float, datetime | None, int, str | None, int, str | None]
"""Queue, delay, at, priority, key, max_attempts and the encoded headers."""

DEFAULTS = (0, None, 0, None, DEFAULT_MAX_ATTEMPTS, None)
"""Delay, at, priority, key, max_attempts and headers of nearly every enqueue: nothing is to be checked then."""

MAX_ERROR_CHARACTERS = 4_000
"""What is kept of the error of a failed attempt."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def enqueue_operation(
    clock: Clock,
    queue: str,
    payloads: Sequence[object],
    *,
    delay: float,
    at: datetime | None,
    priority: int,
    key: str | None,
    max_attempts: int,
    headers: Mapping[str, str] | None,
) -> Enqueue:
    """Return the insertion of messages into one queue."""
    if (delay, at, priority, key, max_attempts, headers) == DEFAULTS:
        check_name(queue)
    else:
        check_options(
            queue,
            delay=delay,
            at=at,
            priority=priority,
            key=key,
            max_attempts=max_attempts,
            headers=headers,
        )
    bodies = [encode_payload(payload) for payload in payloads]
    encoded_headers = None if headers is None else encode_headers(headers)
    return Enqueue(clock, bodies, (queue, delay, at, priority, key, max_attempts, encoded_headers))


class Enqueue:
    """The insertion of messages into one queue. Those with the same options, but for a key, go in together."""

    __slots__ = ("alike", "bodies", "clock", "options")

    def __init__(self, clock: Clock, bodies: list[str | bytes], options: EnqueueOptions) -> None:
        self.clock = clock
        self.bodies = bodies
        self.options = options
        self.alike: Hashable = options if options[4] is None else None

    def __call__(self, file: TenantFile) -> Admitted:
        """Insert them and return their ids, or say how full the queue is."""
        if not self.bodies:
            return []
        queue, delay, at, priority, key, max_attempts, headers = self.options
        now = self.clock.now_ns()
        return file.enqueue(
            queue,
            self.bodies,
            now=now,
            visible_at=visible_ns(now, delay, at) if delay or at else now,
            priority=priority,
            max_attempts=max_attempts,
            key=key,
            headers=headers,
        )

    def together(self, file: TenantFile, operations: Sequence[Enqueue]) -> list[Admitted]:
        """Insert the messages of alike operations; return the ids of each, or why it has none."""
        bodies = [body for operation in operations for body in operation.bodies]
        admitted = Enqueue(self.clock, bodies, self.options)(file)
        if isinstance(admitted, Full):
            return [operation(file) for operation in operations]
        ids = iter(admitted)
        return [list(islice(ids, len(operation.bodies))) for operation in operations]


def check_options(
    queue: str,
    *,
    delay: float,
    at: datetime | None,
    priority: int,
    key: str | None,
    max_attempts: int,
    headers: Mapping[str, str] | None,
) -> None:
    """Raise InvalidArgument for what an enqueue does not take, before anything is locked or committed."""
    check_name(queue)
    if key is not None:
        check_name(key, "key")
    check_priority(priority)
    check_max_attempts(max_attempts)
    visible_ns(0, delay, at)
    check_headers(headers)


def emit_operation(
    clock: Clock,
    topic: str,
    payload: object,
    *,
    delay: float,
    at: datetime | None,
    priority: int,
    max_attempts: int,
    headers: Mapping[str, str] | None,
    max_outbox: int | None,
) -> Callable[[TenantFile], int]:
    """Return the insertion of an event into the outbox: of one that Postgres will take."""
    check_name(topic, "topic")
    check_priority(priority)
    check_max_attempts(max_attempts)
    visible_ns(0, delay, at)
    body = encode_payload(payload)
    encoded_headers = encode_event_headers(headers)

    def operation(file: TenantFile) -> int:
        if max_outbox is not None and file.pending() >= max_outbox:
            raise QueueFull(
                f"{max_outbox} events of tenant {file.tenant_id!r} wait for Postgres already",
                hint="wait until the forwarder has taken some, or raise max_outbox",
                tenant=file.tenant_id,
            )
        now = clock.now_ns()
        is_delayed = delay != 0 or at is not None
        return file.emit(
            new_event_id(),
            topic,
            body,
            now=now,
            visible_at=visible_ns(now, delay, at) if is_delayed else None,
            priority=priority,
            max_attempts=max_attempts,
            headers=encoded_headers,
        )

    return operation


def fences(messages: Sequence[Message[Any]]) -> dict[str, list[tuple[int, int | None]]]:
    """Group messages by queue, each as what its lease must match."""
    queues = {message.queue for message in messages}
    if len(queues) == 1:
        return {queues.pop(): [(message.id, message.lease_token) for message in messages]}
    groups: dict[str, list[tuple[int, int | None]]] = {}
    for message in messages:
        groups.setdefault(message.queue, []).append((message.id, message.lease_token))
    return groups


def encode_headers(headers: Mapping[str, str] | None) -> str | None:
    """Return headers as JSON text; None if there are none."""
    checked = check_headers(headers)
    return None if checked is None else json.dumps(checked, ensure_ascii=True)


def encode_event_headers(headers: Mapping[str, str] | None) -> str | None:
    """Return the headers of an event as JSON text that Postgres and every reader take; None if there are none."""
    encoded = encode_headers(headers)
    if encoded is None:
        return None
    for text in (text for pair in (headers or {}).items() for text in pair):
        if "\0" in text:
            raise InvalidArgument("a header of an event holds a NUL character, which Postgres does not keep")
        if not text.isascii() and _SURROGATE.search(text):
            raise InvalidArgument("a header of an event holds a lone surrogate, which is not text")
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"headers of {len(encoded)} bytes are over the limit of {MAX_PAYLOAD_BYTES}")
    return encoded


def clean_text(text: str | None) -> str | None:
    """Return an error text as any layer can keep it: cut, without NUL and lone surrogates."""
    if text is None:
        return None
    cut = str(text)[:MAX_ERROR_CHARACTERS].replace("\0", "\N{SYMBOL FOR NULL}")
    return cut.encode("utf-8", "replace").decode()


def new_lease_token() -> int:
    """Return what names one claim: random, so that neither a fork nor a restored file repeats one."""
    return int.from_bytes(os.urandom(8), "big") >> 1


def new_event_id() -> str:
    """Return a UUID of version 7: unique, and near its neighbours in an index."""
    milliseconds = time.time_ns() // 1_000_000
    value = int.from_bytes(os.urandom(16), "big")
    value = (value & ((1 << 80) - 1)) | ((milliseconds & ((1 << 48) - 1)) << 80)
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(uuid.UUID(int=value))
