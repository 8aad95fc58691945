"""What each tenant holds, a row for each, as long lists of tenants show it."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from tenantq import Store, TenantStats
from tenantq.watch import list_shards
from tenantq_tools.cli._output import paint, printable

__all__ = ["COLUMNS", "Overview", "numbers", "print_header", "print_row", "tenants_and_strays"]

COLUMNS = ("ready", "scheduled", "claimed", "dead", "outbox", "oldest_age", "file_bytes", "wal_bytes")
"""The numbers of a row."""

_WIDTH = 10


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant holds, over all its queues."""

    tenant: str
    ready: int
    scheduled: int
    claimed: int
    dead: int
    outbox: int
    oldest_age: float | None
    file_bytes: int
    wal_bytes: int

    @classmethod
    def of(cls, stats: TenantStats) -> Overview:
        """Take what is of the file; how often this process waited for it is not."""
        return cls(**{name: getattr(stats, name) for name in cls.__struct_fields__})


def print_header() -> None:
    """Print the names of the columns."""
    names = "".join(name.upper().rjust(_WIDTH + 1) for name in COLUMNS)
    click.echo(paint(f"{names[1:]}  TENANT", bold=True))


def print_row(row: Overview) -> None:
    """Print one tenant's numbers, its id last: however long it is, the columns stay."""
    click.echo(f"{numbers(row)}  {printable(row.tenant)}")


def numbers(row: object) -> str:
    """Return the numbers of a row under their columns; of dead letters in red."""
    cells = []
    for name in COLUMNS:
        value = getattr(row, name)
        shown = "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
        cell = shown.rjust(_WIDTH)
        cells.append(paint(cell, fg="red") if name == "dead" and value else cell)
    return " ".join(cells)


def tenants_and_strays(store: Store) -> tuple[list[str], list[Path]]:
    """Return the ids of all tenants, and the files beside theirs that no id leads to.

    A file of the second kind is not ours, or it is that of a tenant whose id stands only in the file, which
    cannot be read: whoever takes "all tenants" must hear of it.
    """
    files = [
        shard / name
        for shard in list_shards(store.root)
        for name in sorted(os.listdir(shard))  # noqa: PTH208 - names are enough
        if name.endswith(".db")
    ]
    ids = list(store.tenants())
    known = {store.tenant(tenant_id).path for tenant_id in ids}
    return ids, [file for file in files if file not in known and file.exists()]
