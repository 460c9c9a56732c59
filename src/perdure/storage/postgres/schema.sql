-- The schema, as the migrations leave it. To read, not to run: `perdure migrate` makes it.
-- Written by scripts/dump_schema.py.

CREATE TABLE perdure_audit (
    environment text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    body text NOT NULL,
    hash text COLLATE "C" NOT NULL,
    CONSTRAINT perdure_audit_pkey PRIMARY KEY (environment, "position"),
    CONSTRAINT perdure_audit_position_check CHECK ("position" >= 1)
);

CREATE TABLE perdure_batches (
    batch_id text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    CONSTRAINT perdure_batches_pkey PRIMARY KEY (batch_id, run_id)
);

CREATE TABLE perdure_buckets (
    environment text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    opens_at timestamp with time zone NOT NULL,
    full_at timestamp with time zone NOT NULL,
    waiting boolean NOT NULL,
    CONSTRAINT perdure_buckets_pkey PRIMARY KEY (environment, task, key)
);
CREATE INDEX perdure_buckets_full ON perdure_buckets USING btree (full_at);
CREATE INDEX perdure_buckets_waiting ON perdure_buckets USING btree (environment, task, opens_at) WHERE waiting;

CREATE TABLE perdure_dead_letters (
    run_id uuid NOT NULL,
    environment text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    occurrence_key text COLLATE "C",
    reason text NOT NULL,
    failure_kind text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    message text NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    status text COLLATE "C" NOT NULL,
    closed_at timestamp with time zone,
    closed_by text,
    closed_reason text,
    replay_run_id uuid,
    CONSTRAINT perdure_dead_letters_pkey PRIMARY KEY (run_id)
);
CREATE INDEX perdure_dead_letters_closed ON perdure_dead_letters USING btree (closed_at, opened_at);
CREATE INDEX perdure_dead_letters_open ON perdure_dead_letters USING btree (environment, queue) WHERE (status = 'open'::text);

CREATE TABLE perdure_feed_pruned (
    one smallint NOT NULL,
    xid xid8 NOT NULL,
    run_id uuid NOT NULL,
    first_sequence integer NOT NULL,
    CONSTRAINT perdure_feed_pruned_pkey PRIMARY KEY (one),
    CONSTRAINT perdure_feed_pruned_one_check CHECK (one = 1)
);

CREATE TABLE perdure_history (
    run_id uuid NOT NULL,
    first_sequence integer NOT NULL,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    commit_id text COLLATE "C" NOT NULL,
    events text NOT NULL,
    CONSTRAINT perdure_history_pkey PRIMARY KEY (run_id, first_sequence),
    CONSTRAINT perdure_history_first_sequence_check CHECK (first_sequence >= 1)
) WITH (autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_vacuum_cost_limit=2000);
CREATE INDEX perdure_history_feed ON perdure_history USING btree (xid, run_id, first_sequence);

CREATE TABLE perdure_keys (
    environment text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    payload_hash text COLLATE "C" NOT NULL,
    free_at timestamp with time zone,
    CONSTRAINT perdure_keys_pkey PRIMARY KEY (environment, kind, scope, name)
);
CREATE INDEX perdure_keys_free ON perdure_keys USING btree (free_at) WHERE (free_at IS NOT NULL);

CREATE TABLE perdure_limits (
    environment text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    max_leases integer,
    rate_interval bigint,
    rate_burst integer,
    opens_at timestamp with time zone,
    paused boolean NOT NULL,
    fair boolean NOT NULL,
    body text NOT NULL,
    CONSTRAINT perdure_limits_pkey PRIMARY KEY (environment, scope, name),
    CONSTRAINT perdure_limits_max_leases_check CHECK (max_leases >= 0),
    CONSTRAINT perdure_limits_rate_burst_check CHECK (rate_burst > 0),
    CONSTRAINT perdure_limits_rate_interval_check CHECK (rate_interval > 0),
    CONSTRAINT perdure_limits_version_check CHECK (version >= 1),
    CONSTRAINT rate_is_whole CHECK ((rate_interval IS NULL) = (rate_burst IS NULL))
);
CREATE INDEX perdure_limits_fair ON perdure_limits USING btree (environment, name) WHERE fair;

