"""The schema's versions: brought up by `migrate`, checked before a process first uses the tables."""

from __future__ import annotations

from tenantq_bridge._postgres import Database, Session
from tenantq_bridge.errors import SchemaMissing, SchemaNewer, SchemaOutdated, UnsupportedPostgres

__all__ = ["SCHEMA_VERSION", "Schema"]

SCHEMA_VERSION = 4
"""What this program reads and writes."""

OLDEST_SERVER = 140_000
"""Postgres 14: before it, a long transaction's snapshot keeps vacuum from indexes that a queue depends on."""


class Schema:
    """The tables of one queue in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = database.statements("schema.sql")
        self._migrations = database.statements("migrations.sql")
        self._checked = False

    def migrate(self) -> None:
        """Bring the tables to this program's version; they are there when it returns.

        One transaction, and one migration at a time in a database. Raises SchemaNewer, and changes nothing,
        where a newer program was here; MissingRights; UnsupportedPostgres.
        """
        with self._database.transaction() as session:
            session.run(self._sql["lock_migrations"], {"schema": self._database.schema})
            self._check_server(session)
            version = self._prepare(session)
            if version > SCHEMA_VERSION:
                raise self._newer(version)
            for step in range(version + 1, SCHEMA_VERSION + 1):
                session.run(self._migrations[f"version_{step}"])
                session.run(self._sql["record_version"], {"version": step})
        self._checked = True

    def check(self) -> None:
        """Raise SchemaMissing, SchemaOutdated or SchemaNewer unless the tables are this program's.

        Asks once in a process: a migration beside a running program is refused by what that changes.
        """
        if self._checked:
            return
        try:
            rows = self._database.run(self._sql["read_version"], repeatable=True)
        except SchemaMissing as exc:
            raise SchemaMissing(f"there is no queue in schema {self._database.schema!r}") from exc
        version = rows[0][0]
        if version > SCHEMA_VERSION:
            raise self._newer(version)
        if version < SCHEMA_VERSION:
            raise SchemaOutdated(
                f"the queue's tables are of version {version}, this program needs {SCHEMA_VERSION}"
            )
        self._checked = True

    def _prepare(self, session: Session) -> int:
        """Make the schema and its list of versions where they are not, and return the version."""
        name = self._database.schema
        has_schema, has_migrations = session.run(
            self._sql["find_schema"], {"schema": name, "migrations": f"{name}.migrations"}
        )[0]
        if not has_schema:
            # Not IF NOT EXISTS: a role that may not create schemas can migrate inside of a given one.
            session.run(self._sql["create_schema"])
        if not has_migrations:
            session.run(self._sql["create_migrations"])
        version: int = session.run(self._sql["read_version"])[0][0]
        return version

    def _check_server(self, session: Session) -> None:
        version, encoding = session.run(self._sql["read_server"])[0]
        if version < OLDEST_SERVER:
            raise UnsupportedPostgres(f"the server is Postgres {version // 10_000}")
        if encoding != "UTF8":
            # Any other encoding refuses some names and payloads, in the forwarder, where it is too late.
            raise UnsupportedPostgres(f"the database's encoding is {encoding}")

    def _newer(self, version: int) -> SchemaNewer:
        return SchemaNewer(f"the queue's tables are of version {version}, this program knows {SCHEMA_VERSION}")
