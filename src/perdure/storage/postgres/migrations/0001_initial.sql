-- Runs, their history, and what commits together with them.

-- What happened. One row a commit; the events are JSON text, exactly as they were handed in.
-- `xid` orders the change feed: rows are read only below the oldest open transaction.
CREATE TABLE perdure_history (
    run_id          uuid NOT NULL,
    first_sequence  integer NOT NULL CHECK (first_sequence >= 1),
    xid             xid8 NOT NULL DEFAULT pg_current_xact_id(),
    commit_id       text COLLATE "C" NOT NULL,
    events          text NOT NULL,
    PRIMARY KEY (run_id, first_sequence)
);
CREATE INDEX perdure_history_feed ON perdure_history (xid, run_id, first_sequence);

-- What it adds up to. `state` holds all that may change; creation stays in the first history row.
-- The other columns are what queries compare and filter by. Free space in each page keeps
-- renewals HOT: they change no indexed column.
CREATE TABLE perdure_runs (
    id                uuid PRIMARY KEY,
    environment       text COLLATE "C" NOT NULL,
    queue             text COLLATE "C" NOT NULL,
    task              text COLLATE "C" NOT NULL,
    version           integer NOT NULL DEFAULT 0,
    priority          smallint NOT NULL,
    status            text COLLATE "C" NOT NULL,
    sequence          integer NOT NULL CHECK (sequence >= 1),
    claimable_at      timestamptz,
    attention_at      timestamptz,
    lease_token       text COLLATE "C",
    lease_worker      text COLLATE "C",
    lease_expires_at  timestamptz,
    holds_slot        boolean NOT NULL,
    gate              text COLLATE "C",
    created_at        timestamptz NOT NULL,
    finished_at       timestamptz,
    concurrency_key   text COLLATE "C",
    schedule_id       text COLLATE "C",
    nominal_at        timestamptz,
    batch_id          text COLLATE "C",
    parent_id         uuid,
    failure_kind      text COLLATE "C",
    fingerprint       text COLLATE "C",
    state             text NOT NULL,
    -- Lanes tell runs with a key from those without, so that a fair queue finds the latter.
    keyed             boolean GENERATED ALWAYS AS (concurrency_key IS NOT NULL) STORED,
    CONSTRAINT lease_is_whole CHECK ((lease_token IS NULL) = (lease_expires_at IS NULL)
                                     AND (lease_token IS NULL) = (lease_worker IS NULL)),
    CONSTRAINT leased_is_not_claimable CHECK (lease_token IS NULL OR claimable_at IS NULL),
    CONSTRAINT finished_is_at_rest
        CHECK (finished_at IS NULL OR (claimable_at IS NULL AND lease_token IS NULL))
) WITH (fillfactor = 80);

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
-- a task or a queue, which leases have expired, what a worker holds. The id makes each entry
-- another, and they come nearly in order: among equal ones PostgreSQL looks for a place at length.
CREATE INDEX perdure_runs_leased ON perdure_runs (environment, task, id)
 WHERE lease_token IS NOT NULL;
CREATE INDEX perdure_runs_key_leased ON perdure_runs (environment, task, concurrency_key)
 WHERE lease_token IS NOT NULL AND concurrency_key IS NOT NULL;
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
CREATE INDEX perdure_runs_slots ON perdure_runs (environment, schedule_id) WHERE holds_slot;

-- Which runs were asked for together. A table of its own, since every update of a run would have to
-- write another entry of an index.
CREATE TABLE perdure_batches (
    batch_id  text COLLATE "C" NOT NULL,
    run_id    uuid NOT NULL,
    PRIMARY KEY (batch_id, run_id)
);

CREATE TABLE perdure_run_tags (
    environment  text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    value        text COLLATE "C" NOT NULL,
    run_id       uuid NOT NULL,
    PRIMARY KEY (environment, key, value, run_id)
);
CREATE INDEX perdure_run_tags_by_run ON perdure_run_tags (run_id);

