-- Statements on how much claims may give out.

-- name: read_rules
-- What a claim obeys, in one statement: the queues that are paused, and the limits.
SELECT queue, 1, NULL, NULL, NULL, NULL, NULL FROM tenantq_paused
UNION ALL
SELECT queue, 0, max_claimed, rate, per, full_at, weight FROM tenantq_limit;

-- name: set_limit
INSERT INTO tenantq_limit (queue, max_claimed, rate, per, full_at, weight)
VALUES (:queue, :max_claimed, :rate, :per, :full_at, :weight)
ON CONFLICT (queue) DO UPDATE
SET max_claimed = excluded.max_claimed,
    rate        = excluded.rate,
    per         = excluded.per,
    full_at     = excluded.full_at,
    weight      = excluded.weight;

-- name: remove_limit
DELETE FROM tenantq_limit WHERE queue = :queue;

-- name: spend
UPDATE tenantq_limit SET full_at = :full_at WHERE queue = :queue;

-- name: refill
-- In another boot the old one's time means nothing.
UPDATE tenantq_limit SET full_at = 0 WHERE full_at <> 0;

-- name: read_held
-- What a queue holds: ready, and under a lease.
SELECT ready, claimed FROM tenantq_depth WHERE queue = :queue;

-- name: read_claimed
-- One row a queue.
SELECT coalesce(sum(claimed), 0) FROM tenantq_depth;
