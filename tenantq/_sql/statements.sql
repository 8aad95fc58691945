-- What a program runs on a connection of its own: see tenantq.statements. An enqueue is the INSERT into a view of that
-- connection, whose trigger does what TenantFile.enqueue does in several steps: one statement, so that it is whole
-- outside of a transaction too. In the file itself the trigger would cost every open tenant 30 KB.

-- name: create_enqueue_view
CREATE TEMP VIEW IF NOT EXISTS tenantq_enqueue AS
SELECT
    NULL AS queue, NULL AS payload, NULL AS now, NULL AS visible_at, NULL AS due_at, NULL AS priority, NULL AS key,
    NULL AS max_attempts, NULL AS headers, NULL AS max_depth;

-- name: create_enqueue_trigger
-- While a live message has the key, nothing is added.
CREATE TEMP TRIGGER IF NOT EXISTS tenantq_enqueue_insert INSTEAD OF INSERT ON tenantq_enqueue
WHEN NOT EXISTS (SELECT 1 FROM queue WHERE queue = NEW.queue AND key = NEW.key)
BEGIN
    SELECT RAISE(ABORT, 'tenantq - the file is of a newer version')
    WHERE (SELECT user_version FROM pragma_user_version) > {schema_version};

    SELECT RAISE(ABORT, 'tenantq - the queue is full')
    WHERE coalesce((SELECT ready + scheduled + claimed FROM tenantq_depth WHERE queue = NEW.queue), 0)
        >= coalesce((SELECT max_depth FROM tenantq_bound WHERE queue = NEW.queue), NEW.max_depth);

    SELECT RAISE(ABORT, 'tenantq - the tenant is full')
    WHERE (SELECT coalesce(sum(ready + scheduled + claimed), 0) FROM tenantq_depth)
        >= (SELECT max_depth FROM tenantq_bound WHERE queue = '');

    -- The depth first, whose row then has the id: above all that were given out, as last_id in queue.sql.
    INSERT INTO tenantq_depth (queue, last_id, ready, scheduled)
    SELECT
        NEW.queue,
        1 + max(
            (SELECT coalesce(max(last_id), 0) FROM tenantq_depth),
            (SELECT coalesce(max(id), 0) FROM queue),
            (SELECT coalesce(max(id), 0) FROM tenantq_dead)
        ),
        NEW.due_at IS NULL,
        NEW.due_at IS NOT NULL
    WHERE true
    ON CONFLICT (queue) DO UPDATE
    SET last_id   = excluded.last_id,
        ready     = ready + excluded.ready,
        scheduled = scheduled + excluded.scheduled;

    INSERT INTO queue (
        id, queue, priority, visible_at, due_at, max_attempts, enqueued_at, key, headers, payload
    )
    SELECT
        last_id, queue, NEW.priority, NEW.visible_at, NEW.due_at, NEW.max_attempts, NEW.now, NEW.key, NEW.headers,
        NEW.payload
    FROM tenantq_depth
    WHERE queue = NEW.queue;
END;

-- name: enqueue
INSERT INTO tenantq_enqueue (
    queue, payload, now, visible_at, due_at, priority, key, max_attempts, headers, max_depth
) VALUES (
    :queue, :payload, :now, :visible_at, :due_at, :priority, :key, :max_attempts, :headers, :max_depth
);

-- name: create_emit_view
CREATE TEMP VIEW IF NOT EXISTS tenantq_emit AS
SELECT
    NULL AS event_id, NULL AS topic, NULL AS payload, NULL AS now, NULL AS visible_at, NULL AS priority,
    NULL AS max_attempts, NULL AS headers, NULL AS max_outbox;

-- name: create_emit_trigger
CREATE TEMP TRIGGER IF NOT EXISTS tenantq_emit_insert INSTEAD OF INSERT ON tenantq_emit
BEGIN
    SELECT RAISE(ABORT, 'tenantq - the file is of a newer version')
    WHERE (SELECT user_version FROM pragma_user_version) > {schema_version};

    SELECT RAISE(ABORT, 'tenantq - the outbox is full') FROM tenantq_forwarded WHERE pending >= NEW.max_outbox;

    INSERT INTO tenantq_outbox (
        event_id, topic, priority, max_attempts, visible_at, emitted_at, headers, payload
    ) VALUES (
        NEW.event_id, NEW.topic, NEW.priority, NEW.max_attempts, NEW.visible_at, NEW.now, NEW.headers, NEW.payload
    );

    UPDATE tenantq_forwarded
    SET last_seq = (SELECT max(seq) FROM tenantq_outbox),
        pending  = pending + 1
    WHERE id = 1;
END;

-- name: emit
INSERT INTO tenantq_emit (
    event_id, topic, payload, now, visible_at, priority, max_attempts, headers, max_outbox
) VALUES (
    :event_id, :topic, :payload, :now, :visible_at, :priority, :max_attempts, :headers, :max_outbox
);

-- name: last_id
-- In the transaction of an enqueue: of the live message with the key, or else of the queue's last one.
SELECT coalesce(
    (SELECT id FROM queue WHERE queue = :queue AND key = :key),
    (SELECT last_id FROM tenantq_depth WHERE queue = :queue)
);
