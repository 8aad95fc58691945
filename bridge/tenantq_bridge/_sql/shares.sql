-- Queues that tenants share: their turns and their limits.

-- name: share_queue
SELECT {schema}.share_queue(%(queue)s, %(max_claimed)s::integer, %(max_claimed_per_tenant)s::integer)

-- name: sort_shared
SELECT {schema}.sort_shared(%(queue)s, %(limit)s::bigint)

-- name: unshare_queue
SELECT {schema}.unshare_queue(%(queue)s)

-- name: retire_shared
SELECT {schema}.retire_shared()

-- name: list_shared
SELECT s.queue, s.max_claimed, s.max_claimed_per_tenant, s.state
FROM {schema}.shared_queues AS s
ORDER BY s.queue
