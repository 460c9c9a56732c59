-- What Perdure asks of every database in the same words. See `queries.sql` of each dialect.

-- name: commit
COMMIT;

-- name: savepoint
SAVEPOINT claim;

-- name: rollback_to_savepoint
ROLLBACK TO SAVEPOINT claim;

-- name: read_dead_letter
SELECT run_id, environment, task, queue, occurrence_key, reason, failure_kind, fingerprint,
       message, opened_at, status, closed_at, closed_by, closed_reason, replay_run_id
  FROM perdure_dead_letters
 WHERE run_id = :run_id;

-- name: read_outbox
SELECT position, delivery
  FROM perdure_outbox
 ORDER BY position
 LIMIT :limit;

-- name: drop_buckets
DELETE FROM perdure_buckets
 WHERE environment = :environment AND task = :task;

-- name: read_limits
SELECT scope, name, version, body, max_leases, paused, rate_interval, rate_burst, fair
  FROM perdure_limits
 WHERE environment = :environment
 ORDER BY scope, name;

-- name: histories_without_run
-- Row by row: the first that is left of each tells whose it was.
SELECT history.run_id, history.events
  FROM perdure_history AS history
 WHERE NOT EXISTS (SELECT 1 FROM perdure_runs AS runs WHERE runs.id = history.run_id)
 ORDER BY history.run_id, history.first_sequence
 LIMIT :limit;

-- name: runs_without_beginning
SELECT runs.id
  FROM perdure_runs AS runs
 WHERE runs.environment = :environment
   AND NOT EXISTS (SELECT 1
                     FROM perdure_history AS history
                    WHERE history.run_id = runs.id AND history.first_sequence = 1)
 ORDER BY runs.id
 LIMIT :limit;

-- name: where_task
runs.task = :task;

-- name: where_queue
runs.queue = :queue;

-- name: where_schedule_id
runs.schedule_id = :schedule_id;

-- name: where_created_after
runs.created_at >= :created_after;

-- name: where_created_before
runs.created_at < :created_before;

-- name: where_finished_after
runs.finished_at >= :finished_after;

-- name: where_finished_before
runs.finished_at < :finished_before;

-- name: where_failure_kind
runs.failure_kind = :failure_kind;

-- name: where_fingerprint
runs.fingerprint = :fingerprint;

-- name: read_history
SELECT first_sequence, events
  FROM perdure_history
 WHERE run_id = :run_id AND first_sequence > :after
 ORDER BY first_sequence
 LIMIT :limit;

-- name: count_runs
SELECT queue, status, count(*)
  FROM perdure_runs
 WHERE environment = :environment
 GROUP BY queue, status;

-- name: find_ids
-- The conditions of `find_runs`. Many at once: without statistics PostgreSQL looks at all runs for
-- each page.
SELECT runs.id
  FROM perdure_runs AS runs
 WHERE runs.environment = :environment AND {conditions}
 ORDER BY runs.id DESC
 LIMIT :limit;

-- name: count_found
-- The conditions of `find_runs`.
SELECT count(*)
  FROM (SELECT 1
          FROM perdure_runs AS runs
         WHERE runs.environment = :environment AND {conditions}
         LIMIT :most) AS found;

-- name: count_held_by_worker
SELECT lease_worker, count(*)
  FROM perdure_runs
 WHERE environment = :environment AND lease_token IS NOT NULL
 GROUP BY lease_worker;

-- name: count_finished_before
-- Which `finished_before` would find, counted only so far.
SELECT count(*)
  FROM (SELECT 1 FROM perdure_runs
         WHERE status = :status AND finished_at <= :before
         LIMIT :most) AS finished;

-- name: delete_folded
DELETE FROM perdure_history
 WHERE run_id = :run_id AND first_sequence > :after AND first_sequence <= :until;

-- name: mark_folded
UPDATE perdure_runs SET folded_to = :first_sequence WHERE id = :run_id;

-- name: read_records
SELECT environment, kind, name, version, seen_at, body
  FROM perdure_records
 WHERE environment = :environment AND kind = :kind
 ORDER BY name;

-- name: read_record
SELECT environment, kind, name, version, seen_at, body
  FROM perdure_records
 WHERE environment = :environment AND kind = :kind AND name = :name;

-- name: forget_records
DELETE FROM perdure_records
 WHERE environment = :environment AND kind = :kind AND seen_at <= :before;

-- name: insert_first_audit
-- A second writer gets no row back.
INSERT INTO perdure_audit (environment, position, body, hash)
VALUES (:environment, :position, :body, :hash)
    ON CONFLICT (environment, position) DO NOTHING
