from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tenantq
from tenantq.backoff import Backoff
from tenantq.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[tenantq.Store]:
    backoff = Backoff(base=1, factor=2, cap=60, jitter=0)
    with tenantq.open(tmp_path / "store", clock=clock, backoff=backoff) as store:
        yield store


@pytest.fixture
def acme(store: tenantq.Store) -> Iterator[tenantq.Tenant]:
    """A tenant whose depths are counted again after every test."""
    tenant = store.tenant("acme")
    yield tenant
    if tenant.path.exists():
        assert tenantq.verify(tenant.path).problems == ()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tenantq.Store]:
    """A store whose time is real."""
    with tenantq.open(tmp_path / "live", backoff=tenantq.Backoff(base=0.01, cap=0.01, jitter=0)) as store:
        yield store
