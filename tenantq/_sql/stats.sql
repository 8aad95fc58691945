-- Statements that answer how a tenant is. None of them reads a row for each message.

-- name: read_depths
SELECT queue, ready, scheduled, claimed, dead FROM tenantq_depth ORDER BY queue;

-- name: count_due
-- Due, and not yet moved by a claim or a reaper.
SELECT queue, 0, count(*) FROM queue INDEXED BY queue_due WHERE due_at <= :now GROUP BY queue
UNION ALL
SELECT queue, 1, count(*) FROM queue INDEXED BY queue_leased WHERE leased_until <= :boottime GROUP BY queue;

-- name: oldest_ready
-- One step of the index for each priority in use, not one for each message.
WITH RECURSIVE level (priority) AS (
    SELECT max(priority) FROM queue INDEXED BY queue_ready
    WHERE queue = :queue AND claimed_by IS NULL AND due_at IS NULL
    UNION ALL
    SELECT (
        SELECT max(q.priority) FROM queue AS q INDEXED BY queue_ready
        WHERE q.queue = :queue AND q.claimed_by IS NULL AND q.due_at IS NULL AND q.priority < level.priority
    )
    FROM level
    WHERE level.priority IS NOT NULL
    LIMIT 1000
)
SELECT min((
    SELECT q.visible_at FROM queue AS q INDEXED BY queue_ready
    WHERE q.queue = :queue AND q.claimed_by IS NULL AND q.due_at IS NULL AND q.priority = level.priority
    ORDER BY q.visible_at
    LIMIT 1
))
FROM level;

-- name: what_waits
-- Whether messages are ready, in any queue, and whether events wait for Postgres.
SELECT
    EXISTS (SELECT 1 FROM queue INDEXED BY queue_ready WHERE claimed_by IS NULL AND due_at IS NULL),
    (SELECT pending > 0 FROM tenantq_forwarded WHERE id = 1);

-- name: add_depth
UPDATE tenantq_depth
SET last_id   = max(last_id, :last_id),
    ready     = ready + :ready,
    scheduled = scheduled + :scheduled,
    claimed   = claimed + :claimed,
    dead      = dead + :dead
WHERE queue = :queue
RETURNING ready;

-- name: add_bounded_depth
-- Where there are bounds or limits, or where it is to be learned whether there are any.
UPDATE tenantq_depth
SET last_id   = max(last_id, :last_id),
    ready     = ready + :ready,
    scheduled = scheduled + :scheduled,
    claimed   = claimed + :claimed,
    dead      = dead + :dead
WHERE queue = :queue
RETURNING
    ready,
    ready + scheduled + claimed,
    EXISTS (SELECT 1 FROM tenantq_bound),
    EXISTS (SELECT 1 FROM tenantq_limit);

-- name: begin_depth
-- Of a queue's first message.
INSERT INTO tenantq_depth (last_id, ready, scheduled, claimed, dead, queue)
VALUES (:last_id, :ready, :scheduled, :claimed, :dead, :queue)
RETURNING
    ready,
    ready + scheduled + claimed,
    EXISTS (SELECT 1 FROM tenantq_bound),
    EXISTS (SELECT 1 FROM tenantq_limit);

-- name: recount_depths
-- A check of the depths: it reads every row.
SELECT queue, sum(is_ready), sum(is_scheduled), sum(is_claimed), sum(is_dead)
FROM (
    SELECT
        queue,
        claimed_by IS NULL AND due_at IS NULL     AS is_ready,
        claimed_by IS NULL AND due_at IS NOT NULL AS is_scheduled,
        claimed_by IS NOT NULL                    AS is_claimed,
        0                                         AS is_dead
    FROM queue
    UNION ALL
    SELECT queue, 0, 0, 0, 1 FROM tenantq_dead
)
GROUP BY queue;
