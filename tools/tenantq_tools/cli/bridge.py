"""`tenantq bridge`: the tables in Postgres, and the commands that lead events there and messages back."""

from __future__ import annotations

import click

from tenantq_tools.cli._health import health
from tenantq_tools.cli._options import connect, with_json, with_postgres
from tenantq_tools.cli._output import print_json
from tenantq_tools.cli._progress import progress
from tenantq_tools.cli._status import status
from tenantq_tools.cli.forwarding import readmit, run
from tenantq_tools.cli.owners import assign, forget, owners, send
from tenantq_tools.cli.shared import history, record, share, subscribe, unrecord, unshare, unsubscribe
from tenantq_tools.cli.undeliverable import undeliverable

__all__ = ["bridge"]


@click.group()
def bridge() -> None:
    """Lead events to queues in one shared Postgres, and messages from there to tenants.

    \b
    Example:
      export TENANTQ_POSTGRES=postgresql://app@db/shop TENANTQ_STORE=var/tenants
      tenantq bridge migrate
      tenantq bridge subscribe invoices 'billing.*'
      tenantq bridge run
    """


@bridge.command()
@with_postgres()
@with_json
def migrate(*, dsn: str, as_json: bool) -> None:
    """Make the tables in Postgres, or bring them to this version; again changes nothing.

    \b
    Example:
      tenantq bridge migrate --postgres postgresql://owner@db/shop
    """
    with connect(dsn) as queue, progress("migrating"):
        queue.migrate()
    if as_json:
        print_json({"migrated": True})
    else:
        click.echo("The tables in Postgres are of this version.")


for command in (
    subscribe,
    unsubscribe,
    share,
    unshare,
    record,
    unrecord,
    history,
    run,
    status,
    health,
    readmit,
    undeliverable,
    send,
    owners,
    assign,
    forget,
):
    bridge.add_command(command)
