-- Runs, their history, and what commits together with them. Instants are microseconds since 1970.

-- What happened. One row a commit; the events are JSON text, exactly as they were handed in.
CREATE TABLE perdure_history (
    position        INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id          TEXT NOT NULL,
    first_sequence  INTEGER NOT NULL CHECK (first_sequence >= 1),
    commit_id       TEXT NOT NULL,
    events          TEXT NOT NULL,
    UNIQUE (run_id, first_sequence)
) STRICT;

-- What it adds up to. `state` holds all that may change; creation stays in the first history row.
-- The other columns are what queries compare and filter by.
CREATE TABLE perdure_runs (
    id                TEXT PRIMARY KEY,
    environment       TEXT NOT NULL,
    queue             TEXT NOT NULL,
    task              TEXT NOT NULL,
    version           INTEGER NOT NULL DEFAULT 0,
    priority          INTEGER NOT NULL,
    status            TEXT NOT NULL,
    sequence          INTEGER NOT NULL CHECK (sequence >= 1),
    claimable_at      INTEGER,
    attention_at      INTEGER,
    lease_token       TEXT,
    lease_worker      TEXT,
    lease_expires_at  INTEGER,
    holds_slot        INTEGER NOT NULL CHECK (holds_slot IN (0, 1)),
    gate              TEXT,
    created_at        INTEGER NOT NULL,
    finished_at       INTEGER,
    concurrency_key   TEXT,
    schedule_id       TEXT,
    nominal_at        INTEGER,
    batch_id          TEXT,
    parent_id         TEXT,
    failure_kind      TEXT,
    fingerprint       TEXT,
    state             TEXT NOT NULL,
    -- Lanes tell runs with a key from those without, so that a fair queue finds the latter.
    keyed             INTEGER GENERATED ALWAYS AS (concurrency_key IS NOT NULL) VIRTUAL,
    CHECK ((lease_token IS NULL) = (lease_expires_at IS NULL)
           AND (lease_token IS NULL) = (lease_worker IS NULL)),
    CHECK (lease_token IS NULL OR claimable_at IS NULL),
    CHECK (finished_at IS NULL OR (claimable_at IS NULL AND lease_token IS NULL))
) STRICT;

-- A lane is one queue, task, version and priority: within it, order of claim is order of due time.
-- `version` is the oldest version of the task that may execute the run; 0: any.
CREATE INDEX perdure_runs_claimable
    ON perdure_runs (environment, queue, keyed, task, version, priority, claimable_at, id)
 WHERE claimable_at IS NOT NULL AND gate IS NULL;
CREATE INDEX perdure_runs_by_key
    ON perdure_runs (environment, queue, concurrency_key, task, version, priority, claimable_at, id)
 WHERE claimable_at IS NOT NULL AND gate IS NULL AND concurrency_key IS NOT NULL;
CREATE INDEX perdure_runs_attention ON perdure_runs (attention_at) WHERE attention_at IS NOT NULL;
-- The one index that follows each lease, since every run goes through it twice: who holds a place of
-- a key, a task or a queue, which leases have expired, what a worker holds.
CREATE INDEX perdure_runs_leased ON perdure_runs (environment, task, concurrency_key, queue)
 WHERE lease_token IS NOT NULL;
-- Lanes behind a gate too: whoever is let in first is so by rank, and paused queues are passed by.
CREATE INDEX perdure_runs_gated
    ON perdure_runs (environment, gate, queue, task, priority, claimable_at, id)
 WHERE gate IS NOT NULL;
CREATE INDEX perdure_runs_reserved ON perdure_runs (environment, task, concurrency_key)
 WHERE gate = 'reserved';
CREATE INDEX perdure_runs_finished ON perdure_runs (status, finished_at)
 WHERE finished_at IS NOT NULL;
CREATE INDEX perdure_runs_schedule ON perdure_runs (schedule_id, id) WHERE schedule_id IS NOT NULL;
-- What a schedule has still to do, and what became of a time of its calendar.
CREATE INDEX perdure_runs_unended ON perdure_runs (environment, schedule_id, id)
 WHERE schedule_id IS NOT NULL AND finished_at IS NULL;
