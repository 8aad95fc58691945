-- Queues as a whole: subscriptions, pauses, counts.

-- name: subscribe_queue
INSERT INTO {schema}.subscriptions (queue, pattern, subscribed_at)
VALUES (%(queue)s, %(pattern)s, clock_timestamp())
ON CONFLICT DO NOTHING

-- name: unsubscribe_queue
DELETE FROM {schema}.subscriptions AS b WHERE b.queue = %(queue)s AND b.pattern = %(pattern)s

-- name: list_subscriptions
SELECT b.queue, b.pattern FROM {schema}.subscriptions AS b ORDER BY b.queue, b.pattern

-- name: pause_queue
INSERT INTO {schema}.pauses (queue, paused_at) VALUES (%(queue)s, clock_timestamp()) ON CONFLICT DO NOTHING

-- name: resume_queue
DELETE FROM {schema}.pauses AS p WHERE p.queue = %(queue)s

-- name: purge_queue
SELECT {schema}.purge_queue(%(queue)s) + {schema}.purge_waiting(%(queue)s)

-- name: reap_messages
SELECT {schema}.reap_messages(%(limit)s::integer, %(exhausted_only)s::boolean)

-- name: count_messages
-- Exact, so it reads every row that waits: the index alone where vacuum has been, the table elsewhere.
WITH counted AS (
    SELECT
        r.queue,
        count(*) FILTER (WHERE r.leased_until IS NULL OR r.leased_until <= clock_timestamp()) AS ready,
        0::bigint AS scheduled,
        count(*) FILTER (WHERE r.leased_until > clock_timestamp()) AS claimed,
        0::bigint AS dead,
        min(r.visible_at) FILTER (WHERE r.leased_until IS NULL OR r.leased_until <= clock_timestamp()) AS oldest_at
    FROM {schema}.ready AS r
    WHERE %(queue)s::text IS NULL OR r.queue = %(queue)s
    GROUP BY r.queue
    UNION ALL
    -- What is due already counts as ready: the next claim takes it.
    SELECT
        d.queue,
        count(*) FILTER (WHERE d.visible_at <= clock_timestamp()),
        count(*) FILTER (WHERE d.visible_at > clock_timestamp()),
        0,
        0,
        min(d.visible_at) FILTER (WHERE d.visible_at <= clock_timestamp())
    FROM {schema}.delayed AS d
    WHERE %(queue)s::text IS NULL OR d.queue = %(queue)s
    GROUP BY d.queue
    UNION ALL
    SELECT w.queue, count(*), 0, 0, 0, min(w.visible_at)
    FROM {schema}.waiting AS w
    WHERE %(queue)s::text IS NULL OR w.queue = %(queue)s
    GROUP BY w.queue
    UNION ALL
    SELECT x.queue, 0, 0, 0, count(*), NULL
    FROM {schema}.dead AS x
    WHERE %(queue)s::text IS NULL OR x.queue = %(queue)s
    GROUP BY x.queue
    UNION ALL
    SELECT p.queue, 0, 0, 0, 0, NULL
    FROM {schema}.pauses AS p
    WHERE %(queue)s::text IS NULL OR p.queue = %(queue)s
)
SELECT
    c.queue,
    sum(c.ready)::bigint,
    sum(c.scheduled)::bigint,
    sum(c.claimed)::bigint,
    sum(c.dead)::bigint,
    GREATEST(extract(epoch FROM clock_timestamp() - min(c.oldest_at)), 0)::double precision,
    EXISTS (SELECT FROM {schema}.pauses AS p WHERE p.queue = c.queue)
FROM counted AS c
GROUP BY c.queue
ORDER BY c.queue
