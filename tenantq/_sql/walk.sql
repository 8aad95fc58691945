-- The store's own file, `.periodic.db`: periodic messages for all tenants, and how far their fires have come.

-- name: create_store
-- The first table is that of a tenant's file.
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

-- Fires (a JSON array of their times) on their way through the shards; shard is the next that nobody has taken.
CREATE TABLE walk (
    name        TEXT PRIMARY KEY,
    times       TEXT    NOT NULL,
    missed_from INTEGER,
    shard       INTEGER NOT NULL
) WITHOUT ROWID;

-- Shards that a process has taken, until when (time since that boot): then it is taken for gone.
CREATE TABLE taken (
    name        TEXT    NOT NULL,
    shard       INTEGER NOT NULL,
    boot_id     TEXT    NOT NULL,
    taken_until INTEGER NOT NULL,
    PRIMARY KEY (name, shard)
) WITHOUT ROWID;

-- Tenants that could not be given their messages, and when to try again.
CREATE TABLE late (
    name        TEXT    NOT NULL,
    shard       INTEGER NOT NULL,
    tenant      TEXT    NOT NULL,
    times       TEXT    NOT NULL,
    missed_from INTEGER,
    due_at      INTEGER NOT NULL,
    failures    INTEGER NOT NULL,
    error       TEXT    NOT NULL,
    PRIMARY KEY (name, shard, tenant)
) WITHOUT ROWID;

CREATE INDEX late_due ON late (due_at);

-- name: list_walks
SELECT name, times, missed_from, shard FROM walk ORDER BY name;

-- name: find_walk
SELECT times, missed_from FROM walk WHERE name = :name;

-- name: begin_walk
INSERT INTO walk (name, times, missed_from, shard) VALUES (:name, :times, :missed_from, 0);

-- name: move_walk
UPDATE walk SET shard = :shard WHERE name = :name;

-- name: end_walk
-- Once its last shard is done.
DELETE FROM walk
WHERE name = :name
  AND shard = :shards
  AND NOT EXISTS (SELECT 1 FROM taken WHERE taken.name = walk.name);

-- name: find_abandoned
SELECT name, shard FROM taken WHERE boot_id <> :boot_id OR taken_until <= :boottime LIMIT 1;

-- name: take_shard
INSERT INTO taken (name, shard, boot_id, taken_until) VALUES (:name, :shard, :boot_id, :taken_until)
ON CONFLICT (name, shard) DO UPDATE SET boot_id = excluded.boot_id, taken_until = excluded.taken_until;

-- name: give_back_shard
UPDATE taken SET taken_until = 0 WHERE name = :name AND shard = :shard;

-- name: finish_shard
DELETE FROM taken WHERE name = :name AND shard = :shard;

-- name: find_late
SELECT tenant, times, missed_from, failures FROM late WHERE name = :name AND shard = :shard;

-- name: find_late_due
SELECT name, shard FROM late INDEXED BY late_due WHERE due_at <= :now ORDER BY due_at LIMIT 1;

-- name: find_late_due_of_shard
SELECT tenant, times, missed_from, failures
FROM late
WHERE name = :name
  AND shard = :shard
  AND due_at <= :now
LIMIT :limit;

-- name: put_late
INSERT INTO late (name, shard, tenant, times, missed_from, due_at, failures, error)
VALUES (:name, :shard, :tenant, :times, :missed_from, :due_at, :failures, :error)
ON CONFLICT (name, shard, tenant) DO UPDATE SET
    times       = excluded.times,
    missed_from = excluded.missed_from,
    due_at      = excluded.due_at,
    failures    = excluded.failures,
    error       = excluded.error
WHERE json_extract(late.times, '$[#-1]') <= json_extract(excluded.times, '$[#-1]');

-- name: remove_late
-- Unless another process, which had a later fire for the tenant, has failed with it meanwhile.
DELETE FROM late
WHERE name = :name
  AND shard = :shard
  AND tenant = :tenant
  AND json_extract(times, '$[#-1]') <= :through;

-- name: next_look
-- When the first fire is due that no walk stands before, and the first late tenant; and whether anything is on its way.
SELECT
    (SELECT min(due_at) FROM tenantq_periodic WHERE name NOT IN (SELECT name FROM walk)),
    (SELECT min(due_at) FROM late INDEXED BY late_due),
    EXISTS (SELECT 1 FROM walk);

-- name: forget_walk
DELETE FROM walk WHERE name = :name;

-- name: forget_taken
DELETE FROM taken WHERE name = :name;

-- name: forget_late
DELETE FROM late WHERE name = :name;
