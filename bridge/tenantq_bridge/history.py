"""What was acked in recorded queues, kept for a while in tables that are emptied in turn."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from tenantq.arguments import check_limit
from tenantq.message import Message
from tenantq.naming import check_name, check_tenant_id
from tenantq_bridge._postgres import Database
from tenantq_bridge.delivery import message_of_row
from tenantq_bridge.schema import Schema

__all__ = ["Acked", "History"]


class Acked(msgspec.Struct, frozen=True, kw_only=True):
    """One message that is done."""

    message: Message[Any]
    """As it was when it was acked; it is held by nobody."""
    acked_at: datetime
    """By the database's clock."""
    worker: str | None
    """The name under which it was claimed."""


class History:
    """The recorded queues of one database, and what they have done."""

    def __init__(self, database: Database, schema: Schema) -> None:
        self._database = database
        self._schema = schema
        self._sql = database.statements("history.sql")

    def add(self, queue: str) -> None:
        """Record a queue; again changes nothing."""
        self._change("record_queue", queue)

    def remove(self, queue: str) -> None:
        """Record a queue no longer; what is kept stays for its time."""
        self._change("unrecord_queue", queue)

    def queues(self) -> list[str]:
        """Return the recorded queues."""
        self._schema.check()
        return [row[0] for row in self._database.run(self._sql["list_recorded"], repeatable=True)]

    def list(self, queue: str | None, tenant: str | None, limit: int) -> list[Acked]:
        """Return what was done last, the latest first."""
        params = {
            "queue": None if queue is None else check_name(queue),
            "tenant": None if tenant is None else check_tenant_id(tenant),
            "limit": check_limit(limit),
        }
        self._schema.check()
        rows = self._database.run(self._sql["list_history"], params, binary=True, repeatable=True)
        return [Acked(acked_at=row[0], worker=row[1], message=message_of_row(None, row[2:])) for row in rows]

    def _change(self, name: str, queue: str) -> None:
        params = {"queue": check_name(queue)}
        self._schema.check()
        self._database.run(self._sql[name], params, repeatable=True)
