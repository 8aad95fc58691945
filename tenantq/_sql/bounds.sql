-- Statements on how much the queues may hold.

-- name: read_bounds
SELECT queue, max_depth FROM tenantq_bound;

-- name: set_bound
INSERT INTO tenantq_bound (queue, max_depth) VALUES (:queue, :max_depth)
ON CONFLICT (queue) DO UPDATE SET max_depth = excluded.max_depth;

-- name: remove_bound
DELETE FROM tenantq_bound WHERE queue = :queue;

-- name: read_depth
SELECT ready + scheduled + claimed FROM tenantq_depth WHERE queue = :queue;

-- name: read_whole_depth
-- One row a queue.
SELECT coalesce(sum(ready + scheduled + claimed), 0) FROM tenantq_depth;
