-- The tenant file. `queue` keeps the documents' table: their columns, their names, Unix nanoseconds.
-- Everything else of ours is named tenantq_*, so that an application's own tables have the other names.

-- name: create_schema
CREATE TABLE tenantq_meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- A row is in one of three states:
--   ready      claimed_by, due_at, leased_until are NULL         claimable now
--   scheduled  due_at = visible_at (wall time)                   claimable later
--   claimed    claimed_by, and leased_until = the lease's end    (time since the boot in tenantq_meta)
-- so that a claim reads only rows that it may take, whatever waits beside them, and two indexes find all that
-- time alone will change. A lease does not end by the wall clock, which may jump. The payload comes last:
-- a long one would lie between the others.
CREATE TABLE queue (
    id           INTEGER PRIMARY KEY,
    queue        TEXT    NOT NULL DEFAULT 'default',
    priority     INTEGER NOT NULL DEFAULT 0,
    visible_at   INTEGER NOT NULL,
    due_at       INTEGER,
    claimed_by   TEXT,
    claimed_at   INTEGER,
    leased_until INTEGER,
    lease_token  INTEGER,
    attempts     INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL DEFAULT 25,
    enqueued_at  INTEGER NOT NULL,
    key          TEXT,
    headers      TEXT,
    error        TEXT,
    payload      BLOB    NOT NULL
);

CREATE INDEX queue_ready ON queue (queue, priority DESC, visible_at) WHERE claimed_by IS NULL AND due_at IS NULL;

CREATE INDEX queue_due ON queue (due_at) WHERE due_at IS NOT NULL;

CREATE INDEX queue_leased ON queue (leased_until) WHERE leased_until IS NOT NULL;

CREATE UNIQUE INDEX queue_key ON queue (queue, key) WHERE key IS NOT NULL;

-- What each queue holds, moved in the transaction that moves the messages: stats must not count a
-- million rows. last_id is the highest id given out in the queue; the highest of all rows is the
-- file's. (AUTOINCREMENT would keep that promise too, by writing one page more in every enqueue.)
CREATE TABLE tenantq_depth (
    queue     TEXT PRIMARY KEY,
    last_id   INTEGER NOT NULL DEFAULT 0,
    ready     INTEGER NOT NULL DEFAULT 0,
    scheduled INTEGER NOT NULL DEFAULT 0,
    claimed   INTEGER NOT NULL DEFAULT 0,
    dead      INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE tenantq_paused (
    queue     TEXT PRIMARY KEY,
    paused_at INTEGER NOT NULL
) WITHOUT ROWID;

-- What a queue may hold of what is ready, scheduled or claimed; the queue '' stands for all together.
CREATE TABLE tenantq_bound (
    queue     TEXT PRIMARY KEY,
    max_depth INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE tenantq_dead (
    id           INTEGER PRIMARY KEY,
    queue        TEXT    NOT NULL,
    priority     INTEGER NOT NULL,
    visible_at   INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    enqueued_at  INTEGER NOT NULL,
    died_at      INTEGER NOT NULL,
    key          TEXT,
    headers      TEXT,
    error        TEXT,
    payload      BLOB    NOT NULL
);

CREATE INDEX tenantq_dead_queue ON tenantq_dead (queue, id);

-- AUTOINCREMENT: a forwarded event that was pruned must not give its place to another one.
-- refused_at: the event is in tenantq_undeliverable by now, and its place is passed over. resent_at: it was
-- there, and this is its second place: Postgres looks its id up before it takes it.
CREATE TABLE tenantq_outbox (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id     TEXT    NOT NULL,
    topic        TEXT    NOT NULL,
    priority     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    visible_at   INTEGER,
    emitted_at   INTEGER NOT NULL,
    refused_at   INTEGER,
    resent_at    INTEGER,
    headers      TEXT,
    payload      BLOB    NOT NULL
);

-- Events that Postgres refused, with its words, until somebody sends them again or discards them.
CREATE TABLE tenantq_undeliverable (
    seq          INTEGER PRIMARY KEY,
    event_id     TEXT    NOT NULL,
    topic        TEXT    NOT NULL,
    priority     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    visible_at   INTEGER,
    emitted_at   INTEGER NOT NULL,
    refused_at   INTEGER NOT NULL,
    error        TEXT    NOT NULL,
    headers      TEXT,
    payload      BLOB    NOT NULL
);

CREATE TABLE tenantq_forwarded (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    seq           INTEGER NOT NULL,
    event_id      TEXT,
    last_seq      INTEGER NOT NULL,
    pending       INTEGER NOT NULL,
    undeliverable INTEGER NOT NULL
);

INSERT INTO tenantq_forwarded (id, seq, event_id, last_seq, pending, undeliverable) VALUES (1, 0, NULL, 0, 0, 0);

-- name: read_meta
SELECT name, value FROM tenantq_meta;

-- name: write_meta
INSERT INTO tenantq_meta (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: remove_meta
DELETE FROM tenantq_meta WHERE name = :name;
