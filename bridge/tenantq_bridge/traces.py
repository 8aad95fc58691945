"""What Postgres keeps of one tenant, and what of it can go when the tenant is gone for good."""

from __future__ import annotations

import msgspec

from tenantq.naming import check_tenant_id
from tenantq_bridge._postgres import Database
from tenantq_bridge.schema import Schema

__all__ = ["TenantTraces", "Traces"]


class TenantTraces(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that name one tenant."""

    messages: int
    """In shared queues, with its name: they are their consumers' to handle or purge."""
    dead: int
    """Dead letters there."""
    history: int
    """Messages of recorded queues that are done; kept for a while."""
    applied: int
    """Events whose effects `apply_once` has made; known for 30 days."""
    seen: int
    """Batches of its events that were forwarded; known for seven days."""
    forwarding: int
    """1 if it is known how far its events were forwarded."""
    outgoing: int
    """Messages on their way to its file."""
    owners: int
    """1 if a host owns it."""


class Traces:
    """The traces of tenants in one database."""

    def __init__(self, database: Database, schema: Schema) -> None:
        self._database = database
        self._schema = schema
        self._sql = database.statements("traces.sql")

    def of(self, tenant: str) -> TenantTraces:
        """Count the rows that name a tenant; reads all messages."""
        self._schema.check()
        params = {"tenant": check_tenant_id(tenant)}
        row = self._database.run(self._sql["count_traces"], params, repeatable=True)[0]
        return TenantTraces(**dict(zip(TenantTraces.__struct_fields__, row, strict=True)))

    def erase_forwarding(self, tenant: str) -> None:
        """Forget which events of a tenant were forwarded."""
        self._schema.check()
        self._database.run(self._sql["erase_forwarding"], {"tenant": check_tenant_id(tenant)}, repeatable=True)
