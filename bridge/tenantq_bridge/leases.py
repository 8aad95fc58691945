"""Claims on the shared layer, and the ways to end a delivery: each one statement, fenced by its lease token."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from tenantq.arguments import check_lease, check_limit, check_seconds
from tenantq.backoff import Backoff
from tenantq.clock import to_unix_ns
from tenantq.errors import InvalidArgument, LeaseLost
from tenantq.message import Message
from tenantq.naming import check_name
from tenantq_bridge._bell import POLL_MAX, POLL_MIN, Bell
from tenantq_bridge._postgres import Database, ForeignSession, Row
from tenantq_bridge.delivery import SharedMessage, message_of_row
from tenantq_bridge.errors import EventTooOld
from tenantq_bridge.schema import Schema

__all__ = ["QueueLeases"]

PROMOTE_INTERVAL = 0.02
"""Seconds between two looks of full claims at a queue's delayed messages; a claim that comes back short always
looks. More often would only make each claim dearer."""

MAX_ERROR_CHARACTERS = 4_000
"""What is kept of the error of a failed attempt."""


class QueueLeases:
    """The verbs that give out leases and act on them. The base of PostgresQueue."""

    def __init__(self, database: Database, schema: Schema, bell: Bell, backoff: Backoff) -> None:
        self._database = database
        self._schema = schema
        self._bell = bell
        self._backoff = backoff
        self._sql = database.statements("messages.sql")
        self._promoted: dict[str, float] = {}
        self._served: dict[str, str] = {}

    def claim(
        self,
        queue: str,
        limit: int = 1,
        *,
        lease: float = 60.0,
        worker: str | None = None,
        wait: float = 0.0,
    ) -> list[Message[Any]]:
        """Claim up to `limit` messages for `lease` seconds of the database's clock; each goes to one claimer.

        Higher priority first, then the order in which they came to be claimable; in a shared queue that is so
        for each tenant, and the tenants take turns. `worker` is written beside
        them for people to read; the lease is held by the delivery. With `wait`, blocks for up to so many
        seconds until there is one. Raises PostgresUnavailable, SchemaMissing.
        """
        check_name(queue)
        check_limit(limit)
        check_lease(lease)
        check_seconds(wait, "wait")
        name = _default_name() if worker is None else check_name(worker, "worker name")
        messages = self._claim(queue, limit, lease, name)
        if messages or wait == 0:
            return messages
        deadline = time.monotonic() + wait
        pause = POLL_MIN
        with self._bell.waiter(queue) as rung:
            while True:
                rung.clear()
                messages = self._claim(queue, limit, lease, name)
                remaining = deadline - time.monotonic()
                if messages or remaining <= 0:
                    return messages
                rung.wait(min(remaining, POLL_MAX if self._bell.is_listening else pause))
                pause = min(2 * pause, POLL_MAX)

    def ack(self, *messages: Message[Any]) -> None:
        """Remove messages: they are done. Raises LeaseLost for those not held; the others are removed."""
        self._settle(messages, self._end("ack_messages", messages))

    def release(self, *messages: Message[Any], delay: float = 0) -> None:
        """Give messages back, the attempt not counted; with `delay` they are claimable after so many seconds.

        Without it they keep their place. Raises LeaseLost for those not held; the others are given back.
        """
        check_seconds(delay, "delay")
        if delay == 0:
            self._settle(messages, self._end("release_messages", messages))
        elif messages:
            held = _in_order(messages)
            rows = self._run("delay_messages", _places(held) | {"delay": timedelta(seconds=delay)})
            ended = {held[row[0] - 1].id for row in rows}
            self._settle(messages, [message.id for message in messages if message.id not in ended])
        for queue in {message.queue for message in messages}:
            self._bell.ring(queue)

    def nack(self, message: Message[Any], *, delay: float | None = None, error: str | None = None) -> None:
        """Count the attempt as failed: the message waits `delay` seconds (None: the backoff), or is dead
        when its attempts are used up. Raises LeaseLost.
        """
        seconds = self._backoff.delay(message.attempts) if delay is None else check_seconds(delay, "delay")
        self._fail(message, _failure(message, seconds, error))
        if seconds == 0:
            self._bell.ring(message.queue)

    def dead_letter(self, message: Message[Any], *, error: str | None = None) -> None:
        """Move a message to the dead letters, whatever attempts are left. Raises LeaseLost."""
        self._fail(message, _failure(message, 0, error, dead=True))

    def extend(self, message: Message[Any], seconds: float) -> None:
        """Make a lease end `seconds` from now. Raises LeaseLost.

        One that has expired is held again, as long as nobody else has claimed the message meanwhile.
        """
        check_lease(seconds, "seconds")
        params = _place(message) | {"seconds": timedelta(seconds=seconds)}
        # Twice is the same as once, a moment later.
        rows = self._run("extend_lease", params, repeatable=True)
        if not rows:
            raise LeaseLost(lost=[message.id], tenant=message.tenant, queue=message.queue)
        message.lease_expires_ns = to_unix_ns(rows[0][0])

    def apply_once(self, connection: object, message: Message[Any]) -> bool:
        """Mark a message's event as applied in the caller's own transaction; False if it was applied before.

        The effect belongs into the same transaction: both are committed, or neither, so that the event has its
        effect exactly once however often and to how many workers at once it is delivered. Of two transactions
        that apply one event the second waits for the first. Each queue that gets an event applies it once.

            with psycopg.connect(dsn) as connection:
                if queue.apply_once(connection, message):
                    connection.execute("UPDATE accounts SET ...")
            message.ack()

        connection: of psycopg 3, in a transaction, to the database of this queue; its errors are the driver's.
        Raises InvalidArgument for a message that is no event, and EventTooOld where the day is forgotten.
        """
        if message.event_id is None or message.tenant is None:
            raise InvalidArgument(f"{message!r} is no event", hint="emit it in its tenant's file")
        session = ForeignSession(connection)
        self._schema.check()
        params = {
            "queue": message.queue,
            "tenant": message.tenant,
            "event_id": message.event_id,
            "emitted_at": message.enqueued_at,
        }
        is_first: bool | None = session.run(self._sql["apply_event"], params)[0][0]
        if is_first is None:
            raise EventTooOld(f"event {message.event_id} is of {message.enqueued_at:%Y-%m-%d}")
        return is_first

    def _run(
        self, name: str, params: dict[str, Any], *, binary: bool = False, repeatable: bool = False
    ) -> list[Row]:
        self._schema.check()
        return self._database.run(self._sql[name], params, binary=binary, repeatable=repeatable)

    def _claim(self, queue: str, limit: int, lease: float, worker: str) -> list[Message[Any]]:
        now = time.monotonic()
        promote = now - self._promoted.get(queue, float("-inf")) >= PROMOTE_INTERVAL
        if promote:
            self._promoted[queue] = now
        params = {
            "queue": queue,
            "limit": min(limit, 2**31 - 1),
            "lease": timedelta(seconds=lease),
            # Random: neither a failover nor a restored database gives one out again.
            "token": secrets.randbits(63),
            "worker": worker,
            "promote": promote,
            # Where this process's turns of a shared queue go on; the first begin anywhere.
            "after": self._served.get(queue),
        }
        # A claim whose reply was lost holds its messages until the lease ends; another one harms nothing.
        rows = self._run("claim_messages", params, binary=True, repeatable=True)
        messages = [message_of_row(self, row) for row in rows]
        if messages:
            self._served[queue] = messages[-1].tenant or ""
        messages.sort(key=lambda message: (message.rank, message.seq))
        return list[Message[Any]](messages)

    def _end(self, name: str, messages: Sequence[Message[Any]]) -> list[int]:
        """Run a batched statement on what is held; return the ids of those that were not."""
        if not messages:
            return []
        ended = {row[0] for row in self._run(name, _places(_in_order(messages)))}
        return [message.id for message in messages if message.id not in ended]

    def _fail(self, message: Message[Any], params: dict[str, Any]) -> None:
        is_held = self._run("fail_message", params)[0][0]
        self._settle([message], [] if is_held else [message.id])

    def _settle(self, messages: Iterable[Message[Any]], lost: list[int]) -> None:
        gone = set(lost)
        for message in messages:
            if message.id not in gone:
                message.settled = True
        if lost:
            raise LeaseLost(f"{len(lost)} of the leases were lost" if len(lost) > 1 else "", lost=lost)


def _in_order(messages: Iterable[Message[Any]]) -> list[SharedMessage[Any]]:
    """Sort by place, so that two batches that share messages lock them in one order."""
    return sorted(map(_own, messages), key=lambda message: (message.queue, message.rank, message.seq))


def _own(message: Message[Any]) -> SharedMessage[Any]:
    if not isinstance(message, SharedMessage):
        raise InvalidArgument(f"{message!r} was not claimed from Postgres", hint="use message.ack() and the like")
    return message


def _places(held: Sequence[SharedMessage[Any]]) -> dict[str, Any]:
    return {
        "queues": [message.queue for message in held],
        "ranks": [message.rank for message in held],
        "seqs": [message.seq for message in held],
        "tokens": [message.lease_token for message in held],
    }


def _place(message: Message[Any]) -> dict[str, Any]:
    own = _own(message)
    return {"queue": own.queue, "rank": own.rank, "seq": own.seq, "token": own.lease_token}


def _failure(message: Message[Any], delay: float, error: str | None, *, dead: bool = False) -> dict[str, Any]:
    return _place(message) | {
        "delay": timedelta(seconds=delay),
        "error": _clean(error),
        "dead": dead,
        "counted": True,
    }


def _clean(error: str | None) -> str | None:
    """Return an error's text as Postgres takes it: shortened, without NUL and lone surrogates."""
    if error is None:
        return None
    return error[:MAX_ERROR_CHARACTERS].encode("utf-8", "replace").decode().replace("\0", "\N{SYMBOL FOR NULL}")


def _default_name() -> str:
    return f"{socket.gethostname()[:100]}-{os.getpid()}"
