-- Indexes that have grown far beyond their rows, and what an interrupted REINDEX CONCURRENTLY left behind.

-- name: list_indexes
-- What the live rows need: a tuple of 8 bytes and its columns, aligned, and 4 bytes that point to it, in pages
-- that are nine tenths full. Rows are the larger of two estimates, as a crash resets one of them; widths are
-- those of the last ANALYZE, or 32 bytes for what it has not seen. Postgres 14.0 to 14.3 can corrupt an index
-- that is rebuilt beside writers: none is listed there.
SELECT
    n.nspname::text, c.relname::text, pg_relation_size(c.oid),
    (16384 + GREATEST(s.n_live_tup, t.reltuples, 0) * (12 + ceil(w.width / 8.0) * 8) / 0.9)::bigint,
    pg_has_role(t.relowner, 'USAGE')
FROM pg_class AS t
JOIN pg_index AS i ON i.indrelid = t.oid
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_am AS m ON m.oid = c.relam AND m.amname = 'btree'
JOIN pg_stat_all_tables AS s ON s.relid = t.oid
CROSS JOIN LATERAL (
    SELECT sum(CASE WHEN a.attlen > 0 THEN a.attlen ELSE COALESCE(d.avg_width, 32) END) AS width
    FROM unnest(i.indkey::smallint[]) AS k (attnum)
    JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = k.attnum
    LEFT JOIN pg_stats AS d
        ON d.schemaname = s.schemaname AND d.tablename = t.relname AND d.attname = a.attname AND NOT d.inherited
) AS w
WHERE t.relnamespace = '{schema}'::regnamespace
    AND t.relkind = 'r'
    AND i.indisvalid
    -- Never vacuumed or analyzed: nobody knows how many rows it has.
    AND t.reltuples >= 0
    AND current_setting('server_version_num')::integer NOT BETWEEN 140000 AND 140003
ORDER BY pg_relation_size(c.oid) DESC, c.relname

-- name: list_leftovers
-- Of our tables and their TOAST tables.
SELECT n.nspname::text, c.relname::text
FROM pg_class AS t
JOIN pg_index AS i ON i.indrelid IN (t.oid, t.reltoastrelid)
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE t.relnamespace = '{schema}'::regnamespace
    AND t.relkind = 'r'
    AND NOT i.indisvalid
    AND c.relname ~ '_cc(new|old)[0-9]*$'
    AND pg_has_role(t.relowner, 'USAGE')
ORDER BY c.relname

-- name: has_old_snapshot
-- A rebuild waits for every snapshot that is older than it.
SELECT EXISTS (
    SELECT FROM pg_stat_activity AS a
    WHERE a.pid <> pg_backend_pid()
        AND a.datname = current_database()
        AND a.backend_xmin IS NOT NULL
        AND a.xact_start < clock_timestamp() - %(age)s::interval
)

-- name: elect_rebuilder
-- For this session, which is ours alone: it ends with the session, however that ends.
SELECT pg_try_advisory_lock(hashtextextended(%(schema)s || '.reindex', 0))

-- name: rebuild_index
REINDEX INDEX CONCURRENTLY {{index}}

-- name: drop_index
DROP INDEX CONCURRENTLY IF EXISTS {{index}}
