"""`tenantq delete`: a tenant less, and on demand its copies and what Postgres keeps of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec

from tenantq import Store, Tenant, TenantDeleted, TenantqError
from tenantq_tools.cli._options import confirm, connect, open_store, with_json, with_postgres, with_store, with_yes
from tenantq_tools.cli._output import print_json, printable

__all__ = ["delete"]


@click.command()
@click.argument("tenant")
@click.option(
    "--events",
    type=click.Choice(["refuse", "forward", "drop"]),
    default="refuse",
    show_default=True,
    help="What becomes of events that Postgres has not got.",
)
@click.option("--wait", type=float, default=30.0, show_default=True, help="Seconds that --events forward waits.")
@click.option(
    "--backups",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="A directory of `tenantq backup --all`: the tenant's copy goes too. May be repeated.",
)
@click.option(
    "--replica",
    "has_replica",
    is_flag=True,
    help="What its Litestream replica (a directory, an S3) has goes too.",
)
@click.option(
    "--forget",
    is_flag=True,
    help="Remove its owner, deliveries and forwarded events in Postgres too.",
)
@with_yes
@with_postgres(required=False)
@with_store()
@with_json
@click.pass_context
def delete(
    ctx: click.Context,
    *,
    tenant: str,
    events: str,
    wait: float,
    backups: tuple[Path, ...],
    has_replica: bool,
    forget: bool,
    yes: bool,
    dsn: str | None,
    store_path: str,
    as_json: bool,
) -> None:
    """Delete a tenant and all that is in its file, and say what that was.

    Its messages, dead letters and events, and what the application keeps there. A tombstone stays: no process
    makes the tenant again by a late call, but `tenantq create` does. One that was killed is finished when it is
    given again. With --events forward and a Postgres its events are forwarded here; without one a running
    forwarder is waited for. --forget is for a tenant whose backups are gone too: the events of one that is
    restored later would be sent again. What remains in Postgres, such as messages in shared queues, is reported.

    \b
    Examples:
      tenantq backup acme acme-last.db && tenantq delete acme --yes
      tenantq delete acme --events forward --backups /var/backups/tenants --forget --json
    """
    if forget and not dsn:
        raise click.UsageError("--forget needs a Postgres: set TENANTQ_POSTGRES, or use --postgres DSN", ctx)
    with open_store(store_path) as store:
        replica = _replica(store, tenant) if has_replica else None
        try:
            chosen = store.tenant(tenant, create=False)
        except TenantDeleted:
            if not (backups or has_replica or forget):
                raise
            confirm(f"Delete what is left of tenant {printable(tenant)}?", yes=yes)
        else:
            if not yes:
                confirm(f"Delete tenant {printable(tenant)} and {_contents(chosen)}?", yes=yes)
        with _forwarding(store, dsn if events == "forward" else None) as forward:
            deletion = store.delete(
                tenant, events=events, wait=wait, backups=backups, forward=forward, replica=replica
            )
    document = msgspec.to_builtins(deletion)
    if forget and dsn:
        with connect(dsn) as queue:
            queue.erase_tenant(tenant)
            document["postgres"] = msgspec.to_builtins(queue.traces(tenant))
    if as_json:
        print_json(document)
        return
    click.echo(f"{printable(tenant)}: deleted")
    for file in deletion.files:
        click.echo(f"  {printable(file.path)}, {file.bytes} bytes")
    for url in deletion.replicas:
        click.echo(f"  {printable(url)}")
    remains = {name: count for name, count in document.get("postgres", {}).items() if count}
    if remains:
        shown = ", ".join(f"{count} {name}" for name, count in remains.items())
        click.echo(f"  in Postgres there remain: {shown}")


@contextlib.contextmanager
def _forwarding(store: Store, dsn: str | None) -> Iterator[Callable[[], object] | None]:
    if dsn is None:
        yield None
        return
    from tenantq_bridge import Forwarder  # noqa: PLC0415 - an extra

    with connect(dsn) as queue:
        forwarder = Forwarder(store, queue)
        try:
            yield forwarder.run_once
        finally:
            forwarder.stop()


def _replica(store: Store, tenant: str) -> Callable[[str], list[str]]:
    from tenantq_tools.litestream import Settings  # noqa: PLC0415
    from tenantq_tools.litestream.removing import remover  # noqa: PLC0415

    return remover(store, Settings.load(store.root), tenant)


def _contents(tenant: Tenant) -> str:
    try:
        held = tenant.stats()
    except TenantqError as exc:
        return f"its file, which cannot be read ({printable(exc.message)})"
    messages = held.ready + held.scheduled + held.claimed
    return f"its {messages} messages, {held.dead} dead letters and {held.outbox} events not forwarded"
