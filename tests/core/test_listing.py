"""Which files of a store are tenants."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tenantq

LONG = "🦆" * 60  # too long for a file name to spell: only the file itself says whose it is


def test_a_copy_in_another_place_is_no_second_tenant(tmp_path: Path) -> None:
    with tenantq.open(tmp_path / "store") as store:
        for tenant in ("acme", LONG):
            store.tenant(tenant).enqueue("jobs", 1)
        paths = {tenant: store.tenant(tenant).path for tenant in ("acme", LONG)}
    other_shard = tmp_path / "store" / "00"
    other_shard.mkdir()
    shutil.copy(paths["acme"], other_shard)
    shutil.copy(paths[LONG], other_shard)
    shutil.copy(paths["acme"], other_shard / "globex.db")
    with tenantq.open(tmp_path / "store") as store:
        assert sorted(store.tenants()) == ["acme", LONG]
        assert all(tenant in store for tenant in store.tenants())


def test_a_listing_reads_one_shard_at_a_time(store: tenantq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        store.tenant(f"t{number}").enqueue("jobs", 1)
    listed: list[Path] = []

    def list_names(directory: Path) -> list[str]:
        listed.append(directory)
        return [path.name for path in directory.iterdir()]

    monkeypatch.setattr("tenantq.store.list_names", list_names)
    found = store.tenants()
    first = next(found)
    assert listed == [store.tenant(first).path.parent]
    assert sorted([first, *found]) == sorted(f"t{number}" for number in range(30))
    assert len(listed) == len(set(listed))
