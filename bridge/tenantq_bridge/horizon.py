"""Who holds the oldest snapshot: while it is held, vacuum removes no row that died since."""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

import msgspec

from tenantq_bridge._postgres import Database

__all__ = ["HolderKind", "SnapshotHolder", "list_holders"]


class HolderKind(StrEnum):
    """What holds a snapshot."""

    SESSION = "session"
    PREPARED = "prepared"
    """A transaction that waits for COMMIT PREPARED, with no session of its own."""
    SLOT = "slot"
    STANDBY = "standby"
    """A standby that reports the snapshots of its own queries."""


class SnapshotHolder(msgspec.Struct, frozen=True, kw_only=True):
    """One that keeps vacuum from removing rows."""

    kind: HolderKind
    name: str
    """The process id, the transaction's name, or the slot's."""
    pid: int | None
    role: str | None
    application: str | None
    state: str | None
    """As pg_stat_activity has it, such as `idle in transaction`."""
    seconds: float | None
    """How long the transaction runs; None for slots and standbys, and where this role may not see it."""
    transactions: int
    """How many transactions began since the snapshot; everyone may see that."""
    is_hidden: bool
    """It is another role's session, of which this role may see no more."""

    @property
    def described(self) -> str:
        """Who it is, in words."""
        match self.kind:
            case HolderKind.SESSION:
                state = "state hidden" if self.is_hidden else self.state or "background process"
                return f"session {self.name} ({', '.join(part for part in (state, *self._who()) if part)})"
            case HolderKind.PREPARED:
                return f"prepared transaction {self.name!r} of {self.role}"
            case HolderKind.SLOT:
                return f"replication slot {self.name!r} ({self.state})"
            case HolderKind.STANDBY:
                return f"standby {self.application or ''!r} (process {self.name})"
            case _:
                assert_never(self.kind)

    @property
    def advice(self) -> str:
        """What to do about it."""
        match self.kind:
            case HolderKind.SESSION if self.is_hidden:
                return f"GRANT pg_read_all_stats shows more; SELECT pg_terminate_backend({self.name}) ends it"
            case HolderKind.SESSION if (self.state or "").startswith("idle in transaction"):
                return (
                    f"SELECT pg_terminate_backend({self.name}) ends it; idle_in_transaction_session_timeout "
                    "does so by itself"
                )
            case HolderKind.SESSION:
                return f"wait for it, or SELECT pg_cancel_backend({self.name}); run long reports on a standby"
            case HolderKind.PREPARED:
                return "COMMIT PREPARED or ROLLBACK PREPARED it, by its name"
            case HolderKind.SLOT:
                return "bring its consumer back, or drop the slot with pg_drop_replication_slot"
            case HolderKind.STANDBY:
                return "a query runs long on the standby: end it there, or turn hot_standby_feedback off"
            case _:
                assert_never(self.kind)

    def _who(self) -> tuple[str, str]:
        return (
            f"role {self.role}" if self.role else "",
            f"application {self.application!r}" if self.application else "",
        )


def list_holders(database: Database) -> list[SnapshotHolder]:
    """Return who holds a snapshot in this database, the oldest first; this session's own is not among them."""
    statement = database.statements("health.sql")["list_holders"]
    fields = SnapshotHolder.__struct_fields__
    return [
        msgspec.convert(dict(zip(fields, row, strict=True)), SnapshotHolder)
        for row in database.run(statement, repeatable=True)
    ]
