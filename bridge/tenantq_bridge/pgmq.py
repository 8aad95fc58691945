"""Events to the queues of a pgmq that is in the same database, for those who run one already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenantq.errors import InvalidArgument
from tenantq.naming import check_name
from tenantq_bridge._postgres import Database, Session
from tenantq_bridge.errors import PgmqMissing
from tenantq_bridge.queue import PostgresQueue
from tenantq_bridge.schema import Schema
from tenantq_bridge.target import Forwarded

__all__ = ["PgmqTarget"]


class PgmqTarget:
    """Has a forwarder send events to pgmq: `Forwarder(store, PgmqTarget(queue, {"billing.*": "invoices"}))`.

    Each event is inserted once by effect, as into a PostgresQueue: by `pgmq.send_batch`, in the transaction that
    moves its tenant's state. What comes after is pgmq's: docs/bridge.md says what does not hold there.

    queue: the PostgresQueue of the same database, which keeps the states. Its own subscriptions, if there are any,
    are served as well. A store forwards to one of these: all its forwarders take the same target.
    routes: the pgmq queue for all topics, or one for each topic pattern (`*` stands for any characters). An event
    goes to each queue once, however many patterns match, and is passed over where none does.
    """

    kind = "pgmq"

    def __init__(self, queue: PostgresQueue, routes: str | Mapping[str, str]) -> None:
        pairs = {"*": routes} if isinstance(routes, str) else dict(routes)
        if not pairs:
            raise InvalidArgument("a pgmq target without a route would pass every event over")
        self._queue = queue
        self._routes = {
            "patterns": [check_name(pattern, "topic pattern") for pattern in pairs],
            "queues": [check_name(name) for name in pairs.values()],
        }
        self._sql = queue.database.statements("pgmq.sql")
        self._is_checked = False

    @property
    def database(self) -> Database:
        """The database with pgmq and the states."""
        return self._queue.database

    @property
    def schema(self) -> Schema:
        """The schema of the states."""
        return self._queue.schema

    def forward(self, session: Session, params: Mapping[str, Any]) -> Forwarded:
        """Move the tenants' states, and send the events whose states moved. Raises PgmqMissing."""
        if not self._is_checked:
            self._check(session)
        forwarded = self._queue.forward(session, params)
        if forwarded.forwarded:
            session.run(self._sql["send_to_pgmq"], self._routes)
        return forwarded

    def ring(self, queue: str) -> None:
        """Wake who waits for a subscribed queue. Those of pgmq have their own way: pgmq.enable_notify_insert."""
        self._queue.ring(queue)

    def _check(self, session: Session) -> None:
        if not session.run(self._sql["find_pgmq"])[0][0]:
            raise PgmqMissing
        missing = [row[0] for row in session.run(self._sql["find_missing_queues"], self._routes)]
        if missing:
            raise PgmqMissing(
                f"pgmq has no queue {missing[0]!r} in this database",
                hint="make it with pgmq.create, then the events that wait are sent",
            )
        self._is_checked = True
