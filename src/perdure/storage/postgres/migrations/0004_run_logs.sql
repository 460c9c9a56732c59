-- What attempts say while they run, as batches of lines. Bounded by the worker that writes them.
CREATE TABLE run_logs (
    run_id   uuid NOT NULL,
    attempt  integer NOT NULL,
    number   integer NOT NULL,
    at       timestamptz NOT NULL,
    level    integer NOT NULL,
    logger   text NOT NULL,
    message  text NOT NULL,
    fields   text,
    PRIMARY KEY (run_id, attempt, number)
);

-- How far the latest attempt says it is.
CREATE TABLE run_progress (
    run_id    uuid PRIMARY KEY,
    attempt   integer NOT NULL,
    at        timestamptz NOT NULL,
    fraction  double precision NOT NULL CHECK (fraction BETWEEN 0 AND 1),
    message   text NOT NULL
);
