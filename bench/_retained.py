"""A job table of the documents' retention shape: states that are updated, and done jobs that are deleted by age.

From "Three ways to measure a Postgres queue table, three different answers", which ran pg-boss. This is a
table of that shape, not pg-boss: its partition of a list, its key, its index of what waits, its settings, and
its batched statements.
"""

from __future__ import annotations

import time

from bench._children import Log, Seat
from bench._claimers import BATCH, CLAIMERS, Claimer
from bench._servers import connect

__all__ = ["LEAF", "RETAINED", "SCHEMA", "prune"]

RETAINED = "documents' retention"

LEAF = "boss.job_common"
"""A partitioned parent has no storage of its own, and its size is always 0."""

SCHEMA = """
CREATE SCHEMA boss;
CREATE TYPE boss.job_state AS ENUM ('created', 'retry', 'active', 'completed', 'cancelled', 'failed');
CREATE TABLE boss.job (
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  name text NOT NULL,
  priority integer NOT NULL DEFAULT 0,
  data jsonb,
  state boss.job_state NOT NULL DEFAULT 'created',
  retry_limit integer NOT NULL DEFAULT 5,
  retry_count integer NOT NULL DEFAULT 0,
  start_after timestamptz NOT NULL DEFAULT now(),
  created_on timestamptz NOT NULL DEFAULT now(),
  started_on timestamptz,
  completed_on timestamptz,
  output jsonb,
  PRIMARY KEY (name, id)
) PARTITION BY LIST (name);
CREATE TABLE boss.job_common (LIKE boss.job INCLUDING ALL);
CREATE INDEX job_fetch ON boss.job_common (name, start_after) INCLUDE (priority, created_on, id)
  WHERE state < 'active';
ALTER TABLE boss.job ATTACH PARTITION boss.job_common DEFAULT;
ALTER TABLE boss.job_common SET (
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_analyze_scale_factor = 0.01
);
"""

PUT = """
INSERT INTO boss.job (name, data)
SELECT 'bench', jsonb_build_object('n', g) FROM generate_series(1, %s::bigint) g
"""

FETCH = """
WITH next AS (
  SELECT id FROM boss.job
   WHERE name = 'bench' AND state < 'active' AND start_after < now()
   ORDER BY priority DESC, created_on, id LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE boss.job AS j SET state = 'active', started_on = now()
  FROM next WHERE j.name = 'bench' AND j.id = next.id
RETURNING j.id, j.data::text
"""

COMPLETE = """
UPDATE boss.job SET state = 'completed', completed_on = now()
 WHERE name = 'bench' AND id = ANY (%s) AND state = 'active'
"""

DELETE = "DELETE FROM boss.job WHERE completed_on < now() - %s * interval '1 second'"


class Retained(Claimer):
    """Fetch and complete in batches; what is done stays until it is deleted by age."""

    batch = BATCH

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._connection = connect(dsn)
        self._ids: list[object] = []

    def take(self) -> int:
        self._ids = [row[0] for row in self._connection.execute(FETCH, (self.batch,)).fetchall()]
        return len(self._ids)

    def done(self) -> None:
        self._connection.execute(COMPLETE, (self._ids,))

    def put(self, count: int) -> None:
        self._connection.execute(PUT, (count,))

    def close(self) -> None:
        self._connection.close()


CLAIMERS[RETAINED] = Retained


def prune(seat: Seat, dsn: str, retention: float, interval: float) -> Log:
    """Delete what was done longer ago than the retention, again and again."""
    connection = connect(dsn)
    log = Log(numbers={"deleted": 0})
    seat.ready()
    following = time.monotonic()
    while not seat.is_stopped:
        time.sleep(0.02)
        if time.monotonic() >= following:
            following += interval
            log.numbers["deleted"] += connection.execute(DELETE, (retention,)).rowcount
    connection.close()
    return log
