-- What Perdure asks of PostgreSQL. Same names and parameters as in the other dialects; queries
-- compare versions and instants and never decide, so no status stands in a WHERE.

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED;

-- name: transaction_id
-- This dialect's only: which transaction this is, to notice that it is another one; and whether
-- it can write at all.
SELECT pg_current_xact_id()::text, current_setting('transaction_read_only')::boolean;

-- name: limit_transaction
-- This dialect's only: a worker stopped in the middle frees what it locked; plans look rows up
-- in indexes one by one, however stale the statistics (a plan made while the tables were empty
-- is kept while they grow); compiling a plan would cost more than running it, and so would making
-- it anew each time.
SELECT set_config('statement_timeout', :statement_timeout, true),
       set_config('idle_in_transaction_session_timeout', '15s', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true);

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

-- name: notify_apart
-- This dialect's only: in a transaction of its own, after the one that it speaks of. Nobody waits
-- for the disk: a hint need not survive anything.
SELECT pg_notify(:channel, part)
  FROM set_config('synchronous_commit', 'off', TRUE), unnest(:parts::text[]) AS part;

-- name: read_time
-- clock_timestamp(), because now() stands still from the start of the transaction.
SELECT clock_timestamp();

-- name: read_schedule_time
SELECT clock_timestamp();

-- name: last_events
-- The newest commits. Only SQLite, which has no clock of its own, asks for them.
SELECT events FROM perdure_history ORDER BY xid DESC, run_id DESC, first_sequence DESC LIMIT 100;

-- name: lock_runs
-- In order of id, like every transaction that locks more than one run.
SELECT id, sequence, environment, lease_token, lease_expires_at
  FROM perdure_runs
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[])
 ORDER BY id
   FOR UPDATE;

-- name: read_runs
-- The same without a lock, of runs that have moved on already.
SELECT id, sequence, environment, lease_token, lease_expires_at
  FROM perdure_runs
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: read_commit_ids
SELECT history.run_id, history.first_sequence, history.commit_id
  FROM perdure_history AS history
  JOIN jsonb_to_recordset(:wanted::jsonb) AS wanted (run_id uuid, first_sequence integer)
    ON wanted.run_id = history.run_id AND wanted.first_sequence = history.first_sequence;

-- name: insert_runs
INSERT INTO perdure_runs (id, environment, queue, task, version, priority, status, sequence, claimable_at,
                  attention_at, lease_token, lease_worker, lease_expires_at, holds_slot, gate,
                  created_at, finished_at, concurrency_key, schedule_id, nominal_at, batch_id,
                  parent_id, failure_kind, fingerprint, state)
SELECT *
  FROM unnest(:id::uuid[], :environment::text[], :queue::text[], :task::text[],
              :version::integer[], :priority::smallint[], :status::text[], :sequence::integer[],
              :claimable_at::timestamptz[], :attention_at::timestamptz[], :lease_token::text[],
              :lease_worker::text[], :lease_expires_at::timestamptz[], :holds_slot::boolean[],
              :gate::text[], :created_at::timestamptz[], :finished_at::timestamptz[],
              :concurrency_key::text[], :schedule_id::text[], :nominal_at::timestamptz[],
              :batch_id::text[], :parent_id::uuid[], :failure_kind::text[], :fingerprint::text[],
              string_to_array(:state, chr(30)));

-- name: update_runs
-- Only where the run still is what the step was made for; whose it is comes back. In order of id,
-- like every transaction that locks more than one run. The expiry of a lease that stays only ever
-- grows: a renewal leaves no event and must not be undone.
UPDATE perdure_runs AS runs
   SET queue = new.queue, version = new.version, priority = new.priority, status = new.status,
       sequence = new.sequence, claimable_at = new.claimable_at,
       attention_at = new.attention_at, lease_token = new.lease_token,
       lease_worker = new.lease_worker,
       lease_expires_at = CASE WHEN new.lease_token = runs.lease_token
                               THEN greatest(runs.lease_expires_at, new.lease_expires_at)
                               ELSE new.lease_expires_at END,
       holds_slot = new.holds_slot, gate = new.gate, finished_at = new.finished_at,
       failure_kind = new.failure_kind, fingerprint = new.fingerprint, state = new.state
  FROM unnest(:id::uuid[], :environment::text[], :expected::integer[], :held_token::text[],
              :queue::text[], :version::integer[], :priority::smallint[], :status::text[],
              :sequence::integer[],
              :claimable_at::timestamptz[], :attention_at::timestamptz[], :lease_token::text[],
              :lease_worker::text[], :lease_expires_at::timestamptz[], :holds_slot::boolean[],
              :gate::text[], :finished_at::timestamptz[], :failure_kind::text[],
              :fingerprint::text[], string_to_array(:state, chr(30)))
       AS new (id, environment, expected, held_token, queue, version, priority, status, sequence,
               claimable_at, attention_at, lease_token, lease_worker, lease_expires_at,
               holds_slot, gate, finished_at, failure_kind, fingerprint, state)
 WHERE runs.id = new.id AND runs.environment = new.environment AND runs.sequence = new.expected
   AND runs.lease_token IS NOT DISTINCT FROM new.held_token
RETURNING runs.id;

-- name: start_runs
-- `update_runs` for runs that a worker has begun together: what that cannot change is not touched,
-- and what is the same for all of them is sent once. How many there were is answer enough.
UPDATE perdure_runs AS runs
   SET status = :status::text, sequence = new.sequence, claimable_at = NULL,
       attention_at = NULL, lease_token = new.lease_token, lease_worker = :lease_worker::text,
       lease_expires_at = :lease_expires_at::timestamptz, holds_slot = new.holds_slot,
       gate = NULL, failure_kind = NULL, fingerprint = NULL, state = new.state
  FROM unnest(:id::uuid[], :expected::integer[], :sequence::integer[], :lease_token::text[],
              :holds_slot::boolean[], string_to_array(:state, chr(30)))
       AS new (id, expected, sequence, lease_token, holds_slot, state)
 WHERE runs.id = new.id AND runs.environment = :environment::text
   AND runs.sequence = new.expected AND runs.lease_token IS NOT DISTINCT FROM :held_token::text;

-- name: end_runs
-- `update_runs` for runs that have ended: they hold nothing any more.
UPDATE perdure_runs AS runs
   SET status = new.status, sequence = new.sequence, claimable_at = NULL, attention_at = NULL,
       lease_token = NULL, lease_worker = NULL, lease_expires_at = NULL, holds_slot = FALSE,
       gate = NULL, finished_at = new.finished_at, failure_kind = nullif(new.failure_kind, ''),
       fingerprint = nullif(new.fingerprint, ''), state = new.state
  FROM unnest(:id::uuid[], :expected::integer[], :held_token::text[], :status::text[],
              :sequence::integer[], :finished_at::timestamptz[], :failure_kind::text[],
              :fingerprint::text[], string_to_array(:state, chr(30)))
       AS new (id, expected, held_token, status, sequence, finished_at, failure_kind,
               fingerprint, state)
 WHERE runs.id = new.id AND runs.environment = :environment::text
   AND runs.sequence = new.expected AND runs.lease_token IS NOT DISTINCT FROM new.held_token;

-- name: any_parked
-- Whether any run is parked at all, so that what knows no limits does not look for gates to open.
SELECT EXISTS (SELECT FROM perdure_runs WHERE gate IS NOT NULL);

-- name: insert_history
INSERT INTO perdure_history (run_id, first_sequence, commit_id, events)
SELECT *
  FROM unnest(:run_id::uuid[], :first_sequence::integer[], :commit_id::text[],
              string_to_array(:events, chr(30)));

-- name: insert_batches
INSERT INTO perdure_batches (batch_id, run_id)
SELECT batch_id, id
  FROM jsonb_to_recordset(:rows::jsonb) AS new (batch_id text, id uuid);

-- name: insert_tags
INSERT INTO perdure_run_tags (environment, key, value, run_id)
SELECT environment, key, value, run_id
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       environment text, key text, value text, run_id uuid);

-- name: take_keys
-- In order of key. A key that is free from some time on may be taken over from then on.
INSERT INTO perdure_keys AS keys (environment, kind, scope, name, run_id, payload_hash)
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
  FROM perdure_keys AS keys
  JOIN jsonb_to_recordset(:wanted::jsonb) AS wanted (
       environment text, kind text, scope text, name text)
    ON (wanted.environment, wanted.kind, wanted.scope, wanted.name)
       = (keys.environment, keys.kind, keys.scope, keys.name);

-- name: drop_keys
DELETE FROM perdure_keys AS keys
 USING jsonb_to_recordset(:rows::jsonb) AS old (
       environment text, kind text, scope text, name text, run_id uuid)
 WHERE (keys.environment, keys.kind, keys.scope, keys.name)
       = (old.environment, old.kind, old.scope, old.name)
   AND keys.run_id = old.run_id;

