from __future__ import annotations

from pathlib import Path

import pytest

from tenantq import _filesystem
from tenantq._filesystem import filesystem_of, refuse_network_filesystem
from tenantq.errors import TenantFileError

MOUNTS = """\
22 1 252:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /mnt rw shared:7 - tmpfs tmpfs rw
31 30 0:50 / /mnt/share rw,relatime shared:8 master:2 - nfs4 server:/export rw,vers=4.2
36 22 0:52 / /data/back\\134slash\\011tab rw - nfs server:/x rw
32 22 0:51 / /data/with\\040space rw - cifs //server/x rw
33 30 0:52 / /mnt/share/local rw - xfs /dev/vdb rw
34 22 0:53 / /srv rw - nfs a rw
35 22 252:1 / /srv rw - ext4 /dev/vdc rw
garbage
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/x", "ext4"),
        ("/mnt", "tmpfs"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/a/b", "nfs4"),
        ("/mnt/shared", "tmpfs"),
        ("/mnt/share/local/x", "xfs"),
        ("/data/with space/x", "cifs"),
        ("/data/back\\slash\ttab/x", "nfs"),
        ("/srv/x", "ext4"),
    ],
)
def test_the_innermost_and_latest_mount_counts(path: str, kind: str) -> None:
    assert filesystem_of(Path(path), MOUNTS) == kind


def test_nothing_is_known_without_mounts() -> None:
    assert filesystem_of(Path("/x"), "") is None


@pytest.mark.parametrize("kind", sorted(_filesystem.NETWORK_FILESYSTEMS))
def test_a_network_file_system_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_filesystem, "filesystem_of", lambda _path, _mounts: kind)
    with pytest.raises(TenantFileError, match=kind) as caught:
        refuse_network_filesystem(tmp_path)
    assert "local disk" in caught.value.hint


def test_a_local_file_system_is_taken(tmp_path: Path) -> None:
    refuse_network_filesystem(tmp_path)
