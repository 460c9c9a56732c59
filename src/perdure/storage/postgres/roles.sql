-- Least-privilege roles. Run this after every `perdure migrate`, as the role that owns the tables,
-- in the schema that holds them. The owner needs CREATEROLE only if the three roles do not exist
-- yet. It may be run any number of times.
--
--   perdure_server   for `perdure server`: everything but changing or deleting the audit log
--   perdure_worker   for `perdure worker --no-maintenance` and `perdure scheduler`: no API keys, no
--                    audit log, no webhooks, and it deletes no runs and no histories
--   perdure_reader   reads runs, logs, schedules and limits; no API keys, no audit log

DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['perdure_server', 'perdure_worker', 'perdure_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role_name);
    END LOOP;
END
$$;

REVOKE ALL ON
    perdure_audit, perdure_batches, perdure_buckets, perdure_dead_letters, perdure_feed_pruned,
    perdure_history, perdure_keys, perdure_limits, perdure_outbox, perdure_records,
    perdure_run_logs, perdure_run_progress, perdure_run_tags, perdure_runs, perdure_schedules,
    perdure_schema, perdure_skipped_spans, perdure_turns, perdure_webhook_deliveries,
    perdure_webhooks
    FROM PUBLIC, perdure_server, perdure_worker, perdure_reader;

-- All three read runs and what belongs to them.
GRANT SELECT ON
    perdure_batches, perdure_buckets, perdure_dead_letters, perdure_feed_pruned, perdure_history,
    perdure_keys, perdure_limits, perdure_outbox, perdure_records, perdure_run_logs,
    perdure_run_progress, perdure_run_tags, perdure_runs, perdure_schedules, perdure_schema,
    perdure_skipped_spans, perdure_turns
    TO perdure_server, perdure_worker, perdure_reader;

-- Creating, claiming and ending runs; schedules, limits and the catalogue that code declares.
GRANT INSERT ON
    perdure_batches, perdure_buckets, perdure_dead_letters, perdure_history, perdure_keys,
    perdure_limits, perdure_outbox, perdure_records, perdure_run_logs, perdure_run_progress,
    perdure_run_tags, perdure_runs, perdure_schedules, perdure_skipped_spans, perdure_turns
    TO perdure_server, perdure_worker;
GRANT UPDATE ON
    perdure_buckets, perdure_keys, perdure_limits, perdure_records, perdure_run_progress,
    perdure_runs, perdure_schedules, perdure_turns
    TO perdure_server, perdure_worker;
GRANT DELETE ON perdure_buckets, perdure_keys, perdure_records, perdure_run_logs
    TO perdure_server, perdure_worker;

-- Maintenance, dead letters, webhooks, and the audit log, to which the server only adds.
GRANT UPDATE ON perdure_dead_letters TO perdure_server;
GRANT DELETE ON
    perdure_batches, perdure_dead_letters, perdure_history, perdure_outbox, perdure_run_progress,
    perdure_run_tags, perdure_runs, perdure_skipped_spans
    TO perdure_server;
GRANT INSERT, UPDATE ON perdure_feed_pruned TO perdure_server;
GRANT SELECT, INSERT, UPDATE, DELETE ON perdure_webhooks TO perdure_server;
GRANT SELECT, INSERT, DELETE ON perdure_webhook_deliveries TO perdure_server;
GRANT SELECT, INSERT ON perdure_audit TO perdure_server;

-- The catalogue's table also holds the hashes of API keys: those rows are the server's alone.
ALTER TABLE perdure_records ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS perdure_server_records ON perdure_records;
DROP POLICY IF EXISTS perdure_worker_records ON perdure_records;
DROP POLICY IF EXISTS perdure_reader_records ON perdure_records;
CREATE POLICY perdure_server_records ON perdure_records
    TO perdure_server USING (true) WITH CHECK (true);
CREATE POLICY perdure_worker_records ON perdure_records
    TO perdure_worker USING (kind IN ('task', 'worker')) WITH CHECK (kind IN ('task', 'worker'));
CREATE POLICY perdure_reader_records ON perdure_records
    FOR SELECT TO perdure_reader USING (kind IN ('task', 'worker'));
