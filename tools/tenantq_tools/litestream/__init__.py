"""Litestream as a plain subprocess: it replicates the tenants that change, and none that rest.

One Litestream over all files would need six descriptors and a poll each second for every tenant, and end at some
thousands. So it starts with no file at all, and is told by its control socket:

    a tenant changes      the store's watch tells `Supervisor`: register, sync; it is in the hot set
    it goes on changing   Litestream sends it within a second; every few seconds its position is confirmed
    it rests, or others   its last changes are sent and looked for in the replica; unregister: it costs
      need its place      nothing any more

`binary` finds and runs the program, `settings` has what it is told, `control` speaks to it, `process` keeps it
running. `hotset` says who is in and who has to go, `mover` does it, `ledger` remembers which position of each file
is in the replica: `health` and `tenantq litestream status` compare that with the file. `replica` asks the replica
itself. `oneshot` replicates a tenant without a supervisor, `restoring` brings it back.
"""

from tenantq_tools.litestream.errors import (
    LitestreamFailed,
    LitestreamMissing,
    LitestreamTooOld,
    NoBackup,
    NotConfigured,
    NotRegistered,
    ReplicaError,
    ReplicaGap,
    SupervisorRuns,
)
from tenantq_tools.litestream.settings import Settings
from tenantq_tools.litestream.supervisor import Supervisor

__all__ = [
    "LitestreamFailed",
    "LitestreamMissing",
    "LitestreamTooOld",
    "NoBackup",
    "NotConfigured",
    "NotRegistered",
    "ReplicaError",
    "ReplicaGap",
    "Settings",
    "Supervisor",
    "SupervisorRuns",
]
