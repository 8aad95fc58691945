"""Enqueue and emit on the application's own connection: the SQL and its parameters, to be run in its transaction.

For an application whose own library holds the tenant's file: the `sqlite3` module, SQLAlchemy, Django. Its rows
and its messages commit together, as in `Tenant.transaction`, and one SQLite library alone has the file open in
that process: two of them would lose committed rows. Nothing here opens a file.

    >>> import sqlite3, tempfile, tenantq
    >>> from tenantq import statements
    >>> with tempfile.TemporaryDirectory() as root, tenantq.open(root) as store:
    ...     connection = sqlite3.connect(store.prepare("acme"), isolation_level="IMMEDIATE")
    ...     with connection:
    ...         _ = connection.execute("CREATE TABLE customer (email TEXT)")
    ...         _ = connection.execute("INSERT INTO customer VALUES ('ada@example.org')")
    ...         for sql, parameters in statements.enqueue("email.welcome", {"to": "ada@example.org"}):
    ...             _ = connection.execute(sql, parameters)
    ...     connection.close()
    ...     store.tenant("acme").notify()
    ...     print(store.tenant("acme").claim("email.welcome")[0].payload)
    {'to': 'ada@example.org'}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from tenantq import _schema
from tenantq._operations import check_options, encode_event_headers, encode_headers, new_event_id
from tenantq._sqlite import SAFE_SQLITE
from tenantq.arguments import DEFAULT_MAX_ATTEMPTS, check_limit, check_max_attempts, check_priority, visible_ns
from tenantq.clock import Clock, SystemClock
from tenantq.errors import DeclarationError, InvalidArgument
from tenantq.naming import check_name
from tenantq.payload import encode_payload
from tenantq.router import Layer, declaration_of
from tenantq.sqlfile import compact, load_statements

__all__ = ["Paramstyle", "Statement", "emit", "enqueue", "last_id", "pragmas", "send"]

_SQL = {
    name: compact(sql).replace("{schema_version}", str(_schema.SCHEMA_VERSION))
    for name, sql in load_statements("tenantq", "statements.sql").items()
}
_PLACEHOLDER = re.compile(r":(\w+)")


class Paramstyle(StrEnum):
    """How a library has placeholders in SQL, by the names of PEP 249."""

    NAMED = "named"
    """`:name` and a mapping: the sqlite3 module, SQLAlchemy's `text`."""
    QMARK = "qmark"
    """`?` and a tuple: the sqlite3 module, SQLAlchemy's `exec_driver_sql`."""
    FORMAT = "format"
    """`%s` and a tuple: Django's cursor."""
    PYFORMAT = "pyformat"
    """`%(name)s` and a mapping."""


class Statement(NamedTuple):
    """One statement to run, as it is."""

    sql: str
    parameters: Any
    """A mapping or a tuple, as the paramstyle asks."""


Statements = tuple[Statement, ...]


def enqueue(
    queue: str,
    payload: object,
    *,
    delay: float = 0,
    at: datetime | None = None,
    priority: int = 0,
    key: str | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    headers: Mapping[str, str] | None = None,
    max_depth: int | None = None,
    paramstyle: str = Paramstyle.NAMED,
    clock: Clock | None = None,
) -> Statements:
    """Return what enqueues one message, to be run in this order and once: it is committed with the transaction.

    The options are those of `Tenant.enqueue`; `delay` counts from now. max_depth: the bound of a queue that has
    none of its own in the file, where the store is opened with one. Over a bound the last statement fails with
    the library's IntegrityError, "tenantq - the queue is full", and adds nothing. Raises InvalidArgument,
    PayloadError.
    """
    check_options(
        queue, delay=delay, at=at, priority=priority, key=key, max_attempts=max_attempts, headers=headers
    )
    now = (clock or SystemClock()).now_ns()
    visible_at = visible_ns(now, delay, at)
    values = {
        "queue": queue,
        "payload": encode_payload(payload),
        "now": now,
        "visible_at": visible_at,
        "due_at": visible_at if visible_at > now else None,
        "priority": priority,
        "key": key,
        "max_attempts": max_attempts,
        "headers": encode_headers(headers),
        "max_depth": None if max_depth is None else check_limit(max_depth, "max_depth"),
    }
    return _statements("enqueue", values, paramstyle)


