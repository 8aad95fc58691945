"""Child processes for tests: they say lines, wait for lines, and can be killed at a point."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parent.parent

PRELUDE = """
import os, signal, sys, threading
import tenantq

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def hear():
    return sys.stdin.readline().strip()

def stop_here(*words):
    say(*words)
    signal.pause()
"""

TRANSACTION_POINTS = """
from tenantq._sqlite import Database

begin, commit = Database.begin, Database.commit

def after_begin(self):
    begin(self)
    stop_here("at the point")

def before_commit(self):
    stop_here("at the point")

def after_commit(self):
    commit(self)
    stop_here("at the point")

STOPS = {
    "after begin": ("begin", after_begin),
    "before commit": ("commit", before_commit),
    "after commit": ("commit", after_commit),
}

def stop_at(point):
    if point in STOPS:
        setattr(Database, *STOPS[point])
"""
"""For a script in front of which it stands: `stop_at` lets the next transaction on a tenant's file stop there."""


class Child:
    """A Python process that runs a script; a context manager that leaves none behind."""

    def __init__(self, script: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "bridge")])},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout

    def heard(self) -> str:
        """Return the next line that the child says; empty when it has ended."""
        return self._stdout.readline().strip()

    def heard_all(self) -> list[str]:
        """Return all the whole lines that the child said until it ended."""
        return [line[:-1] for line in self._stdout.readlines() if line.endswith("\n")]

    def say(self, line: str = "") -> None:
        """Give the child a line."""
        self._stdin.write(line + "\n")
        self._stdin.flush()

    def kill(self) -> None:
        """End the child as a power cut would: SIGKILL."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Wait until the child ends by itself; return its exit status."""
        return self.process.wait(timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        self._stdin.close()
        self._stdout.close()
