-- Statements on dead letters.

-- name: bury_message
INSERT INTO tenantq_dead (
    id, queue, priority, visible_at, attempts, max_attempts, enqueued_at, died_at, key, headers, error, payload,
    checksum
)
SELECT
    id, queue, priority, visible_at, attempts, max_attempts, enqueued_at, :died_at, key, headers,
    coalesce(:error, error), payload, checksum
FROM queue
WHERE id = :id;

-- name: list_dead
SELECT
    id, queue, priority, visible_at, attempts, max_attempts, enqueued_at, key, headers, error, payload
FROM tenantq_dead
ORDER BY id
LIMIT :limit;

-- name: list_dead_of_queue
SELECT
    id, queue, priority, visible_at, attempts, max_attempts, enqueued_at, key, headers, error, payload
FROM tenantq_dead INDEXED BY tenantq_dead_queue
WHERE queue = :queue
ORDER BY id
LIMIT :limit;

-- name: find_dead_message
SELECT id, queue, key FROM tenantq_dead WHERE id = :id;

-- name: find_dead_after
SELECT id, queue, key FROM tenantq_dead WHERE id > :after ORDER BY id LIMIT :limit;

-- name: find_dead_of_queue_after
SELECT id, queue, key
FROM tenantq_dead INDEXED BY tenantq_dead_queue
WHERE queue = :queue AND id > :after
ORDER BY id
LIMIT :limit;

-- name: revive_message
INSERT INTO queue (id, queue, priority, visible_at, max_attempts, enqueued_at, key, headers, error, payload, checksum)
SELECT id, queue, priority, :now, max_attempts, enqueued_at, key, headers, error, payload, checksum
FROM tenantq_dead
WHERE id = :id;

-- name: delete_dead
DELETE FROM tenantq_dead WHERE id = :id;
