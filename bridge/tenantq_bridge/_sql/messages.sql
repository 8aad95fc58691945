-- The verbs of a queue. The work is in the schema's functions, whose plans are pinned there; the columns of a
-- message are listed in one order everywhere, which tenantq_bridge.delivery reads.

-- name: enqueue_messages
WITH enqueued AS MATERIALIZED (
    SELECT {schema}.enqueue_messages(
        %(queue)s, %(rank)s::smallint, %(delay)s::interval, %(at)s::timestamptz, %(key)s,
        %(max_attempts)s::integer, %(tenant)s, %(headers)s, %(bodies)s::text[], %(datas)s::bytea[]
    ) AS id
),
placed AS MATERIALIZED (
    SELECT {schema}.place_inserted(ARRAY[%(queue)s::text], f.id) FROM (SELECT min(e.id) AS id FROM enqueued AS e) AS f
)
SELECT e.id FROM enqueued AS e CROSS JOIN placed

-- name: claim_messages
SELECT
    m.id, m.queue, m.rank, m.seq, m.tenant, m.topic, m.event_id, m.key, m.attempts, m.max_attempts,
    m.enqueued_at, m.visible_at, m.leased_until, m.lease_token, m.headers, m.body, m.data, m.error
FROM {schema}.claim_messages(
    %(queue)s, %(limit)s::integer, %(lease)s::interval, %(token)s::bigint, %(worker)s, %(promote)s::boolean,
    %(after)s
) AS m

-- name: ack_messages
SELECT {schema}.ack_messages(%(queues)s::text[], %(ranks)s::smallint[], %(seqs)s::bigint[], %(tokens)s::bigint[])

-- name: release_messages
SELECT {schema}.release_messages(
    %(queues)s::text[], %(ranks)s::smallint[], %(seqs)s::bigint[], %(tokens)s::bigint[]
)

-- name: fail_message
SELECT {schema}.fail_message(
    %(queue)s, %(rank)s::smallint, %(seq)s::bigint, %(token)s::bigint, %(delay)s::interval, %(error)s,
    %(dead)s::boolean, %(counted)s::boolean
)

-- name: delay_messages
-- Gives several back at once, none with an attempt counted.
SELECT h.place
FROM unnest(%(queues)s::text[], %(ranks)s::smallint[], %(seqs)s::bigint[], %(tokens)s::bigint[])
    WITH ORDINALITY AS h (queue, rank, seq, token, place)
WHERE {schema}.fail_message(h.queue, h.rank, h.seq, h.token, %(delay)s::interval, NULL, false, false)

-- name: extend_lease
UPDATE {schema}.ready AS r
SET leased_until = clock_timestamp() + %(seconds)s::interval
WHERE r.queue = %(queue)s AND r.rank = %(rank)s AND r.seq = %(seq)s AND r.lease_token = %(token)s
RETURNING r.leased_until

-- name: peek_ready
SELECT
    m.id, m.queue, m.rank, m.seq, m.tenant, m.topic, m.event_id, m.key, m.attempts, m.max_attempts,
    m.enqueued_at, m.visible_at, NULL::timestamptz, NULL::bigint, m.headers, m.body, m.data, m.error
FROM {schema}.ready AS m
WHERE m.queue = %(queue)s AND (m.leased_until IS NULL OR m.leased_until <= clock_timestamp())
ORDER BY m.rank, m.seq
LIMIT %(limit)s

-- name: peek_waiting
SELECT
    m.id, m.queue, m.rank, m.seq, m.tenant, m.topic, m.event_id, m.key, m.attempts, m.max_attempts,
    m.enqueued_at, m.visible_at, NULL::timestamptz, NULL::bigint, m.headers, m.body, m.data, m.error
FROM {schema}.waiting AS m
WHERE m.queue = %(queue)s
ORDER BY m.tenant_hash, m.rank, m.seq
LIMIT %(limit)s

-- name: peek_delayed
SELECT
    m.id, m.queue, m.rank, 0::bigint, m.tenant, m.topic, m.event_id, m.key, m.attempts, m.max_attempts,
    m.enqueued_at, m.visible_at, NULL::timestamptz, NULL::bigint, m.headers, m.body, m.data, m.error
FROM {schema}.delayed AS m
WHERE m.queue = %(queue)s
ORDER BY m.visible_at, m.id
LIMIT %(limit)s

-- name: list_dead
SELECT
    m.id, m.queue, m.rank, 0::bigint, m.tenant, m.topic, m.event_id, m.key, m.attempts, m.max_attempts,
    m.enqueued_at, m.visible_at, NULL::timestamptz, NULL::bigint, m.headers, m.body, m.data, m.error
FROM {schema}.dead AS m
WHERE %(queue)s::text IS NULL OR m.queue = %(queue)s
ORDER BY m.id
LIMIT %(limit)s

-- name: redrive_messages
SELECT {schema}.redrive_messages(%(ids)s::bigint[], %(queue)s)

-- name: ring_queue
SELECT pg_notify(%(channel)s, %(queue)s)

-- name: apply_event
SELECT {schema}.apply_event(%(queue)s, %(tenant)s, %(event_id)s::uuid, %(emitted_at)s::timestamptz)
