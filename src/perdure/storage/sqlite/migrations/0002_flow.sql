-- Rates, paused and fair queues, reservations; and who said what about a limit.

-- One row a limit, never deleted: its version guards each change. `body` tells who set what.
-- `opens_at`: from when the next start is allowed; none: a full bucket.
CREATE TABLE limits_with_rates (
    environment    TEXT NOT NULL,
    scope          TEXT NOT NULL,
    name           TEXT NOT NULL,
    version        INTEGER NOT NULL CHECK (version >= 1),
    max_leases     INTEGER CHECK (max_leases >= 0),
    rate_interval  INTEGER CHECK (rate_interval > 0),
    rate_burst     INTEGER CHECK (rate_burst > 0),
    opens_at       INTEGER,
    paused         INTEGER NOT NULL,
    fair           INTEGER NOT NULL,
    body           TEXT NOT NULL,
    PRIMARY KEY (environment, scope, name),
    CONSTRAINT rate_is_whole CHECK ((rate_interval IS NULL) = (rate_burst IS NULL))
) STRICT, WITHOUT ROWID;
INSERT INTO limits_with_rates (environment, scope, name, version, max_leases, paused, fair, body)
SELECT environment, scope, name, 1, max_leases, 0, 0,
       json_object('code', json_object('concurrency', json_object(
           'value', max_leases, 'by', json_object('type', 'client'),
           'at', strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))))
  FROM limits;
DROP TABLE limits;
ALTER TABLE limits_with_rates RENAME TO limits;
CREATE INDEX limits_fair ON limits (environment, name) WHERE fair = 1;

-- Rates of single keys. `waiting`: runs are parked behind it. Full again means the same as absent.
CREATE TABLE buckets (
    environment  TEXT NOT NULL,
    task         TEXT NOT NULL,
    key          TEXT NOT NULL,
    opens_at     INTEGER NOT NULL,
    full_at      INTEGER NOT NULL,
    waiting      INTEGER NOT NULL,
    PRIMARY KEY (environment, task, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX buckets_waiting ON buckets (environment, task, opens_at) WHERE waiting = 1;
CREATE INDEX buckets_full ON buckets (full_at);

-- Which key of a fair queue was served last.
CREATE TABLE turns (
    environment  TEXT NOT NULL,
    queue        TEXT NOT NULL,
    after_key    TEXT NOT NULL,
    PRIMARY KEY (environment, queue)
) STRICT, WITHOUT ROWID;

-- A lane tells runs with a key from those without, so that a fair queue finds the latter.
ALTER TABLE runs ADD COLUMN
    keyed INTEGER GENERATED ALWAYS AS (concurrency_key IS NOT NULL) VIRTUAL;
DROP INDEX runs_claimable;
CREATE INDEX runs_claimable ON runs (environment, queue, keyed, task, priority, claimable_at, id)
 WHERE claimable_at IS NOT NULL AND gate IS NULL;
CREATE INDEX runs_by_key
    ON runs (environment, queue, concurrency_key, task, priority, claimable_at, id)
 WHERE claimable_at IS NOT NULL AND gate IS NULL AND concurrency_key IS NOT NULL;

-- Lanes behind a gate too: whoever is let in first is so by rank, and paused queues are passed by.
DROP INDEX runs_gated;
CREATE INDEX runs_gated ON runs (environment, gate, queue, task, priority, claimable_at, id)
 WHERE gate IS NOT NULL;
CREATE INDEX runs_reserved ON runs (environment, task, concurrency_key) WHERE gate = 'reserved';

-- Nobody is parked behind queues and tasks any more: claims pass those by.
UPDATE runs SET gate = NULL WHERE gate IS NOT NULL AND gate <> 'unreadable';