-- At most one run owns a key. From `free_at` on another may take it; none: never.
CREATE TABLE perdure_keys (
    environment   text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    scope         text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    run_id        uuid NOT NULL,
    payload_hash  text COLLATE "C" NOT NULL,
    free_at       timestamptz,
    PRIMARY KEY (environment, kind, scope, name)
);

CREATE INDEX perdure_keys_free ON perdure_keys (free_at) WHERE free_at IS NOT NULL;

CREATE TABLE perdure_dead_letters (
    run_id          uuid PRIMARY KEY,
    environment     text COLLATE "C" NOT NULL,
    task            text COLLATE "C" NOT NULL,
    queue           text COLLATE "C" NOT NULL,
    occurrence_key  text COLLATE "C",
    reason          text NOT NULL,
    failure_kind    text COLLATE "C" NOT NULL,
    fingerprint     text COLLATE "C" NOT NULL,
    message         text NOT NULL,
    opened_at       timestamptz NOT NULL,
    status          text COLLATE "C" NOT NULL,
    closed_at       timestamptz,
    closed_by       text,
    closed_reason   text,
    replay_run_id   uuid
);
CREATE INDEX perdure_dead_letters_open ON perdure_dead_letters (environment, queue)
 WHERE status = 'open';
CREATE INDEX perdure_dead_letters_closed ON perdure_dead_letters (closed_at, opened_at);

-- Wishes for a push transport: written with the events, deleted once handed over.
CREATE TABLE perdure_outbox (
    position      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id        uuid NOT NULL,
    environment   text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    available_at  timestamptz NOT NULL,
    delivery      text NOT NULL
);

-- How much at once, and how fast. One row a limit, never deleted: it is also the lock a claim
-- takes, and its version guards each change. `body` tells who set what. `opens_at`: from when the
-- next start is allowed; none: a full bucket.
CREATE TABLE perdure_limits (
    environment    text COLLATE "C" NOT NULL,
    scope          text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    version        integer NOT NULL CHECK (version >= 1),
    max_leases     integer CHECK (max_leases >= 0),
    rate_interval  bigint CHECK (rate_interval > 0),
    rate_burst     integer CHECK (rate_burst > 0),
    opens_at       timestamptz,
    paused         boolean NOT NULL,
    fair           boolean NOT NULL,
    body           text NOT NULL,
    PRIMARY KEY (environment, scope, name),
    CONSTRAINT rate_is_whole CHECK ((rate_interval IS NULL) = (rate_burst IS NULL))
);
CREATE INDEX perdure_limits_fair ON perdure_limits (environment, name) WHERE fair;

-- Rates of single keys. `waiting`: runs are parked behind it. Full again means the same as absent.
CREATE TABLE perdure_buckets (
    environment  text COLLATE "C" NOT NULL,
    task         text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    opens_at     timestamptz NOT NULL,
    full_at      timestamptz NOT NULL,
    waiting      boolean NOT NULL,
    PRIMARY KEY (environment, task, key)
);
CREATE INDEX perdure_buckets_waiting ON perdure_buckets (environment, task, opens_at) WHERE waiting;
CREATE INDEX perdure_buckets_full ON perdure_buckets (full_at);

-- Which key of a fair queue was served last. Also the lock that claims of the queue take in turns.
CREATE TABLE perdure_turns (
    environment  text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    after_key    text COLLATE "C" NOT NULL,
    PRIMARY KEY (environment, queue)
);

-- What apps and workers know and operators set: tasks, workers, API keys.
-- Each change is guarded by the version it replaces.
CREATE TABLE perdure_records (
    environment  text COLLATE "C" NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    version      integer NOT NULL CHECK (version >= 1),
    seen_at      timestamptz NOT NULL,
    body         text NOT NULL,
    PRIMARY KEY (environment, kind, name)
);

-- What operators did through the API, sealed: each hash covers the one before it.
CREATE TABLE perdure_audit (
    environment  text COLLATE "C" NOT NULL,
    position     bigint NOT NULL CHECK (position >= 1),
    body         text NOT NULL,
    hash         text COLLATE "C" NOT NULL,
    PRIMARY KEY (environment, position)
);

