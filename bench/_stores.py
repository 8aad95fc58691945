"""Stores of many tenants: made once for a benchmark, or kept in a folder (`--stores`) for the next one.

Each tenant has had one message, which was handled: it has a file, and nothing to do. A benchmark leaves its store
as it found it.

python -m bench._stores STORE COUNT
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import tenantq
from bench._options import Options

__all__ = ["COUNTS", "Stock", "counts_of", "stocked", "tenant_name"]

COUNTS = (10, 1_000, 10_000, 100_000)
"""The last only with `--rows 1000000`: its files take minutes and eight gigabytes."""

KEPT = 10_000
"""Tenants from which on a store is worth keeping."""


class Stock(msgspec.Struct, frozen=True, kw_only=True):
    """A store of tenants."""

    root: str
    count: int
    made_per_s: float
    """Tenants, each with its message enqueued, claimed and acked."""

    @property
    def path(self) -> Path:
        """Where it lies."""
        return Path(self.root)


def counts_of(options: Options) -> tuple[int, ...]:
    """Return the numbers of tenants that a run measures: `--only 100000` takes one of them."""
    affordable = tuple(count for count in COUNTS if count * 10 <= options.rows and options.only in str(count))
    return options.pick(affordable, (10, 100))


def tenant_name(number: int) -> str:
    """Return the id of one of the tenants."""
    return f"tenant-{number}"


@contextmanager
def stocked(count: int, options: Options) -> Iterator[Stock]:
    """Yield a store of so many tenants: a kept one where there is one, or a new one, removed at the end."""
    if options.stores is None or count < KEPT:
        with options.directory() as directory:
            yield make(directory / "store", count)
        return
    folder = Path(options.stores)
    note = folder / f"{count}.json"  # written last: a store that was not finished has none
    stock = msgspec.json.decode(note.read_bytes(), type=Stock) if note.exists() else None
    if stock is None:
        folder.mkdir(parents=True, exist_ok=True)
        stock = make(folder / f"{count}", count)
        note.write_bytes(msgspec.json.encode(stock))
    yield stock


def make(root: Path, count: int) -> Stock:
    """Make a store in a process of its own: it leaves nothing open, and this one's memory as it was."""
    command = [sys.executable, "-m", "bench._stores", str(root), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Stock)


def main(root: str, count: int) -> None:
    """Make the tenants, each with a message that is handled."""
    started = time.perf_counter()
    with tenantq.open(root) as store:
        for number in range(count):
            tenant = store.tenant(tenant_name(number))
            tenant.enqueue("mail", {})
            tenant.ack(*tenant.claim("mail"))
    stock = Stock(
        root=root,
        count=count,
        made_per_s=count / (time.perf_counter() - started),
    )
    print(msgspec.json.encode(stock).decode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
