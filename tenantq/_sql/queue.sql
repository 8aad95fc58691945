-- Statements on messages. Parameters are named for the reader and bound in the order they first appear.

-- name: last_id
-- Whichever is higher: what was given out, or what a hand-written INSERT took. And whether there are bounds,
-- so that whoever is about to enqueue need not ask for that alone.
SELECT
    max(
        (SELECT coalesce(max(last_id), 0) FROM tenantq_depth),
        (SELECT coalesce(max(id), 0) FROM queue),
        (SELECT coalesce(max(id), 0) FROM tenantq_dead)
    ),
    EXISTS (SELECT 1 FROM tenantq_bound);

-- name: insert_message
-- The row of VALUES is repeated for as many messages as one statement takes: see TenantFile.enqueue.
INSERT INTO queue (
    id, queue, priority, visible_at, due_at, max_attempts, enqueued_at, key, headers, payload
) VALUES
    (:id, :queue, :priority, :visible_at, :due_at, :max_attempts, :enqueued_at, :key, :headers, :payload);

-- name: insert_checked_message
INSERT INTO queue (
    id, queue, priority, visible_at, due_at, max_attempts, enqueued_at, key, headers, payload, checksum
) VALUES
    (:id, :queue, :priority, :visible_at, :due_at, :max_attempts, :enqueued_at, :key, :headers, :payload, :checksum);

-- name: find_key
SELECT id FROM queue INDEXED BY queue_key WHERE queue = :queue AND key = :key;

-- name: probe_queue
-- Whether a claim could find something: read before a transaction begins, so that an empty claim
-- takes no write lock.
SELECT
    EXISTS (
        SELECT 1 FROM queue INDEXED BY queue_ready
        WHERE queue = :queue AND claimed_by IS NULL AND due_at IS NULL
    ),
    EXISTS (SELECT 1 FROM queue INDEXED BY queue_due WHERE due_at <= :now)
    OR EXISTS (SELECT 1 FROM queue INDEXED BY queue_leased WHERE leased_until <= :boottime)
    OR EXISTS (SELECT 1 FROM tenantq_periodic WHERE due_at <= :now),
    EXISTS (SELECT 1 FROM tenantq_paused WHERE queue = :queue);

-- name: claim_message
-- The documents' claim in two steps, find_claimable and this: a statement that does both and returns the rows
-- keeps them in a table of its own first, and takes half as long again.
UPDATE queue
SET claimed_by   = :worker,
    claimed_at   = :now,
    leased_until = :leased_until,
    lease_token  = :lease_token,
    attempts     = attempts + 1
WHERE id = :id;

-- name: claim_messages
UPDATE queue
SET claimed_by   = :worker,
    claimed_at   = :now,
    leased_until = :leased_until,
    lease_token  = :lease_token,
    attempts     = attempts + 1
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: ack_message
-- The documents' ack, fenced by the token of this delivery: a worker's name is not enough.
DELETE FROM queue WHERE id = :id AND lease_token = :lease_token AND claimed_by IS NOT NULL;

-- name: ack_ready_message
-- Its lease has ended, and nobody else has claimed it since.
DELETE FROM queue WHERE id = :id AND lease_token = :lease_token AND claimed_by IS NULL;

-- name: ack_messages
-- Of all that one claim gave out, whose deliveries have one token.
DELETE FROM queue
WHERE id IN (SELECT value FROM json_each(:ids))
  AND lease_token = :lease_token
  AND claimed_by IS NOT NULL;

-- name: find_lease
-- Whether the delivery with this token still has the message, and whether its time is not over: a message
-- whose lease has expired is ready, and keeps the token until somebody claims it.
SELECT claimed_by IS NOT NULL FROM queue WHERE id = :id AND lease_token = :lease_token;

-- name: retry_message
UPDATE queue
SET claimed_by   = NULL,
    claimed_at   = NULL,
    leased_until = NULL,
    lease_token  = NULL,
    visible_at   = :visible_at,
    due_at       = :due_at,
    error        = :error
WHERE id = :id AND lease_token = :lease_token;

-- name: release_message
-- As if it had not been claimed: its place in the queue and its attempts are as before.
UPDATE queue
SET claimed_by   = NULL,
    claimed_at   = NULL,
    leased_until = NULL,
    lease_token  = NULL,
    attempts     = attempts - 1
WHERE id = :id AND lease_token = :lease_token;

