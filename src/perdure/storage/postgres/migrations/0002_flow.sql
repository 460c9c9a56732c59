-- Rates, paused and fair queues, reservations; and who said what about a limit.

-- One row a limit, never deleted: it is the lock a claim takes, and its version guards each change.
-- `body` tells who set what. `opens_at`: from when the next start is allowed; none: a full bucket.
ALTER TABLE limits
    ALTER COLUMN max_leases DROP NOT NULL,
    ADD COLUMN version integer NOT NULL DEFAULT 1 CHECK (version >= 1),
    ADD COLUMN rate_interval bigint CHECK (rate_interval > 0),
    ADD COLUMN rate_burst integer CHECK (rate_burst > 0),
    ADD COLUMN opens_at timestamptz,
    ADD COLUMN paused boolean NOT NULL DEFAULT false,
    ADD COLUMN fair boolean NOT NULL DEFAULT false,
    ADD COLUMN body text NOT NULL DEFAULT '{}',
    ADD CONSTRAINT rate_is_whole CHECK ((rate_interval IS NULL) = (rate_burst IS NULL));
UPDATE limits
   SET body = json_build_object('code', json_build_object('concurrency', json_build_object(
              'value', max_leases, 'by', json_build_object('type', 'client'),
              'at', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))))::text;
CREATE INDEX limits_fair ON limits (environment, name) WHERE fair;

-- Rates of single keys. `waiting`: runs are parked behind it. Full again means the same as absent.
CREATE TABLE buckets (
    environment  text COLLATE "C" NOT NULL,
    task         text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    opens_at     timestamptz NOT NULL,
    full_at      timestamptz NOT NULL,
    waiting      boolean NOT NULL,
    PRIMARY KEY (environment, task, key)
);
CREATE INDEX buckets_waiting ON buckets (environment, task, opens_at) WHERE waiting;
CREATE INDEX buckets_full ON buckets (full_at);

-- Which key of a fair queue was served last. Also the lock that claims of the queue take in turns.
CREATE TABLE turns (
    environment  text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    after_key    text COLLATE "C" NOT NULL,
    PRIMARY KEY (environment, queue)
);

-- A lane tells runs with a key from those without, so that a fair queue finds the latter.
ALTER TABLE runs
    ADD COLUMN keyed boolean GENERATED ALWAYS AS (concurrency_key IS NOT NULL) STORED;
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
