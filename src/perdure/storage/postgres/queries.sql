-- What Perdure asks of PostgreSQL. Same names and parameters as in the other dialects; queries
-- compare versions and instants and never decide, so no status stands in a WHERE.

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED;

-- name: limit_transaction
-- This dialect's only: a worker stopped in the middle frees what it locked; plans look rows up
-- in indexes one by one, however stale the statistics (a plan made while the tables were empty
-- is kept while they grow); compiling a plan would cost more than running it.
SELECT set_config('statement_timeout', '30s', true),
       set_config('idle_in_transaction_session_timeout', '15s', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('jit', 'off', true);

-- name: commit
COMMIT;

-- name: find_home
-- Where Perdure's tables are, seen from somebody else's connection, and the time there.
SELECT spaces.nspname, clock_timestamp(), pg_catalog.pg_table_is_visible(tables.oid)
  FROM pg_catalog.pg_class AS tables
  JOIN pg_catalog.pg_namespace AS spaces ON spaces.oid = tables.relnamespace
 WHERE tables.relname = 'perdure_schema' AND tables.relkind = 'r'
 ORDER BY spaces.nspname;

-- name: lock_home
-- Here rows are locked as they come.
SELECT 1;

-- name: read_version
SELECT version FROM perdure_schema;

-- name: notify
-- This dialect's only: inside the transaction that it speaks of, when that is not ours.
SELECT pg_catalog.pg_notify(:channel, :part);

-- name: savepoint
SAVEPOINT claim;

-- name: rollback_to_savepoint
ROLLBACK TO SAVEPOINT claim;

-- name: read_time
-- clock_timestamp(), because now() stands still from the start of the transaction.
SELECT clock_timestamp();

-- name: lock_runs
-- In order of id, like every transaction that locks more than one run. Tells whether any run is
-- parked at all, so that what knows no limits does not look for gates to open.
SELECT runs.id, runs.sequence, runs.environment, runs.lease_token, runs.lease_expires_at,
       EXISTS (SELECT FROM runs AS parked WHERE parked.gate IS NOT NULL)
  FROM runs
 WHERE runs.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[])
 ORDER BY runs.id
   FOR UPDATE OF runs;

-- name: read_commit_ids
SELECT history.run_id, history.first_sequence, history.commit_id
  FROM history
  JOIN jsonb_to_recordset(:wanted::jsonb) AS wanted (run_id uuid, first_sequence integer)
    ON wanted.run_id = history.run_id AND wanted.first_sequence = history.first_sequence;

-- name: insert_runs
INSERT INTO runs (id, environment, queue, task, priority, status, sequence, claimable_at,
                  attention_at, lease_token, lease_worker, lease_expires_at, holds_slot,
                  created_at, finished_at, concurrency_key, schedule_id, batch_id, parent_id,
                  failure_kind, fingerprint, state)
SELECT id, environment, queue, task, priority, status, sequence, claimable_at,
       attention_at, lease_token, lease_worker, lease_expires_at, holds_slot,
       created_at, finished_at, concurrency_key, schedule_id, batch_id, parent_id,
       failure_kind, fingerprint, state
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       id uuid, environment text, queue text, task text, priority smallint, status text,
       sequence integer, claimable_at timestamptz, attention_at timestamptz, lease_token text,
       lease_worker text, lease_expires_at timestamptz, holds_slot boolean,
       created_at timestamptz, finished_at timestamptz, concurrency_key text, schedule_id text,
       batch_id text, parent_id uuid, failure_kind text, fingerprint text, state text);

