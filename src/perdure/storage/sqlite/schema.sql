-- The schema, as the migrations leave it. To read, not to run: `perdure migrate` makes it.
-- Written by scripts/dump_schema.py.

CREATE TABLE perdure_audit (
    environment  TEXT NOT NULL,
    position     INTEGER NOT NULL CHECK (position >= 1),
    body         TEXT NOT NULL,
    hash         TEXT NOT NULL,
    PRIMARY KEY (environment, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE perdure_batches (
    batch_id  TEXT NOT NULL,
    run_id    TEXT NOT NULL,
    PRIMARY KEY (batch_id, run_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE perdure_buckets (
    environment  TEXT NOT NULL,
    task         TEXT NOT NULL,
    key          TEXT NOT NULL,
    opens_at     INTEGER NOT NULL,
    full_at      INTEGER NOT NULL,
    waiting      INTEGER NOT NULL,
    PRIMARY KEY (environment, task, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX perdure_buckets_full ON perdure_buckets (full_at);
CREATE INDEX perdure_buckets_waiting ON perdure_buckets (environment, task, opens_at)
 WHERE waiting = 1;

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
CREATE INDEX perdure_dead_letters_closed ON perdure_dead_letters (closed_at, opened_at);
CREATE INDEX perdure_dead_letters_open ON perdure_dead_letters (environment, queue)
 WHERE status = 'open';

CREATE TABLE perdure_feed_pruned (
    one       INTEGER PRIMARY KEY CHECK (one = 1),
    position  INTEGER NOT NULL
) STRICT;

CREATE TABLE perdure_history (
    position        INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id          TEXT NOT NULL,
    first_sequence  INTEGER NOT NULL CHECK (first_sequence >= 1),
    commit_id       TEXT NOT NULL,
    events          TEXT NOT NULL,
    UNIQUE (run_id, first_sequence)
) STRICT;

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

CREATE TABLE perdure_outbox (
    position      INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id        TEXT NOT NULL,
    environment   TEXT NOT NULL,
    queue         TEXT NOT NULL,
    available_at  INTEGER NOT NULL,
    delivery      TEXT NOT NULL
) STRICT;

CREATE TABLE perdure_records (
    environment  TEXT NOT NULL,
    kind         TEXT NOT NULL,
    name         TEXT NOT NULL,
    version      INTEGER NOT NULL CHECK (version >= 1),
    seen_at      INTEGER NOT NULL,
    body         TEXT NOT NULL,
    PRIMARY KEY (environment, kind, name)
) STRICT, WITHOUT ROWID;

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

CREATE TABLE perdure_run_progress (
    run_id    TEXT PRIMARY KEY,
    attempt   INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    fraction  REAL NOT NULL CHECK (fraction BETWEEN 0 AND 1),
    message   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE perdure_run_tags (
    environment  TEXT NOT NULL,
    key          TEXT NOT NULL,
    value        TEXT NOT NULL,
    run_id       TEXT NOT NULL,
    PRIMARY KEY (environment, key, value, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX perdure_run_tags_by_run ON perdure_run_tags (run_id);

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
    keyed             INTEGER GENERATED ALWAYS AS (concurrency_key IS NOT NULL) VIRTUAL, folded_to INTEGER NOT NULL DEFAULT 1,
    CHECK ((lease_token IS NULL) = (lease_expires_at IS NULL)
           AND (lease_token IS NULL) = (lease_worker IS NULL)),
    CHECK (lease_token IS NULL OR claimable_at IS NULL),
    CHECK (finished_at IS NULL OR (claimable_at IS NULL AND lease_token IS NULL))
) STRICT;
CREATE INDEX perdure_runs_attention ON perdure_runs (attention_at) WHERE attention_at IS NOT NULL;
CREATE INDEX perdure_runs_by_key
    ON perdure_runs (environment, queue, concurrency_key, task, version, priority, claimable_at, id)
 WHERE claimable_at IS NOT NULL AND gate IS NULL AND concurrency_key IS NOT NULL;
CREATE INDEX perdure_runs_claimable
    ON perdure_runs (environment, queue, keyed, task, version, priority, claimable_at, id)
 WHERE claimable_at IS NOT NULL AND gate IS NULL;
CREATE INDEX perdure_runs_finished ON perdure_runs (status, finished_at)
 WHERE finished_at IS NOT NULL;
CREATE INDEX perdure_runs_gated
    ON perdure_runs (environment, gate, queue, task, priority, claimable_at, id)
 WHERE gate IS NOT NULL;
CREATE INDEX perdure_runs_leased ON perdure_runs (environment, task, concurrency_key, queue)
 WHERE lease_token IS NOT NULL;
CREATE INDEX perdure_runs_long ON perdure_runs (sequence) WHERE sequence - folded_to >= 128;
CREATE INDEX perdure_runs_nominal ON perdure_runs (environment, schedule_id, nominal_at, id)
 WHERE nominal_at IS NOT NULL;
CREATE INDEX perdure_runs_parent ON perdure_runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX perdure_runs_reserved ON perdure_runs (environment, task, concurrency_key)
 WHERE gate = 'reserved';
CREATE INDEX perdure_runs_schedule ON perdure_runs (schedule_id, id) WHERE schedule_id IS NOT NULL;
CREATE INDEX perdure_runs_slots ON perdure_runs (environment, schedule_id) WHERE holds_slot = 1;
CREATE INDEX perdure_runs_unended ON perdure_runs (environment, schedule_id, id)
 WHERE schedule_id IS NOT NULL AND finished_at IS NULL;

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
CREATE INDEX perdure_schedules_defined ON perdure_schedules (environment, defined_by, name);
CREATE INDEX perdure_schedules_due ON perdure_schedules (environment, next_at, name)
 WHERE next_at IS NOT NULL;

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

CREATE TABLE perdure_turns (
    environment  TEXT NOT NULL,
    queue        TEXT NOT NULL,
    after_key    TEXT NOT NULL,
    PRIMARY KEY (environment, queue)
) STRICT, WITHOUT ROWID;

CREATE TABLE perdure_webhook_deliveries (
    webhook_id  TEXT NOT NULL,
    number      INTEGER NOT NULL CHECK (number >= 1),
    body        TEXT NOT NULL,
    PRIMARY KEY (webhook_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE perdure_webhooks (
    id           TEXT PRIMARY KEY,
    environment  TEXT NOT NULL,
    name         TEXT NOT NULL,
    version      INTEGER NOT NULL CHECK (version >= 1),
    body         TEXT NOT NULL,
    UNIQUE (environment, name)
) STRICT, WITHOUT ROWID;
