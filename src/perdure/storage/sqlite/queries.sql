-- What Perdure asks of SQLite. Same names and parameters as in the other dialects; queries
-- compare versions and instants and never decide, so no status stands in a WHERE.
-- There is one writer at a time (BEGIN IMMEDIATE), so nothing needs a lock of its own, and
-- time is read from the injected clock: `now()` is a function this adapter registers.

-- name: begin
BEGIN IMMEDIATE;

-- name: commit
COMMIT;

-- name: find_home
-- Which file somebody else's connection is open on, and the time there.
SELECT file, now(), 1
  FROM pragma_database_list
 WHERE name = 'main';

-- name: lock_home
-- Takes the write lock, and changes nothing.
UPDATE keys SET name = name WHERE FALSE;

-- name: read_version
PRAGMA user_version;

-- name: savepoint
SAVEPOINT claim;

-- name: rollback_to_savepoint
ROLLBACK TO SAVEPOINT claim;

-- name: read_time
SELECT now();

-- name: lock_runs
SELECT runs.id, runs.sequence, runs.environment, runs.lease_token, runs.lease_expires_at,
       EXISTS (SELECT 1 FROM runs AS parked WHERE parked.gate IS NOT NULL)
  FROM runs
 WHERE runs.id IN (SELECT value FROM json_each(:ids))
 ORDER BY runs.id;

-- name: read_commit_ids
SELECT history.run_id, history.first_sequence, history.commit_id
  FROM json_each(:wanted) AS wanted
  JOIN history ON history.run_id = wanted.value ->> 'run_id'
   AND history.first_sequence = wanted.value ->> 'first_sequence';

-- name: insert_runs
INSERT INTO runs (id, environment, queue, task, priority, status, sequence, claimable_at,
                  attention_at, lease_token, lease_worker, lease_expires_at, holds_slot,
                  created_at, finished_at, concurrency_key, schedule_id, batch_id, parent_id,
                  failure_kind, fingerprint, state)
VALUES (:id, :environment, :queue, :task, :priority, :status, :sequence, :claimable_at,
        :attention_at, :lease_token, :lease_worker, :lease_expires_at, :holds_slot,
        :created_at, :finished_at, :concurrency_key, :schedule_id, :batch_id, :parent_id,
        :failure_kind, :fingerprint, :state);

-- name: update_runs
-- The rows were compared; the sequence is compared once more all the same. The expiry of a
-- lease that stays only ever grows: a renewal leaves no event and must not be undone.
UPDATE runs
   SET queue = :queue, priority = :priority, status = :status, sequence = :sequence,
       claimable_at = :claimable_at, attention_at = :attention_at,
       lease_expires_at = CASE WHEN :lease_token = lease_token
                               THEN max(lease_expires_at, :lease_expires_at)
                               ELSE :lease_expires_at END,
       lease_token = :lease_token, lease_worker = :lease_worker, holds_slot = :holds_slot,
       gate = NULL, finished_at = :finished_at, failure_kind = :failure_kind,
       fingerprint = :fingerprint, state = :state
 WHERE id = :id AND sequence = :expected;

-- name: insert_history
INSERT INTO history (run_id, first_sequence, commit_id, events)
VALUES (:run_id, :first_sequence, :commit_id, :events);

-- name: insert_tags
INSERT INTO run_tags (environment, key, value, run_id)
VALUES (:environment, :key, :value, :run_id);

-- name: take_keys
-- A key that is free from some time on may be taken over from then on.
INSERT INTO keys (environment, kind, scope, name, run_id, payload_hash)
VALUES (:environment, :kind, :scope, :name, :run_id, :payload_hash)
    ON CONFLICT (environment, kind, scope, name) DO UPDATE
   SET run_id = excluded.run_id, payload_hash = excluded.payload_hash, free_at = NULL
 WHERE keys.free_at <= now();