-- name: update_runs
-- The rows are locked and were compared; the sequence is compared once more all the same. The
-- expiry of a lease that stays only ever grows: a renewal leaves no event and must not be undone.
UPDATE runs
   SET queue = new.queue, priority = new.priority, status = new.status,
       sequence = new.sequence, claimable_at = new.claimable_at,
       attention_at = new.attention_at, lease_token = new.lease_token,
       lease_worker = new.lease_worker,
       lease_expires_at = CASE WHEN new.lease_token = runs.lease_token
                               THEN greatest(runs.lease_expires_at, new.lease_expires_at)
                               ELSE new.lease_expires_at END,
       holds_slot = new.holds_slot, gate = NULL, finished_at = new.finished_at,
       failure_kind = new.failure_kind, fingerprint = new.fingerprint, state = new.state
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       id uuid, expected integer, queue text, priority smallint, status text, sequence integer,
       claimable_at timestamptz, attention_at timestamptz, lease_token text, lease_worker text,
       lease_expires_at timestamptz, holds_slot boolean, finished_at timestamptz,
       failure_kind text, fingerprint text, state text)
 WHERE runs.id = new.id AND runs.sequence = new.expected;

-- name: insert_history
INSERT INTO history (run_id, first_sequence, commit_id, events)
SELECT run_id, first_sequence, commit_id, events
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       run_id uuid, first_sequence integer, commit_id text, events text);

-- name: insert_tags
INSERT INTO run_tags (environment, key, value, run_id)
SELECT environment, key, value, run_id
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       environment text, key text, value text, run_id uuid);

-- name: take_keys
-- In order of key. A key that is free from some time on may be taken over from then on.
INSERT INTO keys (environment, kind, scope, name, run_id, payload_hash)
SELECT environment, kind, scope, name, run_id, payload_hash
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       environment text, kind text, scope text, name text, run_id uuid, payload_hash text)
 ORDER BY environment COLLATE "C", kind COLLATE "C", scope COLLATE "C", name COLLATE "C"
    ON CONFLICT (environment, kind, scope, name) DO UPDATE
   SET run_id = excluded.run_id, payload_hash = excluded.payload_hash, free_at = NULL
 WHERE keys.free_at <= statement_timestamp();

-- name: read_keys
-- A statement of its own: only a later snapshot sees the owner an insert has just waited for.
SELECT keys.environment, keys.kind, keys.scope, keys.name, keys.run_id, keys.payload_hash
  FROM keys
  JOIN jsonb_to_recordset(:wanted::jsonb) AS wanted (
       environment text, kind text, scope text, name text)
    ON (wanted.environment, wanted.kind, wanted.scope, wanted.name)
       = (keys.environment, keys.kind, keys.scope, keys.name);

-- name: drop_keys
DELETE FROM keys
 USING jsonb_to_recordset(:rows::jsonb) AS old (
       environment text, kind text, scope text, name text, run_id uuid)
 WHERE (keys.environment, keys.kind, keys.scope, keys.name)
       = (old.environment, old.kind, old.scope, old.name)
   AND keys.run_id = old.run_id;

-- name: free_keys
-- In order of key, like `take_keys`.
WITH freed AS MATERIALIZED (
    SELECT keys.environment, keys.kind, keys.scope, keys.name, freed.free_at
      FROM keys
      JOIN jsonb_to_recordset(:rows::jsonb) AS freed (
           environment text, kind text, scope text, name text, run_id uuid, free_at timestamptz)
        ON (keys.environment, keys.kind, keys.scope, keys.name)
           = (freed.environment, freed.kind, freed.scope, freed.name)
     WHERE keys.run_id = freed.run_id
     ORDER BY keys.environment, keys.kind, keys.scope, keys.name
       FOR UPDATE OF keys
)
UPDATE keys
   SET free_at = freed.free_at
  FROM freed
 WHERE (keys.environment, keys.kind, keys.scope, keys.name)
       = (freed.environment, freed.kind, freed.scope, freed.name);

-- name: insert_dead_letters
INSERT INTO dead_letters (run_id, environment, task, queue, occurrence_key, reason,
                          failure_kind, fingerprint, message, opened_at, status)
SELECT run_id, environment, task, queue, occurrence_key, reason,
       failure_kind, fingerprint, message, opened_at, status
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       run_id uuid, environment text, task text, queue text, occurrence_key text, reason text,
       failure_kind text, fingerprint text, message text, opened_at timestamptz, status text);

