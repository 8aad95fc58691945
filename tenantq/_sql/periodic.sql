-- Statements on periodic messages, in a tenant's file and in the store's own: the table is the same in both.

-- name: find_periodic
SELECT
    name, queue, cron, timezone, missed, priority, max_attempts, key, headers, payload,
    added_at, fire_at, due_at, fired_at, error
FROM tenantq_periodic
WHERE name = :name;

-- name: list_periodic
SELECT
    name, queue, cron, timezone, missed, priority, max_attempts, key, headers, payload,
    added_at, fire_at, due_at, fired_at, error
FROM tenantq_periodic
ORDER BY name;

-- name: find_due_periodic
SELECT
    name, queue, cron, timezone, missed, priority, max_attempts, key, headers, payload,
    added_at, fire_at, due_at, fired_at, error
FROM tenantq_periodic
WHERE due_at <= :now
ORDER BY name;

-- name: put_periodic
INSERT INTO tenantq_periodic (
    name, queue, cron, timezone, missed, priority, max_attempts, key, headers, payload,
    added_at, fire_at, due_at, fired_at, error
) VALUES (
    :name, :queue, :cron, :timezone, :missed, :priority, :max_attempts, :key, :headers, :payload,
    :added_at, :fire_at, :due_at, :fired_at, :error
)
ON CONFLICT (name) DO UPDATE SET
    queue        = excluded.queue,
    cron         = excluded.cron,
    timezone     = excluded.timezone,
    missed       = excluded.missed,
    priority     = excluded.priority,
    max_attempts = excluded.max_attempts,
    key          = excluded.key,
    headers      = excluded.headers,
    payload      = excluded.payload,
    fire_at      = excluded.fire_at,
    due_at       = excluded.due_at,
    error        = excluded.error;

-- name: move_periodic
UPDATE tenantq_periodic
SET fire_at  = :fire_at,
    due_at   = :due_at,
    fired_at = coalesce(:fired_at, fired_at),
    error    = :error
WHERE name = :name;

-- name: postpone_periodic
UPDATE tenantq_periodic SET due_at = :due_at, error = :error WHERE name = :name;

-- name: remove_periodic
DELETE FROM tenantq_periodic WHERE name = :name;

-- name: next_periodic
SELECT min(due_at) FROM tenantq_periodic;
