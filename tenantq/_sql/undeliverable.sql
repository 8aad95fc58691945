-- Statements on events that Postgres refused.

-- name: keep_undeliverable
-- Only the event that was refused: the file may have been replaced since it was read.
INSERT INTO tenantq_undeliverable (
    seq, event_id, topic, priority, max_attempts, visible_at, emitted_at, refused_at, error, headers, payload,
    checksum
)
SELECT
    seq, event_id, topic, priority, max_attempts, visible_at, emitted_at, :refused_at, :error, headers, payload,
    checksum
FROM tenantq_outbox
WHERE seq = :seq AND event_id = :event_id AND refused_at IS NULL;

-- name: empty_event
-- Its place and its id stay: a forwarder knows the file by them.
UPDATE tenantq_outbox SET refused_at = :refused_at, headers = NULL, payload = '', checksum = NULL WHERE seq = :seq;

-- name: count_undeliverable
UPDATE tenantq_forwarded SET undeliverable = undeliverable + :count WHERE id = 1;

-- name: recount_undeliverable
SELECT count(*) FROM tenantq_undeliverable;

-- name: list_undeliverable
SELECT seq, event_id, topic, payload, headers, priority, max_attempts, visible_at, emitted_at, refused_at, error
FROM tenantq_undeliverable
WHERE seq > :after AND seq <= :through
ORDER BY seq
LIMIT :limit;

-- name: find_undeliverable
SELECT seq, event_id, topic, payload, headers, priority, max_attempts, visible_at, emitted_at, refused_at, error
FROM tenantq_undeliverable
WHERE seq = :seq;

-- name: delete_undeliverable
DELETE FROM tenantq_undeliverable WHERE seq = :seq;

-- name: mark_resent
UPDATE tenantq_outbox SET resent_at = :resent_at WHERE seq = :seq;