-- name: close_dead_letter
-- The guard: one that was closed before stays as it is, and no row comes back.
UPDATE dead_letters
   SET status = :status, closed_at = :closed_at, closed_by = :closed_by,
       replay_run_id = :replay_run_id
 WHERE run_id = :run_id AND closed_at IS NULL
RETURNING run_id;

-- name: list_dead_letters
SELECT run_id, environment, task, queue, occurrence_key, reason, failure_kind, fingerprint,
       message, opened_at, status, closed_at, closed_by, replay_run_id
  FROM dead_letters
 WHERE environment = :environment AND (:status::text IS NULL OR status = :status)
 ORDER BY run_id DESC
 LIMIT :limit;

-- name: insert_outbox
INSERT INTO outbox (run_id, environment, queue, available_at, delivery)
SELECT run_id, environment, queue, available_at, delivery
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       run_id uuid, environment text, queue text, available_at timestamptz, delivery text);

-- name: read_outbox
SELECT position, delivery
  FROM outbox
 ORDER BY position
 LIMIT :limit;

-- name: delete_outbox
DELETE FROM outbox
 WHERE position = ANY (ARRAY(SELECT jsonb_array_elements_text(:positions::jsonb))::bigint[]);

-- name: claim_candidates
-- Jumps from lane to lane (a lane is one queue, task and priority), so that neither runs in the
-- future nor tasks this worker does not know cost more than one jump. Of each due lane the
-- first few are ranked, queues taking turns; then as many as each lane won are locked.
WITH RECURSIVE lane AS (
    (SELECT queue, task, priority, claimable_at
       FROM runs
      WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
      ORDER BY queue, task, priority, claimable_at
      LIMIT 1)
    UNION ALL
    (SELECT next.queue, next.task, next.priority, next.claimable_at
       FROM lane
      CROSS JOIN LATERAL (
            SELECT queue, task, priority, claimable_at
              FROM runs
             WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
               AND (queue, task, priority) > (lane.queue, lane.task, lane.priority)
             ORDER BY queue, task, priority, claimable_at
             LIMIT 1) AS next)
), due AS MATERIALIZED (
    SELECT queue, task, priority, count(*) OVER () AS lanes
      FROM lane
     WHERE claimable_at <= statement_timestamp()
       AND task = ANY (ARRAY(SELECT jsonb_array_elements_text(:tasks::jsonb)))
       AND (:queues::jsonb IS NULL
            OR queue = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb))))
), ranked AS (
    SELECT due.queue, due.task, due.priority,
           first.claimable_at - due.priority * interval '1 hour' AS claim_rank,
           row_number() OVER (PARTITION BY due.queue
                              ORDER BY first.claimable_at - due.priority * interval '1 hour')
           AS turn
      FROM due
     CROSS JOIN LATERAL (
           SELECT claimable_at
             FROM runs
            WHERE environment = :environment AND gate IS NULL
              AND queue = due.queue AND task = due.task AND priority = due.priority
              AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at, id
            LIMIT least(:wanted::bigint,
                        greatest(5000, 4 * :wanted::bigint) / due.lanes + 1)
           ) AS first
     ORDER BY turn, claim_rank
     LIMIT :wanted
), won AS MATERIALIZED (
    SELECT queue, task, priority, count(*) AS places
      FROM ranked
     GROUP BY queue, task, priority
), locked AS MATERIALIZED (
    SELECT mine.*
      FROM won
     CROSS JOIN LATERAL (
           SELECT id, state, lease_expires_at,
                  claimable_at - priority * interval '1 hour' AS claim_rank
             FROM runs
            WHERE environment = :environment AND gate IS NULL
              AND queue = won.queue AND task = won.task AND priority = won.priority
              AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at, id
            LIMIT won.places
              FOR UPDATE SKIP LOCKED) AS mine
)
SELECT locked.id, locked.state, locked.lease_expires_at, history.events,
       EXISTS (SELECT FROM limits WHERE environment = :environment)
  FROM locked
 CROSS JOIN LATERAL (
       SELECT events FROM history
        WHERE run_id = locked.id AND first_sequence = 1
        LIMIT 1) AS history
 ORDER BY locked.claim_rank, locked.id;

