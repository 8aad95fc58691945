"""How far each tenant's events have come, as Postgres knows it, and what its file says to that."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from tenantq.clock import to_unix_ns
from tenantq.outbox import OutboxPosition
from tenantq_bridge._postgres import Database, Row
from tenantq_bridge.schema import Schema

__all__ = ["ForwardingState", "ForwardingStates", "Verdict", "judge"]


class ForwardingState(msgspec.Struct, frozen=True, kw_only=True):
    """What Postgres knows of one tenant's events. Moved only together with the events themselves."""

    tenant: str
    file_id: str
    epoch: int
    """Counts the histories of the tenant's file: restored, or deleted and made again, it begins another."""
    epoch_at: datetime
    last_seq: int
    """The last event of this epoch that Postgres has; 0 before the first."""
    last_event_id: str | None
    accepted_through: int
    forwarded: int
    """Events since the tenant was first seen."""
    forwarded_at: datetime | None
    quarantined_at: datetime | None
    reason: str | None


class Verdict(StrEnum):
    """What a tenant's file is, seen from Postgres."""

    CONTINUE = "continue"
    """Its history has what Postgres has: go on behind that, whether the file knows of it or not."""
    OTHER_HISTORY = "other history"
    """Restored from a backup, or another file: a new epoch, in which events are compared one by one."""
    UNKNOWN = "unknown"
    """Postgres has less than the file says and more than the file still keeps: nobody can tell."""


def judge(state: ForwardingState, position: OutboxPosition, event_id_there: str | None) -> Verdict:
    """Compare a file with what Postgres has. event_id_there: the file's event at the state's last_seq."""
    if position.file_id != state.file_id:
        return Verdict.OTHER_HISTORY
    if state.last_seq == 0 or event_id_there == state.last_event_id:
        return Verdict.CONTINUE
    if event_id_there is None and position.last_seq >= state.last_seq:
        return Verdict.UNKNOWN
    return Verdict.OTHER_HISTORY


class ForwardingStates:
    """The states of all tenants in one database."""

    def __init__(self, database: Database, schema: Schema) -> None:
        self._database = database
        self._schema = schema
        self._sql = database.statements("forwarding.sql")

    def all(self) -> list[ForwardingState]:
        """Return all, by tenant."""
        self._schema.check()
        return [_state(row) for row in self._database.run(self._sql["list_states"], repeatable=True)]

    def load(self, file_ids: Mapping[str, str]) -> dict[str, ForwardingState]:
        """Return the states of tenants, given with their files' ids; one that has none begins at nothing."""
        states = self._load(list(file_ids))
        missing = [tenant for tenant in file_ids if tenant not in states]
        if missing:
            params = {"tenants": missing, "file_ids": [file_ids[tenant] for tenant in missing]}
            self._database.run(self._sql["open_states"], params, repeatable=True)
            states |= self._load(missing)
        return states

    def begin_epoch(self, state: ForwardingState, file_id: str) -> None:
        """Begin a new epoch at nothing, unless the state is another by now."""
        # Not repeatable and need not be: where the reply was lost, the next look finds how it ended.
        self._database.run(self._sql["begin_epoch"], _judged(state) | {"file_id": file_id})

    def quarantine(self, state: ForwardingState, reason: str) -> bool:
        """Hold a tenant's events back; False if the state is another by now."""
        return bool(self._database.run(self._sql["quarantine_tenant"], _judged(state) | {"reason": reason}))

    def readmit(self, tenant: str, position: OutboxPosition, last_event_id: str | None, *, resend: bool) -> bool:
        """End a quarantine behind what the file knows to be forwarded (resend), or behind its last event."""
        params = {
            "tenant": tenant,
            "file_id": position.file_id,
            "last_seq": position.forwarded_seq if resend else position.last_seq,
            "last_event_id": position.forwarded_event_id if resend else last_event_id,
            "accepted_through": position.last_seq,
        }
        self._schema.check()
        return bool(self._database.run(self._sql["readmit_tenant"], params))

    def window_ns(self) -> int | None:
        """Return since when everything that was forwarded is still known; None: since ever."""
        since = self._database.run(self._sql["read_window"], repeatable=True)[0][0]
        return None if since is None else to_unix_ns(since)

    def _load(self, tenants: list[str]) -> dict[str, ForwardingState]:
        rows = self._database.run(self._sql["load_states"], {"tenants": tenants}, repeatable=True)
        return {row[0]: _state(row) for row in rows}


def _state(row: Row) -> ForwardingState:
    return ForwardingState(**dict(zip(ForwardingState.__struct_fields__, row, strict=True)))


def _judged(state: ForwardingState) -> dict[str, object]:
    return {
        "tenant": state.tenant,
        "epoch": state.epoch,
        "last_seq": state.last_seq,
        "last_event_id": state.last_event_id,
    }
