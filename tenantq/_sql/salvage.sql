-- Rows of a damaged file go into a new one as they were: each statement takes the columns in the order of the file.

-- name: queue
INSERT INTO queue (
    id, queue, priority, visible_at, due_at, claimed_by, claimed_at, leased_until, lease_token, attempts, max_attempts,
    enqueued_at, key, headers, error, payload, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: tenantq_dead
INSERT INTO tenantq_dead (
    id, queue, priority, visible_at, attempts, max_attempts, enqueued_at, died_at, key, headers, error, payload, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: tenantq_outbox
INSERT INTO tenantq_outbox (
    seq, event_id, topic, priority, max_attempts, visible_at, emitted_at, refused_at, resent_at, headers, payload, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: tenantq_undeliverable
INSERT INTO tenantq_undeliverable (
    seq, event_id, topic, priority, max_attempts, visible_at, emitted_at, refused_at, error, headers, payload, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: tenantq_forwarded
UPDATE tenantq_forwarded SET seq = ?2, event_id = ?3, last_seq = ?4, pending = ?5, undeliverable = ?6 WHERE id = ?1;

-- name: tenantq_depth
-- The depths are counted when all rows are there.
INSERT INTO tenantq_depth (queue, last_id) VALUES (?1, ?2 + 0 * (?3 + ?4 + ?5 + ?6))
ON CONFLICT (queue) DO UPDATE SET last_id = max(last_id, excluded.last_id);

-- name: tenantq_meta
INSERT INTO tenantq_meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: tenantq_paused
INSERT INTO tenantq_paused (queue, paused_at) VALUES (?, ?);

-- name: tenantq_bound
INSERT INTO tenantq_bound (queue, max_depth) VALUES (?, ?);

-- name: tenantq_limit
INSERT INTO tenantq_limit (queue, max_claimed, rate, per, full_at, weight) VALUES (?, ?, ?, ?, ?, ?);

-- name: tenantq_periodic
INSERT INTO tenantq_periodic (
    name, due_at, fire_at, fired_at, added_at, queue, cron, timezone, missed, priority, max_attempts, key, headers,
    error, payload
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: count_depths
-- Of the rows that are there.
INSERT INTO tenantq_depth (queue, ready, scheduled, claimed, dead)
SELECT queue, sum(ready), sum(scheduled), sum(claimed), sum(dead)
FROM (
    SELECT
        queue,
        claimed_by IS NULL AND due_at IS NULL AS ready,
        claimed_by IS NULL AND due_at IS NOT NULL AS scheduled,
        claimed_by IS NOT NULL AS claimed,
        0 AS dead
    FROM queue
    UNION ALL
    SELECT queue, 0, 0, 0, 1 FROM tenantq_dead
)
GROUP BY queue
ON CONFLICT (queue) DO UPDATE
SET ready     = excluded.ready,
    scheduled = excluded.scheduled,
    claimed   = excluded.claimed,
    dead      = excluded.dead;

-- name: count_events
UPDATE tenantq_forwarded
SET last_seq      = max(
        last_seq,
        (SELECT coalesce(max(seq), 0) FROM tenantq_outbox),
        (SELECT coalesce(max(seq), 0) FROM tenantq_undeliverable)
    ),
    pending       = (SELECT count(*) FROM tenantq_outbox WHERE seq > tenantq_forwarded.seq),
    undeliverable = (SELECT count(*) FROM tenantq_undeliverable)
WHERE id = 1;

-- name: keep_places
-- No place of an event is given to another one.
INSERT INTO sqlite_sequence (name, seq)
SELECT 'tenantq_outbox', last_seq
FROM tenantq_forwarded
WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'tenantq_outbox');

-- name: raise_places
UPDATE sqlite_sequence
SET seq = max(seq, (SELECT last_seq FROM tenantq_forwarded))
WHERE name = 'tenantq_outbox';

-- name: roots
SELECT name, rootpage FROM sqlite_schema WHERE type = 'table';
