-- Statements on events that are on their way to the shared layer.

-- name: insert_event
INSERT INTO tenantq_outbox (
    event_id, topic, priority, max_attempts, visible_at, emitted_at, headers, payload, checksum
) VALUES (
    :event_id, :topic, :priority, :max_attempts, :visible_at, :emitted_at, :headers, :payload, :checksum
)
RETURNING seq;

-- name: count_events
UPDATE tenantq_forwarded SET last_seq = :last_seq, pending = pending + :emitted WHERE id = 1;

-- name: outbox_position
SELECT seq, event_id, last_seq, pending, undeliverable FROM tenantq_forwarded WHERE id = 1;

-- name: count_pending
SELECT count(*) FROM tenantq_outbox WHERE seq > (SELECT seq FROM tenantq_forwarded WHERE id = 1);

-- name: read_events
SELECT
    seq, event_id, topic, payload, headers, priority, max_attempts, visible_at, emitted_at,
    refused_at IS NOT NULL, resent_at IS NOT NULL
FROM tenantq_outbox
WHERE seq > :after
ORDER BY seq
LIMIT :limit;

-- name: event_id_at
SELECT event_id FROM tenantq_outbox WHERE seq = :seq;

-- name: mark_forwarded
-- Counts only the events between the old mark and the new one, whichever comes first.
UPDATE tenantq_forwarded
SET seq      = :seq,
    event_id = :event_id,
    pending  = pending - (
        SELECT count(*) FROM tenantq_outbox AS o WHERE o.seq > tenantq_forwarded.seq AND o.seq <= :seq
    ) + (
        SELECT count(*) FROM tenantq_outbox AS o WHERE o.seq > :seq AND o.seq <= tenantq_forwarded.seq
    )
WHERE id = 1;

-- name: confirm_forwarded
-- Never back, and only in the file that the events were read from: one put in its place has another event there.
UPDATE tenantq_forwarded
SET seq      = :seq,
    event_id = :event_id,
    pending  = pending - (
        SELECT count(*) FROM tenantq_outbox AS o WHERE o.seq > tenantq_forwarded.seq AND o.seq <= :seq
    )
WHERE id = 1
    AND seq < :seq
    AND EXISTS (SELECT 1 FROM tenantq_outbox AS o WHERE o.seq = :seq AND o.event_id = :event_id);

-- name: oldest_event
SELECT emitted_at FROM tenantq_outbox WHERE seq > 0 ORDER BY seq LIMIT 1;

-- name: prune_events
-- The last forwarded event stays: it is what a forwarder knows this file by. Only the first events are
-- looked at, since they are the oldest: not all that are kept, at every round.
DELETE FROM tenantq_outbox
WHERE seq IN (
    SELECT seq
    FROM (
        SELECT seq, emitted_at FROM tenantq_outbox
        WHERE seq < (SELECT seq FROM tenantq_forwarded WHERE id = 1)
        ORDER BY seq
        LIMIT :limit
    )
    WHERE emitted_at < :before
);
