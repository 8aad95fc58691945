"""Queues that tenants share: they take turns, and the leases are limited, over all and for each tenant."""

from __future__ import annotations

import msgspec

from tenantq.arguments import check_limit
from tenantq.naming import check_name
from tenantq_bridge._postgres import Database
from tenantq_bridge.schema import Schema

__all__ = ["Share", "Shares"]

SORT_STEP = 5_000
"""Messages that one transaction places while a queue with a backlog comes to be shared."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A queue whose tenants take turns."""

    queue: str
    max_claimed: int | None
    """Messages under a lease at once, over all workers; None: as many as are claimed."""
    max_claimed_per_tenant: int | None
    """Those of one tenant."""
    is_ending: bool
    """Whether it becomes an ordinary queue, without limits already, as soon as nothing waits in it."""


class Shares:
    """The shared queues of one database."""

    def __init__(self, database: Database, schema: Schema) -> None:
        self._database = database
        self._schema = schema
        self._sql = database.statements("shares.sql")

    def add(self, queue: str, max_claimed: int | None, max_claimed_per_tenant: int | None) -> None:
        """Share a queue, or change its limits."""
        params = {
            "queue": check_name(queue),
            "max_claimed": _check(max_claimed, "max_claimed"),
            "max_claimed_per_tenant": _check(max_claimed_per_tenant, "max_claimed_per_tenant"),
        }
        self._schema.check()
        self._database.run(self._sql["share_queue"], params, repeatable=True)
        step = {"queue": queue, "limit": SORT_STEP}
        while not self._database.run(self._sql["sort_shared"], step, repeatable=True)[0][0]:
            pass

    def remove(self, queue: str) -> None:
        """End the limits at once, and the turns when nothing waits."""
        params = {"queue": check_name(queue)}
        self._schema.check()
        self._database.run(self._sql["unshare_queue"], params, repeatable=True)
        self._database.run(self._sql["retire_shared"], repeatable=True)

    def list(self) -> list[Share]:
        """Return all, by queue."""
        self._schema.check()
        rows = self._database.run(self._sql["list_shared"], repeatable=True)
        return [
            Share(
                queue=queue,
                max_claimed=max_claimed,
                max_claimed_per_tenant=max_claimed_per_tenant,
                is_ending=state == "ending",
            )
            for queue, max_claimed, max_claimed_per_tenant, state in rows
        ]


def _check(limit: int | None, what: str) -> int | None:
    return None if limit is None else check_limit(limit, what)
