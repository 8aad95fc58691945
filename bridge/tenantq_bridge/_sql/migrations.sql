-- The shared layer's tables and functions, one statement block a version; a newer block leads on from an older.
--
-- The life of a message, and the table that has it meanwhile:
--
--     enqueue, forward ──> ready ──claim (lease in place)──> ready ──ack──> gone
--            │               ^                                 │
--            └──> delayed ───┘ promote (a new seq)             ├──release──> ready, same place
--                    ^                                         ├──nack────> delayed, or dead at max_attempts
--                    └─────────────────────────────────────────┘
--
-- ready is the hot table. Its rows are short-lived, its one index is its primary key, and the columns that a
-- claim writes are in no index, so that a claim is a heap-only update: the heap stays in a band and the index
-- at a few pages. What must wait long (delayed, dead) lies elsewhere and cannot hold pages of it.
--
-- id names a message for ever. seq is its place in the hot table: it gets a new one whenever it comes back.
-- rank is the negated priority, so that one ascending scan gives the higher priority first.
-- Every function reads clock_timestamp(): the database's clock alone decides leases and visibility.

-- name: version_1
CREATE SEQUENCE {schema}.message_seq AS bigint;

CREATE TABLE {schema}.ready (
    queue text COLLATE "C" NOT NULL,
    rank smallint NOT NULL,
    seq bigint NOT NULL,
    id bigint NOT NULL,
    tenant text COLLATE "C",
    topic text COLLATE "C",
    event_id uuid,
    key text COLLATE "C",
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    enqueued_at timestamptz NOT NULL,
    visible_at timestamptz NOT NULL,
    leased_until timestamptz,
    lease_token bigint,
    leased_by text,
    headers text,
    body text,
    data bytea,
    error text,
    PRIMARY KEY (queue, rank, seq),
    CHECK ((body IS NULL) <> (data IS NULL))
) WITH (
    -- Room on each page for the version that the claim writes: without it no update is heap-only.
    fillfactor = 60,
    -- The documents' setting (0.02) keeps the decay away; a fixed threshold matters while the table is small.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.02,
    autovacuum_vacuum_insert_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0,
    -- Vacuum skips indexes with few dead entries by default, and the claim would walk those for ever.
    vacuum_index_cleanup = on
);

-- The queues' priorities in use, so that a claim can start each at its floor: below it no row of the lane is
-- left or can appear (see advance_floors). Under a held snapshot vacuum removes nothing, and without a floor
-- every claim would walk all the dead rows in front. Lanes are few and are kept.
CREATE TABLE {schema}.lanes (
    queue text COLLATE "C" NOT NULL,
    rank smallint NOT NULL,
    floor bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, rank)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 100);

