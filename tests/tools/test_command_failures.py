"""How commands fail: the statuses, a missing extra, a closed pipe; and what works without a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import tenantq
from tenantq import errors
from tenantq_tools.cli import COMMANDS
from tenantq_tools.cli import tenantq as command
from tenantq_tools.cli._failures import POSTGRES, PROBLEM, STATUSES, STORE, USAGE, Failing, status_of
from tests.tools.command import ROOT, StoreCommand, run, spawn

STORE_ERRORS = {"StoreNotFound", "StoreClosed", "UnsupportedSQLite"}
USAGE_ERRORS = {"CronMissing", "DeclarationError"}


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_of_the_library_has_its_status(name: str) -> None:
    kind = getattr(errors, name)
    if issubclass(kind, errors.TenantFileError) or name in STORE_ERRORS:
        expected = STORE
    elif issubclass(kind, errors.InvalidArgument | errors.PayloadError) or name in USAGE_ERRORS:
        expected = USAGE
    else:
        expected = PROBLEM
    assert status_of(kind()) == expected
    assert expected in STATUSES


def test_an_error_of_the_bridge_is_one_of_postgres() -> None:
    bridge_errors = pytest.importorskip("tenantq_bridge.errors")
    assert status_of(bridge_errors.PostgresUnavailable()) == POSTGRES
    assert status_of(bridge_errors.SchemaMissing()) == POSTGRES
    assert status_of(bridge_errors.TenantQuarantined()) == PROBLEM


def test_the_version_is_the_librarys() -> None:
    assert run("--version").stdout == f"tenantq {tenantq.__version__}\n"


def test_the_statuses_are_in_the_help() -> None:
    shown = run("--help").stdout
    for status, meaning in STATUSES.items():
        assert f"  {status}  {meaning}" in shown


def test_unknown_commands_and_options_are_wrong_usage() -> None:
    assert "No such command" in run("enqueu", status=2).stderr
    assert "No such option" in run("tenants", "--lnog", status=2).stderr


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_packages_the_command_says_what_to_install(missing: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from tenantq_tools.__main__ import main; main()"
    done = python("-c", script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tenantq: error: {missing} is missing: pip install 'tenantq[cli]'\n"


def test_without_the_bridges_packages_only_the_bridge_fails(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1)
    start = "import sys; sys.modules['psycopg'] = None; from tenantq_tools.__main__ import main; main()"
    done = python("-c", start, "bridge", "migrate", "--postgres", "postgresql:///none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tenantq: error: psycopg is missing\nhint: pip install 'tenantq[bridge]'\n"
    assert python("-c", start, "tenants", "--store", str(tq.path)).stdout == "acme\n"


def test_a_reader_that_goes_away_is_no_crash(tq: StoreCommand) -> None:
    with tenantq.open(tq.path) as store:
        for number in range(300):
            store.tenant(f"{number}-{'x' * 120}").enqueue("jobs", 1)
    reading, writing = os.pipe()
    process = spawn("tenants", "--store", str(tq.path), stdout=writing)
    os.close(writing)
    os.close(reading)
    _, err = process.communicate()
    assert "Traceback" not in err
    assert process.returncode == 1


def test_ids_that_the_terminal_cannot_spell_are_spelled_out(tq: StoreCommand) -> None:
    tq.enqueue("Zoë 🦆", "jobs", 1)
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONPATH": python_path()}
    done = subprocess.run(
        [sys.executable, "-m", "tenantq_tools", "tenants", "--store", str(tq.path)],
        env=environment,
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"Zo\xeb \\U0001f986\n"


def test_interrupted_ends_without_a_trace() -> None:
    @click.command()
    def wait() -> None:
        signal.raise_signal(signal.SIGINT)

    group = Failing(commands={"wait": wait})
    from click.testing import CliRunner  # noqa: PLC0415

    result = CliRunner().invoke(group, ["wait"])
    assert (result.exit_code, result.stderr) == (130, "tenantq: interrupted\n")


def test_every_command_is_where_the_registry_says_and_has_an_example() -> None:
    context = click.Context(command)
    assert command.list_commands(context) == list(COMMANDS)
    for path, found in leaves(command, context):
        assert found.help is not None, path
        assert "Example" in found.help, path
        assert f"tenantq {path}" in found.help, path
        for parameter in found.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{path} {parameter.name}"


def leaves(group: click.Group, context: click.Context, prefix: str = "") -> list[tuple[str, click.Command]]:
    """Return all commands that do something, each with its words."""
    found: list[tuple[str, click.Command]] = []
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None
        path = f"{prefix}{name}"
        found += leaves(one, context, f"{path} ") if isinstance(one, click.Group) else [(path, one)]
    return found


def python_path() -> str:
    return os.pathsep.join(str(ROOT / part) for part in (Path(), Path("bridge"), Path("tools")))


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        check=False,
    )
