"""`tenantq worker`: runs the handlers of an application until it is told to stop."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tenantq import Store, TenantqError, Worker
from tenantq_tools.cli._logs import show_log, with_log_level
from tenantq_tools.cli._metrics import serve_metrics, with_metrics
from tenantq_tools.cli._options import connect, open_store, with_json, with_postgres, with_store
from tenantq_tools.cli._output import note, print_json

if TYPE_CHECKING:
    from tenantq_bridge import PostgresQueue

__all__ = ["load", "worker"]


@click.command()
@click.option("--app", required=True, metavar="MODULE:NAME", help="The worker, or the function that makes it.")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Threads, whatever the app says.")
@click.option(
    "--max-concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads that one tenant may have at once.  [default: all but one]",
)
@click.option(
    "--drain-timeout", type=click.FloatRange(min=0), metavar="S", help="Seconds that handlers get to end."
)
@with_metrics
@click.option(
    "--migrate/--no-migrate",
    "migrates",
    default=True,
    help="Migrate files of an older schema, or leave them to workers of the older version.  [default: migrate]",
)
@with_log_level
@with_store(required=False)
@with_postgres(required=False)
@with_json
def worker(
    *,
    app: str,
    concurrency: int | None,
    max_concurrency: int | None,
    drain_timeout: float | None,
    metrics_address: str | None,
    migrates: bool,
    log_level: str,
    store_path: str | None,
    dsn: str | None,
    as_json: bool,
) -> None:
    """Run an application's handlers until it is stopped.

    SIGTERM or SIGINT stops it. MODULE is imported with the current directory on the path. NAME in it is a
    tenantq.Worker, which has a store of its own; or a function of (store, bridge) that returns one, given the
    store of --store and, with --postgres, a tenantq_bridge.PostgresQueue, else None.

    At the first signal nothing more is claimed, what was claimed and not begun is given back, and the running
    handlers end; at the second it ends at once, and what was claimed is claimable when its leases end.

    \b
    Examples:
      tenantq worker --app shop.tasks:worker
      tenantq worker --app shop.tasks:make_worker --store var/tenants --concurrency 8
    """
    show_log(log_level)
    loaded = load(app)
    with contextlib.ExitStack() as stack:
        if isinstance(loaded, Worker):
            found = loaded
            stack.callback(found.store.close)
        else:
            if store_path is None:
                raise click.UsageError(f"{app} makes a worker for a store: use --store DIR, or set TENANTQ_STORE")
            store = stack.enter_context(open_store(store_path, migrate=migrates))
            bridge = None if dsn is None else stack.enter_context(connect(dsn))
            found = _made(app, loaded, store, bridge)
        if concurrency is not None:
            found.concurrency = concurrency
        if max_concurrency is not None:
            found.max_concurrency = max_concurrency
        if drain_timeout is not None:
            found.drain_timeout = drain_timeout
        if metrics_address is not None:
            url = serve_metrics(metrics_address, lambda metrics: metrics.WorkerCollector(found))
            note(f"metrics: {url}")
        share = "" if found.max_concurrency is None else f", {found.max_concurrency} at most for one tenant,"
        note(f"worker {found.name}: {found.concurrency} threads{share} on the store {found.store.root}")
        found.run()
    counts = found.counts
    if as_json:
        print_json({"worker": found.name, "counts": counts})
    else:
        done = ", ".join(f"{count} {name}" for name, count in counts.items() if "." not in name)
        click.echo(f"drained: {done or 'nothing was handled'}")


def _made(
    app: str,
    make: Callable[..., object],
    store: Store,
    bridge: PostgresQueue | None,
) -> Worker:
    try:
        made = make(store, bridge)
    except TenantqError:
        raise
    except Exception as exc:
        traceback.print_exception(exc)
        raise click.UsageError(f"{app} made no worker: {type(exc).__name__}: {exc}") from exc
    if not isinstance(made, Worker):
        raise click.UsageError(f"{app} returned {made!r}, not a tenantq.Worker")
    return made


def load(app: str) -> Worker | Callable[..., object]:
    """Import what `module:name` names. Raises UsageError with what is wrong."""
    module_name, _, name = app.partition(":")
    if not module_name or not name:
        raise click.UsageError(f"--app {app} is not of the form module:name, such as shop.tasks:worker")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
            raise _broken(module_name, exc) from exc
        raise click.UsageError(
            f"there is no module {exc.name}, neither in {Path.cwd()} nor on the path of Python",
        ) from exc
    except Exception as exc:
        raise _broken(module_name, exc) from exc
    for part in name.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"the module {module_name} has no {name}")
        found = getattr(found, part)
    if not isinstance(found, Worker) and not callable(found):
        raise click.UsageError(f"{app} is neither a tenantq.Worker nor a function that returns one")
    return found


def _broken(module_name: str, exc: Exception) -> click.UsageError:
    traceback.print_exception(exc)
    return click.UsageError(f"the module {module_name} cannot be imported: {type(exc).__name__}: {exc}")