-- name: read_keys
SELECT keys.environment, keys.kind, keys.scope, keys.name, keys.run_id, keys.payload_hash
  FROM json_each(:wanted) AS wanted
  JOIN keys ON keys.environment = wanted.value ->> 'environment'
   AND keys.kind = wanted.value ->> 'kind'
   AND keys.scope = wanted.value ->> 'scope'
   AND keys.name = wanted.value ->> 'name';

-- name: drop_keys
DELETE FROM keys
 WHERE environment = :environment AND kind = :kind AND scope = :scope AND name = :name
   AND run_id = :run_id;

-- name: free_keys
UPDATE keys
   SET free_at = :free_at
 WHERE environment = :environment AND kind = :kind AND scope = :scope AND name = :name
   AND run_id = :run_id;

-- name: insert_dead_letters
INSERT INTO dead_letters (run_id, environment, task, queue, occurrence_key, reason,
                          failure_kind, fingerprint, message, opened_at, status)
VALUES (:run_id, :environment, :task, :queue, :occurrence_key, :reason,
        :failure_kind, :fingerprint, :message, :opened_at, :status);

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
 WHERE environment = :environment AND (:status IS NULL OR status = :status)
 ORDER BY run_id DESC
 LIMIT :limit;

-- name: insert_outbox
INSERT INTO outbox (run_id, environment, queue, available_at, delivery)
VALUES (:run_id, :environment, :queue, :available_at, :delivery);

-- name: read_outbox
SELECT position, delivery
  FROM outbox
 ORDER BY position
 LIMIT :limit;

-- name: delete_outbox
DELETE FROM outbox
 WHERE position IN (SELECT value FROM json_each(:positions));

-- name: claim_candidates
-- Jumps from lane to lane (a lane is one queue, task and priority), so that neither runs in the
-- future nor tasks this worker does not know cost more than one jump. Of each due lane the
-- first few are ranked, queues taking turns. An hour is 3,600,000,000 microseconds.
-- The jump seeks past the last instant of a lane, since SQLite begins to read at the values of a
-- row comparison, not after them; and without `+` it would seek by the queue alone.
WITH RECURSIVE lane (head) AS (
    SELECT (SELECT id
              FROM runs
             WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
             ORDER BY queue, task, priority, claimable_at
             LIMIT 1)
    UNION ALL
    SELECT (SELECT next.id
              FROM runs AS next
             WHERE next.environment = :environment
               AND next.claimable_at IS NOT NULL AND next.gate IS NULL
               AND (next.queue, next.task, next.priority, next.claimable_at)
                   > (+runs.queue, +runs.task, +runs.priority, 9223372036854775807)
             ORDER BY next.queue, next.task, next.priority, next.claimable_at
             LIMIT 1)
      FROM lane
      JOIN runs ON runs.id = lane.head
), due AS MATERIALIZED (
    SELECT runs.queue, runs.task, runs.priority
      FROM lane
      JOIN runs ON runs.id = lane.head
     WHERE runs.claimable_at <= now()
       AND runs.task IN (SELECT value FROM json_each(:tasks))
       AND (:queues IS NULL OR runs.queue IN (SELECT value FROM json_each(:queues)))
), ranked AS MATERIALIZED (
    SELECT runs.id, runs.claimable_at - runs.priority * 3600000000 AS claim_rank,
           row_number() OVER (PARTITION BY due.queue
                              ORDER BY runs.claimable_at - runs.priority * 3600000000, runs.id)
           AS turn
      FROM due
      JOIN runs ON runs.id IN (
           SELECT first.id
             FROM runs AS first
            WHERE first.environment = :environment AND first.gate IS NULL
              AND first.queue = due.queue AND first.task = due.task
              AND first.priority = due.priority AND first.claimable_at <= now()
            ORDER BY first.claimable_at, first.id
            LIMIT (SELECT min(:wanted, max(5000, 4 * :wanted) / count(*) + 1) FROM due))
     ORDER BY turn, claim_rank
     LIMIT :wanted
)
SELECT runs.id, runs.state, runs.lease_expires_at, history.events,
       EXISTS (SELECT 1 FROM limits WHERE environment = :environment)
  FROM ranked
  JOIN runs ON runs.id = ranked.id
  JOIN history ON history.run_id = runs.id AND history.first_sequence = 1
 ORDER BY ranked.claim_rank, ranked.id;

