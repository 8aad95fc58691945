"""`tenantq bridge run`, `readmit`: the forwarder, the deliverer and the maintenance of one host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tenantq_tools.cli._failures import PROBLEM, report
from tenantq_tools.cli._logs import show_log, with_log_level
from tenantq_tools.cli._metrics import serve_metrics, with_metrics
from tenantq_tools.cli._options import connect, open_store, with_json, with_postgres, with_store
from tenantq_tools.cli._output import note, print_json, printable
from tenantq_tools.cli._progress import progress
from tenantq_tools.cli._signals import on_signals
from tenantq_tools.cli._status import NO_SUBSCRIPTIONS

if TYPE_CHECKING:
    from tenantq_bridge import Deliverer, Forwarder, Maintenance, PostgresQueue

__all__ = ["readmit", "run"]


@click.command()
@click.option("--once", is_flag=True, help="Forward and deliver what waits now, and end.")
@click.option("--host", metavar="NAME", help="What this host owns tenants as.  [default: the machine's host name]")
@click.option(
    "--direct-postgres",
    "direct_dsn",
    envvar="TENANTQ_DIRECT_POSTGRES",
    show_envvar=True,
    metavar="DSN",
    help="The same database past a pooler, through which no index can be rebuilt.",
)
@click.option(
    "--pgmq",
    "routes",
    metavar="[PATTERN=]QUEUE",
    multiple=True,
    callback=lambda _ctx, _parameter, given: _routes(given),
    help="Send the events whose topics match, or all, to a queue of pgmq in the same Postgres too.",
)
@with_metrics
@with_log_level
@with_store()
@with_postgres()
@with_json
@click.pass_context
def run(
    ctx: click.Context,
    *,
    once: bool,
    direct_dsn: str | None,
    host: str | None,
    routes: dict[str, str],
    metrics_address: str | None,
    log_level: str,
    store_path: str,
    dsn: str,
    as_json: bool,
) -> None:
    """Forward events until SIGTERM or SIGINT, deliver what was sent to tenants, and look after the tables.

    It may be killed and started again at any time, and run twice: no event or message is lost or repeated.
    While Postgres is away it waits, and events wait in the tenants' files. With --once, the exit status is 1
    if a tenant's file failed, and 4 if Postgres is away.

    This host becomes the owner of the tenants in the store that no host owns. Where its name changes from
    one start to the next, as in a container, give it one with --host; two stores on one machine need two.

    \b
    Examples:
      tenantq bridge run
      tenantq bridge run --once --json
      tenantq bridge run --metrics 9464
      tenantq bridge run --pgmq 'billing.*=invoices' --pgmq '*=audit'
    """
    from tenantq_bridge import Deliverer, Forwarder, Maintenance, PgmqTarget  # noqa: PLC0415 - an extra

    show_log(log_level)
    with open_store(store_path) as store, connect(dsn) as queue:
        forwarder = Forwarder(store, PgmqTarget(queue, routes) if routes else queue)
        deliverer = Deliverer(store, queue, host=host)
        if once:
            for what, service in (("forwarding", forwarder), ("delivering", deliverer)):
                with progress(what) as advance:
                    while count := service.run_once():
                        advance(count)
                service.stop()
        else:
            maintenance = Maintenance(queue, direct_dsn=direct_dsn)
            _check_tables(queue, is_pgmq=bool(routes))
            if metrics_address is not None:
                url = serve_metrics(
                    metrics_address, lambda found: found.BridgeCollector(forwarder, deliverer, maintenance)
                )
                note(f"metrics: {url}")
            _run(forwarder, deliverer, maintenance)
    failures = deliverer.tenant_failures | forwarder.tenant_failures
    for failure in failures.values():
        report(failure)
    if as_json:
        failed = {tenant: failure.message for tenant, failure in failures.items()}
        print_json(
            {
                "forwarded": forwarder.forwarded,
                "delivered": deliverer.delivered,
                "failed": failed,
                "undeliverable": forwarder.undeliverable,
            }
        )
    else:
        click.echo(f"{forwarder.forwarded} events forwarded, {deliverer.delivered} messages delivered")
    if once and failures:
        ctx.exit(PROBLEM)


@click.command()
@click.argument("tenant")
@click.option(
    "--resend/--skip",
    "resend",
    default=None,
    help="Send the events that the file does not know to be forwarded, or pass them over.",
)
@with_store()
@with_postgres()
@with_json
@click.pass_context
def readmit(
    ctx: click.Context,
    *,
    tenant: str,
    resend: bool | None,
    store_path: str,
    dsn: str,
    as_json: bool,
) -> None:
    """Forward a tenant's events again that were held back, after you have looked at its file and backups.

    --resend may repeat events that are too old to be compared; --skip may lose some. The exit status is 1 if
    the tenant was not held back.

    \b
    Example:
      tenantq bridge readmit acme --resend
    """
    from tenantq_bridge import Forwarder  # noqa: PLC0415 - an extra

    if resend is None:
        raise click.UsageError("say what becomes of the events that wait: --resend or --skip", ctx)
    with open_store(store_path) as store, connect(dsn) as queue:
        was_held = Forwarder(store, queue).readmit(tenant, resend=resend)
    if as_json:
        print_json({"tenant": tenant, "readmitted": was_held})
    else:
        click.echo(f"{printable(tenant)}: {'readmitted' if was_held else 'it was not held back'}")
    if not was_held:
        ctx.exit(PROBLEM)


def _routes(given: Sequence[str]) -> dict[str, str]:
    """Return what `--pgmq` says: the queue of each pattern."""
    routes: dict[str, str] = {}
    for text in given:
        pattern, is_given, queue = text.rpartition("=")
        pattern = pattern if is_given else "*"
        if pattern in routes:
            raise click.BadParameter(f"the pattern {pattern!r} is given twice")
        routes[pattern] = queue
    return routes


def _check_tables(queue: PostgresQueue, *, is_pgmq: bool) -> None:
    """Tell at once of tables that are missing; a server that is away is waited for."""
    from tenantq_bridge import PostgresUnavailable  # noqa: PLC0415 - an extra

    try:
        if not queue.subscriptions() and not is_pgmq:
            note(NO_SUBSCRIPTIONS)
    except PostgresUnavailable as exc:
        report(exc)


def _run(forwarder: Forwarder, deliverer: Deliverer, maintenance: Maintenance) -> None:
    """Forward, deliver and maintain, each in a thread of its own, until a signal."""
    stopping = threading.Event()
    with on_signals(stopping.set), forwarder, deliverer, maintenance:
        note(f"forwarding the events of the store {forwarder.store.root}, as host {deliverer.host}")
        stopping.wait()
