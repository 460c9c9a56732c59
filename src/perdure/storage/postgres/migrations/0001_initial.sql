-- Runs, their history, and what commits together with them.

-- What happened. One row a commit; the events are JSON text, exactly as they were handed in.
-- `xid` orders the change feed: rows are read only below the oldest open transaction.
CREATE TABLE history (
    run_id          uuid NOT NULL,
    first_sequence  integer NOT NULL CHECK (first_sequence >= 1),
    xid             xid8 NOT NULL DEFAULT pg_current_xact_id(),
    commit_id       text COLLATE "C" NOT NULL,
    events          text NOT NULL,
    PRIMARY KEY (run_id, first_sequence)
);
CREATE INDEX history_feed ON history (xid, run_id, first_sequence);

-- What it adds up to. `state` holds all that may change; creation stays in the first history row.
-- The other columns are what queries compare and filter by. Free space in each page keeps
-- renewals HOT: they change no indexed column.
CREATE TABLE runs (
    id                uuid PRIMARY KEY,
    environment       text COLLATE "C" NOT NULL,
    queue             text COLLATE "C" NOT NULL,
    task              text COLLATE "C" NOT NULL,
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
    batch_id          text COLLATE "C",
    parent_id         uuid,
    failure_kind      text COLLATE "C",
    fingerprint       text COLLATE "C",
    state             text NOT NULL,
    CONSTRAINT lease_is_whole CHECK ((lease_token IS NULL) = (lease_expires_at IS NULL)
                                     AND (lease_token IS NULL) = (lease_worker IS NULL)),
    CONSTRAINT leased_is_not_claimable CHECK (lease_token IS NULL OR claimable_at IS NULL),
    CONSTRAINT finished_is_at_rest
        CHECK (finished_at IS NULL OR (claimable_at IS NULL AND lease_token IS NULL))
) WITH (fillfactor = 80);

-- A lane is one queue, task and priority: within it, order of claim is order of due time.
CREATE INDEX runs_claimable ON runs (environment, queue, task, priority, claimable_at, id)
 WHERE claimable_at IS NOT NULL AND gate IS NULL;
CREATE INDEX runs_attention ON runs (attention_at) WHERE attention_at IS NOT NULL;
-- Two ways to say leased, so that counting a task's holders can only use the second of these:
-- statistics taken while nothing was leased would let either seem as good.
CREATE INDEX runs_leased_by_queue ON runs (environment, queue) WHERE lease_token IS NOT NULL;
CREATE INDEX runs_leased_by_task ON runs (environment, task, concurrency_key)
 WHERE lease_worker IS NOT NULL;
CREATE INDEX runs_gated ON runs (environment, gate, claimable_at, id) WHERE gate IS NOT NULL;
CREATE INDEX runs_finished ON runs (status, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX runs_batch ON runs (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX runs_schedule ON runs (schedule_id, id) WHERE schedule_id IS NOT NULL;
CREATE INDEX runs_parent ON runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_slots ON runs (environment, schedule_id) WHERE holds_slot;

CREATE TABLE run_tags (
    environment  text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    value        text COLLATE "C" NOT NULL,
    run_id       uuid NOT NULL,
    PRIMARY KEY (environment, key, value, run_id)
);
CREATE INDEX run_tags_by_run ON run_tags (run_id);

-- At most one run owns a key. From `free_at` on another may take it; none: never.
CREATE TABLE keys (
    environment   text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    scope         text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    run_id        uuid NOT NULL,
    payload_hash  text COLLATE "C" NOT NULL,
    free_at       timestamptz,
    PRIMARY KEY (environment, kind, scope, name)
);

CREATE INDEX keys_free ON keys (free_at) WHERE free_at IS NOT NULL;

CREATE TABLE dead_letters (
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
    replay_run_id   uuid
);

-- Wishes for a push transport: written with the events, deleted once handed over.
CREATE TABLE outbox (
    position      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id        uuid NOT NULL,
    environment   text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    available_at  timestamptz NOT NULL,
    delivery      text NOT NULL
);

-- How many leases (or schedule slots) at once. The row is also the lock a claim takes.
CREATE TABLE limits (
    environment  text COLLATE "C" NOT NULL,
    scope        text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    max_leases   integer NOT NULL CHECK (max_leases >= 0),
    PRIMARY KEY (environment, scope, name)
);

-- What apps and workers know and operators set: tasks, workers, and later schedules and keys.
-- Each change is guarded by the version it replaces.
CREATE TABLE records (
    environment  text COLLATE "C" NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    version      integer NOT NULL CHECK (version >= 1),
    seen_at      timestamptz NOT NULL,
    body         text NOT NULL,
    PRIMARY KEY (environment, kind, name)
);