-- name: claim_named
-- The same for runs somebody knows by name: a push, or a run executed where it was asked for.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events,
       EXISTS (SELECT 1 FROM limits WHERE environment = :environment)
  FROM runs
  JOIN history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.id IN (SELECT value FROM json_each(:ids))
   AND runs.environment = :environment AND runs.gate IS NULL AND runs.claimable_at <= now()
   AND runs.task IN (SELECT value FROM json_each(:tasks))
   AND (:queues IS NULL OR runs.queue IN (SELECT value FROM json_each(:queues)))
 ORDER BY runs.id
 LIMIT :wanted;

-- name: next_claimable
-- When the next lane that this worker serves becomes due.
WITH RECURSIVE lane (head) AS (
    SELECT (SELECT id
              FROM runs
             WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
             ORDER BY queue, task, priority, claimable_at
             LIMIT 1)
    UNION ALL
    SELECT (SELECT next.id
              FROM runs AS next
             WHERE next.environment = :environment
               AND next.claimable_at IS NOT NULL AND next.gate IS NULL
               AND (next.queue, next.task, next.priority, next.claimable_at)
                   > (+runs.queue, +runs.task, +runs.priority, 9223372036854775807)
             ORDER BY next.queue, next.task, next.priority, next.claimable_at
             LIMIT 1)
      FROM lane
      JOIN runs ON runs.id = lane.head
)
SELECT min(runs.claimable_at)
  FROM lane
  JOIN runs ON runs.id = lane.head
 WHERE runs.task IN (SELECT value FROM json_each(:tasks))
   AND (:queues IS NULL OR runs.queue IN (SELECT value FROM json_each(:queues)));

-- name: lock_limits
SELECT limits.scope, limits.name, limits.max_leases
  FROM json_each(:wanted) AS wanted
 CROSS JOIN limits ON limits.environment = :environment
   AND limits.scope = wanted.value ->> 'scope' AND limits.name = wanted.value ->> 'name';

-- name: count_holders
SELECT wanted.value ->> 'scope', wanted.value ->> 'name', wanted.value ->> 'key',
       CASE wanted.value ->> 'scope'
       WHEN 'queue' THEN (SELECT count(*) FROM runs
                           WHERE environment = :environment
                             AND queue = wanted.value ->> 'name' AND lease_token IS NOT NULL)
       WHEN 'task' THEN (SELECT count(*) FROM runs
                          WHERE environment = :environment
                            AND task = wanted.value ->> 'name' AND lease_worker IS NOT NULL)
       WHEN 'key' THEN (SELECT count(*) FROM runs
                         WHERE environment = :environment AND task = wanted.value ->> 'name'
                           AND concurrency_key = wanted.value ->> 'key'
                           AND lease_worker IS NOT NULL)
       ELSE (SELECT count(*) FROM runs
              WHERE environment = :environment
                AND schedule_id = wanted.value ->> 'name' AND holds_slot = 1)
       END
  FROM json_each(:wanted) AS wanted;

-- name: park_runs
UPDATE runs
   SET gate = :gate
 WHERE id = :id;

-- name: open_gate
-- Those who wait longest first.
UPDATE runs
   SET gate = NULL
 WHERE id IN (
       SELECT parked.id
         FROM runs AS parked
        WHERE parked.environment = :environment AND parked.gate = :gate
        ORDER BY parked.claimable_at, parked.id
        LIMIT :room)
RETURNING id;

