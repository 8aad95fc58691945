"""The only file that knows the driver: connections, transactions, notifications, and its errors as ours.

The pool is our own, as three things matter here that a general one does not give: an outage is an error at
once with the server's own words, not a timeout in a queue for connections; an idle pool has no threads; and a
connection that died while it lay idle is found by looking at its socket, without a round trip.

What is run again after a failure, and what is not: a statement that Postgres says it did not do (shutdown,
standby, deadlock, serialization) is; one whose connection was lost after it was sent may have been done, and
is run again only where twice is the same as once.

Connections are in autocommit mode and prepare nothing, so that a pooler in transaction mode may stand between.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg import conninfo, rows, sql

from tenantq.errors import InvalidArgument
from tenantq.sqlfile import load_statements
from tenantq_bridge.errors import (
    MissingRights,
    PoolerBetween,
    PostgresBusy,
    PostgresError,
    PostgresReadOnly,
    PostgresRefused,
    PostgresTimeout,
    PostgresUnavailable,
    SchemaMissing,
    SessionRefused,
)

__all__ = ["Database", "ForeignSession", "Notifications", "OwnSession", "Session", "check_dsn"]

Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]

TRIES = 3
"""Of a call that may be run again: a restart can leave more than one dead connection behind."""

ANSWER_TIMEOUT = 5.0
"""Seconds that the listening session has for an answer."""
CANCEL_TIMEOUT = 5.0

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,47}")
_DEFAULTS = {
    # A server that is gone without a word (power, network) is noticed in seconds and not in hours.
    "connect_timeout": "5",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    # After a failover the old primary may still answer, as a standby.
    "target_session_attrs": "read-write",
    "application_name": "tenantq",
}
_NOT_DONE = frozenset({"57P01", "57P03", "25006", "40001", "40P01"})
"""Shutting down, starting up, read-only, serialization failure, deadlock: Postgres did not do it."""

_BY_CLASS: dict[str, type[PostgresError]] = {
    "08": PostgresUnavailable,
    "22": PostgresRefused,
    "23": PostgresRefused,
    "40": PostgresBusy,
    "54": PostgresRefused,
    "57": PostgresUnavailable,
}
_BY_STATE: dict[str, type[PostgresError]] = {
    "25006": PostgresReadOnly,
    "3F000": SchemaMissing,
    "42501": MissingRights,
    "42883": SchemaMissing,
    "42P01": SchemaMissing,
    "53300": PostgresUnavailable,
    "55P03": PostgresBusy,
    "57014": PostgresTimeout,
}

_CLIENT_SETTINGS = b"SELECT name, setting FROM pg_settings WHERE source = 'client' AND name = ANY (%s)"

_inherited: list[Connection] = []
"""Connections of a parent process: never used here, and never closed, which would end the parent's session."""


