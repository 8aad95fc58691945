-- The way down, to tenants' own files: who owns which tenant, what is sent, and its delivery.

-- name: send_to_tenant
SELECT s.seq, s.host
FROM {schema}.send_to_tenant(
    %(tenant)s, %(queue)s, %(rank)s::smallint, %(delay)s::interval, %(at)s::timestamptz, %(key)s,
    %(max_attempts)s::integer, %(headers)s, %(body)s::text, %(data)s::bytea
) AS s

-- name: meet_tenants
SELECT m.tenant, m.host FROM {schema}.meet_tenants(%(host)s, %(tenants)s::text[]) AS m

-- name: assign_tenant
SELECT {schema}.assign_tenant(%(tenant)s, %(host)s)

-- name: forget_tenant
SELECT {schema}.forget_tenant(%(tenant)s)

-- name: begin_delivery
SELECT
    m.tenant, m.seq, m.queue, m.rank, m.key, m.max_attempts, m.visible_at, m.headers, m.body, m.data
FROM {schema}.begin_delivery(
    %(host)s, %(tenants)s::integer, %(tenant_rows)s::integer, %(rows)s::integer, %(bytes)s::bigint
) AS m

-- name: finish_deliveries
-- In one order, whoever delivers: no deadlock.
SELECT {schema}.finish_delivery(%(host)s, f.tenant, f.mark, f.failure)
FROM (
    SELECT n.tenant, n.mark, n.failure
    FROM unnest(%(tenants)s::text[], %(marks)s::bigint[], %(failures)s::text[]) AS n (tenant, mark, failure)
    ORDER BY n.tenant COLLATE "C"
) AS f

-- name: list_owners
-- Exact, so it reads every message that waits.
SELECT
    o.tenant,
    o.host,
    o.since,
    w.waiting,
    CASE WHEN w.waiting > 0
        THEN GREATEST(extract(epoch FROM clock_timestamp() - w.oldest_at), 0)::double precision
    END,
    o.failure
FROM {schema}.owners AS o
CROSS JOIN LATERAL (
    SELECT count(*) AS waiting, min(m.sent_at) AS oldest_at
    FROM {schema}.outgoing AS m
    WHERE o.due_at IS NOT NULL AND m.tenant = o.tenant AND m.seq > o.delivered_seq
) AS w
WHERE (NOT %(waiting)s::boolean OR o.due_at IS NOT NULL)
    AND (%(host)s::text IS NULL OR o.host = %(host)s)
ORDER BY o.tenant
