"""Where a backup cannot go, it says so in our own words."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenantq


def test_a_backup_below_a_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with tenantq.open(tmp_path / "store") as store:
        store.tenant("acme").enqueue("jobs", 1)
        with pytest.raises(tenantq.TenantFileError, match="Not a directory"):
            store.tenant("acme").backup(tmp_path / "file" / "below" / "acme.db")
