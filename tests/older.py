"""Tenant files as older versions of the schema had them, with rows of every kind."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tenantq import _schema
from tenantq._sqlite import Database
from tenantq.sqlfile import load_statements

CREATE_VERSION_1 = load_statements("tenantq", "schema.sql")["create_schema"]

NOW = 1_767_225_600_000_000_000
"""The time at which a ManualClock starts."""

ROWS = """
INSERT INTO queue (id, queue, visible_at, enqueued_at, max_attempts, key, headers, payload) VALUES
    (1, 'mail', :now, :now, 5, 'a-key', '{"trace":"1"}', '"ready"'),
    (2, 'mail', :now, :now, 5, NULL, NULL, x'00ff');
INSERT INTO queue (id, queue, visible_at, due_at, enqueued_at, payload)
VALUES (3, 'mail', :now + 3600000000000, :now + 3600000000000, :now, '"delayed"');
INSERT INTO queue (
    id, queue, visible_at, claimed_by, claimed_at, leased_until, lease_token, attempts, enqueued_at, payload
) VALUES (4, 'mail', :now, 'worker-1', :now, 1, 77, 1, :now, '"claimed"');
INSERT INTO tenantq_dead (
    id, queue, priority, visible_at, attempts, max_attempts, enqueued_at, died_at, error, payload
) VALUES (5, 'mail', 0, :now, 25, 25, :now, :now, 'no', '"dead"');
INSERT INTO tenantq_depth (queue, last_id, ready, scheduled, claimed, dead) VALUES ('mail', 5, 2, 1, 1, 1);
INSERT INTO tenantq_paused (queue, paused_at) VALUES ('mail', :now);
INSERT INTO tenantq_bound (queue, max_depth) VALUES ('mail', 100);
INSERT INTO tenantq_outbox (seq, event_id, topic, priority, max_attempts, emitted_at, refused_at, payload) VALUES
    (1, 'e-1', 'order', 0, 25, :now, NULL, '"forwarded"'),
    (2, 'e-2', 'order', 0, 25, :now, :now, '"refused"'),
    (3, 'e-3', 'order', 0, 25, :now, NULL, '"waits"');
INSERT INTO tenantq_undeliverable (
    seq, event_id, topic, priority, max_attempts, emitted_at, refused_at, error, payload
) VALUES (2, 'e-2', 'order', 0, 25, :now, :now, 'no such thing', '"refused"');
UPDATE tenantq_forwarded SET seq = 2, event_id = 'e-2', last_seq = 3, pending = 1, undeliverable = 1;
CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER);
INSERT INTO orders VALUES (42, 99);
"""
"""Ready, of bytes, delayed, claimed, dead; forwarded, undeliverable, waiting; and a table of the application's."""


def make_version_1(path: Path, tenant_id: str, rows: str = ROWS) -> Path:
    """Make a file of version 1, as the library of that version left it behind when it closed the tenant."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    with closing(Database(path, tenant=tenant_id)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.begin()
        database.execute(f"PRAGMA application_id = {_schema.APPLICATION_ID}")
        database.execute("PRAGMA user_version = 1")
        database.execute(CREATE_VERSION_1)
        _schema.write_meta(database, "tenant_id", tenant_id)
        _schema.write_meta(database, "file_id", f"file-of-{tenant_id}")
        database.execute(rows.replace(":now", str(NOW)))
        database.commit()
    return path


def version_of(path: Path) -> int:
    """Return the version that a file says it has, without writing to it."""
    with closing(Database(path, read_only=True)) as database:
        return _schema.version_of(database)