-- name: claim_named
-- The same for runs somebody knows by name: a push, or a run executed where it was asked for.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events,
       EXISTS (SELECT FROM limits WHERE environment = :environment)
  FROM runs
 CROSS JOIN LATERAL (
       SELECT events FROM history
        WHERE run_id = runs.id AND first_sequence = 1
        LIMIT 1) AS history
 WHERE runs.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[])
   AND runs.environment = :environment AND runs.gate IS NULL
   AND runs.claimable_at <= statement_timestamp()
   AND runs.task = ANY (ARRAY(SELECT jsonb_array_elements_text(:tasks::jsonb)))
   AND (:queues::jsonb IS NULL
        OR runs.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb))))
 ORDER BY runs.id
 LIMIT :wanted
   FOR UPDATE OF runs SKIP LOCKED;

-- name: next_claimable
-- When the next lane that this worker serves becomes due.
WITH RECURSIVE lane AS (
    (SELECT queue, task, priority, claimable_at
       FROM runs
      WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
      ORDER BY queue, task, priority, claimable_at
      LIMIT 1)
    UNION ALL
    (SELECT next.queue, next.task, next.priority, next.claimable_at
       FROM lane
      CROSS JOIN LATERAL (
            SELECT queue, task, priority, claimable_at
              FROM runs
             WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
               AND (queue, task, priority) > (lane.queue, lane.task, lane.priority)
             ORDER BY queue, task, priority, claimable_at
             LIMIT 1) AS next)
)
SELECT min(claimable_at)
  FROM lane
 WHERE task = ANY (ARRAY(SELECT jsonb_array_elements_text(:tasks::jsonb)))
   AND (:queues::jsonb IS NULL
        OR queue = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb))));

-- name: lock_limits
-- Before the holders are counted, and in a statement of its own: a statement that locks and
-- counts would count in the past.
SELECT limits.scope, limits.name, limits.max_leases
  FROM limits
  JOIN jsonb_to_recordset(:wanted::jsonb) AS wanted (scope text, name text)
    ON wanted.scope = limits.scope AND wanted.name = limits.name
 WHERE limits.environment = :environment
 ORDER BY limits.scope, limits.name
   FOR UPDATE OF limits;

-- name: count_holders
SELECT wanted.scope, wanted.name, wanted.key,
       CASE wanted.scope
       WHEN 'queue' THEN (SELECT count(*) FROM runs
                           WHERE environment = :environment AND queue = wanted.name
                             AND lease_token IS NOT NULL)
       WHEN 'task' THEN (SELECT count(*) FROM runs
                          WHERE environment = :environment AND task = wanted.name
                            AND lease_worker IS NOT NULL)
       WHEN 'key' THEN (SELECT count(*) FROM runs
                         WHERE environment = :environment AND task = wanted.name
                           AND concurrency_key = wanted.key AND lease_worker IS NOT NULL)
       ELSE (SELECT count(*) FROM runs
              WHERE environment = :environment AND schedule_id = wanted.name AND holds_slot)
       END
  FROM jsonb_to_recordset(:wanted::jsonb) AS wanted (scope text, name text, key text);

-- name: park_runs
UPDATE runs
   SET gate = parked.gate
  FROM jsonb_to_recordset(:rows::jsonb) AS parked (id uuid, gate text)
 WHERE runs.id = parked.id;

-- name: open_gate
-- Those who wait longest first. A row somebody else is writing is left to maintenance.
UPDATE runs
   SET gate = NULL
 WHERE id IN (
       SELECT id
         FROM runs
        WHERE environment = :environment AND gate = :gate
        ORDER BY claimable_at, id
        LIMIT :room
          FOR UPDATE SKIP LOCKED)
RETURNING id;

