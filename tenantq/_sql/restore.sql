-- What is written into a copy before it takes the place of a tenant's file, or becomes another tenant.

-- name: ids_given_out
-- By queue, those of the highest messages too: a hand-written INSERT is not counted in the depths.
SELECT queue, last_id FROM tenantq_depth
UNION ALL
SELECT queue, id FROM (SELECT queue, id FROM queue ORDER BY id DESC LIMIT 1)
UNION ALL
SELECT queue, id FROM (SELECT queue, id FROM tenantq_dead ORDER BY id DESC LIMIT 1);

-- name: raise_last_id
INSERT INTO tenantq_depth (queue, last_id) VALUES (:queue, :last_id)
ON CONFLICT (queue) DO UPDATE SET last_id = max(last_id, excluded.last_id);

-- name: park_events
-- Whoever wants them forwarded after all sends them again.
INSERT INTO tenantq_undeliverable (
    seq, event_id, topic, priority, max_attempts, visible_at, emitted_at, refused_at, error, headers, payload,
    checksum
)
SELECT
    seq, event_id, topic, priority, max_attempts, visible_at, emitted_at, :now, :reason, headers, payload, checksum
FROM tenantq_outbox
WHERE seq > (SELECT seq FROM tenantq_forwarded WHERE id = 1) AND refused_at IS NULL;

-- name: empty_outbox
DELETE FROM tenantq_outbox;

-- name: begin_forwarding
UPDATE tenantq_forwarded
SET seq           = 0,
    event_id      = NULL,
    pending       = 0,
    undeliverable = (SELECT count(*) FROM tenantq_undeliverable)
WHERE id = 1;

-- name: pause_all
INSERT INTO tenantq_paused (queue, paused_at) SELECT queue, :now FROM tenantq_depth WHERE true
ON CONFLICT (queue) DO NOTHING;

-- name: stop_periodic
UPDATE tenantq_periodic SET due_at = NULL, error = :reason;

-- name: forget_inbox
DELETE FROM tenantq_meta WHERE name = 'received_seq';
