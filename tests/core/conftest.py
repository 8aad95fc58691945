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
