-- Statements on a pgmq in the same database; it is another's, and only its documented functions are called.

-- name: find_pgmq
SELECT to_regprocedure('pgmq.send_batch(text, jsonb[], jsonb[], timestamptz)') IS NOT NULL

-- name: find_missing_queues
-- pgmq folds the names of queues to lower case.
SELECT q.queue
FROM unnest(%(queues)s::text[]) AS q (queue)
WHERE to_regclass(format('pgmq.%%I', lower('q_' || q.queue))) IS NULL

-- name: send_to_pgmq
-- Behind forward_events only those events are staged whose tenants' states moved and that Postgres had not got. A
-- tenant's events keep their order in a queue, and are one group for pgmq's reads in order.
WITH routes AS MATERIALIZED (
    SELECT
        r.queue,
        replace(replace(replace(replace(r.pattern, '\', '\\'), '%%', '\%%'), '_', '\_'), '*', '%%') AS topic_like
    FROM unnest(%(patterns)s::text[], %(queues)s::text[]) AS r (pattern, queue)
),
topics AS (
    SELECT DISTINCT t.topic, r.queue
    FROM (SELECT DISTINCT s.topic FROM pg_temp.tenantq_staging AS s) AS t
    JOIN routes AS r ON t.topic LIKE r.topic_like
),
batches AS MATERIALIZED (
    SELECT
        t.queue,
        GREATEST(s.visible_at, now()) AS visible_at,
        array_agg(
            CASE
                WHEN s.body IS NOT NULL THEN s.body::jsonb
                ELSE to_jsonb(translate(encode(s.data, 'base64'), E'\n', ''))
            END
            ORDER BY s.tenant, s.seq
        ) AS messages,
        array_agg(
            jsonb_build_object('x-pgmq-group', s.tenant)
            || COALESCE(s.headers::jsonb, jsonb_build_object())
            || jsonb_build_object(
                'tenantq-tenant', s.tenant, 'tenantq-topic', s.topic, 'tenantq-event-id', s.event_id
            )
            || CASE
                WHEN s.body IS NULL THEN jsonb_build_object('tenantq-encoding', 'base64')
                ELSE jsonb_build_object()
            END
            ORDER BY s.tenant, s.seq
        ) AS headers
    FROM pg_temp.tenantq_staging AS s
    JOIN topics AS t ON t.topic = s.topic
    GROUP BY t.queue, GREATEST(s.visible_at, now())
)
SELECT b.queue, count(*)
FROM batches AS b
CROSS JOIN LATERAL pgmq.send_batch(b.queue, b.messages, b.headers, b.visible_at) AS m
GROUP BY b.queue
