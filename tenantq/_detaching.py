"""A copy of a tenant under another id, for a look: nothing of what is in it happens by itself.

It is a tenant like any other, so a worker of the store would handle its messages a second time, and a forwarder
send its events as another tenant's. Its queues are paused, its own periodic messages do not fire, and its
events lie with those that Postgres refused, until somebody resumes, adds or redelivers them.
"""

from __future__ import annotations

import uuid

from tenantq import _schema
from tenantq._sqlite import Database
from tenantq.sqlfile import load_statements

__all__ = ["detach"]

_SQL = load_statements("tenantq", "restore.sql")


def detach(database: Database, tenant_id: str, now: int) -> None:
    """Make a copied file that of another tenant, at rest. Inside of a transaction."""
    reason = f"a copy of tenant {database.tenant!r}"
    database.run(_SQL["park_events"], (now, f"not forwarded: {reason}"))
    database.run(_SQL["empty_outbox"])
    database.run(_SQL["begin_forwarding"])
    database.run(_SQL["pause_all"], (now,))
    database.run(_SQL["stop_periodic"], (f"stopped: {reason}",))
    database.run(_SQL["forget_inbox"])
    _schema.write_meta(database, "tenant_id", tenant_id)
    _schema.write_meta(database, "file_id", str(uuid.uuid4()))