class Session:
    """One connection, in a transaction or for one statement."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def is_alive(self) -> bool:
        """Whether the server has not ended the session, as far as its socket tells; costs no round trip."""
        return _alive(self._connection)

    def run(self, statement: bytes, params: Mapping[str, Any] | None = None) -> list[Row]:
        """Run a statement and return its rows, if it has any."""
        cursor = self._connection.execute(statement, params)
        return cursor.fetchall() if cursor.description else []

    def run_binary(self, statement: bytes, params: Mapping[str, Any]) -> list[Row]:
        """Run a query whose rows come in the binary format: cheaper for times, numbers and bytes."""
        return self._connection.execute(statement, params, binary=True).fetchall()

    def copy(self, statement: bytes, data: bytes) -> None:
        """Copy rows in, which are in the format that the statement names."""
        with self._connection.cursor().copy(statement) as copy:
            copy.write(data)


class OwnSession(Session):
    """A connection outside of the pool and of any transaction, whose settings hold until it ends."""

    def run(self, statement: bytes, params: Mapping[str, Any] | None = None) -> list[Row]:
        """Run a statement, which commits by itself, and return its rows, if it has any."""
        try:
            return super().run(statement, params)
        except psycopg.Error as exc:
            raise _translated(exc) from exc

    def run_on(self, statement: bytes, **names: tuple[str, ...]) -> None:
        """Run a statement that holds names, each given as its parts: `{index}` for index=(schema, name)."""
        named = {name: sql.Identifier(*parts) for name, parts in names.items()}
        self.run(sql.SQL(statement.decode()).format(**named).as_bytes(None))

    def cancel(self) -> None:
        """End the statement that runs, from another thread; it raises PostgresTimeout there."""
        with contextlib.suppress(psycopg.Error):  # it has ended, or will with its connection
            self._connection.cancel_safe(timeout=CANCEL_TIMEOUT)


class ForeignSession:
    """A transaction on the caller's own connection: the caller commits it, and gets the driver's own errors."""

    def __init__(self, connection: object) -> None:
        if not isinstance(connection, psycopg.Connection):
            raise InvalidArgument(
                f"{type(connection).__name__} is not a connection of psycopg 3",
                hint="of SQLAlchemy pass `session.connection().connection.driver_connection`",
            )
        idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if connection.autocommit and idle:
            raise InvalidArgument(
                "the connection commits each statement by itself",
                hint="begin a transaction: `with connection.transaction():`",
            )
        self._connection: psycopg.Connection[Any] = connection

    def run(self, statement: bytes, params: Mapping[str, Any]) -> list[Row]:
        """Run a query and return its rows, whatever the connection makes of rows and placeholders."""
        with psycopg.Cursor(self._connection, row_factory=rows.tuple_row) as cursor:
            return cursor.execute(statement, params).fetchall()


class Database:
    """A bounded pool of connections to one database; connects at the first call, again after an outage."""

    def __init__(self, dsn: str, *, schema: str, pool_size: int, acquire_timeout: float) -> None:
        if not _SCHEMA.fullmatch(schema):
            raise InvalidArgument(
                f"schema {schema!r} is not a name",
                hint="up to 48 of a-z, 0-9 and _, not beginning with a digit or pg_",
            )
        if pool_size < 1:
            raise InvalidArgument(f"pool_size {pool_size!r} is not 1 or more")
        self._connect_options = _connect_options(dsn)
        self.schema = schema
        self.losses = 0
        """How often a connection was found dead: after a loss, what Postgres acknowledged may be gone too."""
        self._pool_size = pool_size
        self._acquire_timeout = acquire_timeout
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._free = threading.BoundedSemaphore(self._pool_size)
        self._idle: list[Connection] = []
        self._closed = False

    def statements(self, file: str) -> dict[str, bytes]:
        """Return a file's statements by name, in this schema."""
        schema = sql.Identifier(self.schema)
        return {
            name: sql.SQL(text).format(schema=schema).as_bytes(None)
            for name, text in load_statements("tenantq_bridge", file).items()
        }

    def run(
        self,
        statement: bytes,
        params: Mapping[str, Any] | None = None,
        *,
        binary: bool = False,
        repeatable: bool = False,
    ) -> list[Row]:
        """Run one statement, which commits by itself. `repeatable`: to do it twice is to do it once."""
        for attempt in range(1, TRIES + 1):
            try:
                with self._connection() as connection:
                    session = Session(connection)
                    if binary:
                        return session.run_binary(statement, params or {})
                    return session.run(statement, params)
            except psycopg.Error as exc:
                again = exc.sqlstate in _NOT_DONE or (repeatable and _lost(exc))
                if attempt == TRIES or not again:
                    raise _translated(exc) from exc
        raise AssertionError("the last try returns or raises")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """Run statements in one transaction, which commits at the end; never run again by itself."""
        try:
            with self._connection() as connection, connection.transaction():
                yield Session(connection)
        except psycopg.Error as exc:
            raise _translated(exc) from exc

    def notifications(self, channel: str) -> Notifications:
        """Listen on a channel, on a connection of its own outside of the pool."""
        return Notifications(self._connect(), channel)

    @contextlib.contextmanager
    def session(self, settings: Mapping[str, str], *, dsn: str | None = None) -> Iterator[OwnSession]:
        """Give a session of its own with these settings, for what no transaction and no pooler may hold.

        dsn: another way to the same database. Raises SessionRefused where the settings do not arrive: what
        stands between shares its sessions, and a setting or a lock would be left to somebody else.
        """
        options = dict(self._connect_options if dsn is None else _connect_options(dsn))
        given = [options["options"]] if "options" in options else []
        # At the start, and not by SET: a pooler refuses it or drops it, and either shows.
        options["options"] = " ".join([*given, *(f"-c {name}={value}" for name, value in settings.items())])
        try:
            connection = psycopg.connect(**options, autocommit=True, prepare_threshold=None)
        except psycopg.Error as exc:
            if "unsupported startup parameter" in _text(exc):
                raise SessionRefused(_text(exc)) from exc
            raise _cannot_connect(exc) from exc
        with contextlib.closing(connection):
            try:
                arrived = dict(connection.execute(_CLIENT_SETTINGS, [list(settings)]).fetchall())
            except psycopg.Error as exc:
                raise _translated(exc) from exc
            if arrived != settings:
                raise SessionRefused("the session's settings were not passed on")
            yield OwnSession(connection)

    def close(self) -> None:
        """Close the idle connections, and each that is in use when it comes back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        if self._pid != os.getpid():
            _inherited.extend(self._idle)
            self._begin()
        if self._closed:
            raise PostgresError("this queue is closed", hint="open another PostgresQueue")
        free, idle = self._free, self._idle
        if not free.acquire(timeout=self._acquire_timeout):
            raise PostgresBusy(
                f"all {self._pool_size} connections of the pool were in use for {self._acquire_timeout:g} s",
                hint="raise pool_size, or use fewer threads",
            )
        try:
            connection = self._reused(idle) or self._connect()
            try:
                yield connection
            except psycopg.Error as exc:
                if connection.closed or exc.sqlstate in {"57P01", "57P03", "25006"}:
                    self.losses += 1
                    connection.close()
                raise
            except BaseException:
                # A KeyboardInterrupt or the like: the session may be in the middle of anything.
                if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    connection.close()
                raise
            finally:
                if self._closed or connection.closed:
                    connection.close()
                else:
                    idle.append(connection)
        finally:
            free.release()

    def _reused(self, idle: list[Connection]) -> Connection | None:
        while idle:
            connection = idle.pop()  # the last one used, so that a quiet pool's others stay cold
            if _alive(connection):
                return connection
            self.losses += 1
            connection.close()
        return None

    def _connect(self) -> Connection:
        try:
            return psycopg.connect(**self._connect_options, autocommit=True, prepare_threshold=None)
        except psycopg.Error as exc:
            raise _cannot_connect(exc) from exc


class Notifications:
    """A session that listens on one channel, and is given up when it does not answer."""

    def __init__(self, connection: Connection, channel: str) -> None:
        self._connection = connection
        try:
            # A pooler names its client a process that is not the session's. To LISTEN there would leave some
            # session of the pooler listening, for whoever gets it next.
            if self._ask(b"SELECT pg_backend_pid()") != b"%d" % connection.info.backend_pid:
                raise PoolerBetween
            self._ask(sql.SQL("LISTEN {}").format(sql.Identifier(channel)).as_bytes(None))
        except PostgresError:
            connection.close()
            raise

    def wait(self, timeout: float) -> list[str]:
        """Return the payloads that came, at once when one does; empty when the time is over."""
        try:
            first = [note.payload for note in self._connection.notifies(timeout=timeout, stop_after=1)]
            return first + [note.payload for note in self._connection.notifies(timeout=0)] if first else first
        except psycopg.Error as exc:
            raise _translated(exc) from exc

    def probe(self) -> None:
        """Ask the server for a sign of life. Raises PostgresUnavailable when none comes in time."""
        self._ask(b"SELECT")

    def _ask(self, statement: bytes) -> bytes | None:
        """Run a statement, and return the first value of its answer.

        By hand, as the driver would wait for ever: what stands between may take the question and be silent.
        """
        pgconn = self._connection.pgconn
        deadline = time.monotonic() + ANSWER_TIMEOUT
        # Not select(), which takes no descriptor from 1024 on.
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN)
        value = None
        try:
            pgconn.send_query(statement)
            while pgconn.flush() or pgconn.is_busy():
                if not poll.poll(max(deadline - time.monotonic(), 0) * 1_000):
                    raise PostgresUnavailable("the listening session does not answer")
                pgconn.consume_input()
            while (result := pgconn.get_result()) is not None:
                if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
                    raise psycopg.errors.error_from_result(result)
                value = result.get_value(0, 0)
        except psycopg.Error as exc:
            raise _translated(exc) from exc
        return value

    def close(self) -> None:
        """End the session."""
        self._connection.close()


def check_dsn(dsn: str) -> str:
    """Return it if it is a connection string, else raise InvalidArgument."""
    _connect_options(dsn)
    return dsn


def _connect_options(dsn: str) -> dict[str, Any]:
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except psycopg.Error as exc:
        # Not the driver's words: they may repeat a password.
        raise InvalidArgument(
            "this is not a Postgres DSN",
            hint="postgresql://user@host/database, or `host=... dbname=...`",
        ) from exc
    return _DEFAULTS | {name: value for name, value in given.items() if value is not None}


def _alive(connection: Connection) -> bool:
    """Tell whether an idle connection is still one: a server speaks to an idle session to end it."""
    try:
        if not _speaks(connection):
            return not connection.closed
        # Perhaps only a changed setting. After a farewell the end of the stream is left to read.
        connection.pgconn.consume_input()
        return not connection.closed and not _speaks(connection)
    except (psycopg.Error, OSError, ValueError):
        return False


def _speaks(connection: Connection) -> bool:
    # Not select(), which takes no descriptor from 1024 on: a process with hundreds of tenants open has those.
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def _lost(exc: psycopg.Error) -> bool:
    """Tell whether the connection went without an answer from the server."""
    return isinstance(exc, psycopg.OperationalError) and exc.sqlstate is None


def _cannot_connect(exc: psycopg.Error) -> PostgresError:
    text = _text(exc)
    if "session is read-only" in text or "server is in hot standby" in text:
        return PostgresReadOnly(f"no server takes writes: {text}")
    return PostgresUnavailable(f"cannot connect to Postgres: {text}")


def _translated(exc: psycopg.Error) -> PostgresError:
    text, state = _text(exc), exc.sqlstate
    if state is None and isinstance(exc, psycopg.OperationalError):
        return PostgresUnavailable(
            f"the connection to Postgres was lost: {text}",
            hint="the call may have taken effect or not",
            outcome_unknown=True,
        )
    state = state or ""
    error = _BY_STATE.get(state) or _BY_CLASS.get(state[:2], PostgresError)
    return error(text, sqlstate=state or None)


def _text(exc: psycopg.Error) -> str:
    return exc.diag.message_primary or " ".join(str(exc).split()) or type(exc).__name__
