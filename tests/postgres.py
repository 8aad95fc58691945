"""A real Postgres for tests: the embedded one, or the system's, with a fresh database for each test in no time."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from bench._programs import PostgresPrograms, embedded_programs, system_programs
from tenantq_bridge import PostgresQueue

FAST = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=64MB",
    "max_connections=200",
)
"""Tests kill processes, never the machine: nothing needs to reach a disk."""


class PostgresServer:
    """One server on a socket in a directory of its own, run by a user that Postgres accepts."""

    def __init__(self, programs: PostgresPrograms, *, standby_of: Path | None = None) -> None:
        self._programs = programs
        user = programs.user
        self.directory = Path(tempfile.mkdtemp(prefix="tq-pg-", dir="/tmp"))
        self.directory.chmod(0o755)
        self._data = self.directory / "data"
        if user is not None:
            shutil.chown(self.directory, user)
        if standby_of is None:
            self._programs.run(
                "initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync", "-D", str(self._data)
            )
        else:
            self._copy(standby_of)
        self._template: str | None = None
        self.start()

    def stop_and_copy(self) -> PostgresServer:
        """Stop this server, and return a standby that has all that it had, and gets nothing more."""
        self.stop("fast")
        return PostgresServer(self._programs, standby_of=self._data)

    def promote(self) -> None:
        """Make a standby the primary."""
        self._programs.run("pg_ctl", "-w", "-D", str(self._data), "promote")

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        options = " ".join(f"-c {option}" for option in FAST)
        options += f" -c listen_addresses= -c unix_socket_directories={self.directory}"
        log = self.directory / "log"
        arguments = ("-w", "-t", "60", "-l", str(log), "-o", options, "-D", str(self._data))
        self._programs.run("pg_ctl", *arguments, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: `fast` ends every session with a word, `immediate` without."""
        self._programs.run("pg_ctl", "-w", "-m", mode, "-D", str(self._data), "stop")

    def dsn(self, database: str = "postgres") -> str:
        """Return a URL for a database of this server."""
        return f"postgresql://postgres@/{database}?host={quote(str(self.directory), safe='')}"

    def execute(self, statement: sql.Composed | bytes, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement as the superuser."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def create_database(self, *, migrated: bool) -> str:
        """Make a database, empty or with the queue's tables, and return its URL."""
        if migrated and self._template is None:
            self._template = "template_tenantq"
            self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self._template)))
            with PostgresQueue(self.dsn(self._template)) as queue:
                queue.migrate()
        name = f"test_{uuid.uuid4().hex}"
        template = self._template if migrated and self._template else "template0"
        self.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            ),
        )
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Drop a database, whoever is connected to it."""
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(str(name))))

    def close(self) -> None:
        """Stop the server and remove its files."""
        with contextlib.suppress(RuntimeError):  # it is stopped already
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _copy(self, data: Path) -> None:
        shutil.copytree(data, self._data)
        (self._data / "standby.signal").touch()
        if self._programs.user is not None:
            for path in (self._data, *self._data.rglob("*")):
                shutil.chown(path, self._programs.user)


def embedded_server() -> PostgresServer:
    """Start the embedded Postgres."""
    return PostgresServer(embedded_programs())


def system_server() -> PostgresServer | None:
    """Start the system's Postgres; None where it has none."""
    programs = system_programs()
    return None if programs is None else PostgresServer(programs)


@contextlib.contextmanager
def fresh_database(server: PostgresServer, *, migrated: bool) -> Iterator[str]:
    """Give a database for one test."""
    dsn = server.create_database(migrated=migrated)
    try:
        yield dsn
    finally:
        server.drop_database(dsn)