def emit(
    topic: str,
    payload: object,
    *,
    delay: float = 0,
    at: datetime | None = None,
    priority: int = 0,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    headers: Mapping[str, str] | None = None,
    max_outbox: int | None = None,
    paramstyle: str = Paramstyle.NAMED,
    clock: Clock | None = None,
) -> Statements:
    """Return what emits one event, to be run in this order and once: it is committed with the transaction.

    The options are those of `Tenant.emit`. max_outbox: the store's, where it is opened with one; over it the last
    statement fails with the library's IntegrityError, "tenantq - the outbox is full". Raises InvalidArgument,
    PayloadError.
    """
    check_name(topic, "topic")
    now = (clock or SystemClock()).now_ns()
    is_delayed = delay != 0 or at is not None
    values = {
        "event_id": new_event_id(),
        "topic": topic,
        "payload": encode_payload(payload),
        "now": now,
        "visible_at": visible_ns(now, delay, at) if is_delayed else None,
        "priority": check_priority(priority),
        "max_attempts": check_max_attempts(max_attempts),
        "headers": encode_event_headers(headers),
        "max_outbox": None if max_outbox is None else check_limit(max_outbox, "max_outbox"),
    }
    return _statements("emit", values, paramstyle)


def send(
    message: object,
    *,
    delay: float = 0,
    at: datetime | None = None,
    priority: int | None = None,
    key: str | None = None,
    max_attempts: int | None = None,
    headers: Mapping[str, str] | None = None,
    paramstyle: str = Paramstyle.NAMED,
    clock: Clock | None = None,
) -> Statements:
    """Return what sends a declared message to the layer that its type needs: `enqueue` or `emit`.

    Raises DeclarationError for a type that was not declared, or that is kept in memory: no transaction holds it.
    """
    declaration = declaration_of(message)
    options: dict[str, Any] = {
        "delay": delay,
        "at": at,
        "priority": declaration.priority if priority is None else priority,
        "max_attempts": declaration.max_attempts if max_attempts is None else max_attempts,
        "headers": headers,
        "paramstyle": paramstyle,
        "clock": clock,
    }
    if declaration.layer is Layer.TENANT:
        return enqueue(declaration.name, message, key=key, **options)
    if declaration.layer is Layer.MEMORY:
        raise DeclarationError(
            f"messages of type {declaration.name!r} are kept in memory",
            hint="send it through a Tenant, after the commit",
        )
    if key is not None:
        raise InvalidArgument(
            f"{declaration.name!r} crosses hosts: its message takes no key",
            hint="give it an identity in its payload; every event is forwarded once anyway",
        )
    return emit(declaration.name, message, **options)


def last_id(queue: str, key: str | None = None, *, paramstyle: str = Paramstyle.NAMED) -> Statement:
    """Return the query for the id of what the same transaction has just enqueued, with its key if it had one."""
    check_name(queue)
    if key is not None:
        check_name(key, "key")
    return _statement("last_id", {"queue": queue, "key": key}, paramstyle)


def pragmas(sqlite_version: str) -> tuple[str, ...]:
    """Return what a connection of a SQLite library of this version is to run first, on a tenant's file.

    Before 3.51.3 a checkpoint and a write at once can lose committed rows: such a library must leave the
    checkpoints to the others that have the file open, and to whoever closes it last.
    """
    try:
        version = tuple(int(part) for part in sqlite_version.split("."))
    except ValueError:
        raise InvalidArgument(
            f"{sqlite_version!r} is no version of SQLite",
            hint="it is sqlite3.sqlite_version, or what SELECT sqlite_version() returns",
        ) from None
    common = ("PRAGMA busy_timeout = 5000", "PRAGMA synchronous = NORMAL")
    return common if version >= SAFE_SQLITE else (*common, "PRAGMA wal_autocheckpoint = 0")


def _statements(name: str, values: dict[str, Any], paramstyle: str) -> Statements:
    # The view and the trigger are the connection's own: made by its first call, and looked for by the others.
    return (
        _statement(f"create_{name}_view", {}, paramstyle),
        _statement(f"create_{name}_trigger", {}, paramstyle),
        _statement(name, values, paramstyle),
    )


def _statement(name: str, values: dict[str, Any], paramstyle: str) -> Statement:
    sql = _SQL[name]
    match paramstyle:
        case Paramstyle.NAMED:
            return Statement(sql, values)
        case Paramstyle.PYFORMAT:
            return Statement(_PLACEHOLDER.sub(r"%(\1)s", sql), values)
        case Paramstyle.QMARK | Paramstyle.FORMAT:
            names: list[str] = _PLACEHOLDER.findall(sql)
            mark = "?" if paramstyle == Paramstyle.QMARK else "%s"
            return Statement(_PLACEHOLDER.sub(mark, sql), tuple(map(values.__getitem__, names)))
    raise InvalidArgument(
        f"paramstyle {paramstyle!r} is none of {', '.join(Paramstyle)}",
        hint="Django's cursor takes 'format', the sqlite3 module and SQLAlchemy's text 'named'",
    )
