"""A real PgBouncer in front of a test's Postgres, in transaction mode."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from urllib.parse import quote

import psycopg

from tests.postgres import PostgresServer

POOL_SIZE = 2
"""Server sessions for all clients: fewer than a test has connections, so that transactions change them."""


def find_pgbouncer() -> str | None:
    """Return the program's path; None where it is not installed, or there is no user to run it as."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if program is None or (os.geteuid() == 0 and _unprivileged() is None):
        return None
    return program


class PgBouncer:
    """One PgBouncer on a loopback port, for every database of a server."""

    def __init__(self, program: str, server: PostgresServer) -> None:
        self._program = program
        self._user = _unprivileged() if os.geteuid() == 0 else None
        self._directory = server.directory / "pooler"
        self._directory.mkdir()
        if self._user is not None:
            shutil.chown(self._directory, self._user)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._settings = self._directory / "pgbouncer.ini"
        self._settings.write_text(
            f"""
            [databases]
            * = user=postgres host={server.directory}
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {self.port}
            unix_socket_dir =
            auth_type = any
            pool_mode = transaction
            default_pool_size = {POOL_SIZE}
            max_client_conn = 100
            server_login_retry = 1
            """.replace("            ", "")
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, str(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                user=self._user,
                group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
                extra_groups=None if self._user is None else [],
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.dsn("postgres")).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self._directory / "log").read_text()
                assert time.monotonic() < deadline
            else:
                return

    def stop(self) -> None:
        """End it at once, with every connection."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it and remove its files."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def dsn(self, database: str) -> str:
        """Return a URL for a database behind it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database)}"

    def behind(self, dsn: str) -> str:
        """Return a URL that leads to the same database by way of the pooler."""
        return self.dsn(str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]))


def _unprivileged() -> str | None:
    """Name a user to run as: PgBouncer refuses root."""
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    return None
