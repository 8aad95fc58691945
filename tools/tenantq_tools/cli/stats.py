"""`tenantq stats`: what a tenant holds, queue by queue, or what all hold."""

from __future__ import annotations

import click
import msgspec

from tenantq import QueueStats, Store, TenantqError, TenantStats
from tenantq_tools.cli._failures import PROBLEM, report
from tenantq_tools.cli._options import open_store, with_json, with_store
from tenantq_tools.cli._output import note, print_json, print_table, printable
from tenantq_tools.cli._overview import Overview, numbers, print_header, print_row, tenants_and_strays
from tenantq_tools.cli._progress import progress

__all__ = ["stats"]

LOAD = ("utilisation", "utilisation_minute", "headroom", "operations_per_second", "capacity")
"""What is said of one tenant's file beside what it holds."""


class Totals(msgspec.Struct, kw_only=True):
    """What all tenants hold together."""

    count: int = 0
    ready: int = 0
    scheduled: int = 0
    claimed: int = 0
    dead: int = 0
    outbox: int = 0
    oldest_age: float | None = None
    file_bytes: int = 0
    wal_bytes: int = 0
    unreadable: int = 0
    """Tenants, and files beside theirs, that could not be read and are in no other number."""

    def add(self, row: Overview) -> None:
        """Add a tenant."""
        self.count += 1
        for name in ("ready", "scheduled", "claimed", "dead", "outbox", "file_bytes", "wal_bytes"):
            setattr(self, name, getattr(self, name) + getattr(row, name))
        if row.oldest_age is not None:
            self.oldest_age = max(row.oldest_age, self.oldest_age or 0.0)


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant, or a file beside theirs, that could not be read."""

    tenant: str | None
    path: str | None
    error: str
    """The type of the error."""
    message: str

    @classmethod
    def of(cls, tenant_id: str, error: TenantqError) -> Unreadable:
        """Take what an error says of a tenant."""
        return cls(tenant=tenant_id, path=error.path, error=type(error).__name__, message=error.message)


@click.command()
@click.argument("tenant", required=False)
@with_store()
@with_json
@click.pass_context
def stats(ctx: click.Context, *, tenant: str | None, store_path: str, as_json: bool) -> None:
    """Show what a tenant holds, queue by queue, or what all hold.

    Without TENANT: a line for each, and the totals.

    ready: claimable now. scheduled: later. claimed: under a lease. dead: dead letters. outbox: events that
    Postgres is not known to have. oldest_age: seconds that the oldest ready message has been claimable.
    headroom: how far the file is from having a writer at every moment, by all processes of this host.

    \b
    Examples:
      tenantq stats acme
      tenantq stats --json | jq .totals.dead
    """
    with open_store(store_path) as store:
        if tenant is not None:
            _print_tenant(store, tenant, as_json=as_json)
        elif not _print_all(store, as_json=as_json):
            ctx.exit(PROBLEM)


def _print_tenant(store: Store, tenant_id: str, *, as_json: bool) -> None:
    found = store.tenant(tenant_id, create=False).stats()
    row = Overview.of(found)
    if as_json:
        load = {name: getattr(found, name) for name in LOAD}
        print_json(
            {
                **msgspec.structs.asdict(row),
                **load,
                "max_depth": found.max_depth,
                "max_claimed": found.max_claimed,
                "rate": found.rate,
                "per": found.per,
                "weight": found.weight,
                "queues": found.queues,
                "warnings": found.warnings,
            }
        )
        return
    _warn(found)
    print_header()
    print_row(row)
    click.echo()
    capacity = "" if found.capacity is None else f", capacity at least {found.capacity:,.0f}/s"
    click.echo(
        f"headroom {found.headroom:.0%}: utilisation {found.utilisation:.0%} now, "
        f"{found.utilisation_minute:.0%} over a minute, {found.operations_per_second:,.0f} operations/s{capacity}"
    )
    limits = _limits(found)
    if found.weight != 1:
        limits.append(f"weight {found.weight:g}")
    if limits:
        click.echo(f"all queues together: {', '.join(limits)}")
    if found.queues:
        click.echo()
        print_table(
            ("READY", "SCHEDULED", "CLAIMED", "DEAD", "OLDEST_AGE", "MAX_DEPTH", "LIMITS", "PAUSED", "QUEUE"),
            [
                (
                    queue.ready,
                    queue.scheduled,
                    queue.claimed,
                    queue.dead,
                    None if queue.oldest_age is None else f"{queue.oldest_age:.1f}",
                    queue.max_depth,
                    ", ".join(_limits(queue)) or None,
                    "yes" if queue.is_paused else None,
                    queue.queue,
                )
                for queue in found.queues
            ],
        )


def _limits(found: TenantStats | QueueStats) -> list[str]:
    """Return what claims obey, in words."""
    limits = []
    if found.max_claimed is not None:
        limits.append(f"{found.max_claimed} at once")
    if found.rate is not None:
        limits.append(f"{found.rate} in {found.per:g} s")
    return limits


def _warn(found: TenantStats) -> None:
    for warning in found.warnings:
        note(f"tenantq: warning: {printable(found.tenant)}: {warning}")


def _print_all(store: Store, *, as_json: bool) -> bool:
    """Print all tenants and their totals; False if some could not be read."""
    totals = Totals()
    rows: list[Overview] = []
    unreadable: list[Unreadable] = []
    ids, strays = tenants_and_strays(store)
    if not as_json:
        print_header()
    with progress("reading tenants", len(ids)) as advance:
        for tenant_id in ids:
            try:
                found = store.tenant(tenant_id).stats()
            except TenantqError as exc:
                report(exc)
                unreadable.append(Unreadable.of(tenant_id, exc))
            else:
                _warn(found)
                row = Overview.of(found)
                totals.add(row)
                rows.append(row) if as_json else print_row(row)
            advance(1)
    for stray in strays:
        message = f"{stray} is no tenant's file, or cannot be read"
        note(f"tenantq: error: {printable(message)}")
        unreadable.append(Unreadable(tenant=None, path=str(stray), error="NotATenantFile", message=message))
    totals.unreadable = len(unreadable)
    if as_json:
        print_json({"totals": totals, "tenants": rows, "unreadable": unreadable})
    else:
        click.echo(f"{numbers(totals)}  total of {totals.count} tenants")
    return not totals.unreadable