-- name: read_gates
-- Jumps from gate to gate, however many wait behind each.
WITH RECURSIVE parked (head) AS (
    SELECT (SELECT id
              FROM runs
             WHERE gate IS NOT NULL
               AND (environment, gate, claimable_at)
                   > (:after_environment, :after_gate, 9223372036854775807)
             ORDER BY environment, gate
             LIMIT 1)
    UNION ALL
    SELECT (SELECT next.id
              FROM runs AS next
             WHERE next.gate IS NOT NULL
               AND (next.environment, next.gate, next.claimable_at)
                   > (+runs.environment, +runs.gate, 9223372036854775807)
             ORDER BY next.environment, next.gate
             LIMIT 1)
      FROM parked
      JOIN runs ON runs.id = parked.head
)
SELECT runs.environment, runs.gate
  FROM parked
  JOIN runs ON runs.id = parked.head
 LIMIT :limit;

-- name: set_limits
INSERT INTO limits (environment, scope, name, max_leases)
VALUES (:environment, :scope, :name, :max_leases)
    ON CONFLICT (environment, scope, name) DO UPDATE SET max_leases = excluded.max_leases;

-- name: delete_limits
DELETE FROM limits
 WHERE environment = :environment AND scope = :scope AND name = :name;

-- name: read_limits
SELECT environment, scope, name, max_leases
  FROM limits
 WHERE environment = :environment
 ORDER BY scope, name;

-- name: lock_leases
SELECT runs.id
  FROM json_each(:wanted) AS wanted
  JOIN runs ON runs.id = wanted.value ->> 'id' AND runs.lease_token = wanted.value ->> 'token';

-- name: renew_leases
-- No sequence, no event, no indexed column. `attention_at` stays, early at worst.
UPDATE runs
   SET lease_expires_at = max(lease_expires_at, now() + :ttl)
 WHERE id = :id AND lease_token = :token;

-- name: read_leases
SELECT runs.id, runs.lease_token, runs.lease_expires_at, runs.status
  FROM runs
 WHERE runs.id IN (SELECT value FROM json_each(:ids));

-- name: leases_of_worker
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM runs INDEXED BY runs_leased_by_task
  JOIN history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.lease_worker = :worker_id
 ORDER BY runs.id;

-- name: put_off_attention
-- Leases that were renewed since: look again when they expire.
UPDATE runs
   SET attention_at = lease_expires_at
 WHERE id IN (
       SELECT id
         FROM runs
        WHERE attention_at <= now() AND lease_expires_at > now()
        ORDER BY attention_at
        LIMIT :limit);

-- name: put_off_unreadable
-- Runs this code cannot read: look again in an hour, perhaps it has been upgraded.
UPDATE runs
   SET attention_at = now() + 3600000000
 WHERE id = :id;

-- name: due_for_attention
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM runs
  JOIN history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.attention_at <= now()
   AND (runs.lease_expires_at IS NULL OR runs.lease_expires_at <= now())
 ORDER BY runs.attention_at
 LIMIT :limit;

-- name: get_runs
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM runs
  JOIN history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.id IN (SELECT value FROM json_each(:ids));

-- name: find_runs
-- The conditions that apply are added by name, from the queries called `where_…`.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM runs
  JOIN history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.environment = :environment AND {conditions}
 ORDER BY runs.id DESC
 LIMIT :limit;

-- name: where_cursor
runs.id < :cursor;

-- name: where_statuses
runs.status IN (SELECT value FROM json_each(:statuses));

-- name: where_kinds
runs.failure_kind IN (SELECT value FROM json_each(:kinds));

-- name: where_task
runs.task = :task;

-- name: where_queue
runs.queue = :queue;

-- name: where_tag
EXISTS (SELECT 1 FROM run_tags
         WHERE run_tags.environment = runs.environment AND run_tags.key = :tag_key
           AND run_tags.value = :tag_value AND run_tags.run_id = runs.id);

-- name: where_batch_id
runs.batch_id = :batch_id;

-- name: where_schedule_id
runs.schedule_id = :schedule_id;

-- name: where_parent_id
runs.parent_id = :parent_id;

-- name: where_created_after
runs.created_at >= :created_after;

-- name: where_created_before
runs.created_at < :created_before;

