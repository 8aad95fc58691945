"""The libraries that an application may hold a tenant's file with: each as a transaction that runs statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import django
import sqlalchemy
from django.conf import settings
from django.db import IntegrityError as DjangoIntegrityError
from django.db import connections, transaction

from tenantq import statements

PRAGMAS = statements.pragmas(sqlite3.sqlite_version)
"""But for apsw, all run on the SQLite library of Python's own module."""

Execute = Callable[[str, Any], Any]
Transaction = Callable[[Path], AbstractContextManager[Execute]]


class Library(NamedTuple):
    """One of them."""

    name: str
    paramstyle: str
    transaction: Transaction
    integrity_error: type[Exception]


@contextmanager
def _sqlite3_transaction(path: Path) -> Iterator[Execute]:
    with closing(sqlite3.connect(path, isolation_level="IMMEDIATE")) as connection:
        for pragma in PRAGMAS:
            connection.execute(pragma)
        with connection:
            yield connection.execute


@contextmanager
def _apsw_transaction(path: Path) -> Iterator[Execute]:
    with closing(apsw.Connection(str(path))) as connection:
        for setting in (*statements.pragmas(apsw.sqlite_lib_version()), "PRAGMA trusted_schema = OFF"):
            connection.execute(setting)
        connection.transaction_mode = "IMMEDIATE"
        with connection:
            yield connection.execute


@contextmanager
def _sqlalchemy_transaction(path: Path) -> Iterator[Execute]:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")

    @sqlalchemy.event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself
        for pragma in PRAGMAS:
            connection.execute(pragma)

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    try:
        with engine.begin() as connection:
            yield lambda sql, parameters: connection.execute(sqlalchemy.text(sql), parameters)
    finally:
        engine.dispose()


@contextmanager
def _django_transaction(path: Path) -> Iterator[Execute]:
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    connections.databases["tenant"] = connections.databases["default"] | {
        "NAME": str(path),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "; ".join(PRAGMAS)},
    }
    try:
        with transaction.atomic(using="tenant"), connections["tenant"].cursor() as cursor:
            yield cursor.execute
    finally:
        connections["tenant"].close()
        del connections["tenant"], connections.databases["tenant"]


LIBRARIES = (
    Library("sqlite3", "named", _sqlite3_transaction, sqlite3.IntegrityError),
    Library("sqlite3 with marks", "qmark", _sqlite3_transaction, sqlite3.IntegrityError),
    Library("apsw", "named", _apsw_transaction, apsw.ConstraintError),
    Library("sqlalchemy", "named", _sqlalchemy_transaction, sqlalchemy.exc.IntegrityError),
    Library("django", "format", _django_transaction, DjangoIntegrityError),
    Library("django with names", "pyformat", _django_transaction, DjangoIntegrityError),
)
