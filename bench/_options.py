"""How a benchmark is to be run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

__all__ = ["Options"]

T = TypeVar("T")

SMOKE_SECONDS = 0.2
"""A trial's length in a smoke run, which shows only that a benchmark still runs."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line said."""

    seconds: float = 2.0
    """How long a trial is measured, after its warm-up."""
    iterations: int = 3
    """How often each trial is run; figures are medians over them."""
    durability: str = "normal"
    rows: int = 100_000
    """The largest backlog."""
    scratch: str | None = None
    """Where the files of the trials lie; the system's temporary directory by default."""
    stores: str | None = None
    """Where stores of many tenants are kept for the next benchmark; by default each makes its own anew."""
    postgres: str = "embedded"
    """Which Postgres the trials start: the embedded one, or the system's."""
    history: int = 2_000_000
    """Rows that a queue in Postgres has seen before its claims are measured."""
    minutes: float = 1.0
    """How long an unbroken load in Postgres lasts."""
    rate: float = 2_000.0
    """Messages a second of an unbroken load; fewer where the machine does not carry that many."""
    only: str = ""
    """Measure only the contenders whose names hold this, where each takes minutes."""

    @property
    def is_smoke(self) -> bool:
        """Whether this run is only to show that the benchmark works."""
        return self.iterations <= 1 and self.seconds <= 1

    @property
    def window(self) -> float:
        """Seconds that a trial is measured."""
        return SMOKE_SECONDS if self.is_smoke else self.seconds

    @property
    def warm_up(self) -> float:
        """Seconds that a trial runs before it is measured."""
        return SMOKE_SECONDS / 2 if self.is_smoke else min(1.0, self.seconds / 2)

    def pick(self, full: T, smoke: T) -> T:
        """Return the grid of a full run, or the small one of a smoke run."""
        return smoke if self.is_smoke else full

    def depth(self) -> int:
        """Return the depth that a queue is held near: the documents' 5,000."""
        return self.pick(5000, 500)

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Yield a new directory for one trial; it is removed at the end."""
        with tempfile.TemporaryDirectory(prefix="tenantq-bench-", dir=self.scratch) as path:
            yield Path(path)
