"""Which queues get which topics: a subscription is a pattern and the queue its events go to."""

from __future__ import annotations

import msgspec

from tenantq.naming import check_name
from tenantq_bridge._postgres import Database
from tenantq_bridge.schema import Schema

__all__ = ["Subscription", "Subscriptions"]


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Events whose topic matches the pattern go to the queue."""

    queue: str
    pattern: str
    """`*` stands for any characters, none and dots too; every other character for itself."""


class Subscriptions:
    """The subscriptions of one database; matched in Postgres, in the transaction that forwards."""

    def __init__(self, database: Database, schema: Schema) -> None:
        self._database = database
        self._schema = schema
        self._sql = database.statements("queues.sql")

    def add(self, queue: str, pattern: str) -> None:
        """Subscribe a queue; again changes nothing."""
        self._change("subscribe_queue", queue, pattern)

    def remove(self, queue: str, pattern: str) -> None:
        """End a subscription; one that is not there changes nothing."""
        self._change("unsubscribe_queue", queue, pattern)

    def list(self) -> list[Subscription]:
        """Return all, by queue and pattern."""
        self._schema.check()
        rows = self._database.run(self._sql["list_subscriptions"], repeatable=True)
        return [Subscription(queue=queue, pattern=pattern) for queue, pattern in rows]

    def _change(self, name: str, queue: str, pattern: str) -> None:
        params = {"queue": check_name(queue), "pattern": check_name(pattern, "topic pattern")}
        self._schema.check()
        self._database.run(self._sql[name], params, repeatable=True)
