-- What was acked, of the queues that are recorded.

-- name: record_queue
INSERT INTO {schema}.recorded_queues (queue, recorded_at) VALUES (%(queue)s, clock_timestamp()) ON CONFLICT DO NOTHING

-- name: unrecord_queue
DELETE FROM {schema}.recorded_queues AS q WHERE q.queue = %(queue)s

-- name: list_recorded
SELECT q.queue FROM {schema}.recorded_queues AS q ORDER BY q.queue

-- name: list_history
-- Without an index, so it reads all that is kept: for a person who looks, not for a program that works.
SELECT
    m.acked_at, m.worker,
    m.id, m.queue, m.rank, 0::bigint, m.tenant, m.topic, m.event_id, m.key, m.attempts, m.max_attempts,
    m.enqueued_at, m.visible_at, NULL::timestamptz, NULL::bigint, m.headers, m.body, m.data, m.error
FROM {schema}.history AS m
WHERE (%(queue)s::text IS NULL OR m.queue = %(queue)s) AND (%(tenant)s::text IS NULL OR m.tenant = %(tenant)s)
ORDER BY m.acked_at DESC, m.id DESC
LIMIT %(limit)s

-- name: turn_history
SELECT {schema}.turn_history(%(turn)s::interval)