-- name: free_keys
-- In order of key, like `take_keys`.
WITH freed AS MATERIALIZED (
    SELECT keys.environment, keys.kind, keys.scope, keys.name, freed.free_at
      FROM perdure_keys AS keys
      JOIN jsonb_to_recordset(:rows::jsonb) AS freed (
           environment text, kind text, scope text, name text, run_id uuid, free_at timestamptz)
        ON (keys.environment, keys.kind, keys.scope, keys.name)
           = (freed.environment, freed.kind, freed.scope, freed.name)
     WHERE keys.run_id = freed.run_id
     ORDER BY keys.environment, keys.kind, keys.scope, keys.name
       FOR UPDATE OF keys
)
UPDATE perdure_keys AS keys
   SET free_at = freed.free_at
  FROM freed
 WHERE (keys.environment, keys.kind, keys.scope, keys.name)
       = (freed.environment, freed.kind, freed.scope, freed.name);

-- name: insert_dead_letters
INSERT INTO perdure_dead_letters (run_id, environment, task, queue, occurrence_key, reason,
                          failure_kind, fingerprint, message, opened_at, status)
SELECT run_id, environment, task, queue, occurrence_key, reason,
       failure_kind, fingerprint, message, opened_at, status
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       run_id uuid, environment text, task text, queue text, occurrence_key text, reason text,
       failure_kind text, fingerprint text, message text, opened_at timestamptz, status text);

-- name: close_dead_letters
-- The guard: one that was closed before stays as it is, and its run does not come back. So does one
-- of another environment, if one is given. In order of id, so that two batches never wait for each
-- other in a circle. `coalesce` keeps the search off the index of closings, in which it would compare
-- each open letter with each closing.
WITH closing AS MATERIALIZED (
    SELECT letters.run_id, closed.status, closed.closed_at, closed.closed_by, closed.closed_reason,
           closed.replay_run_id
      FROM perdure_dead_letters AS letters
      JOIN jsonb_to_recordset(:closings::jsonb) AS closed (
           run_id uuid, environment text, status text, closed_at timestamptz, closed_by text,
           closed_reason text, replay_run_id uuid)
        ON letters.run_id = closed.run_id
     WHERE coalesce(letters.closed_at, 'infinity') = 'infinity'
       AND (closed.environment IS NULL OR letters.environment = closed.environment)
     ORDER BY letters.run_id
       FOR UPDATE OF letters
)
UPDATE perdure_dead_letters AS letters
   SET status = closing.status, closed_at = closing.closed_at, closed_by = closing.closed_by,
       closed_reason = closing.closed_reason, replay_run_id = closing.replay_run_id
  FROM closing
 WHERE letters.run_id = closing.run_id
RETURNING letters.run_id;

-- name: find_dead_letters
SELECT run_id, environment, task, queue, occurrence_key, reason, failure_kind, fingerprint,
       message, opened_at, status, closed_at, closed_by, closed_reason, replay_run_id
  FROM perdure_dead_letters
 WHERE environment = :environment
   AND (:cursor::uuid IS NULL OR run_id < :cursor)
   AND (:status::text IS NULL OR status = :status)
   AND (:task::text IS NULL OR task = :task)
   AND (:queue::text IS NULL OR queue = :queue)
   AND (:failure_kind::text IS NULL OR failure_kind = :failure_kind)
   AND (:fingerprint::text IS NULL OR fingerprint = :fingerprint)
 ORDER BY run_id DESC
 LIMIT :limit;

-- name: find_dead_letter_ids
-- The conditions of `find_dead_letters`, of letters that were opened by then.
SELECT run_id
  FROM perdure_dead_letters
 WHERE environment = :environment AND opened_at <= :opened_until
   AND (:cursor::uuid IS NULL OR run_id < :cursor)
   AND (:status::text IS NULL OR status = :status)
   AND (:task::text IS NULL OR task = :task)
   AND (:queue::text IS NULL OR queue = :queue)
   AND (:failure_kind::text IS NULL OR failure_kind = :failure_kind)
   AND (:fingerprint::text IS NULL OR fingerprint = :fingerprint)
 ORDER BY run_id DESC
 LIMIT :limit;

-- name: count_dead_letters
-- The conditions of `find_dead_letters`.
SELECT count(*)
  FROM (SELECT 1
          FROM perdure_dead_letters
         WHERE environment = :environment
           AND (:status::text IS NULL OR status = :status)
           AND (:task::text IS NULL OR task = :task)
           AND (:queue::text IS NULL OR queue = :queue)
           AND (:failure_kind::text IS NULL OR failure_kind = :failure_kind)
           AND (:fingerprint::text IS NULL OR fingerprint = :fingerprint)
         LIMIT :most) AS found;

-- name: insert_outbox
INSERT INTO perdure_outbox (run_id, environment, queue, available_at, delivery)
SELECT run_id, environment, queue, available_at, delivery
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       run_id uuid, environment text, queue text, available_at timestamptz, delivery text);

-- name: delete_outbox
DELETE FROM perdure_outbox
 WHERE position = ANY (ARRAY(SELECT jsonb_array_elements_text(:positions::jsonb))::bigint[]);

-- part: is_served
-- Whether the worker knows the task in this version, or in a newer one.
coalesce(version <= (ARRAY(SELECT (served ->> 1)::integer
                             FROM jsonb_array_elements(:tasks::jsonb) AS served))[
                    array_position(ARRAY(SELECT served ->> 0
                                           FROM jsonb_array_elements(:tasks::jsonb) AS served),
                                   task)], false)

-- part: lanes
-- The head of each lane: each row jumps to the next one. A lane is one queue, with or without keys,
-- one task, version and priority.
(SELECT queue, keyed, task, version, priority, claimable_at
   FROM perdure_runs
  WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
  ORDER BY queue, keyed, task, version, priority, claimable_at
  LIMIT 1)
UNION ALL
(SELECT next.queue, next.keyed, next.task, next.version, next.priority, next.claimable_at
   FROM lane
  CROSS JOIN LATERAL (
        SELECT queue, keyed, task, version, priority, claimable_at
          FROM perdure_runs
         WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
           AND (queue, keyed, task, version, priority)
               > (lane.queue, lane.keyed, lane.task, lane.version, lane.priority)
         ORDER BY queue, keyed, task, version, priority, claimable_at
         LIMIT 1) AS next)

-- part: claimed
-- The runs that a claim has locked.
SELECT locked.id, locked.state, locked.lease_expires_at, history.events
  FROM locked
 CROSS JOIN LATERAL (
       SELECT events FROM perdure_history AS history
        WHERE run_id = locked.id AND first_sequence = 1
        LIMIT 1) AS history

-- name: claim_candidates
-- Jumps from lane to lane, so that neither runs in the future nor tasks or versions this worker
-- does not know cost more than one jump. Of each due lane the first few are ranked, queues taking
-- turns; then as many as each lane won are locked. Where one lane is due there is nothing to rank.
WITH RECURSIVE lane AS (
    {lanes}
), due AS MATERIALIZED (
    SELECT queue, keyed, task, version, priority, count(*) OVER () AS lanes
      FROM lane
     WHERE claimable_at <= statement_timestamp()
       AND {is_served}
       AND (:queues::jsonb IS NULL
            OR queue = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb))))
), ranked AS (
    SELECT due.queue, due.keyed, due.task, due.version, due.priority,
           first.claimable_at - due.priority * interval '1 hour' AS claim_rank,
           row_number() OVER (PARTITION BY due.queue
                              ORDER BY first.claimable_at - due.priority * interval '1 hour')
           AS turn
      FROM due
     CROSS JOIN LATERAL (
           SELECT claimable_at
             FROM perdure_runs
            WHERE environment = :environment AND gate IS NULL
              AND queue = due.queue AND keyed = due.keyed
              AND task = due.task AND version = due.version AND priority = due.priority
              AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at, id
            LIMIT least(:wanted::bigint,
                        greatest(5000, 4 * :wanted::bigint) / due.lanes + 1)
           ) AS first
     WHERE due.lanes > 1
     ORDER BY turn, claim_rank
     LIMIT :wanted
), won AS MATERIALIZED (
    SELECT queue, keyed, task, version, priority, count(*) AS places
      FROM ranked
     GROUP BY queue, keyed, task, version, priority
     UNION ALL
    SELECT queue, keyed, task, version, priority, :wanted::bigint
      FROM due
     WHERE lanes = 1
), locked AS MATERIALIZED (
    SELECT mine.*
      FROM won
     CROSS JOIN LATERAL (
           SELECT id, state, lease_expires_at,
                  claimable_at - priority * interval '1 hour' AS claim_rank
             FROM perdure_runs
            WHERE environment = :environment AND gate IS NULL
              AND queue = won.queue AND keyed = won.keyed
              AND task = won.task AND version = won.version AND priority = won.priority
              AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at, id
            LIMIT won.places
              FOR UPDATE SKIP LOCKED) AS mine
)
{claimed}
 ORDER BY locked.claim_rank, locked.id;

