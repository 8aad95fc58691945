"""How autovacuum is set: on the server, and on each of the queue's tables."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenantq_bridge._postgres import Database

__all__ = ["AutovacuumSettings", "TableAutovacuum", "read_autovacuum", "settings_of"]


class TableAutovacuum(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one table: its own setting, or the server's."""

    table: str
    is_enabled: bool
    scale_factor: float
    """Part of the rows that must be dead before a vacuum comes, on top of the threshold."""
    threshold: int
    cost_delay: float
    """Milliseconds that a vacuum pauses each time it has done some work."""


class AutovacuumSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the server and the queue's tables."""

    is_enabled: bool
    """Autovacuum runs, and rows are counted, without which it knows nothing."""
    naptime: float
    """Seconds between two looks at a database: no table is vacuumed more often."""
    max_workers: int
    tables: tuple[TableAutovacuum, ...]


def read_autovacuum(database: Database) -> AutovacuumSettings:
    """Read the settings that are in effect."""
    sql = database.statements("health.sql")
    server = {row[0]: row[1] for row in database.run(sql["read_settings"], repeatable=True)}
    options = {row[0]: row[1] for row in database.run(sql["list_table_options"], repeatable=True)}
    return settings_of(server, options)


def settings_of(server: Mapping[str, str], options: Mapping[str, list[str]]) -> AutovacuumSettings:
    """Put together what the server has set and what each table has, as `name=value`."""
    return AutovacuumSettings(
        is_enabled=server["autovacuum"] == "on" and server["track_counts"] == "on",
        naptime=float(server["autovacuum_naptime"]),
        max_workers=int(server["autovacuum_max_workers"]),
        tables=tuple(_table(server, table, found) for table, found in options.items()),
    )


def _table(server: Mapping[str, str], table: str, options: list[str]) -> TableAutovacuum:
    own = dict(option.split("=", 1) for option in options)
    found = {**server, **own}
    delay = float(found["autovacuum_vacuum_cost_delay"])
    return TableAutovacuum(
        table=table,
        # As ALTER TABLE takes it: every prefix of these words.
        is_enabled=not own.get("autovacuum_enabled", "true").lower().startswith(("f", "of", "n", "0")),
        scale_factor=float(found["autovacuum_vacuum_scale_factor"]),
        threshold=int(found["autovacuum_vacuum_threshold"]),
        cost_delay=float(server["vacuum_cost_delay"]) if delay < 0 else delay,
    )