-- name: read_gates
-- Jumps from gate to gate, however many wait behind each.
WITH RECURSIVE parked AS (
    (SELECT environment, gate
       FROM runs
      WHERE gate IS NOT NULL AND (environment, gate) > (:after_environment, :after_gate)
      ORDER BY environment, gate
      LIMIT 1)
    UNION ALL
    (SELECT next.environment, next.gate
       FROM parked
      CROSS JOIN LATERAL (
            SELECT environment, gate
              FROM runs
             WHERE gate IS NOT NULL AND (environment, gate) > (parked.environment, parked.gate)
             ORDER BY environment, gate
             LIMIT 1) AS next)
)
SELECT environment, gate
  FROM parked
 LIMIT :limit;

-- name: set_limits
INSERT INTO limits (environment, scope, name, max_leases)
SELECT environment, scope, name, max_leases
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       environment text, scope text, name text, max_leases integer)
 ORDER BY environment COLLATE "C", scope COLLATE "C", name COLLATE "C"
    ON CONFLICT (environment, scope, name) DO UPDATE SET max_leases = excluded.max_leases;

-- name: delete_limits
DELETE FROM limits
 USING jsonb_to_recordset(:rows::jsonb) AS old (environment text, scope text, name text)
 WHERE (limits.environment, limits.scope, limits.name) = (old.environment, old.scope, old.name);

-- name: read_limits
SELECT environment, scope, name, max_leases
  FROM limits
 WHERE environment = :environment
 ORDER BY scope, name;

-- name: lock_leases
-- SKIP LOCKED: whoever is writing the row now may be ending the lease; ask again later.
SELECT runs.id
  FROM runs
  JOIN jsonb_to_recordset(:wanted::jsonb) AS wanted (id uuid, token text)
    ON wanted.id = runs.id AND wanted.token = runs.lease_token
   FOR UPDATE OF runs SKIP LOCKED;

-- name: renew_leases
-- No sequence, no event, no indexed column: a HOT update. `attention_at` stays, early at worst.
UPDATE runs
   SET lease_expires_at = greatest(runs.lease_expires_at,
                                   clock_timestamp() + wanted.ttl * interval '1 microsecond')
  FROM jsonb_to_recordset(:rows::jsonb) AS wanted (id uuid, token text, ttl bigint)
 WHERE runs.id = wanted.id AND runs.lease_token = wanted.token;

-- name: read_leases
SELECT runs.id, runs.lease_token, runs.lease_expires_at, runs.status
  FROM runs
 WHERE runs.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: leases_of_worker
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM runs
 CROSS JOIN LATERAL (
       SELECT events FROM history
        WHERE run_id = runs.id AND first_sequence = 1
        LIMIT 1) AS history
 WHERE runs.lease_worker = :worker_id
 ORDER BY runs.id;

-- name: put_off_attention
-- Leases that were renewed since: look again when they expire.
UPDATE runs
   SET attention_at = lease_expires_at
 WHERE id IN (
       SELECT id
         FROM runs
        WHERE attention_at <= statement_timestamp()
          AND lease_expires_at > statement_timestamp()
        ORDER BY attention_at
        LIMIT :limit
          FOR UPDATE SKIP LOCKED);

-- name: put_off_unreadable
-- Runs this code cannot read: look again in an hour, perhaps it has been upgraded.
UPDATE runs
   SET attention_at = statement_timestamp() + interval '1 hour'
  FROM jsonb_to_recordset(:rows::jsonb) AS aside (id uuid)
 WHERE runs.id = aside.id;

-- name: due_for_attention
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM runs
 CROSS JOIN LATERAL (
       SELECT events FROM history
        WHERE run_id = runs.id AND first_sequence = 1
        LIMIT 1) AS history
 WHERE runs.attention_at <= statement_timestamp()
   AND (runs.lease_expires_at IS NULL OR runs.lease_expires_at <= statement_timestamp())
 ORDER BY runs.attention_at
 LIMIT :limit;

-- name: get_runs
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM runs
 CROSS JOIN LATERAL (
       SELECT events FROM history
        WHERE run_id = runs.id AND first_sequence = 1
        LIMIT 1) AS history
 WHERE runs.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: find_runs
