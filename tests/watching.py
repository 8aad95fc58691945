"""How tests look at what a watch finds."""

from __future__ import annotations

import tenantq

__all__ = ["NEVER", "look"]

NEVER = 3600.0
"""A sweep interval: only what rings, or is due, is found."""


def look(watch: tenantq.Watch) -> set[str]:
    """Return all that a sweep finds, and what was rung for."""
    watch._next_sweep = 0
    found = watch.wait(0)
    while watch._sweeping is not None:
        found |= watch.wait(0)
    return found
