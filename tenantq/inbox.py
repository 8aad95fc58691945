"""What a tenant's file takes from the shared layer: messages that were sent to it, each once by their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tenantq import _schema
from tenantq._bounds import Full
from tenantq._file import TenantFile
from tenantq.clock import Clock
from tenantq.errors import QueueFull, UnknownTenant

__all__ = ["Inbox", "Incoming", "Receipt"]

MARK = "received_seq"
"""The name under which the file keeps the place of the last message that it took."""


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A message for one of the tenant's queues, on its way from the shared layer."""

    seq: int
    """Its place among all that was ever sent to the tenant: a later one is higher."""
    queue: str
    body: str | bytes
    """The payload: JSON text or bytes."""
    headers: str | None
    """A JSON object of strings, or None."""
    priority: int
    max_attempts: int
    key: str | None
    visible_ns: int | None
    """Not claimable before (Unix nanoseconds); None: when it arrives."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a file did with what it was given."""

    seq: int
    """Up to where the file has all that was sent to it: what lies there or below need not be given again."""
    received: int
    """How many of the messages are new to the file, and are in its queues now."""
    refusal: QueueFull | None
    """Why those from the next on were not taken; None if all were."""


class Inbox:
    """The inbox of one tenant, as the shared layer's other direction fills it.

    The mark moves in the transaction that enqueues the messages, so a message that is given again is dropped,
    whatever was killed in between. It goes back with the file when that is restored from a backup.
    """

    def __init__(
        self,
        tenant_id: str,
        clock: Clock,
        *,
        read: Callable[..., Any],
        write: Callable[..., Any],
    ) -> None:
        self.tenant_id = tenant_id
        self._clock = clock
        self._read = read
        self._write = write

    def position(self) -> int:
        """Return the place of the last message that the file took; 0 before the first, and without a file."""
        seq: int = self._read(_mark_of, default=0)
        return seq

    def receive(self, messages: Sequence[Incoming]) -> Receipt:
        """Enqueue the messages, in the order of their places, that the file has not had; durable on return.

        Where a queue has no room for one, the ones behind it wait too, whatever their queues: the order is
        kept. Raises UnknownTenant, as a deleted tenant is not made again; and TenantFileError.
        """

        def operation(file: TenantFile) -> Receipt:
            seq = _mark_of(file)
            now = self._clock.now_ns()
            received, refusal = 0, None
            for message in messages:
                if message.seq <= seq:
                    continue
                admitted = file.enqueue(
                    message.queue,
                    [message.body],
                    now=now,
                    visible_at=now if message.visible_ns is None else message.visible_ns,
                    priority=message.priority,
                    max_attempts=message.max_attempts,
                    key=message.key,
                    headers=message.headers,
                )
                if isinstance(admitted, Full):
                    refusal = admitted.error(self.tenant_id)
                    break
                seq = message.seq
                received += 1
            if received:
                _schema.write_meta(file.database, MARK, str(seq))
            return Receipt(seq=seq, received=received, refusal=refusal)

        receipt: Receipt | None = self._write(operation, create=False)
        if receipt is None:
            raise UnknownTenant(f"the store has no tenant {self.tenant_id!r}", tenant=self.tenant_id)
        return receipt


def _mark_of(file: TenantFile) -> int:
    return int(_schema.read_meta(file.database).get(MARK, 0))