-- The conditions that apply are added by name, from the queries called `where_…`.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM runs
 CROSS JOIN LATERAL (
       SELECT events FROM history
        WHERE run_id = runs.id AND first_sequence = 1
        LIMIT 1) AS history
 WHERE runs.environment = :environment AND {conditions}
 ORDER BY runs.id DESC
 LIMIT :limit;

-- name: where_cursor
runs.id < :cursor::uuid;

-- name: where_statuses
runs.status = ANY (ARRAY(SELECT jsonb_array_elements_text(:statuses::jsonb)));

-- name: where_kinds
runs.failure_kind = ANY (ARRAY(SELECT jsonb_array_elements_text(:kinds::jsonb)));

-- name: where_task
runs.task = :task;

-- name: where_queue
runs.queue = :queue;

-- name: where_tag
EXISTS (SELECT FROM run_tags
         WHERE run_tags.environment = runs.environment AND run_tags.key = :tag_key
           AND run_tags.value = :tag_value AND run_tags.run_id = runs.id);

-- name: where_batch_id
runs.batch_id = :batch_id;

-- name: where_schedule_id
runs.schedule_id = :schedule_id;

-- name: where_parent_id
runs.parent_id = :parent_id::uuid;

-- name: where_created_after
runs.created_at >= :created_after;

-- name: where_created_before
runs.created_at < :created_before;

-- name: where_failure_kind
runs.failure_kind = :failure_kind;

-- name: where_fingerprint
runs.fingerprint = :fingerprint;

-- name: where_text
(strpos(runs.task, :text) > 0 OR strpos('run_' || replace(runs.id::text, '-', ''), :text) > 0
    OR strpos(runs.state, :text) > 0);

-- name: read_history
SELECT first_sequence, events
  FROM history
 WHERE run_id = :run_id
 ORDER BY first_sequence;

-- name: count_runs
SELECT queue, status, count(*)
  FROM runs
 WHERE environment = :environment
 GROUP BY queue, status;

-- name: read_changes
-- Below the oldest open write transaction nothing can appear any more, so nothing is skipped.
SELECT xid::text || '.' || run_id::text || '.' || first_sequence, run_id, first_sequence, events
  FROM history
 WHERE xid >= split_part(:cursor, '.', 1)::xid8
   AND xid < pg_snapshot_xmin(pg_current_snapshot())
   AND (xid, run_id, first_sequence)
       > (split_part(:cursor, '.', 1)::xid8, split_part(:cursor, '.', 2)::uuid,
          split_part(:cursor, '.', 3)::integer)
 ORDER BY xid, run_id, first_sequence
 LIMIT :limit;

-- name: finished_before
SELECT id
  FROM runs
 WHERE status = :status AND finished_at <= :before
 ORDER BY finished_at
 LIMIT :limit
   FOR UPDATE SKIP LOCKED;

-- name: delete_history
DELETE FROM history
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: delete_tags
DELETE FROM run_tags
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: delete_dead_letters
DELETE FROM dead_letters
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: delete_runs
DELETE FROM runs
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: server_started
SELECT pg_postmaster_start_time();

-- name: put_record
-- Only over the version it was made from; whose version is stale gets no row back.
INSERT INTO records (environment, kind, name, version, seen_at, body)
VALUES (:environment, :kind, :name, :version, statement_timestamp(), :body)
    ON CONFLICT (environment, kind, name) DO UPDATE
   SET version = excluded.version, seen_at = excluded.seen_at, body = excluded.body
 WHERE records.version = excluded.version - 1
RETURNING name;

-- name: read_records
SELECT environment, kind, name, version, seen_at, body
  FROM records
 WHERE environment = :environment AND kind = :kind
 ORDER BY name;

-- name: forget_records
DELETE FROM records
 WHERE environment = :environment AND kind = :kind AND seen_at <= :before;

-- name: delete_free_keys
DELETE FROM keys
 WHERE (environment, kind, scope, name) IN (
       SELECT environment, kind, scope, name
         FROM keys
        WHERE free_at <= statement_timestamp()
        ORDER BY environment, kind, scope, name
        LIMIT :limit
          FOR UPDATE SKIP LOCKED)
RETURNING name;

