-- From version to version of the tenant file: `create_schema` in schema.sql is version 1 and stays as it is, each `to_N`
-- makes version N of N - 1, and a new file is made by all of them in turn. `to_N` is one transaction with its new
-- user_version, and holds the file's write lock: nothing in it may take time that grows with the messages. A released
-- one is never changed.

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
-- What claims obey; the queue '' stands for all together. A rate is a bucket of `rate` tokens that fills in `per`
-- nanoseconds, kept as the time since the boot at which it is full again. Only the queue '' has a weight.
CREATE TABLE tenantq_limit (
    queue       TEXT PRIMARY KEY,
    max_claimed INTEGER,
    rate        INTEGER,
    per         INTEGER,
    full_at     INTEGER NOT NULL DEFAULT 0,
    weight      REAL
) WITHOUT ROWID;
-- The CRC-32 of headers and payload, where the store that wrote them was opened with checksums.
ALTER TABLE queue ADD COLUMN checksum INTEGER;
ALTER TABLE tenantq_dead ADD COLUMN checksum INTEGER;
ALTER TABLE tenantq_outbox ADD COLUMN checksum INTEGER;
ALTER TABLE tenantq_undeliverable ADD COLUMN checksum INTEGER;

-- name: find_miscounts
-- To 2, read before the lock is taken: what rows written by hand (the documents' INSERT and DELETE) kept out of the
-- depths. The difference stays what it is while others enqueue and claim: they move the rows and the depths alike.
SELECT queue, sum(ready), sum(scheduled), sum(claimed), sum(dead)
FROM (
    SELECT queue, count(*) AS ready, 0 AS scheduled, 0 AS claimed, 0 AS dead
    FROM queue INDEXED BY queue_ready
    WHERE claimed_by IS NULL AND due_at IS NULL
    GROUP BY queue
    UNION ALL
    SELECT queue, 0, sum(claimed_by IS NULL), sum(claimed_by IS NOT NULL), 0
    FROM queue
    WHERE claimed_by IS NOT NULL OR due_at IS NOT NULL
    GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, 0, count(*) FROM tenantq_dead GROUP BY queue
    UNION ALL
    SELECT queue, -ready, -scheduled, -claimed, -dead FROM tenantq_depth
)
GROUP BY queue
HAVING sum(ready) <> 0 OR sum(scheduled) <> 0 OR sum(claimed) <> 0 OR sum(dead) <> 0;

-- name: correct_depth
INSERT INTO tenantq_depth (queue, ready, scheduled, claimed, dead)
VALUES (:queue, :ready, :scheduled, :claimed, :dead)
ON CONFLICT (queue) DO UPDATE
SET ready     = ready + excluded.ready,
    scheduled = scheduled + excluded.scheduled,
    claimed   = claimed + excluded.claimed,
    dead      = dead + excluded.dead;
