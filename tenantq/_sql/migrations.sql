-- From version to version of the tenant file: `create_schema` in schema.sql is version 1, `to_N` makes N of N - 1, and
-- a new file is made by all of them in turn.

-- name: to_2
-- What claims obey; the queue '' stands for all together. A rate is a bucket of `rate` tokens that fills in `per`
-- nanoseconds, kept as the time since the boot at which it is full again. Only the queue '' has a weight.
CREATE TABLE tenantq_limit (
    queue       TEXT PRIMARY KEY,
    max_claimed INTEGER,
    rate        INTEGER,
    per         INTEGER,
    full_at     INTEGER NOT NULL DEFAULT 0,
    weight      REAL
) WITHOUT ROWID;