-- name: claim_clock
-- The time, and whether there are limits to look at.
SELECT clock_timestamp(),
       EXISTS (SELECT FROM perdure_limits
                WHERE environment = :environment
                  AND (max_leases IS NOT NULL OR rate_interval IS NOT NULL OR paused OR fair));

-- name: next_claimable
-- When the next lane that this worker serves becomes due.
WITH RECURSIVE lane AS (
    {lanes}
)
SELECT min(claimable_at)
  FROM lane
 WHERE {is_served}
   AND (:queues::jsonb IS NULL
        OR queue = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb))));

-- part: rooms
-- How many more each queue and task may start now; none: any number. It only narrows what claims
-- look at and lock: what may start is judged under the limit's lock.
SELECT counted.*, least(CASE WHEN paused THEN 0 END, slots, tokens) AS room
  FROM (SELECT limits.scope, limits.name, limits.fair, limits.paused, limits.opens_at,
               CASE WHEN limits.max_leases IS NULL THEN NULL
                    WHEN limits.scope = 'queue' THEN limits.max_leases
                         - (SELECT count(*) FROM perdure_runs
                             WHERE environment = limits.environment AND queue = limits.name
                               AND lease_token IS NOT NULL)
                         - (SELECT count(*) FROM perdure_runs
                             WHERE environment = limits.environment AND queue = limits.name
                               AND gate = 'reserved')
                    WHEN limits.scope = 'task' THEN limits.max_leases
                         - (SELECT count(*) FROM perdure_runs
                             WHERE environment = limits.environment AND task = limits.name
                               AND lease_token IS NOT NULL)
                         - (SELECT count(*) FROM perdure_runs
                             WHERE environment = limits.environment AND task = limits.name
                               AND gate = 'reserved')
               END AS slots,
               CASE WHEN limits.rate_interval IS NULL THEN NULL
                    WHEN limits.opens_at IS NULL THEN limits.rate_burst
                    WHEN limits.opens_at > statement_timestamp() THEN 0
                    ELSE least(limits.rate_burst, 1 + floor(
                         extract(epoch FROM statement_timestamp() - limits.opens_at)
                         * 1000000 / limits.rate_interval))
               END::bigint AS tokens
          FROM perdure_limits AS limits
         WHERE limits.environment = :environment) AS counted

-- part: waking
-- When the first key of a known task that runs wait for may start one again.
CASE WHEN EXISTS (SELECT FROM perdure_buckets WHERE environment = :environment AND waiting)
     THEN (SELECT min(first.opens_at)
             FROM jsonb_array_elements(:tasks::jsonb) AS served
            CROSS JOIN LATERAL (
                  SELECT opens_at FROM perdure_buckets
                   WHERE environment = :environment AND task = served ->> 0 AND waiting
                   ORDER BY opens_at
                   LIMIT 1) AS first)
END

-- name: limited_candidates
-- The same where there are limits: lanes of queues and tasks that have no room are passed by, and
-- not more is read than there is room for; but `at_least` so many, to get past those whose keys
-- have none. Fair queues are looked at elsewhere.
WITH RECURSIVE lane AS (
    {lanes}
), due AS MATERIALIZED (
    SELECT lane.queue, lane.keyed, lane.task, lane.version, lane.priority, count(*) OVER () AS lanes,
           CASE WHEN of_queue.room < :at_least THEN :at_least ELSE of_queue.room END
           AS queue_room,
           CASE WHEN of_task.room < :at_least THEN :at_least ELSE of_task.room END AS task_room
      FROM lane
      LEFT JOIN LATERAL (SELECT * FROM ({rooms}) AS rooms
                          WHERE scope = 'queue' AND name = lane.queue) AS of_queue ON true
      LEFT JOIN LATERAL (SELECT * FROM ({rooms}) AS rooms
                          WHERE scope = 'task' AND name = lane.task) AS of_task ON true
     WHERE lane.claimable_at <= statement_timestamp()
       AND {is_served}
       AND (:queues::jsonb IS NULL
            OR lane.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb))))
       AND of_queue.fair IS NOT TRUE
       AND coalesce(of_queue.room, 1) > 0 AND coalesce(of_task.room, 1) > 0
), numbered AS (
    SELECT due.queue, due.keyed, due.task, due.version, due.priority, due.queue_room,
           first.claimable_at - due.priority * interval '1 hour' AS claim_rank,
           row_number() OVER (PARTITION BY due.queue
                              ORDER BY first.claimable_at - due.priority * interval '1 hour')
           AS turn
      FROM due
     CROSS JOIN LATERAL (
           SELECT claimable_at
             FROM perdure_runs
            WHERE environment = :environment AND gate IS NULL
              AND queue = due.queue AND keyed = due.keyed
              AND task = due.task AND version = due.version AND priority = due.priority
              AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at, id
            LIMIT least(:wanted::bigint, due.queue_room, due.task_room,
                        greatest(5000, 4 * :wanted::bigint) / due.lanes + 1)
           ) AS first
), ranked AS (
    SELECT queue, keyed, task, version, priority
      FROM numbered
     WHERE turn <= coalesce(queue_room, turn)
     ORDER BY turn, claim_rank
     LIMIT :wanted
), won AS MATERIALIZED (
    SELECT queue, keyed, task, version, priority, count(*) AS places
      FROM ranked
     GROUP BY queue, keyed, task, version, priority
), locked AS MATERIALIZED (
    SELECT mine.*
      FROM won
     CROSS JOIN LATERAL (
           SELECT id, state, lease_expires_at,
                  claimable_at - priority * interval '1 hour' AS claim_rank
             FROM perdure_runs
            WHERE environment = :environment AND gate IS NULL
              AND queue = won.queue AND keyed = won.keyed
              AND task = won.task AND version = won.version AND priority = won.priority
              AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at, id
            LIMIT won.places
              FOR UPDATE SKIP LOCKED) AS mine
)
{claimed}
 ORDER BY locked.claim_rank, locked.id;

-- name: limited_clock
-- The time, and what there is to look at: limits, fair queues, keys that wait for their rate.
SELECT clock_timestamp(),
       EXISTS (SELECT FROM perdure_limits
                WHERE environment = :environment
                  AND (max_leases IS NOT NULL OR rate_interval IS NOT NULL OR paused OR fair)),
       (SELECT json_agg(name ORDER BY name)::text FROM perdure_limits
         WHERE environment = :environment AND fair AND scope = 'queue' AND NOT paused
           AND (:queues::jsonb IS NULL
                OR name = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb))))),
       {waking};

-- part: first_events
-- The first events of each of the `runs`.
CROSS JOIN LATERAL (
      SELECT events FROM perdure_history AS history
       WHERE run_id = runs.id AND first_sequence = 1
       LIMIT 1) AS history

-- name: claim_named
-- The same for runs somebody knows by name: a push, or a run executed where it was asked for.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM perdure_runs AS runs
 {first_events}
 WHERE runs.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[])
   AND runs.environment = :environment AND (runs.gate IS NULL OR runs.gate IN ('reserved', 'suspect'))
   AND runs.claimable_at <= statement_timestamp()
   AND {is_served}
   AND (:queues::jsonb IS NULL
        OR runs.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb))))
 ORDER BY runs.id
 LIMIT :wanted
   FOR UPDATE OF runs SKIP LOCKED;

-- name: find_suspects
-- Due runs that are executed alone, unless their queue or task is paused.
SELECT runs.id
  FROM perdure_runs AS runs
 WHERE runs.environment = :environment AND runs.gate = 'suspect'
   AND runs.claimable_at <= statement_timestamp()
   AND NOT EXISTS (SELECT 1 FROM perdure_limits AS limits
                    WHERE limits.environment = :environment AND limits.paused
                      AND ((limits.scope = 'queue' AND limits.name = runs.queue)
                           OR (limits.scope = 'task' AND limits.name = runs.task)))
   AND {is_served}
   AND (:queues::jsonb IS NULL
        OR runs.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb))))
 ORDER BY runs.claimable_at, runs.id
 LIMIT :most;

-- name: lock_turns
-- Claims of one fair queue take turns, too: what one has read the next must not serve again.
SELECT queue, after_key
  FROM perdure_turns
 WHERE environment = :environment
   AND queue = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb)))
 ORDER BY queue
   FOR UPDATE;

-- name: read_rooms
SELECT wanted.scope, wanted.name, rooms.room
  FROM jsonb_to_recordset(:wanted::jsonb) AS wanted (scope text, name text)
 CROSS JOIN LATERAL (SELECT * FROM ({rooms}) AS rooms
                      WHERE rooms.scope = wanted.scope AND rooms.name = wanted.name) AS rooms;

