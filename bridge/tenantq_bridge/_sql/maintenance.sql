-- What one elected worker does for everyone. Each step is a transaction of its own that holds the election.

-- name: elect_worker
-- For this transaction only: it survives a pooler, and needs no unlocking.
SELECT pg_try_advisory_xact_lock(hashtextextended(%(schema)s || '.maintenance', 0))

-- name: promote_due
-- A claim promotes its own queue: this is for the ring, so that a claim that waits need not look.
SELECT q.queue, {schema}.promote_messages(q.queue, %(limit)s::integer)
FROM (SELECT DISTINCT l.queue FROM {schema}.lanes AS l) AS q

-- name: read_horizon
-- The sequence first, then who holds the hot table's insert lock: a transaction takes that lock before it reads
-- the sequence, so one that could still bring a seq at or below the first answer is in the second.
SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM {schema}.message_seq AS s

-- name: list_writers
SELECT l.virtualtransaction
FROM pg_locks AS l
WHERE l.locktype = 'relation'
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.relation = '{schema}.ready'::regclass
    AND l.mode = 'RowExclusiveLock'
    AND l.pid IS DISTINCT FROM pg_backend_pid()

-- name: advance_floors
SELECT {schema}.advance_floors(%(settled)s::bigint)

-- name: drop_seen_days
SELECT {schema}.drop_seen_days(%(days)s::integer)

-- name: bury_exhausted
SELECT {schema}.reap_messages(%(limit)s::integer, true)

-- name: open_seen_days
SELECT {schema}.open_seen_days()

-- name: place_messages
-- Those of a shared queue that came by another way than an enqueue or an event.
SELECT {schema}.place_messages(%(queue)s, 0, %(limit)s::bigint, 0)

-- name: open_applied_days
SELECT {schema}.open_applied_day(((clock_timestamp() AT TIME ZONE 'UTC')::date + d.days)::date)
FROM generate_series(0, 1) AS d (days)

-- name: drop_applied_days
SELECT {schema}.drop_applied_days(%(days)s::integer)