-- name: snooze_message
UPDATE queue
SET claimed_by   = NULL,
    claimed_at   = NULL,
    leased_until = NULL,
    lease_token  = NULL,
    visible_at   = :visible_at,
    due_at       = :visible_at, -- may be past already: then the next claim finds it due
    attempts     = attempts - 1
WHERE id = :id AND lease_token = :lease_token;

-- name: extend_lease
UPDATE queue
SET leased_until = :leased_until,
    claimed_by   = coalesce(claimed_by, :worker)
WHERE id = :id AND lease_token = :lease_token;

-- name: find_due
-- Scheduled messages that became claimable.
SELECT id, queue FROM queue INDEXED BY queue_due WHERE due_at <= :now ORDER BY due_at LIMIT :limit;

-- name: find_expired
-- Leases that ended.
SELECT id, queue, attempts >= max_attempts
FROM queue INDEXED BY queue_leased
WHERE leased_until <= :boottime
ORDER BY leased_until
LIMIT :limit;

-- name: free_message
-- The token stays: until another claim takes the message, a late ack is better than doing the work twice.
UPDATE queue
SET claimed_by   = NULL,
    claimed_at   = NULL,
    leased_until = NULL,
    due_at       = NULL
WHERE id = :id;

-- name: forget_lease
UPDATE queue SET lease_token = NULL WHERE id = :id;

-- name: next_due
SELECT
    (SELECT min(due_at) FROM queue INDEXED BY queue_due WHERE due_at IS NOT NULL),
    (SELECT min(leased_until) FROM queue INDEXED BY queue_leased WHERE leased_until IS NOT NULL),
    (SELECT min(due_at) FROM tenantq_periodic);

-- name: find_claimable
-- What a claim takes, in its order and as it will be, from an index that holds only what may be taken now.
SELECT id, priority, visible_at, attempts + 1, max_attempts, enqueued_at, key, headers, error, payload
FROM queue INDEXED BY queue_ready
WHERE queue = :queue
  AND claimed_by IS NULL
  AND due_at IS NULL
ORDER BY priority DESC, visible_at, id
LIMIT :limit;

-- name: peek_ready
SELECT id, priority, visible_at, attempts, max_attempts, enqueued_at, key, headers, error, payload
FROM queue INDEXED BY queue_ready
WHERE queue = :queue
  AND claimed_by IS NULL
  AND due_at IS NULL
ORDER BY priority DESC, visible_at, id
LIMIT :limit;

-- name: peek_scheduled
SELECT id, priority, visible_at, attempts, max_attempts, enqueued_at, key, headers, error, payload
FROM queue INDEXED BY queue_due
WHERE due_at IS NOT NULL
  AND queue = :queue
ORDER BY due_at, id
LIMIT :limit;

-- name: find_ready
SELECT id FROM queue INDEXED BY queue_ready
WHERE queue = :queue
  AND claimed_by IS NULL
  AND due_at IS NULL
LIMIT :limit;

-- name: find_scheduled
-- By no index that has the queue: only a purge asks, and it reads nothing that is ready.
SELECT id FROM queue INDEXED BY queue_due WHERE due_at IS NOT NULL AND queue = :queue LIMIT :limit;

-- name: find_claimed
SELECT id FROM queue INDEXED BY queue_leased WHERE leased_until IS NOT NULL AND queue = :queue LIMIT :limit;

-- name: delete_message
DELETE FROM queue WHERE id = :id;

-- name: pause_queue
INSERT INTO tenantq_paused (queue, paused_at) VALUES (:queue, :now) ON CONFLICT (queue) DO NOTHING;

-- name: resume_queue
DELETE FROM tenantq_paused WHERE queue = :queue;

-- name: list_paused
SELECT queue FROM tenantq_paused;

-- name: end_leases
-- After a boot, and in a file that came from elsewhere, nobody works on what is claimed.
UPDATE queue SET leased_until = 0 WHERE leased_until IS NOT NULL;

-- name: find_held
-- Whatever some delivery may still act on: a lease that ended is held until somebody else claims its message.
SELECT id FROM queue WHERE claimed_by IS NOT NULL OR lease_token IS NOT NULL;

-- name: give_back_held
UPDATE queue
SET attempts     = attempts - (claimed_by IS NOT NULL),
    claimed_by   = NULL,
    claimed_at   = NULL,
    leased_until = NULL,
    lease_token  = NULL
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: count_given_back
UPDATE tenantq_depth SET ready = ready + claimed, claimed = 0 WHERE claimed > 0;
