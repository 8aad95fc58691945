"""The command `tenantq`: its groups, each in a file of its own, imported when it is called."""

from __future__ import annotations

import importlib
import keyword

import click
import rich  # noqa: F401 - one clear answer at the start where the extra is missing, not one in the middle

from tenantq import __version__
from tenantq_tools.cli._failures import STATUSES, Failing

__all__ = ["COMMANDS", "tenantq"]

COMMANDS = {
    "demo": "demo",
    "enqueue": "enqueue",
    "tenants": "tenants",
    "stats": "stats",
    "peek": "peek",
    "dead": "dead",
    "pause": "queues",
    "resume": "queues",
    "limit": "queues",
    "reap": "queues",
    "purge": "queues",
    "periodic": "periodic",
    "path": "tenants",
    "create": "tenants",
    "delete": "delete",
    "export": "moving",
    "import": "moving",
    "backup": "backup",
    "restore": "backup",
    "verify": "verify",
    "salvage": "salvage",
    "litestream": "litestream",
    "migrate": "migrate",
    "worker": "worker",
    "bridge": "bridge",
}
"""Each command, in the order of `--help`, and the module here that has it under the same name."""

EPILOG = "\b\nExit statuses:\n" + "\n".join(f"  {status}  {meaning}" for status, meaning in STATUSES.items())


class Commands(Failing):
    """The commands of COMMANDS, of which only the one that is called is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command; None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{COMMANDS[cmd_name]}")
        command = getattr(module, f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tenantq", message="%(prog)s %(version)s")
@click.option(
    "--store",
    envvar="TENANTQ_STORE",
    show_envvar=True,
    metavar="DIR",
    help="The directory of the tenants.",
)
@click.option(
    "--postgres",
    envvar="TENANTQ_POSTGRES",
    show_envvar=True,
    metavar="DSN",
    help="The shared Postgres. Prefer the variable: others can read a command's arguments.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a document, or a line for each item.")
def tenantq(store: str | None, postgres: str | None, as_json: bool) -> None:
    """Durable queues, one SQLite file for each tenant, bridged to one shared Postgres.

    --store, --postgres and --json may stand here or behind the command.

    \b
    Example:
      export TENANTQ_STORE=var/tenants
      tenantq enqueue acme report.build '{"month": "2026-11"}'
      tenantq stats acme
    """