RETURNING position;

-- name: read_audit_entry
SELECT environment, position, body, hash
  FROM perdure_audit
 WHERE environment = :environment AND position = :position;

-- name: read_audit_head
SELECT environment, position, body, hash
  FROM perdure_audit
 WHERE environment = :environment
 ORDER BY position DESC
 LIMIT 1;

-- name: read_audit
SELECT environment, position, body, hash
  FROM perdure_audit
 WHERE environment = :environment AND position > :after
 ORDER BY position
 LIMIT :limit;

-- name: insert_webhook
-- A name that is taken keeps its owner.
INSERT INTO perdure_webhooks (id, environment, name, version, body)
VALUES (:id, :environment, :name, :version, :body)
    ON CONFLICT DO NOTHING;

-- name: update_webhook
-- Only over the version it was made from; whose version is stale gets no row back.
UPDATE perdure_webhooks
   SET version = :version, body = :body
 WHERE id = :id AND version = :version - 1
RETURNING id;

-- name: read_webhook_owner
SELECT id, version
  FROM perdure_webhooks
 WHERE environment = :environment AND name = :name;

-- name: delete_webhook
DELETE FROM perdure_webhooks
 WHERE id = :id
RETURNING id;

-- name: trim_deliveries
DELETE FROM perdure_webhook_deliveries
 WHERE webhook_id = :webhook_id AND number <= :number;

-- name: read_deliveries
SELECT number, body
  FROM perdure_webhook_deliveries
 WHERE webhook_id = :webhook_id AND number < :before
 ORDER BY number DESC
 LIMIT :limit;

-- name: reopen_unreadable
UPDATE perdure_runs
   SET gate = NULL
 WHERE gate = 'unreadable';

-- name: read_logs
SELECT attempt, number, at, level, logger, message, fields
  FROM perdure_run_logs
 WHERE run_id = :run_id AND (attempt, number) > (:attempt, :number)
 ORDER BY attempt, number
 LIMIT :limit;

-- name: count_held
SELECT 'parked', queue, count(*)
  FROM (SELECT queue FROM perdure_runs
         WHERE environment = :environment AND gate IS NOT NULL AND gate <> 'reserved'
         LIMIT :most) AS parked
 GROUP BY queue
UNION ALL
SELECT 'leased', queue, count(*)
  FROM (SELECT queue FROM perdure_runs
         WHERE environment = :environment AND lease_token IS NOT NULL LIMIT :most) AS leased
 GROUP BY queue;

-- name: count_open_dead_letters
SELECT queue, count(*)
  FROM (SELECT queue
          FROM perdure_dead_letters
         WHERE environment = :environment AND status = 'open'
         LIMIT :most) AS open_letters
 GROUP BY queue;

-- name: first_schedule
-- The schedule whose time comes first, or came first and is not decided yet.
SELECT name, next_at
  FROM perdure_schedules
 WHERE environment = :environment AND next_at IS NOT NULL
 ORDER BY next_at, name
 LIMIT 1;

-- name: count_parked
-- How many wait behind a gate, counted only so far.
SELECT count(*)
  FROM (SELECT 1 FROM perdure_runs
         WHERE environment = :environment AND gate = :gate
         LIMIT :most) AS parked;

-- name: insert_schedule
-- A second writer gets no row back.
INSERT INTO perdure_schedules (environment, name, version, cursor, next_at, defined_by, body)
VALUES (:environment, :name, :version, :cursor, :next_at, :defined_by, :body)
    ON CONFLICT (environment, name) DO NOTHING
RETURNING name;

-- name: list_schedules
SELECT name, version, cursor, forgotten_until, body
  FROM perdure_schedules
 WHERE environment = :environment AND name > :after
 ORDER BY name
 LIMIT :limit;

-- name: read_spans
SELECT schedule_id, environment, first_at, last_at, count, reason, recorded_at, evidence
  FROM perdure_skipped_spans
 WHERE environment = :environment AND schedule_id = :name
   AND last_at >= :first AND first_at <= :last
 ORDER BY last_at
 LIMIT :limit;

-- name: delete_spans
DELETE FROM perdure_skipped_spans
 WHERE (environment, schedule_id, last_at) IN (
       SELECT environment, schedule_id, last_at
         FROM perdure_skipped_spans
        WHERE recorded_at < :before
        ORDER BY recorded_at
        LIMIT :limit)
RETURNING schedule_id;