-- name: fair_lanes
-- Jumps from lane to lane through the keys of a fair queue, until enough keys have been found that
-- have something due, or it has gone far enough.
WITH RECURSIVE lane AS (
    (SELECT first.*, first.is_due AS is_counted, first.is_due::integer AS keys, 1 AS visit
       FROM (SELECT concurrency_key AS key, task, version, priority,
                    claimable_at <= statement_timestamp()
                    AND {is_served}
                    AS is_due
               FROM perdure_runs
              WHERE environment = :environment AND queue = :queue
                AND claimable_at IS NOT NULL AND gate IS NULL
                AND concurrency_key > :after
              ORDER BY concurrency_key, task, version, priority, claimable_at
              LIMIT 1) AS first)
    UNION ALL
    (SELECT next.*, next.is_due OR (next.key = lane.key AND lane.is_counted),
            lane.keys + (next.is_due AND NOT (next.key = lane.key AND lane.is_counted))::integer,
            lane.visit + 1
       FROM lane
      CROSS JOIN LATERAL (
            SELECT concurrency_key AS key, task, version, priority,
                   claimable_at <= statement_timestamp()
                   AND {is_served}
                   AS is_due
              FROM perdure_runs
             WHERE environment = :environment AND queue = :queue
               AND claimable_at IS NOT NULL AND gate IS NULL AND concurrency_key IS NOT NULL
               AND (concurrency_key, task, version, priority)
                   > (lane.key, lane.task, lane.version, lane.priority)
             ORDER BY concurrency_key, task, version, priority, claimable_at
             LIMIT 1) AS next
      WHERE lane.visit < :visits AND (lane.keys < :most_keys OR next.key = lane.key))
)
SELECT key, task, version, priority, is_due
  FROM lane
 ORDER BY visit;

-- name: unkeyed_lanes
-- The lanes of a fair queue's runs that have no key.
WITH RECURSIVE lane AS (
    (SELECT task, version, priority, claimable_at
       FROM perdure_runs
      WHERE environment = :environment AND queue = :queue AND keyed = false
        AND claimable_at IS NOT NULL AND gate IS NULL
      ORDER BY task, version, priority, claimable_at
      LIMIT 1)
    UNION ALL
    (SELECT next.task, next.version, next.priority, next.claimable_at
       FROM lane
      CROSS JOIN LATERAL (
            SELECT task, version, priority, claimable_at
              FROM perdure_runs
             WHERE environment = :environment AND queue = :queue AND keyed = false
               AND claimable_at IS NOT NULL AND gate IS NULL
               AND (task, version, priority) > (lane.task, lane.version, lane.priority)
             ORDER BY task, version, priority, claimable_at
             LIMIT 1) AS next)
)
SELECT NULL::text, task, version, priority, claimable_at <= statement_timestamp()
  FROM lane
 WHERE {is_served};

-- name: fair_candidates
-- Of each lane the first few; of each key one a turn, by rank. `place` is the key's in the circle.
WITH lane AS MATERIALIZED (
    SELECT key, task, version, priority, place, count(*) OVER () AS lanes
      FROM jsonb_to_recordset(:lanes::jsonb) AS lane (
           key text, task text, version integer, priority smallint, place integer)
), ranked AS (
    SELECT lane.key, lane.task, lane.version, lane.priority, lane.place,
           row_number() OVER (PARTITION BY lane.place
                              ORDER BY first.claimable_at - lane.priority * interval '1 hour')
           AS turn
      FROM lane
     CROSS JOIN LATERAL (
           (SELECT claimable_at
              FROM perdure_runs
             WHERE environment = :environment AND queue = :queue AND gate IS NULL
               AND concurrency_key = lane.key AND task = lane.task
               AND version = lane.version AND priority = lane.priority
               AND claimable_at <= statement_timestamp()
             ORDER BY claimable_at, id
             LIMIT least(:wanted::bigint, 1000 / lane.lanes + 1))
           UNION ALL
           (SELECT claimable_at
              FROM perdure_runs
             WHERE environment = :environment AND queue = :queue AND gate IS NULL
               AND lane.key IS NULL AND keyed = false
               AND task = lane.task AND version = lane.version AND priority = lane.priority
               AND claimable_at <= statement_timestamp()
             ORDER BY claimable_at, id
             LIMIT least(:wanted::bigint, 1000 / lane.lanes + 1))
           ) AS first
     ORDER BY turn, place
     LIMIT :wanted
), won AS MATERIALIZED (
    SELECT key, task, version, priority, place, count(*) AS places
      FROM ranked
     GROUP BY key, task, version, priority, place
), locked_keyed AS MATERIALIZED (
    SELECT won.place, mine.*
      FROM won
     CROSS JOIN LATERAL (
           SELECT id, state, lease_expires_at,
                  claimable_at - priority * interval '1 hour' AS claim_rank
             FROM perdure_runs
            WHERE environment = :environment AND queue = :queue AND gate IS NULL
              AND concurrency_key = won.key AND task = won.task
              AND version = won.version AND priority = won.priority
              AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at, id
            LIMIT won.places
              FOR UPDATE SKIP LOCKED) AS mine
), locked_unkeyed AS MATERIALIZED (
    SELECT won.place, mine.*
      FROM won
     CROSS JOIN LATERAL (
           SELECT id, state, lease_expires_at,
                  claimable_at - priority * interval '1 hour' AS claim_rank
             FROM perdure_runs
            WHERE environment = :environment AND queue = :queue AND gate IS NULL
              AND won.key IS NULL AND keyed = false
              AND task = won.task AND version = won.version AND priority = won.priority
              AND claimable_at <= statement_timestamp()
            ORDER BY claimable_at, id
            LIMIT won.places
              FOR UPDATE SKIP LOCKED) AS mine
), locked AS (
    SELECT * FROM locked_keyed
    UNION ALL
    SELECT * FROM locked_unkeyed
)
{claimed}
 ORDER BY row_number() OVER (PARTITION BY locked.place ORDER BY locked.claim_rank, locked.id),
          locked.place;

-- name: set_turns
UPDATE perdure_turns AS turns
   SET after_key = new.after_key
  FROM jsonb_to_recordset(:rows::jsonb) AS new (environment text, queue text, after_key text)
 WHERE turns.environment = new.environment AND turns.queue = new.queue;

-- name: limited_next_claimable
-- The same where there are limits: not before its queue and task let it start.
WITH RECURSIVE lane AS (
    {lanes}
)
SELECT least(min(greatest(lane.claimable_at, of_queue.opens_at, of_task.opens_at)), {waking})
  FROM lane
  LEFT JOIN LATERAL (SELECT * FROM ({rooms}) AS rooms
                      WHERE scope = 'queue' AND name = lane.queue) AS of_queue ON true
  LEFT JOIN LATERAL (SELECT * FROM ({rooms}) AS rooms
                      WHERE scope = 'task' AND name = lane.task) AS of_task ON true
 WHERE {is_served}
   AND (:queues::jsonb IS NULL
        OR lane.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(:queues::jsonb))))
   AND of_queue.paused IS NOT TRUE
   AND coalesce(of_queue.slots, 1) > 0 AND coalesce(of_task.slots, 1) > 0;

-- name: lock_limits
-- Before the holders are counted, and in a statement of its own: a statement that locks and
-- counts would count in the past.
SELECT limits.scope, limits.name, limits.max_leases, limits.paused, limits.rate_interval,
       limits.rate_burst, limits.opens_at
  FROM perdure_limits AS limits
  JOIN jsonb_to_recordset(:wanted::jsonb) AS wanted (scope text, name text)
    ON wanted.scope = limits.scope AND wanted.name = limits.name
 WHERE limits.environment = :environment
   AND (limits.max_leases IS NOT NULL OR limits.rate_interval IS NOT NULL OR limits.paused)
 ORDER BY limits.scope, limits.name
   FOR UPDATE OF limits;

-- name: count_holders
-- Leases and reservations.
SELECT wanted.scope, wanted.name, wanted.key,
       CASE wanted.scope
       WHEN 'queue' THEN (SELECT count(*) FROM perdure_runs
                           WHERE environment = :environment AND queue = wanted.name
                             AND lease_token IS NOT NULL)
                         + (SELECT count(*) FROM perdure_runs
                             WHERE environment = :environment AND queue = wanted.name
                               AND gate = 'reserved')
       WHEN 'task' THEN (SELECT count(*) FROM perdure_runs
                          WHERE environment = :environment AND task = wanted.name
                            AND lease_token IS NOT NULL)
                        + (SELECT count(*) FROM perdure_runs
                            WHERE environment = :environment AND task = wanted.name
                              AND gate = 'reserved')
       WHEN 'key' THEN (SELECT count(*) FROM perdure_runs
                         WHERE environment = :environment AND task = wanted.name
                           AND concurrency_key = wanted.key AND lease_token IS NOT NULL)
                       + (SELECT count(*) FROM perdure_runs
                           WHERE environment = :environment AND task = wanted.name
                             AND concurrency_key = wanted.key AND gate = 'reserved')
       ELSE (SELECT count(*) FROM perdure_runs
              WHERE environment = :environment AND schedule_id = wanted.name AND holds_slot)
       END
  FROM jsonb_to_recordset(:wanted::jsonb) AS wanted (scope text, name text, key text);

