"""What the running forwarders of a store say of themselves, for other processes of the host.

Each keeps a small file in the store, locked for as long as it runs: the kernel ends the lock with the process,
however that ends, so a file without a lock is a dead one's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tenantq_bridge.breaker import BreakerStatus

__all__ = ["ForwarderStatus", "Presence", "running_forwarders"]

PREFIX = ".forwarder-"

MAX_ERROR_CHARACTERS = 500


class ForwarderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One running forwarder."""

    pid: int
    started_at: datetime
    breaker: BreakerStatus
    """Whether Postgres answers it, and when it is asked next if it does not."""


class Presence:
    """A forwarder's file: there while it is open."""

    def __init__(self, root: Path) -> None:
        name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self._path = root / name
        self._started_at = datetime.now(UTC)
        # Locked before it has its name: one without a lock is taken for a dead one's.
        unnamed = root / f".new{name}"
        self._descriptor = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        unnamed.rename(self._path)

    def say(self, breaker: BreakerStatus) -> None:
        """Write how the forwarder is."""
        if breaker.error is not None:
            breaker = msgspec.structs.replace(breaker, error=breaker.error[:MAX_ERROR_CHARACTERS])
        status = ForwarderStatus(pid=os.getpid(), started_at=self._started_at, breaker=breaker)
        data = msgspec.json.encode(status)
        os.pwrite(self._descriptor, data, 0)
        os.ftruncate(self._descriptor, len(data))

    def close(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def running_forwarders(root: Path) -> list[ForwarderStatus]:
    """Return the forwarders that run on a store, in any process of this host."""
    found: list[ForwarderStatus] = []
    for path in sorted(root.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError, msgspec.MsgspecError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(msgspec.json.decode(file.read(), type=ForwarderStatus))
            else:
                path.unlink()  # its process was killed
    return found
