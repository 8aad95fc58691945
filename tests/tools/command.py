"""Runs the command in this process or in one of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import tenantq
from tenantq_tools.cli import tenantq as command

ROOT = Path(__file__).resolve().parents[2]

NO_SETTINGS: dict[str, str | None] = {"TENANTQ_STORE": None, "TENANTQ_POSTGRES": None}


def run(
    *arguments: str,
    status: int = 0,
    input: str | bytes | None = None,  # noqa: A002 - click's name
    env: Mapping[str, str | None] | None = None,
) -> Result:
    """Run the command in this process and check its exit status."""
    result = CliRunner().invoke(command, arguments, input=input, env={**NO_SETTINGS, **(env or {})})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, f"{result.exit_code}\n{result.stdout}\n{result.stderr}"
    return result


def spawn(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    environment = {name: value for name, value in (env or os.environ).items() if name not in NO_SETTINGS}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in (".", "bridge", "tools"))
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tenantq_tools", *arguments],
        cwd=cwd,
        env=environment,
        text=True,
        **(pipes | options),
    )


def read_all(terminal: int) -> bytes:
    """Read what a process shows on a pseudo-terminal until it ends, and close it."""
    shown = b""
    with contextlib.suppress(OSError):  # which is how a terminal ends whose other side is closed
        while chunk := os.read(terminal, 4096):
            shown += chunk
    os.close(terminal)
    return shown


class StoreCommand:
    """The command on one store."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *arguments: str, **options: Any) -> Result:
        """Run a command."""
        return run("--store", str(self.path), *arguments, **options)

    def json(self, *arguments: str, **options: Any) -> Any:
        """Run a command with --json and return its one document."""
        (document,) = self.json_lines(*arguments, **options)
        return document

    def json_lines(self, *arguments: str, **options: Any) -> list[Any]:
        """Run a command with --json and return what its lines say."""
        result = run("--json", "--store", str(self.path), *arguments, **options)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def enqueue(self, tenant: str, queue: str, *payloads: object, **options: Any) -> list[int]:
        """Enqueue by the library."""
        with tenantq.open(self.path) as store:
            return [store.tenant(tenant).enqueue(queue, payload, **options) for payload in payloads]

    def claim(self, tenant: str, queue: str, limit: int = 1000, **options: Any) -> list[tenantq.Message[Any]]:
        """Claim by the library, and ack."""
        with tenantq.open(self.path) as store:
            messages = store.tenant(tenant).claim(queue, limit, **options)
            store.tenant(tenant).ack(*messages)
            return messages

    def kill(self, tenant: str, queue: str, error: str = "it failed") -> None:
        """Make dead letters of what is ready in a queue."""
        with tenantq.open(self.path) as store:
            chosen = store.tenant(tenant)
            for message in chosen.claim(queue, 1000):
                chosen.dead_letter(message, error=error)

    def file_of(self, tenant: str) -> Path:
        """Return where a tenant's file is."""
        with tenantq.open(self.path) as store:
            return store.tenant(tenant).path