-- name: read_buckets
SELECT buckets.task, buckets.key, buckets.opens_at
  FROM perdure_buckets AS buckets
  JOIN jsonb_to_recordset(:wanted::jsonb) AS wanted (task text, key text)
    ON wanted.task = buckets.task AND wanted.key = buckets.key
 WHERE buckets.environment = :environment;

-- name: waking_keys
-- The keys that runs wait for and that may start one again.
SELECT due.task, due.key
  FROM jsonb_array_elements_text(:tasks::jsonb) AS known (task)
 CROSS JOIN LATERAL (
       SELECT task, key, opens_at FROM perdure_buckets
        WHERE environment = :environment AND task = known.task AND waiting
          AND opens_at <= statement_timestamp()
        ORDER BY opens_at
        LIMIT :limit) AS due
 ORDER BY due.opens_at
 LIMIT :limit;

-- name: take_tokens
UPDATE perdure_limits AS limits
   SET opens_at = taken.opens_at
  FROM jsonb_to_recordset(:rows::jsonb) AS taken (
       environment text, scope text, name text, opens_at timestamptz)
 WHERE limits.environment = taken.environment AND limits.scope = taken.scope
   AND limits.name = taken.name;

-- name: put_buckets
-- Whether runs wait is looked up last, after they were parked or let in.
INSERT INTO perdure_buckets (environment, task, key, opens_at, full_at, waiting)
SELECT environment, task, key, opens_at, full_at,
       EXISTS (SELECT FROM perdure_runs AS runs
                WHERE runs.environment = new.environment AND runs.gate = new.gate)
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       environment text, task text, key text, opens_at timestamptz, full_at timestamptz,
       gate text)
    ON CONFLICT (environment, task, key) DO UPDATE
   SET opens_at = excluded.opens_at, full_at = excluded.full_at, waiting = excluded.waiting;

-- name: wake_buckets
-- Whoever takes a token of one next finds out whether others still wait.
UPDATE perdure_buckets AS buckets
   SET waiting = false
  FROM jsonb_to_recordset(:rows::jsonb) AS woken (environment text, task text, key text)
 WHERE buckets.environment = woken.environment AND buckets.task = woken.task
   AND buckets.key = woken.key;

-- name: settle_buckets
-- A task's keys have another rate: at worst, they wait for one token of it.
UPDATE perdure_buckets
   SET opens_at = least(opens_at, statement_timestamp() + :interval * interval '1 microsecond'),
       full_at = least(opens_at, statement_timestamp() + :interval * interval '1 microsecond')
                 + :spread * interval '1 microsecond'
 WHERE environment = :environment AND task = :task;

-- name: delete_full_buckets
DELETE FROM perdure_buckets
 WHERE (environment, task, key) IN (
       SELECT environment, task, key
         FROM perdure_buckets
        WHERE full_at <= statement_timestamp() AND NOT waiting
        ORDER BY full_at
        LIMIT :limit
          FOR UPDATE SKIP LOCKED);

-- name: open_gate
-- By rank, like claims: a few of each lane, and the first of them. A row that somebody else is
-- writing is left to maintenance. Paused queues are passed by.
WITH RECURSIVE lane AS (
    (SELECT queue, task, priority
       FROM perdure_runs
      WHERE environment = :environment AND gate = :gate
      ORDER BY queue, task, priority
      LIMIT 1)
    UNION ALL
    (SELECT next.queue, next.task, next.priority
       FROM lane
      CROSS JOIN LATERAL (
            SELECT queue, task, priority
              FROM perdure_runs
             WHERE environment = :environment AND gate = :gate
               AND (queue, task, priority) > (lane.queue, lane.task, lane.priority)
             ORDER BY queue, task, priority
             LIMIT 1) AS next)
), first AS MATERIALIZED (
    SELECT mine.id, mine.claim_rank
      FROM lane
     CROSS JOIN LATERAL (
           SELECT id, claimable_at - priority * interval '1 hour' AS claim_rank
             FROM perdure_runs
            WHERE environment = :environment AND gate = :gate AND queue = lane.queue
              AND task = lane.task AND priority = lane.priority
            ORDER BY claimable_at, id
            LIMIT :room
              FOR UPDATE SKIP LOCKED) AS mine
     WHERE NOT EXISTS (SELECT FROM perdure_limits
                        WHERE environment = :environment AND scope = 'queue'
                          AND name = lane.queue AND paused)
)
UPDATE perdure_runs
   SET gate = NULL
 WHERE id IN (SELECT id FROM first ORDER BY claim_rank, id LIMIT :room)
RETURNING id;

-- name: park_runs
UPDATE perdure_runs AS runs
   SET gate = parked.gate
  FROM jsonb_to_recordset(:rows::jsonb) AS parked (id uuid, gate text)
 WHERE runs.id = parked.id;

-- name: read_gates
-- Jumps from gate to gate, however many wait behind each.
WITH RECURSIVE parked AS (
    (SELECT environment, gate
       FROM perdure_runs
      WHERE gate IS NOT NULL AND (environment, gate) > (:after_environment, :after_gate)
      ORDER BY environment, gate
      LIMIT 1)
    UNION ALL
    (SELECT next.environment, next.gate
       FROM parked
      CROSS JOIN LATERAL (
            SELECT environment, gate
              FROM perdure_runs
             WHERE gate IS NOT NULL AND (environment, gate) > (parked.environment, parked.gate)
             ORDER BY environment, gate
             LIMIT 1) AS next)
)
SELECT environment, gate
  FROM parked
 LIMIT :limit;

-- name: put_limit
-- Only over the version it was made from; whose version is stale gets no row back. Another rate
-- leaves at worst an empty bucket.
INSERT INTO perdure_limits AS limits (environment, scope, name, version, max_leases,
                                      rate_interval, rate_burst, paused, fair, body)
VALUES (:environment, :scope, :name, :version, :max_leases, :rate_interval, :rate_burst,
        :paused, :fair, :body)
    ON CONFLICT (environment, scope, name) DO UPDATE
   SET version = excluded.version, max_leases = excluded.max_leases,
       rate_interval = excluded.rate_interval, rate_burst = excluded.rate_burst,
       opens_at = CASE WHEN excluded.rate_interval IS NULL OR limits.opens_at IS NULL THEN NULL
                       ELSE least(limits.opens_at, statement_timestamp()
                                  + excluded.rate_interval * interval '1 microsecond') END,
       paused = excluded.paused, fair = excluded.fair, body = excluded.body
 WHERE limits.version = excluded.version - 1
RETURNING name;

-- name: insert_turns
INSERT INTO perdure_turns (environment, queue, after_key)
SELECT environment, queue, ''
  FROM jsonb_to_recordset(:rows::jsonb) AS new (environment text, queue text)
    ON CONFLICT (environment, queue) DO NOTHING;

-- name: read_gates_of_runs
SELECT id, gate
  FROM perdure_runs
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[])
   AND gate IS NOT NULL;

-- name: read_standing
-- What `lock_limits` finds, without a lock: to tell, not to judge.
SELECT limits.scope, limits.name, limits.max_leases, limits.paused, limits.rate_interval,
       limits.rate_burst, limits.opens_at
  FROM perdure_limits AS limits
  JOIN jsonb_to_recordset(:wanted::jsonb) AS wanted (scope text, name text)
    ON wanted.scope = limits.scope AND wanted.name = limits.name
 WHERE limits.environment = :environment;

-- name: lock_leases
-- SKIP LOCKED: whoever is writing the row now may be ending the lease; ask again later. By `=` alone
-- the planner would take the index of all leases for one of their ids.
SELECT runs.id
  FROM perdure_runs AS runs
  JOIN jsonb_to_recordset(:wanted::jsonb) AS wanted (id uuid, token text)
    ON wanted.id = runs.id AND runs.lease_token IS NOT DISTINCT FROM wanted.token
   FOR UPDATE OF runs SKIP LOCKED;

-- name: renew_leases
-- No sequence, no event, no indexed column: a HOT update. Compared as in `lock_leases`.
UPDATE perdure_runs AS runs
   SET lease_expires_at = greatest(runs.lease_expires_at,
                                   clock_timestamp() + wanted.ttl * interval '1 microsecond')
  FROM jsonb_to_recordset(:rows::jsonb) AS wanted (id uuid, token text, ttl bigint)
 WHERE runs.id = wanted.id AND runs.lease_token IS NOT DISTINCT FROM wanted.token;

-- name: read_leases
SELECT runs.id, runs.lease_token, runs.lease_expires_at, runs.status
  FROM perdure_runs AS runs
 WHERE runs.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: leases_of_worker
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM perdure_runs AS runs
 {first_events}
 WHERE runs.lease_worker = :worker_id AND runs.lease_token IS NOT NULL;

