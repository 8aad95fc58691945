"""The way down in Postgres: which host owns which tenant, and what waits for a tenant's own file."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tenantq.naming import check_name, check_tenant_id
from tenantq_bridge._bell import Bell
from tenantq_bridge._postgres import Database, Row
from tenantq_bridge.schema import Schema

__all__ = ["Outgoing", "TenantOwner"]


class TenantOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Which host has a tenant's file, and what waits to be delivered there."""

    tenant: str
    host: str | None
    """None: no host has registered the tenant yet, and what was sent to it waits."""
    since: datetime
    waiting: int
    """Messages sent and not delivered."""
    oldest_age: float | None
    """Seconds that the oldest of them has waited; None where none waits."""
    failure: str | None
    """Why the last delivery did not take all; None if it did."""


class Outgoing:
    """The owners and the outgoing messages of one database."""

    def __init__(self, database: Database, schema: Schema, bell: Bell) -> None:
        self._database = database
        self._schema = schema
        self._bell = bell
        self._sql = database.statements("delivering.sql")

    def send(self, params: Mapping[str, Any]) -> int:
        """Commit a message for a tenant's file and return its place; wakes the tenant's host."""
        self._schema.check()
        seq, host = self._database.run(self._sql["send_to_tenant"], params)[0]
        self._ring(host)
        return int(seq)

    def meet(self, host: str, tenants: Sequence[str]) -> dict[str, str]:
        """Make a host the owner of tenants that have none; return the owners of those that are another's."""
        params = {"host": host, "tenants": list(tenants)}
        self._schema.check()
        return dict(self._database.run(self._sql["meet_tenants"], params, repeatable=True))

    def assign(self, tenant: str, host: str) -> str | None:
        """Make a host the owner of a tenant, whoever was; return who was."""
        params = {"tenant": check_tenant_id(tenant), "host": check_name(host, "host")}
        self._schema.check()
        before: str | None = self._database.run(self._sql["assign_tenant"], params)[0][0]
        self._ring(host)
        return before

    def forget(self, tenant: str) -> int | None:
        """Remove a tenant's owner and all that waits for it; return how many messages, None if it is unknown."""
        params = {"tenant": check_tenant_id(tenant)}
        self._schema.check()
        removed: int | None = self._database.run(self._sql["forget_tenant"], params)[0][0]
        return removed

    def owners(self, host: str | None, *, waiting: bool) -> list[TenantOwner]:
        """Return the owners of tenants, by tenant."""
        params = {"host": host, "waiting": waiting}
        self._schema.check()
        return [_owner(row) for row in self._database.run(self._sql["list_owners"], params, repeatable=True)]

    def waiter(self, host: str) -> contextlib.AbstractContextManager[threading.Event]:
        """Give an Event that is set when something was sent to a tenant of the host."""
        return self._bell.waiter(_bell_of(host))

    def _ring(self, host: str | None) -> None:
        if host is not None:
            self._bell.ring(_bell_of(host))


def _bell_of(host: str) -> str:
    """Return what is rung for a host: on the queues' bell, under a name that no queue can have."""
    return f"\x1f{host}"


def _owner(row: Row) -> TenantOwner:
    return TenantOwner(**dict(zip(TenantOwner.__struct_fields__, row, strict=True)))