CREATE TABLE perdure_outbox (
    position bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    run_id uuid NOT NULL,
    environment text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    available_at timestamp with time zone NOT NULL,
    delivery text NOT NULL,
    CONSTRAINT perdure_outbox_pkey PRIMARY KEY ("position")
) WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000);

CREATE TABLE perdure_records (
    environment text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    body text NOT NULL,
    CONSTRAINT perdure_records_pkey PRIMARY KEY (environment, kind, name),
    CONSTRAINT perdure_records_version_check CHECK (version >= 1)
);

CREATE TABLE perdure_run_logs (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    number integer NOT NULL,
    at timestamp with time zone NOT NULL,
    level integer NOT NULL,
    logger text NOT NULL,
    message text NOT NULL,
    fields text,
    CONSTRAINT perdure_run_logs_pkey PRIMARY KEY (run_id, attempt, number)
);

CREATE TABLE perdure_run_progress (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    at timestamp with time zone NOT NULL,
    fraction double precision NOT NULL,
    message text NOT NULL,
    CONSTRAINT perdure_run_progress_pkey PRIMARY KEY (run_id),
    CONSTRAINT perdure_run_progress_fraction_check CHECK (fraction >= 0::double precision AND fraction <= 1::double precision)
);

CREATE TABLE perdure_run_tags (
    environment text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    CONSTRAINT perdure_run_tags_pkey PRIMARY KEY (environment, key, value, run_id)
);
CREATE INDEX perdure_run_tags_by_run ON perdure_run_tags USING btree (run_id);

