"""The program `litestream`: where it is, whether it is new enough, and one run of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from tenantq_tools.litestream.errors import LitestreamFailed, LitestreamMissing, LitestreamTooOld

__all__ = ["MINIMUM", "Binary", "find_binary"]

MINIMUM = (0, 5)
"""The first version with LTX files and a control socket that registers files."""

VERSION_TIMEOUT = 20.0
"""Seconds until a program that does not say its version is none of ours."""


def find_binary(path: str | None = None) -> Binary:
    """Return the program at `path`, or the one on the PATH, or that of the extra beside this Python.

    Raises LitestreamMissing, LitestreamTooOld, LitestreamFailed.
    """
    scripts = sysconfig.get_path("scripts")
    found = shutil.which(path) if path else shutil.which("litestream") or shutil.which("litestream", path=scripts)
    if found is None:
        raise LitestreamMissing(f"there is no program {path}" if path else "", path=path)
    binary = Binary(Path(found).absolute())
    binary.check_version()
    return binary


class Binary:
    """A Litestream of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = ""

    def check_version(self) -> None:
        """Raise LitestreamTooOld before 0.5; a build of one's own has no number and is taken."""
        done = self.run("version", timeout=VERSION_TIMEOUT)
        self.version = done.stdout.strip()
        if done.returncode != 0 or not self.version:
            raise LitestreamFailed(
                f"{self.path} is no Litestream: {_last_line(done.stderr) or 'it says no version'}",
                path=str(self.path),
            )
        number = re.match(r"v?(\d+)\.(\d+)", self.version)
        if number is not None and (int(number[1]), int(number[2])) < MINIMUM:
            raise LitestreamTooOld(
                f"{self.path} is Litestream {self.version}, older than 0.5", path=str(self.path)
            )

    def run(self, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run it to its end. Raises LitestreamFailed when it takes longer, or cannot be run."""
        try:
            return subprocess.run(  # noqa: S603 - the program that was found, its arguments apart
                [str(self.path), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="backslashreplace",
                env=environment(),
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise LitestreamFailed(
                f"litestream {arguments[0]} did not end within {timeout:g} s",
                hint="check that the replica can be reached",
            ) from exc
        except OSError as exc:
            raise LitestreamFailed(f"{self.path} cannot be run: {exc}", path=str(self.path)) from exc


def environment() -> dict[str, str]:
    """Return the environment for Litestream: with AWS_CA_BUNDLE in it every request to an S3 fails (0.5.17).

    SSL_CERT_FILE says the same to a program written in Go.
    """
    given = dict(os.environ)
    bundle = given.pop("AWS_CA_BUNDLE", "")
    if bundle:
        given.setdefault("SSL_CERT_FILE", bundle)
    return given


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a run that failed said was wrong."""
    return _last_line(done.stderr).removeprefix("Error: ") or f"it ended with {done.returncode}"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