-- name: put_off
-- Runs that this code cannot process: try again in an hour, newer code may be able to.
UPDATE perdure_runs AS runs
   SET attention_at = statement_timestamp() + interval '1 hour'
  FROM jsonb_to_recordset(:rows::jsonb) AS aside (id uuid)
 WHERE runs.id = aside.id;

-- name: prove_writable
-- A row lock is a write: it is refused where the session is read-only, and its commit waits for the
-- disk and for synchronous standbys, as a renewal does. Other writers do not wait for it, nor it for
-- them. Of a leased run, because every role that looks after leases may update those.
SELECT 1
  FROM perdure_runs
 WHERE lease_token IS NOT NULL
 LIMIT 1
   FOR KEY SHARE SKIP LOCKED;

-- name: due_for_attention
-- Leases are few beside runs: all of them are looked through, so that no index follows their expiry.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM (SELECT id, attention_at AS since
          FROM (SELECT id, attention_at
                  FROM perdure_runs
                 WHERE attention_at <= statement_timestamp() AND lease_expires_at IS NULL
                 ORDER BY attention_at
                 LIMIT :limit) AS waiting
        UNION ALL
        SELECT id, lease_expires_at
          FROM perdure_runs
         WHERE lease_token IS NOT NULL AND lease_expires_at <= statement_timestamp()
           AND (attention_at IS NULL OR attention_at <= statement_timestamp())
         ORDER BY since
         LIMIT :limit) AS due
  JOIN perdure_runs AS runs USING (id)
 {first_events}
 ORDER BY due.since;

-- name: get_runs
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM perdure_runs AS runs
 {first_events}
 WHERE runs.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: read_columns
-- All there is about runs, for whoever compares.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events,
       runs.id, runs.environment, runs.queue, runs.task, runs.version, runs.priority, runs.status,
       runs.sequence,
       runs.claimable_at, runs.attention_at, runs.lease_token, runs.lease_worker,
       runs.lease_expires_at, runs.holds_slot, runs.gate, runs.created_at, runs.finished_at,
       runs.concurrency_key, runs.schedule_id, runs.nominal_at, runs.batch_id, runs.parent_id,
       runs.failure_kind, runs.fingerprint, runs.state,
       (SELECT jsonb_object_agg(key, value)::text FROM perdure_run_tags WHERE run_id = runs.id),
       EXISTS (SELECT FROM perdure_batches
                WHERE batch_id = runs.batch_id AND run_id = runs.id),
       EXISTS (SELECT FROM perdure_dead_letters WHERE run_id = runs.id)
  FROM perdure_runs AS runs
 {first_events}
 WHERE runs.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: get_ended_runs
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM perdure_runs AS runs
 {first_events}
 WHERE runs.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[])
   AND runs.finished_at IS NOT NULL;

-- name: find_runs
-- The conditions that apply are added by name, from the queries called `where_…`. The last row is
-- the one that reaches `max_bytes`; the length of a text is known without reading it. Histories are
-- looked up for the rows of the page only, whatever the plan.
SELECT id, state, lease_expires_at, events
  FROM (SELECT id, state, lease_expires_at, events,
               sum(octet_length(state) + octet_length(events)) OVER (
                   ORDER BY id DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS bytes_before
          FROM (SELECT runs.id, runs.state, runs.lease_expires_at
                  FROM perdure_runs AS runs
                 WHERE runs.environment = :environment AND {conditions}
                 ORDER BY runs.id DESC
                 LIMIT :limit) AS found
         CROSS JOIN LATERAL (
               SELECT events FROM perdure_history AS history
                WHERE run_id = found.id AND first_sequence = 1
                LIMIT 1) AS history) AS measured
 WHERE bytes_before IS NULL OR bytes_before < :max_bytes
 ORDER BY id DESC;

-- name: where_cursor
runs.id < :cursor::uuid;

-- name: where_statuses
runs.status = ANY (ARRAY(SELECT jsonb_array_elements_text(:statuses::jsonb)));

-- name: where_kinds
runs.failure_kind = ANY (ARRAY(SELECT jsonb_array_elements_text(:kinds::jsonb)));

-- name: where_tag
EXISTS (SELECT FROM perdure_run_tags AS run_tags
         WHERE run_tags.environment = runs.environment AND run_tags.key = :tag_key
           AND run_tags.value = :tag_value AND run_tags.run_id = runs.id);

-- name: where_batch_id
runs.id = ANY (ARRAY(SELECT run_id FROM perdure_batches WHERE batch_id = :batch_id));

-- name: where_parent_id
runs.parent_id = :parent_id::uuid;

-- name: where_text
(strpos(runs.task, :text) > 0 OR strpos('run_' || replace(runs.id::text, '-', ''), :text) > 0
    OR strpos(runs.state, :text) > 0);

-- name: count_ended
SELECT floor(extract(epoch FROM finished_at - :since) * 1000000 / :step)::bigint AS number, status, count(*)
  FROM perdure_runs
 WHERE status = ANY (ARRAY(SELECT jsonb_array_elements_text(:statuses::jsonb)))
   AND finished_at >= :since AND environment = :environment
 GROUP BY number, status
 ORDER BY number, status;

-- name: count_pace
SELECT queue, count(*)
  FROM perdure_runs
 WHERE status = ANY (ARRAY(SELECT jsonb_array_elements_text(:statuses::jsonb)))
   AND finished_at >= :since AND environment = :environment
 GROUP BY queue;

-- name: latest_ended
SELECT id
  FROM perdure_runs
 WHERE status = ANY (ARRAY(SELECT jsonb_array_elements_text(:statuses::jsonb)))
   AND finished_at >= :since AND environment = :environment
 ORDER BY finished_at DESC, id DESC
 LIMIT :limit;

-- name: read_changes
-- Below the oldest open write transaction nothing can appear any more, so nothing is skipped.
SELECT xid::text || '.' || run_id::text || '.' || first_sequence, run_id, first_sequence, events
  FROM perdure_history
 WHERE xid >= split_part(:cursor, '.', 1)::xid8
   AND xid < pg_snapshot_xmin(pg_current_snapshot())
   AND (xid, run_id, first_sequence)
       > (split_part(:cursor, '.', 1)::xid8, split_part(:cursor, '.', 2)::uuid,
          split_part(:cursor, '.', 3)::integer)
 ORDER BY xid, run_id, first_sequence
 LIMIT :limit;

-- name: latest_change
-- Whatever is not visible yet has, or will have, a transaction id from here on.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text || '.00000000-0000-0000-0000-000000000000.0';

-- name: finished_before
SELECT id, environment, schedule_id, nominal_at
  FROM perdure_runs
 WHERE status = :status AND finished_at <= :before
 ORDER BY finished_at
 LIMIT :limit
   FOR UPDATE SKIP LOCKED;

-- name: closed_before
-- Runs whose dead letter was closed before then.
SELECT id, environment, schedule_id, nominal_at
  FROM perdure_runs
 WHERE id = ANY (ARRAY(SELECT run_id
                         FROM perdure_dead_letters
                        WHERE closed_at <= :before
                        ORDER BY closed_at
                        LIMIT :limit))
   AND status = :status
   FOR UPDATE SKIP LOCKED;

-- name: count_closed_before
-- Count the rows of `closed_before`, up to `most`.
SELECT count(*)
  FROM (SELECT 1 FROM perdure_dead_letters AS letters
         WHERE letters.closed_at <= :before
         LIMIT :most) AS found;

-- name: opened_before
-- Runs whose dead letter has been open since before then.
SELECT id, environment, schedule_id, nominal_at
  FROM perdure_runs
 WHERE id = ANY (ARRAY(SELECT run_id
                         FROM perdure_dead_letters
                        WHERE closed_at IS NULL AND opened_at <= :before
                        ORDER BY closed_at, opened_at
                        LIMIT :limit))
   AND status = :status
   FOR UPDATE SKIP LOCKED;

-- name: count_opened_before
-- Count the rows of `opened_before`, up to `most`.
SELECT count(*)
  FROM (SELECT 1 FROM perdure_dead_letters AS letters
         WHERE letters.closed_at IS NULL AND letters.opened_at <= :before
         LIMIT :most) AS found;

-- name: finished_among
SELECT id
  FROM perdure_runs
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[])
   AND finished_at IS NOT NULL
   FOR UPDATE;

-- name: long_histories
-- Those of the index `perdure_runs_long`. The second condition only lets it be searched.
SELECT id, folded_to, sequence
  FROM perdure_runs
 WHERE sequence - folded_to >= 128 AND sequence >= 128
 ORDER BY sequence DESC
 LIMIT :limit
   FOR UPDATE SKIP LOCKED;

-- name: rows_to_fold
SELECT first_sequence, xid::text, commit_id, events
  FROM perdure_history
 WHERE run_id = :run_id AND first_sequence > :after AND first_sequence <= :until
 ORDER BY first_sequence
 LIMIT :limit;

