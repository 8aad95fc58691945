-- What `tenantq bridge health` reads: sizes over time, who holds an old snapshot, and how autovacuum is set.

-- name: bound_locks
-- A size is read under the weakest lock there is, which still waits for a DROP or a TRUNCATE.
SELECT set_config('lock_timeout', '500ms', true)

-- name: take_sample
-- Leaves alone: a partitioned parent has no storage. Sizes are exact, rows are the statistics' estimate.
INSERT INTO {schema}.samples (
    sampled_at, relation, of_table, is_index, bytes, live_rows, dead_rows, removed_rows, vacuums
)
SELECT
    date_bin(%(interval)s::interval, clock_timestamp(), TIMESTAMPTZ 'epoch'),
    f.relation, f.of_table, f.is_index, f.bytes, f.live_rows, f.dead_rows, f.removed_rows, f.vacuums
FROM (
    SELECT
        p.relation, t.relname AS of_table, p.is_index, pg_relation_size(p.oid) AS bytes, s.n_live_tup AS live_rows,
        s.n_dead_tup AS dead_rows, s.n_tup_upd + s.n_tup_del AS removed_rows, s.vacuum_count + s.autovacuum_count AS vacuums
    FROM pg_class AS t
    CROSS JOIN LATERAL (
        SELECT t.oid, t.oid AS counted, t.relname::text AS relation, false AS is_index
        UNION ALL
        SELECT i.indexrelid, t.oid, c.relname::text, true
        FROM pg_index AS i
        JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE i.indrelid = t.oid
        UNION ALL
        SELECT t.reltoastrelid, t.reltoastrelid, t.relname || ' (toast)', false
        WHERE t.reltoastrelid <> 0 AND pg_relation_size(t.reltoastrelid) > 0
        UNION ALL
        SELECT i.indexrelid, t.reltoastrelid, t.relname || ' (toast index)', true
        FROM pg_index AS i
        WHERE i.indrelid = t.reltoastrelid AND i.indisvalid AND pg_relation_size(t.reltoastrelid) > 0
    ) AS p
    JOIN pg_stat_all_tables AS s ON s.relid = p.counted
    WHERE t.relnamespace = '{schema}'::regnamespace
        AND t.relkind = 'r'
        -- One that never had a row says nothing.
        AND (s.n_tup_ins > 0 OR pg_relation_size(t.oid) > 0)
) AS f
WHERE f.bytes IS NOT NULL
    AND NOT EXISTS (
        SELECT FROM {schema}.samples AS o
        WHERE o.sampled_at = date_bin(%(interval)s::interval, clock_timestamp(), TIMESTAMPTZ 'epoch')
    )
-- In one order, whoever samples: no deadlock between two that begin at once.
ORDER BY f.relation
ON CONFLICT DO NOTHING
RETURNING 1

-- name: drop_samples
-- The oldest are first in the index. By now(), and not by a clock that runs on, which no index can be searched for.
DELETE FROM {schema}.samples AS s
WHERE s.ctid = ANY (
    ARRAY (
        SELECT o.ctid
        FROM {schema}.samples AS o
        WHERE o.sampled_at < now() - %(keep)s::interval
        ORDER BY o.sampled_at
        LIMIT %(limit)s
    )
)

-- name: load_samples
-- Of relations that are still there: a day of `seen` that was dropped has nothing to say.
SELECT
    s.relation, s.of_table, s.is_index, s.sampled_at, s.bytes, s.live_rows, s.dead_rows, s.removed_rows, s.vacuums
FROM {schema}.samples AS s
WHERE to_regclass(quote_ident(%(schema)s) || '.' || quote_ident(s.of_table)) IS NOT NULL
ORDER BY s.relation, s.sampled_at

-- name: list_holders
-- Who keeps vacuum from removing rows, the oldest first. The transaction ids are everyone's to see; the rest of
-- another role's session is not, unless one may read all statistics. Vacuum itself holds nothing.
SELECT h.kind, h.name, h.pid, h.role, h.application, h.state, h.seconds, h.transactions, h.is_hidden
FROM (
    SELECT
        CASE WHEN a.backend_type = 'walsender' THEN 'standby' ELSE 'session' END AS kind,
        a.pid::text AS name,
        a.pid,
        a.usename::text AS role,
        a.application_name AS application,
        a.state,
        extract(epoch FROM clock_timestamp() - a.xact_start)::double precision AS seconds,
        GREATEST(age(a.backend_xmin), age(a.backend_xid))::bigint AS transactions,
        a.state IS NULL AND a.query = '<insufficient privilege>' AS is_hidden
    FROM pg_stat_activity AS a
    WHERE a.pid <> pg_backend_pid()
        AND (a.datname = current_database() OR a.backend_type = 'walsender')
        AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
        AND a.pid NOT IN (SELECT v.pid FROM pg_stat_progress_vacuum AS v)
    UNION ALL
    SELECT
        'prepared', p.gid, NULL, p.owner::text, NULL, NULL,
        extract(epoch FROM clock_timestamp() - p.prepared)::double precision,
        age(p.transaction)::bigint, false
    FROM pg_prepared_xacts AS p
    WHERE p.database = current_database()
    UNION ALL
    -- Not catalog_xmin, which holds the catalog's rows and not ours.
    SELECT
        'slot', r.slot_name::text, r.active_pid, NULL, NULL, CASE WHEN r.active THEN 'active' ELSE 'inactive' END,
        NULL, age(r.xmin)::bigint, false
    FROM pg_replication_slots AS r
    WHERE r.xmin IS NOT NULL
) AS h
ORDER BY h.transactions DESC, h.seconds DESC NULLS LAST

-- name: read_settings
SELECT s.name, s.setting
FROM pg_settings AS s
WHERE s.name IN (
    'autovacuum', 'autovacuum_max_workers', 'autovacuum_naptime', 'autovacuum_vacuum_cost_delay',
    'autovacuum_vacuum_scale_factor', 'autovacuum_vacuum_threshold', 'track_counts', 'vacuum_cost_delay'
)

-- name: list_table_options
SELECT c.relname::text, COALESCE(c.reloptions, ARRAY[]::text[])
FROM pg_class AS c
WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'r'
ORDER BY c.relname