-- name: reopen_unreadable
UPDATE runs
   SET gate = NULL
 WHERE gate = 'unreadable';

-- name: insert_logs
-- A line whose answer was lost is written again and kept once; one of a pruned run is nobody's.
INSERT INTO run_logs (run_id, attempt, number, at, level, logger, message, fields)
SELECT new.run_id, new.attempt, new.number, new.at, new.level, new.logger, new.message, new.fields
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       run_id uuid, attempt integer, number integer, at timestamptz, level integer, logger text,
       message text, fields text)
  JOIN runs ON runs.id = new.run_id
    ON CONFLICT (run_id, attempt, number) DO NOTHING;

-- name: trim_logs
DELETE FROM run_logs
 USING jsonb_to_recordset(:rows::jsonb) AS old (run_id uuid, attempt integer, keep_from integer)
 WHERE run_logs.run_id = old.run_id AND run_logs.attempt = old.attempt
   AND run_logs.number < old.keep_from;

-- name: put_progress
-- Of two attempts at once, the one that lost its lease is the older one.
INSERT INTO run_progress (run_id, attempt, at, fraction, message)
SELECT DISTINCT ON (new.run_id) new.run_id, new.attempt, new.at, new.fraction, new.message
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       run_id uuid, attempt integer, at timestamptz, fraction double precision, message text)
  JOIN runs ON runs.id = new.run_id
 ORDER BY new.run_id, new.attempt DESC
    ON CONFLICT (run_id) DO UPDATE
   SET attempt = excluded.attempt, at = excluded.at, fraction = excluded.fraction,
       message = excluded.message
 WHERE excluded.attempt >= run_progress.attempt;

-- name: read_logs
SELECT attempt, number, at, level, logger, message, fields
  FROM run_logs
 WHERE run_id = :run_id AND (attempt, number) > (:attempt, :number)
 ORDER BY attempt, number
 LIMIT :limit;

-- name: read_progress
SELECT run_id, attempt, at, fraction, message
  FROM run_progress
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: delete_logs
DELETE FROM run_logs
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: delete_progress
DELETE FROM run_progress
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: count_lanes
-- What is due and what is later, lane by lane as a claim sees them, of each lane only so many.
WITH RECURSIVE lane AS (
    (SELECT queue, task, priority, claimable_at, 1 AS place
       FROM runs
      WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
      ORDER BY queue, task, priority, claimable_at
      LIMIT 1)
    UNION ALL
    (SELECT next.queue, next.task, next.priority, next.claimable_at, lane.place + 1
       FROM lane
      CROSS JOIN LATERAL (
            SELECT queue, task, priority, claimable_at
              FROM runs
             WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
               AND (queue, task, priority) > (lane.queue, lane.task, lane.priority)
             ORDER BY queue, task, priority, claimable_at
             LIMIT 1) AS next
      WHERE lane.place < :lanes)
)
SELECT lane.queue,
       sum((SELECT count(*)
              FROM (SELECT
                      FROM runs
                     WHERE environment = :environment AND gate IS NULL
                       AND queue = lane.queue AND task = lane.task AND priority = lane.priority
                       AND claimable_at <= statement_timestamp()
                     LIMIT :most) AS due))::bigint,
       sum((SELECT count(*)
              FROM (SELECT
                      FROM runs
                     WHERE environment = :environment AND gate IS NULL
                       AND queue = lane.queue AND task = lane.task AND priority = lane.priority
                       AND claimable_at > statement_timestamp()
                     LIMIT :most) AS later))::bigint,
       min(lane.claimable_at)
  FROM lane
 GROUP BY lane.queue;

-- name: count_held
SELECT 'parked', queue, count(*)
  FROM (SELECT queue FROM runs WHERE environment = :environment AND gate IS NOT NULL LIMIT :most)
       AS parked
 GROUP BY queue
UNION ALL
SELECT 'leased', queue, count(*)
  FROM (SELECT queue FROM runs
         WHERE environment = :environment AND lease_token IS NOT NULL LIMIT :most) AS leased
 GROUP BY queue;
