-- What leads from one version of a tenant's file to the next. A new file is made by `create_schema` and these.

-- name: to_2
-- Periodic messages: at fire_at, a message goes into the queue. due_at is when to look, fire_at or later where that
-- failed; NULL where nothing will ever be due. There are few, and the payload comes last: they need no index.
CREATE TABLE tenantq_periodic (
    name         TEXT PRIMARY KEY,
    due_at       INTEGER,
    fire_at      INTEGER,
    fired_at     INTEGER,
    added_at     INTEGER NOT NULL,
    queue        TEXT    NOT NULL,
    cron         TEXT    NOT NULL,
    timezone     TEXT    NOT NULL,
    missed       TEXT    NOT NULL,
    priority     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    key          TEXT,
    headers      TEXT,
    error        TEXT,
    payload      BLOB    NOT NULL
) WITHOUT ROWID;
