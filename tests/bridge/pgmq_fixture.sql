-- A stand-in for pgmq, for databases that have no such extension: the documented signatures that a forwarder and
-- these tests call, and what they are documented to do, written for the tests. It is not pgmq's own code.

CREATE SCHEMA pgmq;

CREATE FUNCTION pgmq.create(queue_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format(
        'CREATE TABLE pgmq.%I ('
        'msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, read_ct integer NOT NULL DEFAULT 0, '
        'enqueued_at timestamptz NOT NULL DEFAULT now(), vt timestamptz NOT NULL, message jsonb, headers jsonb)',
        lower('q_' || queue_name)
    );
END $$;

CREATE FUNCTION pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay timestamptz)
RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF COALESCE(cardinality(msgs), 0) = 0 OR cardinality(headers) <> cardinality(msgs) THEN
        RAISE EXCEPTION 'as many headers as messages, and at least one';
    END IF;
    RETURN QUERY EXECUTE format(
        'INSERT INTO pgmq.%I (vt, message, headers) '
        'SELECT $1, m.message, m.headers FROM unnest($2, $3) WITH ORDINALITY AS m (message, headers, place) '
        'ORDER BY m.place RETURNING msg_id',
        lower('q_' || queue_name)
    ) USING delay, msgs, headers;
END $$;
