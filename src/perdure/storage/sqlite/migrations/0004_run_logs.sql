-- What attempts say while they run, as batches of lines. Bounded by the worker that writes them.
CREATE TABLE run_logs (
    run_id   TEXT NOT NULL,
    attempt  INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    level    INTEGER NOT NULL,
    logger   TEXT NOT NULL,
    message  TEXT NOT NULL,
    fields   TEXT,
    PRIMARY KEY (run_id, attempt, number)
) STRICT, WITHOUT ROWID;

-- How far the latest attempt says it is.
CREATE TABLE run_progress (
    run_id    TEXT PRIMARY KEY,
    attempt   INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    fraction  REAL NOT NULL CHECK (fraction BETWEEN 0 AND 1),
    message   TEXT NOT NULL
) STRICT, WITHOUT ROWID;
