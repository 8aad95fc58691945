-- What Postgres keeps of one tenant, for a data protection request.

-- name: count_traces
-- Exact and without indexes by tenant, so it reads every message: for a person who asks, not for a program that works.
SELECT
    (SELECT count(*) FROM {schema}.ready AS m WHERE m.tenant = %(tenant)s)
        + (SELECT count(*) FROM {schema}.delayed AS m WHERE m.tenant = %(tenant)s)
        + (SELECT count(*) FROM {schema}.waiting AS m WHERE m.tenant = %(tenant)s),
    (SELECT count(*) FROM {schema}.dead AS m WHERE m.tenant = %(tenant)s),
    (SELECT count(*) FROM {schema}.history AS m WHERE m.tenant = %(tenant)s),
    (SELECT count(*) FROM {schema}.applied AS a WHERE a.tenant = %(tenant)s),
    (SELECT count(*) FROM {schema}.seen AS s WHERE s.tenant = %(tenant)s),
    (SELECT count(*) FROM {schema}.forwarding AS f WHERE f.tenant = %(tenant)s),
    (SELECT count(*) FROM {schema}.outgoing AS m WHERE m.tenant = %(tenant)s),
    (SELECT count(*) FROM {schema}.owners AS o WHERE o.tenant = %(tenant)s)

-- name: erase_forwarding
WITH seen AS (
    DELETE FROM {schema}.seen AS s WHERE s.tenant = %(tenant)s
)
DELETE FROM {schema}.forwarding AS f WHERE f.tenant = %(tenant)s