CREATE TABLE perdure_runs (
    id uuid NOT NULL,
    environment text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    version integer DEFAULT 0 NOT NULL,
    priority smallint NOT NULL,
    status text COLLATE "C" NOT NULL,
    sequence integer NOT NULL,
    claimable_at timestamp with time zone,
    attention_at timestamp with time zone,
    lease_token text COLLATE "C",
    lease_worker text COLLATE "C",
    lease_expires_at timestamp with time zone,
    holds_slot boolean NOT NULL,
    gate text COLLATE "C",
    created_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    concurrency_key text COLLATE "C",
    schedule_id text COLLATE "C",
    nominal_at timestamp with time zone,
    batch_id text COLLATE "C",
    parent_id uuid,
    failure_kind text COLLATE "C",
    fingerprint text COLLATE "C",
    state text NOT NULL,
    keyed boolean GENERATED ALWAYS AS (concurrency_key IS NOT NULL) STORED,
    folded_to integer DEFAULT 1 NOT NULL,
    CONSTRAINT perdure_runs_pkey PRIMARY KEY (id),
    CONSTRAINT finished_is_at_rest CHECK (finished_at IS NULL OR claimable_at IS NULL AND lease_token IS NULL),
    CONSTRAINT lease_is_whole CHECK ((lease_token IS NULL) = (lease_expires_at IS NULL) AND (lease_token IS NULL) = (lease_worker IS NULL)),
    CONSTRAINT leased_is_not_claimable CHECK (lease_token IS NULL OR claimable_at IS NULL),
    CONSTRAINT perdure_runs_sequence_check CHECK (sequence >= 1)
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_limit=2000);
CREATE INDEX perdure_runs_attention ON perdure_runs USING btree (attention_at) WHERE (attention_at IS NOT NULL);
CREATE INDEX perdure_runs_by_key ON perdure_runs USING btree (environment, queue, concurrency_key, task, version, priority, claimable_at, id) WHERE ((claimable_at IS NOT NULL) AND (gate IS NULL) AND (concurrency_key IS NOT NULL));
CREATE INDEX perdure_runs_claimable ON perdure_runs USING btree (environment, queue, keyed, task, version, priority, claimable_at, id) WHERE ((claimable_at IS NOT NULL) AND (gate IS NULL));
CREATE INDEX perdure_runs_finished ON perdure_runs USING btree (status, finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX perdure_runs_gated ON perdure_runs USING btree (environment, gate, queue, task, priority, claimable_at, id) WHERE (gate IS NOT NULL);
CREATE INDEX perdure_runs_key_leased ON perdure_runs USING btree (environment, task, concurrency_key) WHERE ((lease_token IS NOT NULL) AND (concurrency_key IS NOT NULL));
CREATE INDEX perdure_runs_leased ON perdure_runs USING btree (environment, task, id) WHERE (lease_token IS NOT NULL);
CREATE INDEX perdure_runs_long ON perdure_runs USING btree (sequence) WHERE ((sequence - folded_to) >= 128);
CREATE INDEX perdure_runs_nominal ON perdure_runs USING btree (environment, schedule_id, nominal_at, id) WHERE (nominal_at IS NOT NULL);
CREATE INDEX perdure_runs_parent ON perdure_runs USING btree (parent_id) WHERE (parent_id IS NOT NULL);
CREATE INDEX perdure_runs_reserved ON perdure_runs USING btree (environment, task, concurrency_key) WHERE (gate = 'reserved'::text);
CREATE INDEX perdure_runs_schedule ON perdure_runs USING btree (schedule_id, id) WHERE (schedule_id IS NOT NULL);
CREATE INDEX perdure_runs_slots ON perdure_runs USING btree (environment, schedule_id) WHERE holds_slot;
CREATE INDEX perdure_runs_unended ON perdure_runs USING btree (environment, schedule_id, id) WHERE ((schedule_id IS NOT NULL) AND (finished_at IS NULL));

CREATE TABLE perdure_schedules (
    environment text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    cursor timestamp with time zone NOT NULL,
    next_at timestamp with time zone,
    forgotten_until timestamp with time zone,
    defined_by text COLLATE "C" NOT NULL,
    body text NOT NULL,
    CONSTRAINT perdure_schedules_pkey PRIMARY KEY (environment, name),
    CONSTRAINT perdure_schedules_version_check CHECK (version >= 1)
);
CREATE INDEX perdure_schedules_defined ON perdure_schedules USING btree (environment, defined_by, name);
CREATE INDEX perdure_schedules_due ON perdure_schedules USING btree (environment, next_at, name) WHERE (next_at IS NOT NULL);

CREATE TABLE perdure_schema (
    version integer NOT NULL
);

CREATE TABLE perdure_skipped_spans (
    environment text COLLATE "C" NOT NULL,
    schedule_id text COLLATE "C" NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    count bigint NOT NULL,
    reason text COLLATE "C" NOT NULL,
    recorded_at timestamp with time zone NOT NULL,
    evidence text,
    CONSTRAINT perdure_skipped_spans_pkey PRIMARY KEY (environment, schedule_id, last_at),
    CONSTRAINT perdure_skipped_spans_count_check CHECK (count >= 1),
    CONSTRAINT span_runs_forward CHECK (first_at <= last_at)
);
CREATE INDEX perdure_skipped_spans_recorded ON perdure_skipped_spans USING btree (recorded_at);

CREATE TABLE perdure_turns (
    environment text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    after_key text COLLATE "C" NOT NULL,
    CONSTRAINT perdure_turns_pkey PRIMARY KEY (environment, queue)
);

CREATE TABLE perdure_webhook_deliveries (
    webhook_id text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    body text NOT NULL,
    CONSTRAINT perdure_webhook_deliveries_pkey PRIMARY KEY (webhook_id, number),
    CONSTRAINT perdure_webhook_deliveries_number_check CHECK (number >= 1)
);

CREATE TABLE perdure_webhooks (
    id text COLLATE "C" NOT NULL,
    environment text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    body text NOT NULL,
    CONSTRAINT perdure_webhooks_environment_name_key UNIQUE (environment, name),
    CONSTRAINT perdure_webhooks_pkey PRIMARY KEY (id),
    CONSTRAINT perdure_webhooks_version_check CHECK (version >= 1)
);