CREATE TABLE {schema}.delayed (
    queue text COLLATE "C" NOT NULL,
    visible_at timestamptz NOT NULL,
    id bigint NOT NULL,
    rank smallint NOT NULL,
    tenant text COLLATE "C",
    topic text COLLATE "C",
    event_id uuid,
    key text COLLATE "C",
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    enqueued_at timestamptz NOT NULL,
    headers text,
    body text,
    data bytea,
    error text,
    PRIMARY KEY (queue, visible_at, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, vacuum_index_cleanup = on);

CREATE TABLE {schema}.dead (
    id bigint PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    rank smallint NOT NULL,
    tenant text COLLATE "C",
    topic text COLLATE "C",
    event_id uuid,
    key text COLLATE "C",
    attempts integer NOT NULL,
    max_attempts integer NOT NULL,
    enqueued_at timestamptz NOT NULL,
    visible_at timestamptz NOT NULL,
    died_at timestamptz NOT NULL,
    headers text,
    body text,
    data bytea,
    error text
);
CREATE INDEX dead_by_queue ON {schema}.dead (queue, id);

-- Only messages with an idempotency key are here, so that the hot table needs no second index for the others.
CREATE TABLE {schema}.keys (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    id bigint NOT NULL,
    PRIMARY KEY (queue, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE TABLE {schema}.pauses (
    queue text COLLATE "C" PRIMARY KEY,
    paused_at timestamptz NOT NULL
);

-- topic_like is the pattern as LIKE reads it: only `*` is special in a pattern, and only `\`, `%`, `_` in LIKE.
CREATE TABLE {schema}.subscriptions (
    queue text COLLATE "C" NOT NULL,
    pattern text COLLATE "C" NOT NULL,
    topic_like text COLLATE "C" NOT NULL GENERATED ALWAYS AS (
        replace(replace(replace(replace(pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')
    ) STORED,
    subscribed_at timestamptz NOT NULL,
    PRIMARY KEY (queue, pattern)
);

-- How far each tenant's events have come: moved in the transaction that inserts them, and only from the place
-- where the forwarder believed it to be. An epoch is one history of a file: a new one begins when the file and
-- this state disagree, and what was emitted before it began is compared with `seen`. accepted_through: up to
-- where a person said to send what is too old to be compared.
CREATE TABLE {schema}.forwarding (
    tenant text COLLATE "C" PRIMARY KEY,
    file_id text NOT NULL,
    epoch integer NOT NULL DEFAULT 1,
    epoch_at timestamptz NOT NULL,
    last_seq bigint NOT NULL DEFAULT 0,
    last_event_id text,
    accepted_through bigint NOT NULL DEFAULT 0,
    forwarded bigint NOT NULL DEFAULT 0,
    forwarded_at timestamptz,
    quarantined_at timestamptz,
    reason text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- What was forwarded, for the tenants that are restored from a backup: one row a tenant and batch, since it is
-- read by tenant and only then. Days are whole partitions, dropped and never deleted from.
CREATE TABLE {schema}.seen (
    day date NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    event_ids uuid[] NOT NULL
) PARTITION BY LIST (day);
-- Random bytes do not compress.
ALTER TABLE {schema}.seen ALTER COLUMN event_ids SET STORAGE EXTERNAL;
CREATE INDEX seen_by_tenant ON {schema}.seen (tenant);

-- The last day that `seen` no longer knows; -infinity while it knows everything that was ever forwarded.
CREATE TABLE {schema}.seen_window (dropped_through date NOT NULL);
INSERT INTO {schema}.seen_window (dropped_through) VALUES ('-infinity');

CREATE FUNCTION {schema}.open_lane(p_queue text, p_rank smallint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    -- Looked up first: ON CONFLICT alone would write a dead row for every message.
    IF NOT EXISTS (SELECT FROM {schema}.lanes AS l WHERE l.queue = p_queue AND l.rank = p_rank) THEN
        INSERT INTO {schema}.lanes (queue, rank) VALUES (p_queue, p_rank) ON CONFLICT DO NOTHING;
    END IF;
END $$;

CREATE FUNCTION {schema}.enqueue_messages(
    p_queue text,
    p_rank smallint,
    p_delay interval,
    p_at timestamptz,
    p_key text,
    p_max_attempts integer,
    p_tenant text,
    p_headers text,
    p_bodies text[],
    p_datas bytea[]
) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_visible_at timestamptz := COALESCE(p_at, v_now + p_delay);
    v_id bigint;
    v_looks integer := 0;
BEGIN
    PERFORM {schema}.open_lane(p_queue, p_rank);
    IF p_key IS NOT NULL THEN
        LOOP
            SELECT k.id INTO v_id FROM {schema}.keys AS k WHERE k.queue = p_queue AND k.key = p_key;
            IF FOUND THEN
                RETURN NEXT v_id;
                RETURN;
            END IF;
            -- Waits for a racing enqueue of the same key to commit or roll back.
            INSERT INTO {schema}.keys (queue, key, id)
            VALUES (p_queue, p_key, nextval('{schema}.message_seq'))
            ON CONFLICT DO NOTHING
            RETURNING id INTO v_id;
            EXIT WHEN FOUND;
            v_looks := v_looks + 1;
            IF v_looks > 100 THEN
                -- A snapshot that cannot see the winner (a stricter isolation level): a new transaction can.
                RAISE EXCEPTION 'the key is contended' USING ERRCODE = 'serialization_failure';
            END IF;
        END LOOP;
    END IF;
    IF v_visible_at <= v_now THEN
        -- The sequence is read inside of the insert, which holds the table's lock by then: advance_floors
        -- counts on it.
        RETURN QUERY
        INSERT INTO {schema}.ready (
            queue, rank, seq, id, tenant, key, max_attempts, enqueued_at, visible_at, headers, body, data
        )
        SELECT
            p_queue, p_rank, n.seq, COALESCE(v_id, n.seq), p_tenant, p_key, p_max_attempts, v_now, v_visible_at,
            p_headers, n.body, n.data
        FROM (
            SELECT nextval('{schema}.message_seq') AS seq, p.body, p.data
            FROM (
                SELECT u.body, u.data
                FROM unnest(p_bodies, p_datas) WITH ORDINALITY AS u (body, data, place)
                ORDER BY u.place
            ) AS p
        ) AS n
        RETURNING id;
    ELSE
        RETURN QUERY
        INSERT INTO {schema}.delayed (
            queue, visible_at, id, rank, tenant, key, max_attempts, enqueued_at, headers, body, data
        )
        SELECT
            p_queue, v_visible_at, n.id, p_rank, p_tenant, p_key, p_max_attempts, v_now,
            p_headers, n.body, n.data
        FROM (
            SELECT COALESCE(v_id, nextval('{schema}.message_seq')) AS id, p.body, p.data
            FROM (
                SELECT u.body, u.data
                FROM unnest(p_bodies, p_datas) WITH ORDINALITY AS u (body, data, place)
                ORDER BY u.place
            ) AS p
        ) AS n
        RETURNING id;
    END IF;
END $$;

CREATE FUNCTION {schema}.promote_messages(p_queue text, p_limit integer) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    -- A variable, since a volatile function cannot bound an index scan: it would walk all that is delayed.
    v_now timestamptz := clock_timestamp();
    v_count integer;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT d.ctid
        FROM {schema}.delayed AS d
        WHERE d.queue = p_queue AND d.visible_at <= v_now
        ORDER BY d.visible_at, d.id
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM {schema}.delayed AS d
        WHERE d.ctid = ANY (ARRAY(SELECT due.ctid FROM due))
        RETURNING d.*
    )
    INSERT INTO {schema}.ready (
        queue, rank, seq, id, tenant, topic, event_id, key, attempts, max_attempts, enqueued_at, visible_at,
        headers, body, data, error
    )
    SELECT
        g.queue, g.rank, nextval('{schema}.message_seq'), g.id, g.tenant, g.topic, g.event_id, g.key, g.attempts,
        g.max_attempts, g.enqueued_at, g.visible_at, g.headers, g.body, g.data, g.error
    FROM (SELECT * FROM gone ORDER BY gone.visible_at, gone.id) AS g;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

CREATE FUNCTION {schema}.bury_message(p_message {schema}.ready, p_error text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.ready AS r
    WHERE r.queue = p_message.queue AND r.rank = p_message.rank AND r.seq = p_message.seq;
    INSERT INTO {schema}.dead (
        id, queue, rank, tenant, topic, event_id, key, attempts, max_attempts, enqueued_at, visible_at, died_at,
        headers, body, data, error
    )
    VALUES (
        p_message.id, p_message.queue, p_message.rank, p_message.tenant, p_message.topic, p_message.event_id,
        p_message.key, LEAST(p_message.attempts, p_message.max_attempts), p_message.max_attempts,
        p_message.enqueued_at, p_message.visible_at, clock_timestamp(),
        p_message.headers, p_message.body, p_message.data, COALESCE(p_error, p_message.error)
    );
    IF p_message.key IS NOT NULL THEN
        DELETE FROM {schema}.keys AS k
        WHERE k.queue = p_message.queue AND k.key = p_message.key AND k.id = p_message.id;
    END IF;
END $$;

-- Returns at most p_limit messages, in no order. A message whose lease has expired is found like any other; one
-- that has used its attempts up goes to the dead letters instead, and the scan goes on.
--
-- The plan is pinned: analyze often sees this table empty, and the planner then takes sequential scans of what
-- is by now a backlog. ctid is safe within the statement that locked the row; a row that a racing statement
-- moved is at worst left for the next claim. MATERIALIZED keeps LIMIT from being run again by a join.
CREATE FUNCTION {schema}.claim_messages(
    p_queue text,
    p_limit integer,
    p_lease interval,
    p_token bigint,
    p_worker text,
    p_promote boolean
) RETURNS SETOF {schema}.ready
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_lane record;
    v_message {schema}.ready;
    v_wanted integer := p_limit;
    v_promoted boolean := p_promote;
    v_buried integer;
    v_expired constant text := 'the lease of the last attempt expired';
BEGIN
    IF EXISTS (SELECT FROM {schema}.pauses AS p WHERE p.queue = p_queue) THEN
        RETURN;
    END IF;
    IF p_promote THEN
        PERFORM {schema}.promote_messages(p_queue, 1000);
    END IF;
    LOOP
        FOR v_lane IN
            SELECT l.rank, l.floor FROM {schema}.lanes AS l WHERE l.queue = p_queue ORDER BY l.rank
        LOOP
            LOOP
                v_buried := 0;
                FOR v_message IN
                    WITH picked AS MATERIALIZED (
                        SELECT r.ctid
                        FROM {schema}.ready AS r
                        WHERE r.queue = p_queue
                            AND r.rank = v_lane.rank
                            AND r.seq >= v_lane.floor
                            AND (r.leased_until IS NULL OR r.leased_until <= clock_timestamp())
                        ORDER BY r.seq
                        LIMIT v_wanted
                        FOR UPDATE SKIP LOCKED
                    )
                    UPDATE {schema}.ready AS r
                    SET attempts = r.attempts + 1,
                        leased_until = clock_timestamp() + p_lease,
                        lease_token = p_token,
                        leased_by = p_worker
                    WHERE r.ctid = ANY (ARRAY(SELECT picked.ctid FROM picked))
                    RETURNING r.*
                LOOP
                    IF v_message.attempts > v_message.max_attempts THEN
                        PERFORM {schema}.bury_message(v_message, COALESCE(v_message.error, v_expired));
                        v_buried := v_buried + 1;
                    ELSE
                        v_wanted := v_wanted - 1;
                        RETURN NEXT v_message;
                    END IF;
                END LOOP;
                EXIT WHEN v_wanted <= 0 OR v_buried = 0;
            END LOOP;
            EXIT WHEN v_wanted <= 0;
        END LOOP;
        EXIT WHEN v_wanted <= 0 OR v_promoted;
        v_promoted := true;
        EXIT WHEN {schema}.promote_messages(p_queue, 1000) = 0;
    END LOOP;
END $$;

-- The arrays are parallel and sorted by place, so that two batches that share rows lock them in one order.
CREATE FUNCTION {schema}.ack_messages(p_queues text[], p_ranks smallint[], p_seqs bigint[], p_tokens bigint[])
RETURNS SETOF bigint
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT h.queue, h.rank, h.seq, h.token
        FROM unnest(p_queues, p_ranks, p_seqs, p_tokens) AS h (queue, rank, seq, token)
    ),
    gone AS (
        DELETE FROM {schema}.ready AS r
        USING held AS h
        WHERE r.queue = h.queue AND r.rank = h.rank AND r.seq = h.seq AND r.lease_token = h.token
        RETURNING r.id, r.queue, r.key
    ),
    freed AS (
        DELETE FROM {schema}.keys AS k
        USING gone AS g
        WHERE g.key IS NOT NULL AND k.queue = g.queue AND k.key = g.key AND k.id = g.id
    )
    SELECT g.id FROM gone AS g;
END $$;

CREATE FUNCTION {schema}.release_messages(p_queues text[], p_ranks smallint[], p_seqs bigint[], p_tokens bigint[])
RETURNS SETOF bigint
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT h.queue, h.rank, h.seq, h.token
        FROM unnest(p_queues, p_ranks, p_seqs, p_tokens) AS h (queue, rank, seq, token)
    )
    UPDATE {schema}.ready AS r
    SET attempts = r.attempts - 1, leased_until = NULL, lease_token = NULL, leased_by = NULL
    FROM held AS h
    WHERE r.queue = h.queue AND r.rank = h.rank AND r.seq = h.seq AND r.lease_token = h.token
    RETURNING r.id;
END $$;

-- Ends a delivery that is not done; false if it no longer holds its lease. Without p_counted the attempt is not
-- counted, and cannot be the last.
CREATE FUNCTION {schema}.fail_message(
    p_queue text,
    p_rank smallint,
    p_seq bigint,
    p_token bigint,
    p_delay interval,
    p_error text,
    p_dead boolean,
    p_counted boolean
) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_message {schema}.ready;
BEGIN
    SELECT r.* INTO v_message
    FROM {schema}.ready AS r
    WHERE r.queue = p_queue AND r.rank = p_rank AND r.seq = p_seq AND r.lease_token = p_token
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF NOT p_counted THEN
        v_message.attempts := v_message.attempts - 1;
    END IF;
    IF p_dead OR v_message.attempts >= v_message.max_attempts THEN
        PERFORM {schema}.bury_message(v_message, p_error);
        RETURN true;
    END IF;
    DELETE FROM {schema}.ready AS r WHERE r.queue = p_queue AND r.rank = p_rank AND r.seq = p_seq;
    IF p_delay <= interval '0' THEN
        INSERT INTO {schema}.ready (
            queue, rank, seq, id, tenant, topic, event_id, key, attempts, max_attempts, enqueued_at, visible_at,
            headers, body, data, error
        )
        VALUES (
            v_message.queue, v_message.rank, nextval('{schema}.message_seq'), v_message.id, v_message.tenant,
            v_message.topic, v_message.event_id, v_message.key, v_message.attempts, v_message.max_attempts,
            v_message.enqueued_at, v_now, v_message.headers, v_message.body, v_message.data,
            COALESCE(p_error, v_message.error)
        );
    ELSE
        INSERT INTO {schema}.delayed (
            queue, visible_at, id, rank, tenant, topic, event_id, key, attempts, max_attempts, enqueued_at,
            headers, body, data, error
        )
        VALUES (
            v_message.queue, v_now + p_delay, v_message.id, v_message.rank, v_message.tenant, v_message.topic,
            v_message.event_id, v_message.key, v_message.attempts, v_message.max_attempts,
            v_message.enqueued_at, v_message.headers, v_message.body, v_message.data,
            COALESCE(p_error, v_message.error)
        );
    END IF;
    RETURN true;
END $$;

-- Takes expired leases back: exhausted messages to the dead letters, and, unless p_exhausted_only, the others
-- to the queue. Reads the whole table once, as the lease is in no index: for an operator and for one elected
-- worker, rarely; a claim finds expired leases by itself.
CREATE FUNCTION {schema}.reap_messages(p_limit integer, p_exhausted_only boolean) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_message {schema}.ready;
    v_count integer := 0;
    v_expired constant text := 'the lease of the last attempt expired';
BEGIN
    FOR v_message IN
        SELECT r.*
        FROM {schema}.ready AS r
        WHERE r.leased_until <= clock_timestamp()
            AND (NOT p_exhausted_only OR r.attempts >= r.max_attempts)
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    LOOP
        IF v_message.attempts >= v_message.max_attempts THEN
            PERFORM {schema}.bury_message(v_message, COALESCE(v_message.error, v_expired));
        ELSE
            UPDATE {schema}.ready AS r
            SET leased_until = NULL, lease_token = NULL, leased_by = NULL
            WHERE r.queue = v_message.queue AND r.rank = v_message.rank AND r.seq = v_message.seq;
        END IF;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

CREATE FUNCTION {schema}.redrive_messages(p_ids bigint[], p_queue text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_dead {schema}.dead;
    v_count bigint := 0;
BEGIN
    FOR v_dead IN
        SELECT d.*
        FROM {schema}.dead AS d
        WHERE (p_ids IS NULL OR d.id = ANY (p_ids)) AND (p_queue IS NULL OR d.queue = p_queue)
        ORDER BY d.id
        FOR UPDATE
    LOOP
        IF v_dead.key IS NOT NULL THEN
            -- A later message may have the key by now: then this one stays dead.
            INSERT INTO {schema}.keys (queue, key, id)
            VALUES (v_dead.queue, v_dead.key, v_dead.id)
            ON CONFLICT DO NOTHING;
            CONTINUE WHEN NOT FOUND;
        END IF;
        DELETE FROM {schema}.dead AS d WHERE d.id = v_dead.id;
        INSERT INTO {schema}.ready (
            queue, rank, seq, id, tenant, topic, event_id, key, max_attempts, enqueued_at, visible_at,
            headers, body, data, error
        )
        VALUES (
            v_dead.queue, v_dead.rank, nextval('{schema}.message_seq'), v_dead.id, v_dead.tenant, v_dead.topic,
            v_dead.event_id, v_dead.key, v_dead.max_attempts, v_dead.enqueued_at, v_now,
            v_dead.headers, v_dead.body, v_dead.data, v_dead.error
        );
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

CREATE FUNCTION {schema}.purge_queue(p_queue text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_ready bigint;
    v_delayed bigint;
BEGIN
    WITH gone AS (DELETE FROM {schema}.ready AS r WHERE r.queue = p_queue RETURNING r.id, r.key),
    freed AS (
        DELETE FROM {schema}.keys AS k
        USING gone AS g
        WHERE k.queue = p_queue AND k.key = g.key AND k.id = g.id
    )
    SELECT count(*) INTO v_ready FROM gone;
    WITH gone AS (DELETE FROM {schema}.delayed AS d WHERE d.queue = p_queue RETURNING d.id, d.key),
    freed AS (
        DELETE FROM {schema}.keys AS k
        USING gone AS g
        WHERE k.queue = p_queue AND k.key = g.key AND k.id = g.id
    )
    SELECT count(*) INTO v_delayed FROM gone;
    RETURN v_ready + v_delayed;
END $$;

-- Below p_settled + 1 every row that will ever be there is there (the caller made sure, see read_horizon): the
-- floor of a lane is its first row, or that. Small steps are left out: each would write a version of the lane
-- that claims then walk.
CREATE FUNCTION {schema}.advance_floors(p_settled bigint) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_lane record;
    v_floor bigint;
    v_count integer := 0;
BEGIN
    FOR v_lane IN SELECT l.queue, l.rank, l.floor FROM {schema}.lanes AS l ORDER BY l.queue, l.rank LOOP
        SELECT r.seq INTO v_floor
        FROM {schema}.ready AS r
        WHERE r.queue = v_lane.queue AND r.rank = v_lane.rank AND r.seq >= v_lane.floor
        ORDER BY r.seq
        LIMIT 1;
        v_floor := LEAST(COALESCE(v_floor, p_settled + 1), p_settled + 1);
        IF v_floor >= v_lane.floor + 1000 THEN
            UPDATE {schema}.lanes AS l SET floor = v_floor WHERE l.queue = v_lane.queue AND l.rank = v_lane.rank;
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END $$;

-- Runs as its owner, so that the role that forwards needs no right to create tables.
CREATE FUNCTION {schema}.open_seen_days() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    v_day date;
    v_table text;
BEGIN
    FOREACH v_day IN ARRAY ARRAY[v_today, v_today + 1] LOOP
        v_table := 'seen_' || to_char(v_day, 'YYYYMMDD');
        IF to_regclass(format('{schema}.%I', v_table)) IS NULL THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('{schema}.seen', 0));
            -- By a query: to_regclass may go on saying what it said before another session made the table.
            IF NOT EXISTS (
                SELECT FROM pg_class WHERE relnamespace = '{schema}'::regnamespace AND relname = v_table
            ) THEN
                -- ATTACH takes a weaker lock than CREATE ... PARTITION OF: inserts go on meanwhile.
                EXECUTE format('CREATE TABLE {schema}.%I (LIKE {schema}.seen INCLUDING ALL)', v_table);
                EXECUTE format('ALTER TABLE {schema}.seen ATTACH PARTITION {schema}.%I FOR VALUES IN (%L)', v_table, v_day);
            END IF;
        END IF;
    END LOOP;
END $$;

-- Drops the days before the last p_days whole ones, and says how many.
CREATE FUNCTION {schema}.drop_seen_days(p_days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '500ms'
AS $$
DECLARE
    v_keep_from date := (clock_timestamp() AT TIME ZONE 'UTC')::date - p_days - 1;
    v_partition record;
    v_count integer := 0;
BEGIN
    FOR v_partition IN
        SELECT c.relname, to_date(substr(c.relname, 6), 'YYYYMMDD') AS day
        FROM pg_inherits AS i
        JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = '{schema}.seen'::regclass
    LOOP
        IF v_partition.day < v_keep_from THEN
            UPDATE {schema}.seen_window SET dropped_through = GREATEST(dropped_through, v_partition.day);
            EXECUTE format('DROP TABLE {schema}.%I', v_partition.relname);
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END $$;

-- Moves the tenants' states and inserts what is staged, for those tenants alone whose state is still where the
-- forwarder believed it to be: a second forwarder, a replay and an overlap insert nothing.
CREATE FUNCTION {schema}.forward_events(
    p_tenants text[],
    p_file_ids text[],
    p_epochs integer[],
    p_prev_seqs bigint[],
    p_prev_event_ids text[],
    p_last_seqs bigint[],
    p_last_event_ids text[],
    p_deduped text[],
    OUT moved text[],
    OUT forwarded bigint,
    OUT queues text[]
)
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    -- In one order, whoever forwards: no deadlock.
    PERFORM FROM {schema}.forwarding AS f WHERE f.tenant = ANY (p_tenants) ORDER BY f.tenant FOR UPDATE;

    IF cardinality(p_deduped) > 0 THEN
        DELETE FROM pg_temp.tenantq_staging AS s
        USING (
            SELECT n.tenant, e.event_id
            FROM {schema}.seen AS n
            CROSS JOIN unnest(n.event_ids) AS e (event_id)
            WHERE n.tenant = ANY (p_deduped)
        ) AS known
        WHERE s.tenant = known.tenant AND s.event_id = known.event_id;
    END IF;

    WITH heads AS (
        SELECT h.*
        FROM unnest(
            p_tenants, p_file_ids, p_epochs, p_prev_seqs, p_prev_event_ids, p_last_seqs, p_last_event_ids
        ) AS h (tenant, file_id, epoch, prev_seq, prev_event_id, last_seq, last_event_id)
    ),
    staged AS (SELECT s.tenant, count(*) AS events FROM pg_temp.tenantq_staging AS s GROUP BY s.tenant),
    advanced AS (
        UPDATE {schema}.forwarding AS f
        SET last_seq = h.last_seq,
            last_event_id = h.last_event_id,
            forwarded = f.forwarded + COALESCE(n.events, 0),
            forwarded_at = v_now
        FROM heads AS h
        LEFT JOIN staged AS n ON n.tenant = h.tenant
        WHERE f.tenant = h.tenant
            AND f.file_id = h.file_id
            AND f.epoch = h.epoch
            AND f.last_seq = h.prev_seq
            AND f.last_event_id IS NOT DISTINCT FROM h.prev_event_id
            AND f.quarantined_at IS NULL
        RETURNING f.tenant
    )
    SELECT COALESCE(array_agg(a.tenant), ARRAY[]::text[]) INTO moved FROM advanced AS a;

    IF cardinality(moved) < cardinality(p_tenants) THEN
        DELETE FROM pg_temp.tenantq_staging AS s WHERE s.tenant <> ALL (moved);
    END IF;
    SELECT count(*) INTO forwarded FROM pg_temp.tenantq_staging AS s;
    INSERT INTO {schema}.seen (day, tenant, event_ids)
    SELECT (v_now AT TIME ZONE 'UTC')::date, s.tenant, array_agg(s.event_id ORDER BY s.seq)
    FROM pg_temp.tenantq_staging AS s
    GROUP BY s.tenant;

    WITH topics AS (SELECT DISTINCT s.topic FROM pg_temp.tenantq_staging AS s),
    routes AS MATERIALIZED (
        -- Once a queue, however many of its patterns match.
        SELECT DISTINCT t.topic, b.queue
        FROM topics AS t
        JOIN {schema}.subscriptions AS b ON t.topic LIKE b.topic_like
    ),
    lanes AS (
        INSERT INTO {schema}.lanes (queue, rank)
        SELECT DISTINCT r.queue, s.rank
        FROM pg_temp.tenantq_staging AS s
        JOIN routes AS r ON r.topic = s.topic
        WHERE NOT EXISTS (SELECT FROM {schema}.lanes AS l WHERE l.queue = r.queue AND l.rank = s.rank)
        ORDER BY r.queue, s.rank
        ON CONFLICT DO NOTHING
    ),
    later AS (
        INSERT INTO {schema}.delayed (
            queue, visible_at, id, rank, tenant, topic, event_id, max_attempts, enqueued_at, headers, body, data
        )
        SELECT
            r.queue, s.visible_at, nextval('{schema}.message_seq'), s.rank, s.tenant, s.topic, s.event_id,
            s.max_attempts, s.emitted_at, s.headers, s.body, s.data
        FROM pg_temp.tenantq_staging AS s
        JOIN routes AS r ON r.topic = s.topic
        WHERE s.visible_at > v_now
    ),
    at_once AS (
        INSERT INTO {schema}.ready (
            queue, rank, seq, id, tenant, topic, event_id, max_attempts, enqueued_at, visible_at,
            headers, body, data
        )
        SELECT
            e.queue, e.rank, e.place, e.place, e.tenant, e.topic, e.event_id, e.max_attempts, e.emitted_at,
            COALESCE(e.visible_at, v_now), e.headers, e.body, e.data
        FROM (
            -- The sequence is read after the sort: a tenant's events keep their order in every queue.
            SELECT nextval('{schema}.message_seq') AS place, o.*
            FROM (
                SELECT r.queue, s.*
                FROM pg_temp.tenantq_staging AS s
                JOIN routes AS r ON r.topic = s.topic
                WHERE s.visible_at IS NULL OR s.visible_at <= v_now
                ORDER BY s.tenant, s.seq, r.queue
            ) AS o
        ) AS e
    )
    SELECT COALESCE(array_agg(DISTINCT r.queue), ARRAY[]::text[]) INTO queues FROM routes AS r;
END $$;

-- name: version_2
-- The documents' autovacuum settings on every table: 2 % of the rows and not 20, and no pauses in between. A
-- TOAST table takes those of its table.
ALTER TABLE {schema}.lanes SET (autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.delayed SET (autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.keys SET (autovacuum_vacuum_cost_delay = 0, vacuum_index_cleanup = on);
ALTER TABLE {schema}.forwarding SET (autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.dead SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE {schema}.pauses SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE {schema}.subscriptions SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE {schema}.seen_window SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE {schema}.migrations SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
DO $$
DECLARE
    v_day regclass;
BEGIN
    FOR v_day IN SELECT i.inhrelid::regclass FROM pg_inherits AS i WHERE i.inhparent = '{schema}.seen'::regclass LOOP
        EXECUTE format(
            'ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, '
            'autovacuum_vacuum_cost_delay = 0)',
            v_day
        );
    END LOOP;
END $$;

-- As before, with the settings: a partition takes none from its parent, which has no storage of its own.
CREATE OR REPLACE FUNCTION {schema}.open_seen_days() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    v_day date;
    v_table text;
BEGIN
    FOREACH v_day IN ARRAY ARRAY[v_today, v_today + 1] LOOP
        v_table := 'seen_' || to_char(v_day, 'YYYYMMDD');
        IF to_regclass(format('{schema}.%I', v_table)) IS NULL THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('{schema}.seen', 0));
            -- By a query: to_regclass may go on saying what it said before another session made the table.
            IF NOT EXISTS (
                SELECT FROM pg_class WHERE relnamespace = '{schema}'::regnamespace AND relname = v_table
            ) THEN
                -- ATTACH takes a weaker lock than CREATE ... PARTITION OF: inserts go on meanwhile.
                EXECUTE format(
                    'CREATE TABLE {schema}.%I (LIKE {schema}.seen INCLUDING ALL) WITH ('
                    'autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, '
                    'autovacuum_vacuum_cost_delay = 0)',
                    v_table
                );
                EXECUTE format('ALTER TABLE {schema}.seen ATTACH PARTITION {schema}.%I FOR VALUES IN (%L)', v_table, v_day);
            END IF;
        END IF;
    END LOOP;
END $$;

-- How large each leaf table, its TOAST table and each index was, every half minute of the last day: one heap and
-- one index at a time, since a sum hides which of them moves, and a partitioned parent has no size. The counters
-- are those of the table, for an index too.
CREATE TABLE {schema}.samples (
    -- The beginning of the interval that it stands for: whoever samples twice in one adds nothing.
    sampled_at timestamptz NOT NULL,
    relation text COLLATE "C" NOT NULL,
    of_table text COLLATE "C" NOT NULL,
    is_index boolean NOT NULL,
    bytes bigint NOT NULL,
    live_rows bigint NOT NULL,
    dead_rows bigint NOT NULL,
    -- Row versions that died so far, by updates and deletes, and vacuums that came so far.
    removed_rows bigint NOT NULL,
    vacuums bigint NOT NULL,
    PRIMARY KEY (sampled_at, relation)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

-- name: version_3
-- The way down: messages for a tenant's own file, and the host that has it.
--
--     send ──> outgoing ──begin_delivery──> the tenant's file ──finish_delivery──> gone
--
-- A message's place (seq) is taken under the lock of its tenant's row, so that the order of places is the order of
-- commits and one number in the tenant's file tells what it has. It is the time in microseconds, or one more than
-- the last: so places only grow, though this database may be set back by a failover or a restore, or a tenant's
-- file come from elsewhere.
--
-- due_at is when the tenant's turn is; NULL while nothing waits for it. The index on it is the line in which the
-- tenants of a host stand: who was served goes to its end, who failed further back, and who has nothing is not in
-- it, so that neither many tenants nor many that fail cost the others anything.
CREATE TABLE {schema}.owners (
    tenant text COLLATE "C" PRIMARY KEY,
    -- NULL: something was sent before any host had the tenant.
    host text COLLATE "C",
    since timestamptz NOT NULL,
    last_seq bigint NOT NULL DEFAULT 0,
    -- At or below it nothing is in outgoing, nor will be: where a delivery begins to look.
    delivered_seq bigint NOT NULL DEFAULT 0,
    due_at timestamptz,
    failures integer NOT NULL DEFAULT 0,
    failure text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX owners_in_line ON {schema}.owners (host, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE {schema}.outgoing (
    tenant text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    rank smallint NOT NULL,
    key text COLLATE "C",
    max_attempts integer NOT NULL,
    sent_at timestamptz NOT NULL,
    -- NULL: at once, when it arrives.
    visible_at timestamptz,
    headers text,
    body text,
    data bytea,
    PRIMARY KEY (tenant, seq),
    CHECK ((body IS NULL) <> (data IS NULL))
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_index_cleanup = on
);

CREATE FUNCTION {schema}.send_to_tenant(
    p_tenant text,
    p_queue text,
    p_rank smallint,
    p_delay interval,
    p_at timestamptz,
    p_key text,
    p_max_attempts integer,
    p_headers text,
    p_body text,
    p_data bytea,
    OUT seq bigint,
    OUT host text
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    INSERT INTO {schema}.owners AS o (tenant, since, last_seq, due_at)
    VALUES (
        p_tenant, clock_timestamp(), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp()
    )
    ON CONFLICT (tenant) DO UPDATE
    SET last_seq = GREATEST(o.last_seq + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
        due_at = COALESCE(o.due_at, clock_timestamp())
    RETURNING o.last_seq, o.host INTO send_to_tenant.seq, send_to_tenant.host;
    v_now := clock_timestamp();
    INSERT INTO {schema}.outgoing (
        tenant, seq, queue, rank, key, max_attempts, sent_at, visible_at, headers, body, data
    )
    VALUES (
        p_tenant, send_to_tenant.seq, p_queue, p_rank, p_key, p_max_attempts, v_now,
        CASE WHEN p_at IS NOT NULL THEN p_at WHEN p_delay > interval '0' THEN v_now + p_delay END,
        p_headers, p_body, p_data
    );
END $$;

-- Makes a host the owner of those of its tenants that have none, lets those of its own that failed be tried at
-- once, and says which belong to another. Only rows that change are locked, and in one order.
CREATE FUNCTION {schema}.meet_tenants(p_host text, p_tenants text[]) RETURNS TABLE (tenant text, host text)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO {schema}.owners (tenant, host, since)
    SELECT n.tenant, p_host, clock_timestamp()
    FROM unnest(p_tenants) AS n (tenant)
    WHERE NOT EXISTS (SELECT FROM {schema}.owners AS o WHERE o.tenant = n.tenant)
    ORDER BY n.tenant
    ON CONFLICT DO NOTHING;
    PERFORM
    FROM {schema}.owners AS o
    WHERE o.tenant = ANY (p_tenants) AND (o.host IS NULL OR (o.host = p_host AND o.failures > 0))
    ORDER BY o.tenant
    FOR UPDATE;
    UPDATE {schema}.owners AS o
    SET host = p_host,
        since = CASE WHEN o.host IS NULL THEN clock_timestamp() ELSE o.since END,
        failures = 0,
        due_at = CASE WHEN o.due_at IS NOT NULL THEN clock_timestamp() END
    WHERE o.tenant = ANY (p_tenants) AND (o.host IS NULL OR (o.host = p_host AND o.failures > 0));
    RETURN QUERY
    SELECT o.tenant, o.host
    FROM {schema}.owners AS o
    WHERE o.tenant = ANY (p_tenants) AND o.host <> p_host
    ORDER BY o.tenant;
END $$;

-- Held by a delivery from before it reads until after the tenant's file has what it read: whoever moves or forgets
-- the tenant waits for it, so that the old host writes nothing once the move is committed. Those who send do not.
CREATE FUNCTION {schema}.delivery_lock(p_tenant text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('{schema}.delivery.' || p_tenant, 0)
$$;

-- Returns the owner before; NULL if there was none.
CREATE FUNCTION {schema}.assign_tenant(p_tenant text, p_host text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_before text;
BEGIN
    PERFORM pg_advisory_xact_lock({schema}.delivery_lock(p_tenant));
    SELECT o.host INTO v_before FROM {schema}.owners AS o WHERE o.tenant = p_tenant FOR UPDATE;
    INSERT INTO {schema}.owners AS o (tenant, host, since)
    VALUES (p_tenant, p_host, clock_timestamp())
    ON CONFLICT (tenant) DO UPDATE
    SET host = p_host,
        since = CASE WHEN o.host IS NOT DISTINCT FROM p_host THEN o.since ELSE clock_timestamp() END,
        failures = 0,
        failure = NULL,
        due_at = CASE WHEN o.due_at IS NOT NULL THEN clock_timestamp() END;
    RETURN v_before;
END $$;

-- Removes a tenant's owner and what waits for it; returns how many messages, or NULL if there was nothing.
CREATE FUNCTION {schema}.forget_tenant(p_tenant text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    PERFORM pg_advisory_xact_lock({schema}.delivery_lock(p_tenant));
    DELETE FROM {schema}.owners AS o WHERE o.tenant = p_tenant;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    DELETE FROM {schema}.outgoing AS m WHERE m.tenant = p_tenant;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Ends a delivery: p_mark is up to where the tenant's file has all. What lies there is deleted, the tenant goes to
-- the end of the line while more waits, and behind a pause when it failed.
CREATE FUNCTION {schema}.finish_delivery(p_host text, p_tenant text, p_mark bigint, p_failure text) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_delivered bigint;
    v_failures integer;
    v_waits boolean;
BEGIN
    SELECT o.delivered_seq, o.failures INTO v_delivered, v_failures
    FROM {schema}.owners AS o
    WHERE o.tenant = p_tenant AND o.host = p_host
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM {schema}.outgoing AS m WHERE m.tenant = p_tenant AND m.seq > v_delivered AND m.seq <= p_mark;
    v_delivered := GREATEST(v_delivered, p_mark);
    v_waits := EXISTS (SELECT FROM {schema}.outgoing AS m WHERE m.tenant = p_tenant AND m.seq > v_delivered);
    v_failures := CASE WHEN p_failure IS NULL THEN 0 ELSE v_failures + 1 END;
    UPDATE {schema}.owners AS o
    SET delivered_seq = v_delivered,
        -- A file may have more than this database knows that it sent, after a failover: what is sent from now on
        -- comes behind that.
        last_seq = GREATEST(o.last_seq, p_mark),
        failures = v_failures,
        failure = p_failure,
        due_at = CASE
            WHEN v_waits THEN clock_timestamp() + interval '0.5 s' * LEAST(120, 2 ^ LEAST(v_failures, 10) - 1)
        END
    WHERE o.tenant = p_tenant;
END $$;

-- Returns what waits for the tenants of a host whose turn it is, in the order of their places, and locks those
-- tenants' deliveries until the transaction ends; those that another deliverer has are left to it. A message is
-- returned however large, if it is the first. A tenant alone, without a place: nothing waits, its turn is to end.
CREATE FUNCTION {schema}.begin_delivery(
    p_host text,
    p_tenants integer,
    p_tenant_rows integer,
    p_rows integer,
    p_bytes bigint
) RETURNS SETOF {schema}.outgoing
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- A variable, since a volatile function cannot bound an index scan.
    v_now timestamptz := clock_timestamp();
    v_tenant text;
    v_delivered bigint;
    v_message {schema}.outgoing;
    v_size bigint;
    v_rows integer := p_rows;
    v_bytes bigint := p_bytes;
    v_found boolean;
BEGIN
    FOR v_tenant IN
        SELECT o.tenant
        FROM {schema}.owners AS o
        WHERE o.host = p_host AND o.due_at <= v_now
        ORDER BY o.due_at
        LIMIT p_tenants
    LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock({schema}.delivery_lock(v_tenant));
        -- Behind the lock: a move or another delivery may have come in between.
        SELECT o.delivered_seq INTO v_delivered
        FROM {schema}.owners AS o
        WHERE o.tenant = v_tenant AND o.host = p_host AND o.due_at <= v_now;
        CONTINUE WHEN NOT FOUND;
        v_found := false;
        FOR v_message IN
            SELECT m.*
            FROM {schema}.outgoing AS m
            WHERE m.tenant = v_tenant AND m.seq > v_delivered
            ORDER BY m.seq
            LIMIT LEAST(p_tenant_rows, v_rows)
        LOOP
            v_found := true;
            v_size := COALESCE(octet_length(v_message.body), octet_length(v_message.data));
            IF v_size > v_bytes AND v_rows < p_rows THEN
                RETURN;
            END IF;
            v_bytes := v_bytes - v_size;
            v_rows := v_rows - 1;
            RETURN NEXT v_message;
        END LOOP;
        IF NOT v_found THEN
            v_message := NULL;
            v_message.tenant := v_tenant;
            RETURN NEXT v_message;
        END IF;
        EXIT WHEN v_rows <= 0;
    END LOOP;
END $$;

-- name: version_4
-- Queues that tenants share: they take turns, and leases are limited, over all and for each tenant. What waits
-- in such a queue lies in `waiting`, by tenant, and comes to the hot table when it is claimed, so that the hot
-- table has no more rows of the queue than leases, which can be counted. Every other queue is as it was.
--
--     enqueue, forward, promote ──> ready ──place──> waiting ──claim (with its lease)──> ready ──ack──> gone
--                                     ^                                                    │
--                                     └──────────────────release, nack, expired────────────┘
--
-- A message keeps its seq on the way to `waiting` and back: it keeps its place among its tenant's. A lane's
-- floor therefore stays where it is as long as its queue is shared.
CREATE TABLE {schema}.shared_queues (
    queue text COLLATE "C" PRIMARY KEY,
    -- sorting: what waited when it came to be shared is being placed, and all that comes stays behind it.
    -- ending: not limited any more; an ordinary queue when nothing waits.
    state text COLLATE "C" NOT NULL CHECK (state IN ('sorting', 'open', 'ending')),
    max_claimed integer CHECK (max_claimed > 0),
    max_claimed_per_tenant integer CHECK (max_claimed_per_tenant > 0),
    shared_at timestamptz NOT NULL
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE {schema}.waiting (
    queue text COLLATE "C" NOT NULL,
    -- Spread evenly, so that a claim that begins anywhere begins at no tenant more often than at another. Two
    -- tenants of one hash would take turns as one.
    tenant_hash bigint NOT NULL,
    rank smallint NOT NULL,
    seq bigint NOT NULL,
    id bigint NOT NULL,
    tenant text COLLATE "C",
    topic text COLLATE "C",
    event_id uuid,
    key text COLLATE "C",
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    enqueued_at timestamptz NOT NULL,
    visible_at timestamptz NOT NULL,
    headers text,
    body text,
    data bytea,
    error text,
    PRIMARY KEY (queue, tenant_hash, rank, seq)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    vacuum_index_cleanup = on
);

-- Never negative, so that -1 is before all.
CREATE FUNCTION {schema}.hash_tenant(p_tenant text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(COALESCE(p_tenant, '') COLLATE "C", 0) & 9223372036854775807;

-- Moves what nobody holds from the hot table to the places of its tenants, the oldest first, and so many whose
-- lease has expired; says how many in all. Waits for rows that are being changed: one that is extended meanwhile
-- is held, and must be counted as such.
CREATE FUNCTION {schema}.place_messages(p_queue text, p_from bigint, p_limit bigint, p_expired bigint)
RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_count bigint;
BEGIN
    WITH idle AS MATERIALIZED (
        SELECT r.ctid
        FROM {schema}.ready AS r
        WHERE r.queue = p_queue AND r.seq >= p_from AND r.leased_until IS NULL
        ORDER BY r.rank, r.seq
        LIMIT p_limit
        FOR UPDATE
    ),
    expired AS MATERIALIZED (
        SELECT r.ctid
        FROM {schema}.ready AS r
        WHERE r.queue = p_queue AND r.leased_until <= clock_timestamp()
        ORDER BY r.rank, r.seq
        LIMIT p_expired
        FOR UPDATE
    ),
    gone AS (
        DELETE FROM {schema}.ready AS r
        WHERE r.ctid = ANY (ARRAY(SELECT idle.ctid FROM idle UNION ALL SELECT expired.ctid FROM expired))
        RETURNING r.*
    )
    INSERT INTO {schema}.waiting (
        queue, tenant_hash, rank, seq, id, tenant, topic, event_id, key, attempts, max_attempts, enqueued_at,
        visible_at, headers, body, data, error
    )
    SELECT
        g.queue, {schema}.hash_tenant(g.tenant), g.rank, g.seq, g.id, g.tenant, g.topic, g.event_id, g.key,
        g.attempts, g.max_attempts, g.enqueued_at, g.visible_at, g.headers, g.body, g.data, g.error
    FROM gone AS g;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Places what the caller's transaction has inserted into queues, those of them that are shared. p_from: the
-- lowest seq that it may have.
CREATE FUNCTION {schema}.place_inserted(p_queues text[], p_from bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_queue text;
BEGIN
    FOR v_queue IN
        SELECT s.queue
        FROM {schema}.shared_queues AS s
        WHERE s.queue = ANY (p_queues) AND s.state <> 'sorting'
        ORDER BY s.queue
    LOOP
        PERFORM {schema}.place_messages(v_queue, p_from, 9223372036854775807, 0);
    END LOOP;
END $$;

-- The claim of a shared queue. It goes round the tenants from where the caller's last claim ended, and takes
-- their oldest, one each while there are more tenants than messages wanted. The cost is that of the tenants that
-- it takes from, and with a limit that of the leases there are: what waits behind is not read.
--
-- Where there is a limit, one claim of the queue at a time: the row of the queue is locked before anything is
-- counted, and the count is a statement of its own, whose snapshot knows what the last claim took.
CREATE FUNCTION {schema}.claim_shared(
    p_shared {schema}.shared_queues,
    p_limit integer,
    p_lease interval,
    p_token bigint,
    p_worker text,
    p_tidy boolean,
    p_after text
) RETURNS SETOF {schema}.ready
LANGUAGE plpgsql AS $$
DECLARE
    v_queue constant text := p_shared.queue;
    v_is_limited constant boolean :=
        p_shared.max_claimed IS NOT NULL OR p_shared.max_claimed_per_tenant IS NOT NULL;
    v_wanted bigint := p_limit;
    v_tidied boolean := p_tidy OR v_is_limited OR p_shared.state = 'sorting';
    v_at bigint := CASE
        WHEN p_after IS NULL THEN (random() * 9223372036854774784)::bigint
        ELSE {schema}.hash_tenant(p_after)
    END;
    v_from bigint := v_at;
    v_is_past_end boolean := false;
    v_is_round boolean := false;
    v_taken bigint := 0;
    v_held jsonb := '{{}}';
    v_free bigint;
    v_hash bigint;
    v_hashes bigint[];
    v_takes bigint[];
    v_share bigint;
    v_message {schema}.ready;
    v_expired constant text := 'the lease of the last attempt expired';
BEGIN
    IF v_is_limited THEN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION 'a queue with a limit is claimed in read committed transactions only'
                USING ERRCODE = 'feature_not_supported';
        END IF;
        PERFORM FROM {schema}.shared_queues AS s WHERE s.queue = v_queue FOR NO KEY UPDATE;
    END IF;
    IF v_tidied THEN
        PERFORM {schema}.promote_messages(v_queue, 1000);
        PERFORM {schema}.place_messages(v_queue, 0, 1000, p_limit);
    END IF;
    IF p_shared.max_claimed IS NOT NULL THEN
        -- Those that have expired and are not wanted too: they may be extended.
        SELECT LEAST(v_wanted, p_shared.max_claimed - count(*)) INTO v_wanted
        FROM {schema}.ready AS r
        WHERE r.queue = v_queue AND r.leased_until IS NOT NULL;
    END IF;
    WHILE v_wanted > 0 LOOP
        IF p_shared.max_claimed_per_tenant IS NOT NULL THEN
            SELECT COALESCE(jsonb_object_agg(h.hash::text, h.count), '{{}}') INTO v_held
            FROM (
                SELECT {schema}.hash_tenant(r.tenant) AS hash, count(*) AS count
                FROM {schema}.ready AS r
                WHERE r.queue = v_queue AND r.leased_until IS NOT NULL
                GROUP BY 1
            ) AS h;
        END IF;
        v_hashes := ARRAY[]::bigint[];
        v_takes := ARRAY[]::bigint[];
        WHILE cardinality(v_hashes) < v_wanted LOOP
            SELECT w.tenant_hash INTO v_hash
            FROM {schema}.waiting AS w
            WHERE w.queue = v_queue AND w.tenant_hash > v_at
            ORDER BY w.tenant_hash
            LIMIT 1;
            IF NOT FOUND AND NOT v_is_past_end THEN
                v_is_past_end := true;
                v_at := -1;
                CONTINUE;
            END IF;
            v_is_round := NOT FOUND OR v_is_past_end AND v_hash > v_from;
            EXIT WHEN v_is_round;
            v_at := v_hash;
            v_free := p_shared.max_claimed_per_tenant - COALESCE((v_held ->> v_hash::text)::bigint, 0);
            CONTINUE WHEN v_free <= 0;
            v_hashes := v_hashes || v_hash;
            v_takes := v_takes || COALESCE(v_free, v_wanted);
        END LOOP;
        IF cardinality(v_hashes) > 0 THEN
            v_share := GREATEST(v_wanted / cardinality(v_hashes), 1);
            FOR v_message IN
                WITH picked AS MATERIALIZED (
                    SELECT o.ctid
                    FROM unnest(v_hashes, v_takes) AS t (hash, take)
                    CROSS JOIN LATERAL (
                        SELECT w.ctid
                        FROM {schema}.waiting AS w
                        WHERE w.queue = v_queue AND w.tenant_hash = t.hash
                        ORDER BY w.rank, w.seq
                        LIMIT LEAST(t.take, v_share)
                        FOR UPDATE SKIP LOCKED
                    ) AS o
                ),
                gone AS (
                    DELETE FROM {schema}.waiting AS w
                    WHERE w.ctid = ANY (ARRAY(SELECT picked.ctid FROM picked))
                    RETURNING w.*
                )
                INSERT INTO {schema}.ready (
                    queue, rank, seq, id, tenant, topic, event_id, key, attempts, max_attempts, enqueued_at,
                    visible_at, leased_until, lease_token, leased_by, headers, body, data, error
                )
                SELECT
                    g.queue, g.rank, g.seq, g.id, g.tenant, g.topic, g.event_id, g.key, g.attempts + 1,
                    g.max_attempts, g.enqueued_at, g.visible_at, clock_timestamp() + p_lease, p_token, p_worker,
                    g.headers, g.body, g.data, g.error
                FROM gone AS g
                ORDER BY array_position(v_hashes, g.tenant_hash), g.rank, g.seq
                RETURNING *
            LOOP
                v_taken := v_taken + 1;
                IF v_message.attempts > v_message.max_attempts THEN
                    PERFORM {schema}.bury_message(v_message, COALESCE(v_message.error, v_expired));
                ELSE
                    v_wanted := v_wanted - 1;
                    RETURN NEXT v_message;
                END IF;
            END LOOP;
        END IF;
        CONTINUE WHEN NOT v_is_round;
        IF v_taken = 0 THEN
            EXIT WHEN v_tidied;
            v_tidied := true;
            EXIT WHEN
                {schema}.promote_messages(v_queue, 1000)
                + {schema}.place_messages(v_queue, 0, 1000, v_wanted) = 0;
        END IF;
        v_from := v_at;
        v_is_past_end := false;
        v_taken := 0;
    END LOOP;
END $$;

-- As in version 1, with a look at whether the queue is shared.
DROP FUNCTION {schema}.claim_messages(text, integer, interval, bigint, text, boolean);
CREATE FUNCTION {schema}.claim_messages(
    p_queue text,
    p_limit integer,
    p_lease interval,
    p_token bigint,
    p_worker text,
    p_promote boolean,
    p_after text DEFAULT NULL
) RETURNS SETOF {schema}.ready
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_shared {schema}.shared_queues;
    v_lane record;
    v_message {schema}.ready;
    v_wanted integer := p_limit;
    v_promoted boolean := p_promote;
    v_buried integer;
    v_expired constant text := 'the lease of the last attempt expired';
BEGIN
    IF EXISTS (SELECT FROM {schema}.pauses AS p WHERE p.queue = p_queue) THEN
        RETURN;
    END IF;
    SELECT s.* INTO v_shared FROM {schema}.shared_queues AS s WHERE s.queue = p_queue;
    IF FOUND THEN
        RETURN QUERY
        SELECT * FROM {schema}.claim_shared(v_shared, p_limit, p_lease, p_token, p_worker, p_promote, p_after);
        RETURN;
    END IF;
    IF p_promote THEN
        PERFORM {schema}.promote_messages(p_queue, 1000);
    END IF;
    LOOP
        FOR v_lane IN
            SELECT l.rank, l.floor FROM {schema}.lanes AS l WHERE l.queue = p_queue ORDER BY l.rank
        LOOP
            LOOP
                v_buried := 0;
                FOR v_message IN
                    WITH picked AS MATERIALIZED (
                        SELECT r.ctid
                        FROM {schema}.ready AS r
                        WHERE r.queue = p_queue
                            AND r.rank = v_lane.rank
                            AND r.seq >= v_lane.floor
                            AND (r.leased_until IS NULL OR r.leased_until <= clock_timestamp())
                        ORDER BY r.seq
                        LIMIT v_wanted
                        FOR UPDATE SKIP LOCKED
                    )
                    UPDATE {schema}.ready AS r
                    SET attempts = r.attempts + 1,
                        leased_until = clock_timestamp() + p_lease,
                        lease_token = p_token,
                        leased_by = p_worker
                    WHERE r.ctid = ANY (ARRAY(SELECT picked.ctid FROM picked))
                    RETURNING r.*
                LOOP
                    IF v_message.attempts > v_message.max_attempts THEN
                        PERFORM {schema}.bury_message(v_message, COALESCE(v_message.error, v_expired));
                        v_buried := v_buried + 1;
                    ELSE
                        v_wanted := v_wanted - 1;
                        RETURN NEXT v_message;
                    END IF;
                END LOOP;
                EXIT WHEN v_wanted <= 0 OR v_buried = 0;
            END LOOP;
            EXIT WHEN v_wanted <= 0;
        END LOOP;
        EXIT WHEN v_wanted <= 0 OR v_promoted;
        v_promoted := true;
        EXIT WHEN {schema}.promote_messages(p_queue, 1000) = 0;
    END LOOP;
END $$;

-- A queue changes its kind while nobody else is in a statement that asks for it: every claim and insert holds
-- the table of shared queues for reading until it commits. So each of them is before the change, and counted, or
-- after it, and knows.
CREATE FUNCTION {schema}.share_queue(p_queue text, p_max_claimed integer, p_max_claimed_per_tenant integer)
RETURNS void
LANGUAGE plpgsql
SET lock_timeout = '5s'
AS $$
BEGIN
    LOCK TABLE {schema}.shared_queues IN ACCESS EXCLUSIVE MODE;
    INSERT INTO {schema}.shared_queues AS s (queue, state, max_claimed, max_claimed_per_tenant, shared_at)
    VALUES (p_queue, 'sorting', p_max_claimed, p_max_claimed_per_tenant, clock_timestamp())
    ON CONFLICT (queue) DO UPDATE
    SET state = CASE s.state WHEN 'ending' THEN 'open' ELSE s.state END,
        max_claimed = EXCLUDED.max_claimed,
        max_claimed_per_tenant = EXCLUDED.max_claimed_per_tenant;
END $$;

-- One step of placing what waited before the queue was shared; true when that is done. The last step takes the
-- table before any row, as whoever has the table may be waiting for a row.
CREATE FUNCTION {schema}.sort_shared(p_queue text, p_limit bigint) RETURNS boolean
LANGUAGE plpgsql
SET lock_timeout = '5s'
AS $$
DECLARE
    v_idle bigint;
BEGIN
    PERFORM FROM {schema}.shared_queues AS s WHERE s.queue = p_queue AND s.state = 'sorting';
    IF NOT FOUND THEN
        RETURN true;
    END IF;
    SELECT count(*) INTO v_idle
    FROM (
        SELECT FROM {schema}.ready AS r WHERE r.queue = p_queue AND r.leased_until IS NULL LIMIT p_limit
    ) AS i;
    IF v_idle >= p_limit THEN
        PERFORM {schema}.place_messages(p_queue, 0, p_limit, 0);
        RETURN false;
    END IF;
    LOCK TABLE {schema}.shared_queues IN ACCESS EXCLUSIVE MODE;
    PERFORM {schema}.place_messages(p_queue, 0, 9223372036854775807, 0);
    -- What comes from now on is placed by who brings it.
    UPDATE {schema}.shared_queues AS s SET state = 'open' WHERE s.queue = p_queue AND s.state = 'sorting';
    RETURN true;
END $$;

CREATE FUNCTION {schema}.unshare_queue(p_queue text) RETURNS void
LANGUAGE plpgsql
SET lock_timeout = '5s'
AS $$
BEGIN
    LOCK TABLE {schema}.shared_queues IN ACCESS EXCLUSIVE MODE;
    UPDATE {schema}.shared_queues AS s
    SET state = 'ending', max_claimed = NULL, max_claimed_per_tenant = NULL
    WHERE s.queue = p_queue;
END $$;

-- Makes queues ordinary that are ending and of which nothing waits; says how many.
CREATE FUNCTION {schema}.retire_shared() RETURNS integer
LANGUAGE plpgsql
SET lock_timeout = '500ms'
AS $$
DECLARE
    v_count integer;
BEGIN
    PERFORM
    FROM {schema}.shared_queues AS s
    WHERE s.state = 'ending' AND NOT EXISTS (SELECT FROM {schema}.waiting AS w WHERE w.queue = s.queue);
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    LOCK TABLE {schema}.shared_queues IN ACCESS EXCLUSIVE MODE;
    DELETE FROM {schema}.shared_queues AS s
    WHERE s.state = 'ending' AND NOT EXISTS (SELECT FROM {schema}.waiting AS w WHERE w.queue = s.queue);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

CREATE FUNCTION {schema}.purge_waiting(p_queue text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    WITH gone AS (DELETE FROM {schema}.waiting AS w WHERE w.queue = p_queue RETURNING w.id, w.key),
    freed AS (
        DELETE FROM {schema}.keys AS k
        USING gone AS g
        WHERE k.queue = p_queue AND k.key = g.key AND k.id = g.id
    )
    SELECT count(*) INTO v_count FROM gone;
    RETURN v_count;
END $$;

-- As in version 1, but for shared queues, whose messages come to the hot table with the seqs they had.
CREATE OR REPLACE FUNCTION {schema}.advance_floors(p_settled bigint) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_lane record;
    v_floor bigint;
    v_count integer := 0;
BEGIN
    -- Until the end: no queue becomes a shared one meanwhile.
    LOCK TABLE {schema}.shared_queues IN ACCESS SHARE MODE;
    FOR v_lane IN
        SELECT l.queue, l.rank, l.floor
        FROM {schema}.lanes AS l
        WHERE NOT EXISTS (SELECT FROM {schema}.shared_queues AS s WHERE s.queue = l.queue)
        ORDER BY l.queue, l.rank
    LOOP
        SELECT r.seq INTO v_floor
        FROM {schema}.ready AS r
        WHERE r.queue = v_lane.queue AND r.rank = v_lane.rank AND r.seq >= v_lane.floor
        ORDER BY r.seq
        LIMIT 1;
        v_floor := LEAST(COALESCE(v_floor, p_settled + 1), p_settled + 1);
        IF v_floor >= v_lane.floor + 1000 THEN
            UPDATE {schema}.lanes AS l SET floor = v_floor WHERE l.queue = v_lane.queue AND l.rank = v_lane.rank;
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END $$;

-- The events whose effects an application has committed, each in the transaction of its effect. By the day on
-- which the event was emitted and not that of its effect: one event is one row in one partition, whenever and in
-- however many transactions at once it is applied, and the key decides between them. By queue too, as each
-- queue that an event goes to has effects of its own.
CREATE TABLE {schema}.applied (
    day date NOT NULL,
    queue text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    event_id uuid NOT NULL,
    PRIMARY KEY (tenant, event_id, queue, day)
) PARTITION BY LIST (day);

-- The last day of which nobody knows any more what was applied.
CREATE TABLE {schema}.applied_window (dropped_through date NOT NULL) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
INSERT INTO {schema}.applied_window (dropped_through) VALUES ('-infinity');

-- Runs as its owner, so that the role that works needs no right to create tables.
CREATE FUNCTION {schema}.open_applied_day(p_day date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_table text := 'applied_' || to_char(p_day, 'YYYYMMDD');
BEGIN
    IF to_regclass(format('{schema}.%I', v_table)) IS NOT NULL THEN
        RETURN;
    END IF;
    -- One at a time; and whoever has waited for this lock knows what the others made, whatever its snapshot.
    LOCK TABLE {schema}.applied IN SHARE UPDATE EXCLUSIVE MODE;
    IF to_regclass(format('{schema}.%I', v_table)) IS NULL THEN
        EXECUTE format(
            'CREATE TABLE {schema}.%I (LIKE {schema}.applied INCLUDING ALL) WITH ('
            'autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, '
            'autovacuum_vacuum_cost_delay = 0)',
            v_table
        );
        EXECUTE format('ALTER TABLE {schema}.applied ATTACH PARTITION {schema}.%I FOR VALUES IN (%L)', v_table, p_day);
    END IF;
END $$;

-- True: not applied before, and marked by the caller's transaction. False: applied. NULL: too old to know.
CREATE FUNCTION {schema}.apply_event(p_queue text, p_tenant text, p_event_id uuid, p_emitted_at timestamptz)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_day date := (p_emitted_at AT TIME ZONE 'UTC')::date;
BEGIN
    -- Before the window is read: until this transaction ends no day is dropped.
    LOCK TABLE {schema}.applied IN ROW EXCLUSIVE MODE;
    IF v_day <= (SELECT w.dropped_through FROM {schema}.applied_window AS w) THEN
        RETURN NULL;
    END IF;
    PERFORM {schema}.open_applied_day(v_day);
    -- Waits for another transaction that applies the same event, to see whether it commits.
    INSERT INTO {schema}.applied (day, queue, tenant, event_id)
    VALUES (v_day, p_queue, p_tenant, p_event_id)
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Drops the days before the last p_days whole ones, and says how many.
CREATE FUNCTION {schema}.drop_applied_days(p_days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '500ms'
AS $$
DECLARE
    v_drop_through date := (clock_timestamp() AT TIME ZONE 'UTC')::date - p_days - 2;
    v_table text;
    v_count integer := 0;
BEGIN
    LOCK TABLE {schema}.applied IN ACCESS EXCLUSIVE MODE;
    UPDATE {schema}.applied_window AS w SET dropped_through = v_drop_through WHERE w.dropped_through < v_drop_through;
    FOR v_table IN
        SELECT c.relname
        FROM pg_inherits AS i
        JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = '{schema}.applied'::regclass
            AND to_date(substr(c.relname, 9), 'YYYYMMDD') <= v_drop_through
    LOOP
        EXECUTE format('DROP TABLE {schema}.%I', v_table);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- What was acked, of the queues that are recorded: in four tables without an index that are filled in turn. The
-- next is emptied by TRUNCATE before it is filled, so that nothing of it is ever vacuumed or grows.
CREATE TABLE {schema}.recorded_queues (
    queue text COLLATE "C" PRIMARY KEY,
    recorded_at timestamptz NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE {schema}.history (
    slot smallint NOT NULL,
    acked_at timestamptz NOT NULL,
    id bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    rank smallint NOT NULL,
    tenant text COLLATE "C",
    topic text COLLATE "C",
    event_id uuid,
    key text COLLATE "C",
    attempts integer NOT NULL,
    max_attempts integer NOT NULL,
    enqueued_at timestamptz NOT NULL,
    visible_at timestamptz NOT NULL,
    worker text,
    headers text,
    body text,
    data bytea,
    error text
) PARTITION BY LIST (slot);
DO $$
BEGIN
    FOR v_slot IN 0..3 LOOP
        EXECUTE format(
            'CREATE TABLE {schema}.history_%s PARTITION OF {schema}.history FOR VALUES IN (%s) WITH ('
            'autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, '
            'autovacuum_vacuum_cost_delay = 0)',
            v_slot, v_slot
        );
    END LOOP;
END $$;

-- One row: the table that is being filled, and since when.
CREATE TABLE {schema}.history_turn (slot smallint NOT NULL, turned_at timestamptz NOT NULL) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
INSERT INTO {schema}.history_turn (slot, turned_at) VALUES (0, clock_timestamp());

-- Goes on to the next table when the last one was filled for so long; false when it was not. Nothing inserts
-- into the next one, so only a reader can be in the way. Runs as its owner, who alone may TRUNCATE.
CREATE FUNCTION {schema}.turn_history(p_turn interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '500ms'
AS $$
DECLARE
    v_next integer;
BEGIN
    SELECT (t.slot + 1) % 4 INTO v_next
    FROM {schema}.history_turn AS t
    WHERE t.turned_at <= clock_timestamp() - p_turn;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    EXECUTE format('TRUNCATE {schema}.history_%s', v_next);
    UPDATE {schema}.history_turn AS t SET slot = v_next, turned_at = clock_timestamp();
    RETURN true;
END $$;

-- As in version 1, and kept where the queue is recorded.
CREATE OR REPLACE FUNCTION {schema}.ack_messages(
    p_queues text[], p_ranks smallint[], p_seqs bigint[], p_tokens bigint[]
)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off  -- the little tables have no index: their price would bring it on
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.recorded_queues) THEN
        RETURN QUERY
        WITH held AS MATERIALIZED (
            SELECT h.queue, h.rank, h.seq, h.token
            FROM unnest(p_queues, p_ranks, p_seqs, p_tokens) AS h (queue, rank, seq, token)
        ),
        gone AS (
            DELETE FROM {schema}.ready AS r
            USING held AS h
            WHERE r.queue = h.queue AND r.rank = h.rank AND r.seq = h.seq AND r.lease_token = h.token
            RETURNING r.*
        ),
        freed AS (
            DELETE FROM {schema}.keys AS k
            USING gone AS g
            WHERE g.key IS NOT NULL AND k.queue = g.queue AND k.key = g.key AND k.id = g.id
        ),
        kept AS (
            INSERT INTO {schema}.history (
                slot, acked_at, id, queue, rank, tenant, topic, event_id, key, attempts, max_attempts,
                enqueued_at, visible_at, worker, headers, body, data, error
            )
            SELECT
                t.slot, clock_timestamp(), g.id, g.queue, g.rank, g.tenant, g.topic, g.event_id, g.key, g.attempts,
                g.max_attempts, g.enqueued_at, g.visible_at, g.leased_by, g.headers, g.body, g.data, g.error
            FROM gone AS g
            JOIN {schema}.recorded_queues AS q ON q.queue = g.queue
            CROSS JOIN {schema}.history_turn AS t
        )
        SELECT g.id FROM gone AS g;
        RETURN;
    END IF;
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT h.queue, h.rank, h.seq, h.token
        FROM unnest(p_queues, p_ranks, p_seqs, p_tokens) AS h (queue, rank, seq, token)
    ),
    gone AS (
        DELETE FROM {schema}.ready AS r
        USING held AS h
        WHERE r.queue = h.queue AND r.rank = h.rank AND r.seq = h.seq AND r.lease_token = h.token
        RETURNING r.id, r.queue, r.key
    ),
    freed AS (
        DELETE FROM {schema}.keys AS k
        USING gone AS g
        WHERE g.key IS NOT NULL AND k.queue = g.queue AND k.key = g.key AND k.id = g.id
    )
    SELECT g.id FROM gone AS g;
END $$;
