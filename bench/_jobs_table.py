"""The documents' job queue in Postgres, as they printed it: the table, the index, the claim, the settings.

From "How many jobs a second can a Postgres queue really handle?". The placeholders are psycopg's where
theirs are pgbench's.
"""

from __future__ import annotations

__all__ = [
    "ACK",
    "CLAIM",
    "CLAIM_RETURNING",
    "ENQUEUE",
    "FILL",
    "PARTIAL_INDEX",
    "PLAIN_INDEX",
    "PRODUCE",
    "STOCK",
    "TABLE",
    "TUNED",
    "TUNED_SERVER",
]

TABLE = """
CREATE TABLE jobs (
  id BIGSERIAL PRIMARY KEY,
  status TEXT NOT NULL DEFAULT 'queued',
  payload JSONB NOT NULL,
  worker_id TEXT,
  created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
  claimed_at TIMESTAMPTZ);
"""

FILL = """
INSERT INTO jobs (payload, created_at)
  SELECT jsonb_build_object('n', g), now() + (g * interval '1 millisecond')
    FROM generate_series(%s::bigint, %s::bigint) g;
"""
"""A created_at of its own for each row, so that the order is a real one. Theirs is from 1 to how many."""

PARTIAL_INDEX = "CREATE INDEX jobs_queue_idx ON jobs (created_at) WHERE status='queued'"

PLAIN_INDEX = "CREATE INDEX jobs_queue_idx ON jobs (created_at)"

CLAIM = """
UPDATE jobs SET status='claimed', worker_id=%s::text, claimed_at=now()
 WHERE id = (SELECT id FROM jobs WHERE status='queued'
             ORDER BY created_at FOR UPDATE SKIP LOCKED LIMIT 1)
"""
"""It brings nothing back: their load counts claims, and works none."""

TUNED = """
ALTER TABLE jobs SET (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold    = 1000,
  autovacuum_vacuum_cost_delay   = 0
);
"""

TUNED_SERVER = {"autovacuum_naptime": "5s"}

STOCK = {"autovacuum_naptime": "1min"}
"""Postgres's own."""

# What a queue needs beyond what they printed: a way in, the payload, and an end. The ack deletes, as in their
# queue in SQLite.

ENQUEUE = "INSERT INTO jobs (payload) VALUES (%s)"

PRODUCE = """
INSERT INTO jobs (payload, created_at)
  SELECT jsonb_build_object('n', g), clock_timestamp() FROM generate_series(1, %s::bigint) g
"""

CLAIM_RETURNING = CLAIM + "RETURNING id, payload::text"

ACK = "DELETE FROM jobs WHERE id = %s AND worker_id = %s"