-- Webhooks: whom to tell of what happens to runs, and how far each has been told. `body` is all of it
-- as JSON text. Each change is guarded by the version it replaces, so of several senders one moves
-- on; the id tells a webhook from a later one of the same name.
CREATE TABLE perdure_webhooks (
    id           text COLLATE "C" PRIMARY KEY,
    environment  text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    version      integer NOT NULL CHECK (version >= 1),
    body         text NOT NULL,
    UNIQUE (environment, name)
);

-- The latest posts of each webhook, for whoever wants to know what became of them.
CREATE TABLE perdure_webhook_deliveries (
    webhook_id  text COLLATE "C" NOT NULL,
    number      bigint NOT NULL CHECK (number >= 1),
    body        text NOT NULL,
    PRIMARY KEY (webhook_id, number)
);

-- How far pruning has reached into the change feed: the last change that is gone. Whoever has not
-- come so far has missed something.
CREATE TABLE perdure_feed_pruned (
    one             smallint PRIMARY KEY CHECK (one = 1),
    xid             xid8 NOT NULL,
    run_id          uuid NOT NULL,
    first_sequence  integer NOT NULL
);

-- What attempts say while they run, as batches of lines. Bounded by the worker that writes them.
CREATE TABLE perdure_run_logs (
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
CREATE TABLE perdure_run_progress (
    run_id    uuid PRIMARY KEY,
    attempt   integer NOT NULL,
    at        timestamptz NOT NULL,
    fraction  double precision NOT NULL CHECK (fraction BETWEEN 0 AND 1),
    message   text NOT NULL
);

-- Schedules, never deleted: a row is the lock its occurrences are made under, and its cursor, which
-- only grows, keeps any time from being decided twice. `body` is the schedule as JSON text;
-- `next_at` is the next time to decide, none while there is none. What was decided up
-- to `forgotten_until` may have been pruned, keys of occurrences and all.
CREATE TABLE perdure_schedules (
    environment      text COLLATE "C" NOT NULL,
    name             text COLLATE "C" NOT NULL,
    version          integer NOT NULL CHECK (version >= 1),
    cursor           timestamptz NOT NULL,
    next_at          timestamptz,
    forgotten_until  timestamptz,
    defined_by       text COLLATE "C" NOT NULL,
    body             text NOT NULL,
    PRIMARY KEY (environment, name)
);
CREATE INDEX perdure_schedules_due ON perdure_schedules (environment, next_at, name)
 WHERE next_at IS NOT NULL;
CREATE INDEX perdure_schedules_defined ON perdure_schedules (environment, defined_by, name);

-- Times of a schedule that were not run, too many for a run each. They never overlap.
CREATE TABLE perdure_skipped_spans (
    environment  text COLLATE "C" NOT NULL,
    schedule_id  text COLLATE "C" NOT NULL,
    first_at     timestamptz NOT NULL,
    last_at      timestamptz NOT NULL,
    count        bigint NOT NULL CHECK (count >= 1),
    reason       text COLLATE "C" NOT NULL,
    recorded_at  timestamptz NOT NULL,
    evidence     text,
    PRIMARY KEY (environment, schedule_id, last_at),
    CONSTRAINT span_runs_forward CHECK (first_at <= last_at)
);
CREATE INDEX perdure_skipped_spans_recorded ON perdure_skipped_spans (recorded_at);

-- Every run leaves some dead rows behind, and every claim passes by them: they are swept up after
-- a fiftieth of the table, not a fifth, and without the pauses that are meant for idle tables.
ALTER TABLE perdure_runs SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_limit = 2000);
-- Only written to and, one retention later, deleted from, in the same order: what is deleted frees
-- whole pages, which are to be had again before much more is written.
ALTER TABLE perdure_history SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_cost_limit = 2000);
-- Almost always empty, so that no share of what is in it says anything.
ALTER TABLE perdure_outbox SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
