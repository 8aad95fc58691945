-- The forwarder's side: each tenant's state, and the batch that moves it.

-- name: open_states
-- A tenant that was never forwarded begins at nothing.
INSERT INTO {schema}.forwarding (tenant, file_id, epoch_at)
SELECT n.tenant, n.file_id, clock_timestamp()
FROM unnest(%(tenants)s::text[], %(file_ids)s::text[]) AS n (tenant, file_id)
ORDER BY n.tenant
ON CONFLICT DO NOTHING

-- name: load_states
SELECT
    f.tenant, f.file_id, f.epoch, f.epoch_at, f.last_seq, f.last_event_id, f.accepted_through, f.forwarded,
    f.forwarded_at, f.quarantined_at, f.reason
FROM {schema}.forwarding AS f
WHERE f.tenant = ANY (%(tenants)s::text[])

-- name: list_states
SELECT
    f.tenant, f.file_id, f.epoch, f.epoch_at, f.last_seq, f.last_event_id, f.accepted_through, f.forwarded,
    f.forwarded_at, f.quarantined_at, f.reason
FROM {schema}.forwarding AS f
ORDER BY f.tenant

-- name: begin_epoch
-- Only from the state that was judged: another forwarder may have judged first.
UPDATE {schema}.forwarding AS f
SET file_id = %(file_id)s,
    epoch = f.epoch + 1,
    epoch_at = clock_timestamp(),
    last_seq = 0,
    last_event_id = NULL
WHERE f.tenant = %(tenant)s
    AND f.epoch = %(epoch)s
    AND f.last_seq = %(last_seq)s
    AND f.last_event_id IS NOT DISTINCT FROM %(last_event_id)s::text

-- name: quarantine_tenant
UPDATE {schema}.forwarding AS f
SET quarantined_at = clock_timestamp(), reason = %(reason)s
WHERE f.tenant = %(tenant)s
    AND f.epoch = %(epoch)s
    AND f.last_seq = %(last_seq)s
    AND f.quarantined_at IS NULL
RETURNING f.tenant

-- name: readmit_tenant
UPDATE {schema}.forwarding AS f
SET file_id = %(file_id)s,
    epoch = f.epoch + 1,
    epoch_at = clock_timestamp(),
    last_seq = %(last_seq)s,
    last_event_id = %(last_event_id)s,
    accepted_through = %(accepted_through)s,
    quarantined_at = NULL,
    reason = NULL
WHERE f.tenant = %(tenant)s AND f.quarantined_at IS NOT NULL
RETURNING f.tenant

-- name: read_window
-- From when on everything that was forwarded is still known; NULL: from the beginning.
SELECT CASE WHEN w.dropped_through > '-infinity' THEN (w.dropped_through + 1)::timestamp AT TIME ZONE 'UTC' END
FROM {schema}.seen_window AS w

-- name: open_seen_days
SELECT {schema}.open_seen_days()

-- name: create_staging
-- Dropped by the commit: nothing of it outlives the transaction, whoever the pooler gives the session to next.
CREATE TEMP TABLE tenantq_staging (
    tenant text COLLATE "C",
    seq bigint,
    event_id uuid,
    topic text COLLATE "C",
    rank smallint,
    max_attempts integer,
    visible_at timestamptz,
    emitted_at timestamptz,
    headers text,
    body text,
    data bytea
) ON COMMIT DROP

-- name: copy_staging
COPY pg_temp.tenantq_staging (
    tenant, seq, event_id, topic, rank, max_attempts, visible_at, emitted_at, headers, body, data
) FROM STDIN (FORMAT BINARY)

-- name: forward_events
SELECT f.moved, f.forwarded, f.queues
FROM {schema}.forward_events(
    %(tenants)s::text[], %(file_ids)s::text[], %(epochs)s::integer[], %(prev_seqs)s::bigint[],
    %(prev_event_ids)s::text[], %(last_seqs)s::bigint[], %(last_event_ids)s::text[], %(deduped)s::text[]
) AS f
CROSS JOIN LATERAL {schema}.place_inserted(f.queues, 0)
