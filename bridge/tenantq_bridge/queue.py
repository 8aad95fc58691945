"""The shared queue in Postgres: the verbs of a tenant's queues, for messages that other hosts must see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

import msgspec

from tenantq.arguments import (
    DEFAULT_MAX_ATTEMPTS,
    check_headers,
    check_limit,
    check_max_attempts,
    check_priority,
    visible_ns,
)
from tenantq.backoff import Backoff
from tenantq.errors import InvalidArgument
from tenantq.message import Message
from tenantq.naming import check_name, check_tenant_id
from tenantq.payload import encode_payload
from tenantq_bridge._bell import Bell
from tenantq_bridge._postgres import Database, Row, Session
from tenantq_bridge.delivery import message_of_row
from tenantq_bridge.history import Acked, History
from tenantq_bridge.leases import QueueLeases
from tenantq_bridge.outgoing import Outgoing, TenantOwner
from tenantq_bridge.schema import Schema
from tenantq_bridge.shares import Share, Shares
from tenantq_bridge.stats import SharedStats, stats_of_rows
from tenantq_bridge.subscriptions import Subscription, Subscriptions
from tenantq_bridge.target import Forwarded
from tenantq_bridge.traces import TenantTraces, Traces

__all__ = ["PostgresQueue"]

DEFAULT_SCHEMA = "tenantq"

DEFAULT_POOL_SIZE = 8
"""Connections at once; more threads than that take turns."""

DEFAULT_ACQUIRE_TIMEOUT = 30.0
"""Seconds that a call waits for a connection of the pool before it raises PostgresBusy."""

CHUNK_ROWS = 5_000
CHUNK_BYTES = 8 * 1024 * 1024
"""What one statement of enqueue_many carries."""

REAP_STEP = 1_000

Body = str | bytes


class PostgresQueue(QueueLeases):
    """The queues of one Postgres database. Threads may share it; a forked child connects anew.

    Connects at the first call, and again after an outage. A verb has committed when it returns. It raises
    PostgresUnavailable when Postgres is away; where `outcome_unknown` is set, the connection was lost before
    the answer, and the call may have taken effect or not.

    dsn: a libpq connection string or URL; several hosts are tried for one that takes writes.
    schema: the Postgres schema of the tables.
    listen: set to False behind a pooler, which may not pass notifications on: claims that wait poll there. With
        True they do so too, after a warning, as a pooler is noticed.
    """

    kind = "postgres"

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        pool_size: int = DEFAULT_POOL_SIZE,
        acquire_timeout: float = DEFAULT_ACQUIRE_TIMEOUT,
        listen: bool = True,
        backoff: Backoff | None = None,
    ) -> None:
        self.database = Database(dsn, schema=schema, pool_size=pool_size, acquire_timeout=acquire_timeout)
        self.schema = Schema(self.database)
        super().__init__(self.database, self.schema, Bell(self.database, listen=listen), backoff or Backoff())
        self._queues_sql = self.database.statements("queues.sql")
        self._forward_sql = self.database.statements("forwarding.sql")["forward_events"]
        self._subscriptions = Subscriptions(self.database, self.schema)
        self._shares = Shares(self.database, self.schema)
        self._history = History(self.database, self.schema)
        self._traces = Traces(self.database, self.schema)
        self.outgoing = Outgoing(self.database, self.schema, self._bell)
        """What waits for tenants' own files, for a deliverer."""

    def migrate(self) -> None:
        """Make the tables, or bring them to this version. Raises SchemaNewer, MissingRights."""
        self.schema.migrate()

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
        tenant: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Commit one message and return its id; ids only grow.

        It is claimable after `delay` seconds or from the moment `at` (aware), by the database's clock. With
        `key`: while a message of the queue with this key is waiting or claimed, its id is returned and
        nothing is added. Raises InvalidArgument, PayloadError, PostgresUnavailable.
        """
        if key is not None:
            check_name(key, "key")
        params = _options(
            queue,
            delay=delay,
            at=at,
            priority=priority,
            max_attempts=max_attempts,
            tenant=tenant,
            headers=headers,
        )
        body = encode_payload(payload)
        # With a key, twice is the same as once.
        rows = self._run("enqueue_messages", params | _payloads([body], key), repeatable=key is not None)
        self._bell.ring(queue)
        message_id: int = rows[0][0]
        return message_id

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[object],
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int = 0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        tenant: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Commit messages in one transaction, all or none, and return their ids in the same order."""
        params = _options(
            queue,
            delay=delay,
            at=at,
            priority=priority,
            max_attempts=max_attempts,
            tenant=tenant,
            headers=headers,
        )
        bodies = [encode_payload(payload) for payload in payloads]
        if not bodies:
            return []
        statements = [params | _payloads(chunk, None) for chunk in _chunks(bodies)]
        if len(statements) == 1:
            # A statement commits by itself: one round trip instead of three.
            ids = sorted(row[0] for row in self._run("enqueue_messages", statements[0]))
        else:
            self.schema.check()
            with self.database.transaction() as session:
                ids = []
                for statement in statements:
                    ids += sorted(row[0] for row in session.run(self._sql["enqueue_messages"], statement))
        self._bell.ring(queue)
        return ids

    def subscribe(self, queue: str, pattern: str) -> None:
        """Have every event forwarded from now on whose topic matches put into a queue; again changes nothing.

        `*` stands for any characters, none and dots too; every other character for itself.
        """
        self._subscriptions.add(queue, pattern)

    def unsubscribe(self, queue: str, pattern: str) -> None:
        """End a subscription; what it has brought stays."""
        self._subscriptions.remove(queue, pattern)

    def subscriptions(self) -> list[Subscription]:
        """Return all subscriptions, by queue and pattern."""
        return self._subscriptions.list()

    def share(
        self, queue: str, *, max_claimed: int | None = None, max_claimed_per_tenant: int | None = None
    ) -> None:
        """Let tenants take turns in a queue, from now on, however much waits of one; again changes the limits.

        max_claimed: messages of the queue that may be under a lease at once, over all workers and hosts.
        max_claimed_per_tenant: those of one tenant.

        A claim beyond a limit comes back short. A lease that ends, expired ones too, makes room; those from
        before count. Priorities and order hold for each tenant. Returns when what waits already is placed by
        tenant, in steps. Raises PostgresBusy when a long transaction is in the way: call it again.
        """
        self._shares.add(queue, max_claimed, max_claimed_per_tenant)
        self._bell.ring(queue)

    def unshare(self, queue: str) -> None:
        """End a queue's limits at once; its tenants take turns until nothing waits. Then it is as any other."""
        self._shares.remove(queue)
        self._bell.ring(queue)

    def shares(self) -> list[Share]:
        """Return the shared queues and their limits, by queue."""
        return self._shares.list()

    def record(self, queue: str) -> None:
        """Keep what is acked in a queue from now on, for the time that Maintenance has for it."""
        self._history.add(queue)

    def unrecord(self, queue: str) -> None:
        """Keep no more of what is acked in a queue; what is kept stays for its time."""
        self._history.remove(queue)

    def recorded(self) -> list[str]:
        """Return the queues of which what is acked is kept."""
        return self._history.queues()

    # The way down, to a tenant's own file

    def send_to_tenant(
        self,
        tenant: str,
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
        """Commit a message for a queue in a tenant's own file; return its place among all that is sent there.

        The deliverer of the host that owns the tenant enqueues it there once, in the order of the places, with a
        header `tenantq-seq` that has the place. Until some host owns the tenant, it waits. `delay` counts from
        now; a `key` is looked up when the message arrives. Raises InvalidArgument, PayloadError,
        PostgresUnavailable.
        """
        if key is not None:
            check_name(key, "key")
        params = _options(
            queue,
            delay=delay,
            at=at,
            priority=priority,
            max_attempts=max_attempts,
            tenant=tenant,
            headers=headers,
        )
        body = encode_payload(payload)
        params["key"] = key
        params["body"], params["data"] = (body, None) if isinstance(body, str) else (None, body)
        return self.outgoing.send(params)

    def assign(self, tenant: str, host: str) -> str | None:
        """Make a host the owner of a tenant, whoever was; return who was, None if nobody.

        On return the host before delivers nothing more to the tenant. Copy the file after this, and only then
        let the new host have it.
        """
        return self.outgoing.assign(tenant, host)

    def owners(self, host: str | None = None, *, waiting: bool = False) -> list[TenantOwner]:
        """Return who owns which tenant and how much waits for it, by tenant: all, or one host's.

        waiting: only those for which something waits.
        """
        return self.outgoing.owners(host, waiting=waiting)

    def forget_tenant(self, tenant: str) -> int | None:
        """Remove a tenant's owner, and all that was sent to it and not delivered, for one that is gone for good.

        Return how many messages that were, None if the tenant had neither.
        """
        return self.outgoing.forget(tenant)

    def traces(self, tenant: str) -> TenantTraces:
        """Return how many rows name a tenant, for a data protection request. Reads all messages."""
        return self._traces.of(tenant)

    def erase_tenant(self, tenant: str) -> None:
        """Remove a tenant's owner, what waits for it, and which of its events were forwarded; may be repeated.

        For one that was deleted with its backups: the events of one that is restored later would be sent anew.
        Messages in shared queues stay, as `traces` shows.
        """
        self.outgoing.forget(tenant)
        self._traces.erase_forwarding(tenant)

    # What an operator needs

    def history(self, queue: str | None = None, *, tenant: str | None = None, limit: int = 100) -> list[Acked]:
        """Return what was acked last in recorded queues, the latest first. Reads all that is kept."""
        return self._history.list(queue, tenant, limit)

    def stats(self, queue: str | None = None) -> SharedStats:
        """Return how many messages there are, in all queues or one; exact, so it costs a look at each."""
        rows = self._operate("count_messages", {"queue": queue}, repeatable=True)
        return stats_of_rows(rows)

    def peek(self, queue: str, limit: int = 10) -> list[Message[Any]]:
        """Return what waits in a queue without claiming it, in the order of the claims, then of the delays.

        Of a shared queue, one tenant after the other.
        """
        params = {"queue": check_name(queue), "limit": check_limit(limit)}
        rows: list[Row] = []
        for where in ("peek_ready", "peek_waiting", "peek_delayed"):
            if len(rows) < limit:
                rows += self._run(where, params | {"limit": limit - len(rows)}, binary=True, repeatable=True)
        return [message_of_row(None, row) for row in rows]

    def dead_letters(self, queue: str | None = None, limit: int = 100) -> list[Message[Any]]:
        """Return dead letters with their last errors, by id."""
        params = {"queue": queue, "limit": check_limit(limit)}
        rows = self._run("list_dead", params, binary=True, repeatable=True)
        return [message_of_row(None, row) for row in rows]

    def redrive(self, *ids: int, queue: str | None = None) -> int:
        """Make dead letters ready again, under their ids and with no attempts counted; return how many.

        Those given, or all of a queue, or all. One whose key belongs to a live message stays dead.
        """
        rows = self._run("redrive_messages", {"ids": list(ids) or None, "queue": queue})
        if queue is not None:
            self._bell.ring(queue)
        count: int = rows[0][0]
        return count

    def purge(self, queue: str) -> int:
        """Remove what waits and is claimed in a queue; return how many. Dead letters stay."""
        count: int = self._operate("purge_queue", {"queue": check_name(queue)})[0][0]
        return count

    def pause(self, queue: str) -> None:
        """Let claims find nothing in a queue until `resume`; what is claimed already may go on."""
        self._operate("pause_queue", {"queue": check_name(queue)}, repeatable=True)

    def resume(self, queue: str) -> None:
        """Let claims find the queue's messages again."""
        self._operate("resume_queue", {"queue": check_name(queue)}, repeatable=True)
        self._bell.ring(queue)

    def reap(self) -> int:
        """Take back leases that have expired; return how many. Claims do it too: this is for the figures.

        Their messages are ready again, or dead when their attempts are used up. Reads the whole hot table.
        """
        reaped = 0
        while True:
            params = {"limit": REAP_STEP, "exhausted_only": False}
            count: int = self._operate("reap_messages", params)[0][0]
            reaped += count
            if count < REAP_STEP:
                return reaped

    def ring(self, queue: str) -> None:
        """Wake claims that wait for a queue, on every host, after a commit that brought it something."""
        self._bell.ring(queue)

    def forward(self, session: Session, params: Mapping[str, Any]) -> Forwarded:
        """Insert staged events for every matching subscription, for a forwarder; see Target."""
        return Forwarded(*session.run(self._forward_sql, params)[0])

    def close(self) -> None:
        """End the threads and connections; what is claimed stays claimed until its lease ends."""
        self._bell.close()
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _operate(self, name: str, params: dict[str, Any], *, repeatable: bool = False) -> list[tuple[Any, ...]]:
        self.schema.check()
        return self.database.run(self._queues_sql[name], params, repeatable=repeatable)


def _options(
    queue: str,
    *,
    delay: float,
    at: datetime | None,
    priority: int,
    max_attempts: int,
    tenant: str | None,
    headers: Mapping[str, str] | None,
) -> dict[str, Any]:
    visible_ns(0, delay, at)  # wrong arguments are told before anything is sent
    return {
        "queue": check_name(queue),
        "rank": -check_priority(priority),
        "delay": timedelta(seconds=delay),
        "at": at,
        "max_attempts": check_max_attempts(max_attempts),
        "tenant": None if tenant is None else check_tenant_id(tenant),
        "headers": _encode_headers(headers),
    }


def _encode_headers(headers: Mapping[str, str] | None) -> str | None:
    checked = check_headers(headers)
    if checked is None:
        return None
    if any("\0" in text for pair in checked.items() for text in pair):
        raise InvalidArgument("a header holds a NUL character, which Postgres does not keep")
    try:
        return msgspec.json.encode(checked).decode()
    except UnicodeError as exc:
        raise InvalidArgument("a header holds a lone surrogate, which is not text") from exc


def _payloads(bodies: list[Body], key: str | None) -> dict[str, Any]:
    return {
        "bodies": [body if isinstance(body, str) else None for body in bodies],
        "datas": [body if isinstance(body, bytes) else None for body in bodies],
        "key": key,
    }


def _chunks(bodies: list[Body]) -> Iterator[list[Body]]:
    chunk: list[Body] = []
    size = 0
    for body in bodies:
        if chunk and (len(chunk) == CHUNK_ROWS or size + len(body) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(body)
        size += len(body)
    yield chunk
