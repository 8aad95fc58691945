-- What a process asks of the schema before it uses it, and what a migration does around its versions.

-- name: read_version
SELECT COALESCE(max(m.version), 0) FROM {schema}.migrations AS m

-- name: find_schema
SELECT
    to_regnamespace(%(schema)s) IS NOT NULL,
    to_regclass(%(migrations)s) IS NOT NULL

-- name: read_server
SELECT current_setting('server_version_num')::integer, current_setting('server_encoding')

-- name: lock_migrations
-- Two deployments at once: the second waits, then finds nothing to do.
SELECT pg_advisory_xact_lock(hashtextextended(%(schema)s || '.migrations', 0))

-- name: create_schema
CREATE SCHEMA {schema}

-- name: create_migrations
CREATE TABLE {schema}.migrations (version integer PRIMARY KEY, applied_at timestamptz NOT NULL)

-- name: record_version
INSERT INTO {schema}.migrations (version, applied_at) VALUES (%(version)s, clock_timestamp())