-- name: insert_folded
INSERT INTO perdure_history (run_id, first_sequence, xid, commit_id, events)
VALUES (:run_id, :first_sequence, :at::xid8, :commit_id, :events);

-- name: delete_history
DELETE FROM perdure_history
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: delete_tags
DELETE FROM perdure_run_tags
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: delete_batches
-- OFFSET keeps the planner from reading all of the list, as it would while that is short.
DELETE FROM perdure_batches
 WHERE ctid = ANY (ARRAY(
       SELECT listed.place
         FROM perdure_runs AS runs
        CROSS JOIN LATERAL (
              SELECT ctid AS place
                FROM perdure_batches
               WHERE batch_id = runs.batch_id AND run_id = runs.id
              OFFSET 0) AS listed
        WHERE runs.id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[])));

-- name: delete_dead_letters
DELETE FROM perdure_dead_letters
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: delete_runs
DELETE FROM perdure_runs
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: server_started
SELECT pg_postmaster_start_time();

-- name: put_record
-- Only over the version it was made from; whose version is stale gets no row back.
INSERT INTO perdure_records AS records (environment, kind, name, version, seen_at, body)
VALUES (:environment, :kind, :name, :version, statement_timestamp(), :body)
    ON CONFLICT (environment, kind, name) DO UPDATE
   SET version = excluded.version, seen_at = excluded.seen_at, body = excluded.body
 WHERE records.version = excluded.version - 1
RETURNING name;

-- name: insert_audit
INSERT INTO perdure_audit (environment, position, body, hash)
SELECT environment, position, body, hash
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       environment text, position bigint, body text, hash text);

-- name: read_webhooks
SELECT id, environment, name, version, body
  FROM perdure_webhooks
 WHERE :environment::text IS NULL OR environment = :environment
 ORDER BY environment, name;

-- name: insert_deliveries
INSERT INTO perdure_webhook_deliveries (webhook_id, number, body)
SELECT webhook_id, number, body
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       webhook_id text, number bigint, body text);

-- name: mark_pruned
-- Before they are deleted: the last of the changes that go. They are found before they are put in
-- order: in the order of the feed, the oldest would be looked for through all of history.
WITH going AS MATERIALIZED (
    SELECT xid, run_id, first_sequence
      FROM perdure_history
     WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]))
INSERT INTO perdure_feed_pruned AS pruned (one, xid, run_id, first_sequence)
SELECT 1, xid, run_id, first_sequence
  FROM going
 ORDER BY xid DESC, run_id DESC, first_sequence DESC
 LIMIT 1
    ON CONFLICT (one) DO UPDATE
   SET xid = excluded.xid, run_id = excluded.run_id, first_sequence = excluded.first_sequence
 WHERE (excluded.xid, excluded.run_id, excluded.first_sequence)
       > (pruned.xid, pruned.run_id, pruned.first_sequence);

-- name: read_pruned
SELECT xid::text || '.' || run_id::text || '.' || first_sequence
  FROM perdure_feed_pruned;

-- name: delete_free_keys
DELETE FROM perdure_keys
 WHERE (environment, kind, scope, name) IN (
       SELECT environment, kind, scope, name
         FROM perdure_keys
        WHERE free_at <= statement_timestamp()
        ORDER BY environment, kind, scope, name
        LIMIT :limit
          FOR UPDATE SKIP LOCKED)
RETURNING name;

-- name: insert_logs
-- A line whose answer was lost is written again and kept once; one of a pruned run is nobody's.
INSERT INTO perdure_run_logs (run_id, attempt, number, at, level, logger, message, fields)
SELECT new.run_id, new.attempt, new.number, new.at, new.level, new.logger, new.message, new.fields
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       run_id uuid, attempt integer, number integer, at timestamptz, level integer, logger text,
       message text, fields text)
  JOIN perdure_runs AS runs ON runs.id = new.run_id
    ON CONFLICT (run_id, attempt, number) DO NOTHING;

-- name: trim_logs
-- OFFSET keeps the planner from joining otherwise than attempt by attempt: what looks good while
-- the table is empty would read all of it later.
DELETE FROM perdure_run_logs
 WHERE ctid = ANY (ARRAY(
       SELECT line.place
         FROM jsonb_to_recordset(:rows::jsonb) AS old (
              run_id uuid, attempt integer, keep_from integer, keep_to bigint)
        CROSS JOIN LATERAL (
              SELECT ctid AS place
                FROM perdure_run_logs
               WHERE run_id = old.run_id AND attempt = old.attempt
                 AND (number < old.keep_from OR number > old.keep_to)
              OFFSET 0) AS line));

-- name: put_progress
-- Of two attempts at once, the one that lost its lease is the older one.
INSERT INTO perdure_run_progress AS run_progress (run_id, attempt, at, fraction, message)
SELECT DISTINCT ON (new.run_id) new.run_id, new.attempt, new.at, new.fraction, new.message
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       run_id uuid, attempt integer, at timestamptz, fraction double precision, message text)
  JOIN perdure_runs AS runs ON runs.id = new.run_id
 ORDER BY new.run_id, new.attempt DESC
    ON CONFLICT (run_id) DO UPDATE
   SET attempt = excluded.attempt, at = excluded.at, fraction = excluded.fraction,
       message = excluded.message
 WHERE excluded.attempt >= run_progress.attempt;

-- name: read_progress
SELECT run_id, attempt, at, fraction, message
  FROM perdure_run_progress
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: delete_logs
DELETE FROM perdure_run_logs
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: delete_progress
DELETE FROM perdure_run_progress
 WHERE run_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb))::uuid[]);

-- name: count_lanes
-- What is due and what is later, lane by lane as a claim sees them, of each lane only so many.
WITH RECURSIVE lane AS (
    (SELECT queue, keyed, task, version, priority, claimable_at, 1 AS place
       FROM perdure_runs
      WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
      ORDER BY queue, keyed, task, version, priority, claimable_at
      LIMIT 1)
    UNION ALL
    (SELECT next.queue, next.keyed, next.task, next.version, next.priority, next.claimable_at,
            lane.place + 1
       FROM lane
      CROSS JOIN LATERAL (
            SELECT queue, keyed, task, version, priority, claimable_at
              FROM perdure_runs
             WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
               AND (queue, keyed, task, version, priority)
                   > (lane.queue, lane.keyed, lane.task, lane.version, lane.priority)
             ORDER BY queue, keyed, task, version, priority, claimable_at
             LIMIT 1) AS next
      WHERE lane.place < :lanes)
)
SELECT lane.queue, lane.task, lane.version,
       sum((SELECT count(*)
              FROM (SELECT
                      FROM perdure_runs
                     WHERE environment = :environment AND gate IS NULL
                       AND queue = lane.queue AND keyed = lane.keyed
                       AND task = lane.task AND version = lane.version AND priority = lane.priority
                       AND claimable_at <= statement_timestamp()
                     LIMIT :most) AS due))::bigint,
       sum((SELECT count(*)
              FROM (SELECT
                      FROM perdure_runs
                     WHERE environment = :environment AND gate IS NULL
                       AND queue = lane.queue AND keyed = lane.keyed
                       AND task = lane.task AND version = lane.version AND priority = lane.priority
                       AND claimable_at > statement_timestamp()
                     LIMIT :most) AS later))::bigint,
       min(lane.claimable_at)
  FROM lane
 GROUP BY lane.queue, lane.task, lane.version;

-- name: count_expired_leases
SELECT count(*)
  FROM (SELECT 1
          FROM perdure_runs
         WHERE environment = :environment AND lease_token IS NOT NULL
           AND lease_expires_at <= statement_timestamp()
         LIMIT :most) AS expired;

-- name: count_schedules
-- Schedules that have a next time, and those of them whose time has come.
SELECT count(*), count(*) FILTER (WHERE next_at <= statement_timestamp())
  FROM (SELECT next_at
          FROM perdure_schedules
         WHERE environment = :environment AND next_at IS NOT NULL
         ORDER BY next_at
         LIMIT :most) AS planned;

-- name: holders_of_queue
-- Who holds a limit, for whoever asks why: leases and reservations, a few of them.
-- OFFSET 0, here and below: else it might rather read all runs in order of id.
SELECT id
  FROM (SELECT id FROM perdure_runs
         WHERE environment = :environment AND queue = :name AND lease_token IS NOT NULL
        UNION ALL
        SELECT id FROM perdure_runs
         WHERE environment = :environment AND queue = :name AND gate = 'reserved'
        OFFSET 0) AS holders
 ORDER BY id
 LIMIT :most;

-- name: holders_of_task
SELECT id
  FROM (SELECT id FROM perdure_runs
         WHERE environment = :environment AND task = :name AND lease_token IS NOT NULL
        UNION ALL
        SELECT id FROM perdure_runs
         WHERE environment = :environment AND task = :name AND gate = 'reserved'
        OFFSET 0) AS holders
 ORDER BY id
 LIMIT :most;