-- name: where_failure_kind
runs.failure_kind = :failure_kind;

-- name: where_fingerprint
runs.fingerprint = :fingerprint;

-- name: where_text
(instr(runs.task, :text) > 0 OR instr(runs.id, :text) > 0 OR instr(runs.state, :text) > 0);

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
SELECT CAST(position AS TEXT), run_id, first_sequence, events
  FROM history
 WHERE position > CAST(:cursor AS INTEGER)
 ORDER BY position
 LIMIT :limit;

-- name: finished_before
SELECT id
  FROM runs
 WHERE status = :status AND finished_at <= :before
 ORDER BY finished_at
 LIMIT :limit;

-- name: delete_history
DELETE FROM history
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: delete_tags
DELETE FROM run_tags
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: delete_dead_letters
DELETE FROM dead_letters
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: delete_runs
DELETE FROM runs
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: server_started
SELECT NULL;

-- name: put_record
-- Only over the version it was made from; whose version is stale gets no row back.
INSERT INTO records (environment, kind, name, version, seen_at, body)
VALUES (:environment, :kind, :name, :version, now(), :body)
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
        WHERE free_at <= now()
        LIMIT :limit)
RETURNING name;

-- name: reopen_unreadable
UPDATE runs
   SET gate = NULL
 WHERE gate = 'unreadable';

-- name: insert_logs
-- A line whose answer was lost is written again and kept once; one of a pruned run is nobody's.
INSERT INTO run_logs (run_id, attempt, number, at, level, logger, message, fields)
SELECT :run_id, :attempt, :number, :at, :level, :logger, :message, :fields
 WHERE EXISTS (SELECT 1 FROM runs WHERE id = :run_id)
    ON CONFLICT (run_id, attempt, number) DO NOTHING;

-- name: trim_logs
DELETE FROM run_logs
 WHERE run_id = :run_id AND attempt = :attempt AND number < :keep_from;

-- name: put_progress
-- Of two attempts at once, the one that lost its lease is the older one.
INSERT INTO run_progress (run_id, attempt, at, fraction, message)
SELECT :run_id, :attempt, :at, :fraction, :message
 WHERE EXISTS (SELECT 1 FROM runs WHERE id = :run_id)
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
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: delete_logs
DELETE FROM run_logs
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: delete_progress
DELETE FROM run_progress
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: count_lanes
-- What is due and what is later, lane by lane as a claim sees them, of each lane only so many.
WITH RECURSIVE lane (head) AS (
    SELECT (SELECT id
              FROM runs
             WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
             ORDER BY queue, task, priority, claimable_at
             LIMIT 1)
    UNION ALL
    SELECT (SELECT next.id
              FROM runs AS next
             WHERE next.environment = :environment
               AND next.claimable_at IS NOT NULL AND next.gate IS NULL
               AND (next.queue, next.task, next.priority, next.claimable_at)
                   > (+runs.queue, +runs.task, +runs.priority, 9223372036854775807)
             ORDER BY next.queue, next.task, next.priority, next.claimable_at
             LIMIT 1)
      FROM lane
      JOIN runs ON runs.id = lane.head
     LIMIT :lanes
)
SELECT runs.queue,
       sum((SELECT count(*)
              FROM (SELECT 1
                      FROM runs AS one
                     WHERE one.environment = :environment AND one.gate IS NULL
                       AND one.queue = runs.queue AND one.task = runs.task
                       AND one.priority = runs.priority AND one.claimable_at <= now()
                     LIMIT :most))),
       sum((SELECT count(*)
              FROM (SELECT 1
                      FROM runs AS one
                     WHERE one.environment = :environment AND one.gate IS NULL
                       AND one.queue = runs.queue AND one.task = runs.task
                       AND one.priority = runs.priority AND one.claimable_at > now()
                     LIMIT :most))),
       min(runs.claimable_at)
  FROM lane
  JOIN runs ON runs.id = lane.head
 GROUP BY runs.queue;

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
