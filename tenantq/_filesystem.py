"""Where a store may lie: SQLite's WAL needs a file system of this host."""

from __future__ import annotations

import re
from pathlib import Path

from tenantq.errors import TenantFileError

__all__ = ["filesystem_of", "refuse_network_filesystem"]

NETWORK_FILESYSTEMS = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs",
        "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs",
        "vboxsf",
    },
)  # fmt: skip


_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How a space, a tab, a newline and a backslash are written there."""


def filesystem_of(path: Path, mounts: str) -> str | None:
    """Return the type of the file system that a path lies on, from the text of /proc/self/mountinfo."""
    best, found = "", None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if "-" not in fields:
            continue
        mount_point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
        inside = str(path) == mount_point or str(path).startswith(mount_point.rstrip("/") + "/")
        if inside and len(mount_point) >= len(best):
            best, found = mount_point, fields[fields.index("-") + 1]
    return found


def refuse_network_filesystem(path: Path) -> None:
    """Raise TenantFileError where SQLite's locks and shared memory are known not to work."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return  # no /proc: nothing is known
    found = filesystem_of(path.resolve(), mounts)
    if found in NETWORK_FILESYSTEMS:
        raise TenantFileError(
            f"{path} lies on a network file system ({found})",
            hint="SQLite's WAL works only on a file system of this host: put the store on a local disk",
            path=str(path),
        )