-- name: holders_of_key
SELECT id
  FROM (SELECT id FROM perdure_runs
         WHERE environment = :environment AND task = :name AND concurrency_key = :key
           AND lease_token IS NOT NULL
        UNION ALL
        SELECT id FROM perdure_runs
         WHERE environment = :environment AND task = :name AND concurrency_key = :key
           AND gate = 'reserved'
        OFFSET 0) AS holders
 ORDER BY id
 LIMIT :most;

-- name: holders_of_schedule
SELECT id
  FROM (SELECT id FROM perdure_runs
         WHERE environment = :environment AND schedule_id = :name AND holds_slot
        OFFSET 0) AS holders
 ORDER BY id
 LIMIT :most;

-- name: count_ahead
-- How many due runs of a queue come before this rank, lane by lane, of each lane only so many.
WITH RECURSIVE lane AS (
    (SELECT keyed, task, version, priority, 1 AS place
       FROM perdure_runs
      WHERE environment = :environment AND queue = :queue
        AND claimable_at IS NOT NULL AND gate IS NULL
      ORDER BY keyed, task, version, priority, claimable_at
      LIMIT 1)
    UNION ALL
    (SELECT next.keyed, next.task, next.version, next.priority, lane.place + 1
       FROM lane
      CROSS JOIN LATERAL (
            SELECT keyed, task, version, priority
              FROM perdure_runs
             WHERE environment = :environment AND queue = :queue
               AND claimable_at IS NOT NULL AND gate IS NULL
               AND (keyed, task, version, priority) > (lane.keyed, lane.task, lane.version, lane.priority)
             ORDER BY keyed, task, version, priority, claimable_at
             LIMIT 1) AS next
      WHERE lane.place < :lanes)
)
SELECT coalesce(sum((SELECT count(*)
              FROM (SELECT
                      FROM perdure_runs
                     WHERE environment = :environment AND gate IS NULL
                       AND queue = :queue AND keyed = lane.keyed
                       AND task = lane.task AND version = lane.version AND priority = lane.priority
                       AND claimable_at <= statement_timestamp()
                       AND (claimable_at, id)
                           < (:rank::timestamptz + lane.priority * interval '1 hour', :id::uuid)
                     LIMIT :most) AS ahead)), 0)::bigint
  FROM lane;

-- name: read_places
-- How far schedules are, without a lock: who is too late need not take keys first.
SELECT schedules.environment, schedules.name, schedules.version, schedules.cursor
  FROM jsonb_to_recordset(:wanted::jsonb) AS wanted (environment text, name text)
  JOIN perdure_schedules AS schedules ON schedules.environment = wanted.environment
   AND schedules.name = wanted.name;

-- name: lock_schedules
-- In order of name, and last of all that a transaction locks.
SELECT schedules.environment, schedules.name, schedules.version, schedules.cursor
  FROM jsonb_to_recordset(:wanted::jsonb) AS wanted (environment text, name text)
  JOIN perdure_schedules AS schedules ON schedules.environment = wanted.environment
   AND schedules.name = wanted.name
 ORDER BY schedules.environment, schedules.name
   FOR UPDATE OF schedules;

-- name: update_schedules
-- The rows are locked and were compared; the cursor never goes back all the same.
UPDATE perdure_schedules AS schedules
   SET version = new.version, cursor = new.cursor, next_at = new.next_at,
       defined_by = new.defined_by, body = new.body
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       environment text, name text, version integer, cursor timestamptz, next_at timestamptz,
       defined_by text, body text)
 WHERE schedules.environment = new.environment AND schedules.name = new.name
   AND schedules.cursor <= new.cursor;

-- name: advance_schedules
-- Only how far they are: whatever else stands in the row is not this transaction's.
UPDATE perdure_schedules AS schedules
   SET cursor = new.cursor, next_at = new.next_at
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       environment text, name text, cursor timestamptz, next_at timestamptz)
 WHERE schedules.environment = new.environment AND schedules.name = new.name
   AND schedules.cursor <= new.cursor;

-- name: put_slots
-- How many runs of a schedule may be active. Its row is the schedule's alone to change, and is
-- locked, or new like the schedule.
INSERT INTO perdure_limits AS limits (environment, scope, name, version, max_leases, paused,
                                      fair, body)
SELECT environment, scope, name, 1, max_leases, false, false, body
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       environment text, scope text, name text, max_leases integer, body text)
    ON CONFLICT (environment, scope, name) DO UPDATE
   SET version = limits.version + 1, max_leases = excluded.max_leases, body = excluded.body;

-- name: forget_times
-- The rows are locked. Until where the record of a schedule's times has gaps; that only grows.
UPDATE perdure_schedules AS schedules
   SET forgotten_until = old.until
  FROM jsonb_to_recordset(:rows::jsonb) AS old (environment text, name text, until timestamptz)
 WHERE schedules.environment = old.environment AND schedules.name = old.name
   AND (schedules.forgotten_until IS NULL OR schedules.forgotten_until < old.until);

-- name: insert_spans
INSERT INTO perdure_skipped_spans (environment, schedule_id, first_at, last_at, count, reason,
                                   recorded_at, evidence)
SELECT environment, schedule_id, first_at, last_at, count, reason, recorded_at, evidence
  FROM jsonb_to_recordset(:rows::jsonb) AS new (
       environment text, schedule_id text, first_at timestamptz, last_at timestamptz,
       count bigint, reason text, recorded_at timestamptz, evidence text);

-- name: covering_spans
-- Which of these times lie in a span. Spans do not overlap: the first that ends after a time is
-- the only one that can hold it.
SELECT wanted.run_id
  FROM jsonb_to_recordset(:wanted::jsonb) AS wanted (
       run_id uuid, environment text, schedule_id text, at timestamptz)
 CROSS JOIN LATERAL (
       SELECT first_at FROM perdure_skipped_spans
        WHERE environment = wanted.environment AND schedule_id = wanted.schedule_id
          AND last_at >= wanted.at
        ORDER BY last_at
        LIMIT 1) AS span
 WHERE span.first_at <= wanted.at;

-- name: due_schedules
SELECT name, version, cursor, forgotten_until, body
  FROM perdure_schedules
 WHERE environment = :environment AND next_at IS NOT NULL AND next_at <= statement_timestamp()
   AND NOT name = ANY (ARRAY(SELECT jsonb_array_elements_text(:passing::jsonb)))
 ORDER BY next_at, name
 LIMIT :limit;

-- name: next_schedule
-- When the next schedule that is not due yet will be.
SELECT next_at
  FROM perdure_schedules
 WHERE environment = :environment AND next_at IS NOT NULL AND next_at > statement_timestamp()
 ORDER BY next_at
 LIMIT 1;

-- name: get_schedules
SELECT name, version, cursor, forgotten_until, body
  FROM perdure_schedules
 WHERE environment = :environment
   AND name = ANY (ARRAY(SELECT jsonb_array_elements_text(:names::jsonb)));

-- name: list_schedules_defined_by
SELECT name, version, cursor, forgotten_until, body
  FROM perdure_schedules
 WHERE environment = :environment AND defined_by = :defined_by AND name > :after
 ORDER BY name
 LIMIT :limit;

-- name: unended_runs
-- Runs of schedules that have not ended, of each the oldest.
SELECT mine.id, mine.state, mine.lease_expires_at, history.events
  FROM jsonb_array_elements_text(:names::jsonb) AS wanted (name)
 CROSS JOIN LATERAL (
       SELECT id, state, lease_expires_at
         FROM perdure_runs
        WHERE environment = :environment AND schedule_id = wanted.name
          AND finished_at IS NULL
        ORDER BY id
        LIMIT :limit) AS mine
 CROSS JOIN LATERAL (
       SELECT events FROM perdure_history AS history
        WHERE run_id = mine.id AND first_sequence = 1
        LIMIT 1) AS history;

-- name: runs_at_nominal
-- What became of the times of a schedule, in their order.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM (SELECT id, state, lease_expires_at, nominal_at
          FROM perdure_runs
         WHERE environment = :environment AND schedule_id = :name
           AND nominal_at >= :first AND nominal_at <= :last
         ORDER BY nominal_at, id
         LIMIT :limit) AS runs
 {first_events}
 ORDER BY runs.nominal_at, runs.id;

-- name: read_neglect
-- What was put aside, counted only so far, since when maintenance should have looked, and the end
-- that is the longest ago.
SELECT (SELECT count(*)
          FROM (SELECT 1 FROM perdure_runs
                 WHERE environment = :environment AND gate = 'unreadable'
                 LIMIT :most) AS aside),
       least((SELECT min(attention_at) FROM perdure_runs
               WHERE attention_at IS NOT NULL AND lease_expires_at IS NULL),
             (SELECT min(lease_expires_at) FROM perdure_runs WHERE lease_token IS NOT NULL)),
       (SELECT min(finished_at) FROM perdure_runs
         WHERE status = :ended AND finished_at IS NOT NULL);
