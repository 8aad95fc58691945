"""Waits until a supervisor has done what it is to do, bounded in time."""

from __future__ import annotations

import time
from collections.abc import Callable

import tenantq
from tenantq_tools.litestream import Supervisor
from tenantq_tools.litestream.health import State, TenantReplication, read_tenant

__all__ = ["go_round", "state_of", "until_replicated"]

PATIENCE = 60.0


def until(what: Callable[[], bool], wait: Callable[[], object]) -> None:
    """Wait again and again until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, "it never came"
        wait()


def go_round(supervisor: Supervisor, what: Callable[[], bool]) -> None:
    """Wait, as a supervisor's thread goes round, until something is so."""
    pause = supervisor._stopping.wait
    until(what, lambda: pause(0.02))


def state_of(store: tenantq.Store, tenant: str) -> TenantReplication:
    """Return how a tenant is replicated."""
    return read_tenant(store, tenant)


def until_replicated(supervisor: Supervisor, store: tenantq.Store, *tenants: str) -> None:
    """Wait until all that the tenants have is known to be in the replica."""
    go_round(supervisor, lambda: all(state_of(store, tenant).state == State.REPLICATED for tenant in tenants))