CREATE INDEX perdure_runs_nominal ON perdure_runs (environment, schedule_id, nominal_at, id)
 WHERE nominal_at IS NOT NULL;
CREATE INDEX perdure_runs_parent ON perdure_runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX perdure_runs_slots ON perdure_runs (environment, schedule_id) WHERE holds_slot = 1;

-- Which runs were asked for together. A table of its own, since every update of a run would have to
-- write another entry of an index.
CREATE TABLE perdure_batches (
    batch_id  TEXT NOT NULL,
    run_id    TEXT NOT NULL,
    PRIMARY KEY (batch_id, run_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE perdure_run_tags (
    environment  TEXT NOT NULL,
    key          TEXT NOT NULL,
    value        TEXT NOT NULL,
    run_id       TEXT NOT NULL,
    PRIMARY KEY (environment, key, value, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX perdure_run_tags_by_run ON perdure_run_tags (run_id);

-- At most one run owns a key. From `free_at` on another may take it; none: never.
CREATE TABLE perdure_keys (
    environment   TEXT NOT NULL,
    kind          TEXT NOT NULL,
    scope         TEXT NOT NULL,
    name          TEXT NOT NULL,
    run_id        TEXT NOT NULL,
    payload_hash  TEXT NOT NULL,
    free_at       INTEGER,
    PRIMARY KEY (environment, kind, scope, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX perdure_keys_free ON perdure_keys (free_at) WHERE free_at IS NOT NULL;

CREATE TABLE perdure_dead_letters (
    run_id          TEXT PRIMARY KEY,
    environment     TEXT NOT NULL,
    task            TEXT NOT NULL,
    queue           TEXT NOT NULL,
    occurrence_key  TEXT,
    reason          TEXT NOT NULL,
    failure_kind    TEXT NOT NULL,
    fingerprint     TEXT NOT NULL,
    message         TEXT NOT NULL,
    opened_at       INTEGER NOT NULL,
    status          TEXT NOT NULL,
    closed_at       INTEGER,
    closed_by       TEXT,
    closed_reason   TEXT,
    replay_run_id   TEXT
) STRICT;
CREATE INDEX perdure_dead_letters_open ON perdure_dead_letters (environment, queue)
 WHERE status = 'open';
CREATE INDEX perdure_dead_letters_closed ON perdure_dead_letters (closed_at, opened_at);

-- Wishes for a push transport: written with the events, deleted once handed over.
CREATE TABLE perdure_outbox (
    position      INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id        TEXT NOT NULL,
    environment   TEXT NOT NULL,
    queue         TEXT NOT NULL,
    available_at  INTEGER NOT NULL,
    delivery      TEXT NOT NULL
) STRICT;

-- How much at once, and how fast. One row a limit, never deleted: it is also the lock a claim
-- takes, and its version guards each change. `body` tells who set what. `opens_at`: from when the
-- next start is allowed; none: a full bucket.
CREATE TABLE perdure_limits (
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
CREATE INDEX perdure_limits_fair ON perdure_limits (environment, name) WHERE fair = 1;

-- Rates of single keys. `waiting`: runs are parked behind it. Full again means the same as absent.
CREATE TABLE perdure_buckets (
    environment  TEXT NOT NULL,
    task         TEXT NOT NULL,
    key          TEXT NOT NULL,
    opens_at     INTEGER NOT NULL,
    full_at      INTEGER NOT NULL,
    waiting      INTEGER NOT NULL,
    PRIMARY KEY (environment, task, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX perdure_buckets_waiting ON perdure_buckets (environment, task, opens_at)
 WHERE waiting = 1;
CREATE INDEX perdure_buckets_full ON perdure_buckets (full_at);

-- Which key of a fair queue was served last.
CREATE TABLE perdure_turns (
    environment  TEXT NOT NULL,
    queue        TEXT NOT NULL,
    after_key    TEXT NOT NULL,
    PRIMARY KEY (environment, queue)
) STRICT, WITHOUT ROWID;

-- What apps and workers know and operators set: tasks, workers, API keys.
-- Each change is guarded by the version it replaces.
CREATE TABLE perdure_records (
    environment  TEXT NOT NULL,
    kind         TEXT NOT NULL,
    name         TEXT NOT NULL,
    version      INTEGER NOT NULL CHECK (version >= 1),
    seen_at      INTEGER NOT NULL,
    body         TEXT NOT NULL,
    PRIMARY KEY (environment, kind, name)
) STRICT, WITHOUT ROWID;

-- What operators did through the API, sealed: each hash covers the one before it.
CREATE TABLE perdure_audit (
    environment  TEXT NOT NULL,
    position     INTEGER NOT NULL CHECK (position >= 1),
    body         TEXT NOT NULL,
    hash         TEXT NOT NULL,
    PRIMARY KEY (environment, position)
) STRICT, WITHOUT ROWID;

-- Webhooks: whom to tell of what happens to runs, and how far each has been told. `body` is all of it
-- as JSON text. Each change is guarded by the version it replaces, so of several senders one moves
-- on; the id tells a webhook from a later one of the same name.
CREATE TABLE perdure_webhooks (
    id           TEXT PRIMARY KEY,
    environment  TEXT NOT NULL,
    name         TEXT NOT NULL,
    version      INTEGER NOT NULL CHECK (version >= 1),
    body         TEXT NOT NULL,
    UNIQUE (environment, name)
) STRICT, WITHOUT ROWID;

-- The latest posts of each webhook, for whoever wants to know what became of them.
CREATE TABLE perdure_webhook_deliveries (
    webhook_id  TEXT NOT NULL,
    number      INTEGER NOT NULL CHECK (number >= 1),
    body        TEXT NOT NULL,
    PRIMARY KEY (webhook_id, number)
) STRICT, WITHOUT ROWID;

-- How far pruning has reached into the change feed: the last change that is gone. Whoever has not
-- come so far has missed something.
CREATE TABLE perdure_feed_pruned (
    one       INTEGER PRIMARY KEY CHECK (one = 1),
    position  INTEGER NOT NULL
) STRICT;

-- What attempts say while they run, as batches of lines. Bounded by the worker that writes them.
CREATE TABLE perdure_run_logs (
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
CREATE TABLE perdure_run_progress (
    run_id    TEXT PRIMARY KEY,
    attempt   INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    fraction  REAL NOT NULL CHECK (fraction BETWEEN 0 AND 1),
    message   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Schedules, never deleted: a row is the lock its occurrences are made under, and its cursor, which
-- only grows, keeps any time from being decided twice. `body` is the schedule as JSON text;
-- `next_at` is the next time to decide, none while there is none. What was decided up
-- to `forgotten_until` may have been pruned, keys of occurrences and all.
CREATE TABLE perdure_schedules (
    environment      TEXT NOT NULL,
    name             TEXT NOT NULL,
    version          INTEGER NOT NULL CHECK (version >= 1),
    cursor           INTEGER NOT NULL,
    next_at          INTEGER,
    forgotten_until  INTEGER,
    defined_by       TEXT NOT NULL,
    body             TEXT NOT NULL,
    PRIMARY KEY (environment, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX perdure_schedules_due ON perdure_schedules (environment, next_at, name)
 WHERE next_at IS NOT NULL;
CREATE INDEX perdure_schedules_defined ON perdure_schedules (environment, defined_by, name);

-- Times of a schedule that were not run, too many for a run each. They never overlap.
CREATE TABLE perdure_skipped_spans (
    environment  TEXT NOT NULL,
    schedule_id  TEXT NOT NULL,
    first_at     INTEGER NOT NULL,
    last_at      INTEGER NOT NULL,
    count        INTEGER NOT NULL CHECK (count >= 1),
    reason       TEXT NOT NULL,
    recorded_at  INTEGER NOT NULL,
    evidence     TEXT,
    PRIMARY KEY (environment, schedule_id, last_at),
    CHECK (first_at <= last_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX perdure_skipped_spans_recorded ON perdure_skipped_spans (recorded_at);
