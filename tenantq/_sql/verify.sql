-- Statements of a check of the checksums: a page of rows at a time, behind an id.

-- name: checked_queue
SELECT id, checksum, headers, payload FROM queue WHERE id > :after ORDER BY id LIMIT :limit;

-- name: checked_tenantq_dead
SELECT id, checksum, headers, payload FROM tenantq_dead WHERE id > :after ORDER BY id LIMIT :limit;

-- name: checked_tenantq_outbox
SELECT seq, checksum, headers, payload FROM tenantq_outbox WHERE seq > :after ORDER BY seq LIMIT :limit;

-- name: checked_tenantq_undeliverable
SELECT seq, checksum, headers, payload FROM tenantq_undeliverable WHERE seq > :after ORDER BY seq LIMIT :limit;
