-- What Perdure asks of SQLite. Same names and parameters as in the other dialects; queries
-- compare versions and instants and never decide, so no status stands in a WHERE.
-- There is one writer at a time (BEGIN IMMEDIATE), so nothing needs a lock of its own, and
-- time is read from the injected clock: `now()` is a function this adapter registers.

-- name: begin
BEGIN IMMEDIATE;

-- name: find_home
-- Which files somebody else's connection is open on. Not a SELECT, which would begin to read, and
-- who has read cannot wait for the write lock.
PRAGMA database_list;

-- name: lock_home
-- Takes the write lock, and changes nothing.
UPDATE perdure_keys SET name = name WHERE FALSE;

-- name: read_version
PRAGMA user_version;

-- name: read_time
SELECT now();

-- name: read_schedule_time
SELECT schedule_now();

-- name: last_events
-- The newest commits: they tell how far the database's time has come. Several, since occurrences
-- of schedules may be stored with an earlier time.
SELECT events FROM perdure_history ORDER BY position DESC LIMIT 100;

-- name: lock_runs
SELECT id, sequence, environment, lease_token, lease_expires_at
  FROM perdure_runs
 WHERE id IN (SELECT value FROM json_each(:ids))
 ORDER BY id;

-- name: read_runs
SELECT id, sequence, environment, lease_token, lease_expires_at
  FROM perdure_runs
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: read_commit_ids
SELECT history.run_id, history.first_sequence, history.commit_id
  FROM json_each(:wanted) AS wanted
  JOIN perdure_history AS history ON history.run_id = wanted.value ->> 'run_id'
   AND history.first_sequence = wanted.value ->> 'first_sequence';

-- name: insert_runs
INSERT INTO perdure_runs (id, environment, queue, task, version, priority, status, sequence, claimable_at,
                  attention_at, lease_token, lease_worker, lease_expires_at, holds_slot, gate,
                  created_at, finished_at, concurrency_key, schedule_id, nominal_at, batch_id,
                  parent_id, failure_kind, fingerprint, state)
SELECT * FROM (
VALUES (:id, :environment, :queue, :task, :version, :priority, :status, :sequence, :claimable_at,
        :attention_at, :lease_token, :lease_worker, :lease_expires_at, :holds_slot, :gate,
        :created_at, :finished_at, :concurrency_key, :schedule_id, :nominal_at, :batch_id,
        :parent_id, :failure_kind, :fingerprint, :state))
 WHERE column1 <> '';

-- name: update_runs
-- Only where the run still is what the step was made for; how many those are tells whether all
-- were. The expiry of a lease that stays only ever grows: a renewal leaves no event and must not be
-- undone.
WITH new (id, environment, expected, held_token, queue, version, priority, status, sequence, claimable_at,
          attention_at, lease_token, lease_worker, lease_expires_at, holds_slot, gate,
          finished_at, failure_kind, fingerprint, state) AS (
    VALUES (:id, :environment, :expected, :held_token, :queue, :version, :priority, :status, :sequence,
            :claimable_at, :attention_at, :lease_token, :lease_worker, :lease_expires_at,
            :holds_slot, :gate, :finished_at, :failure_kind, :fingerprint, :state)
)
UPDATE perdure_runs AS runs
   SET queue = new.queue, version = new.version, priority = new.priority, status = new.status,
       sequence = new.sequence, claimable_at = new.claimable_at,
       attention_at = new.attention_at, lease_token = new.lease_token,
       lease_worker = new.lease_worker,
       lease_expires_at = CASE WHEN new.lease_token = runs.lease_token
                               THEN max(runs.lease_expires_at, new.lease_expires_at)
                               ELSE new.lease_expires_at END,
       holds_slot = new.holds_slot, gate = new.gate, finished_at = new.finished_at,
       failure_kind = new.failure_kind, fingerprint = new.fingerprint, state = new.state
  FROM new
 WHERE runs.id = new.id AND runs.environment = new.environment AND runs.sequence = new.expected
   AND runs.lease_token IS new.held_token;

-- name: start_runs
-- `update_runs` for runs that a worker has begun together: what that cannot change is not touched,
-- and what is the same for all of them stands outside their rows.
UPDATE perdure_runs AS runs
   SET status = :status, sequence = new.sequence, claimable_at = NULL,
       attention_at = NULL, lease_token = new.lease_token, lease_worker = :lease_worker,
       lease_expires_at = :lease_expires_at, holds_slot = new.holds_slot,
       gate = NULL, failure_kind = NULL, fingerprint = NULL, state = new.state
  FROM (SELECT column1 AS id, column2 AS expected, column3 AS sequence, column4 AS lease_token,
               column5 AS holds_slot, column6 AS state
          FROM (VALUES (:id, :expected, :sequence, :lease_token, :holds_slot, :state))) AS new
 WHERE runs.id = new.id AND runs.environment = :environment AND runs.sequence = new.expected
   AND runs.lease_token IS :held_token;

-- name: end_runs
-- `update_runs` for runs that have ended: they hold nothing any more. Of a failure there is no
-- text where there is none, since Python's driver takes its time over None.
UPDATE perdure_runs AS runs
   SET status = new.status, sequence = new.sequence, claimable_at = NULL, attention_at = NULL,
       lease_token = NULL, lease_worker = NULL, lease_expires_at = NULL, holds_slot = 0,
       gate = NULL, finished_at = new.finished_at, failure_kind = nullif(new.failure_kind, ''),
       fingerprint = nullif(new.fingerprint, ''), state = new.state
  FROM (SELECT column1 AS id, column2 AS expected, column3 AS held_token, column4 AS status,
               column5 AS sequence, column6 AS finished_at, column7 AS failure_kind,
               column8 AS fingerprint, column9 AS state
          FROM (VALUES (:id, :expected, :held_token, :status, :sequence, :finished_at,
                        :failure_kind, :fingerprint, :state))) AS new
 WHERE runs.id = new.id AND runs.environment = :environment AND runs.sequence = new.expected
   AND runs.lease_token IS new.held_token;

-- name: any_parked
-- Whether any run is parked at all, so that what knows no limits does not look for gates to open.
SELECT EXISTS (SELECT 1 FROM perdure_runs WHERE gate IS NOT NULL);

-- name: insert_history
INSERT INTO perdure_history (run_id, first_sequence, commit_id, events)
SELECT * FROM (VALUES (:run_id, :first_sequence, :commit_id, :events)) WHERE column1 <> '';

-- name: insert_batches
INSERT INTO perdure_batches (batch_id, run_id) VALUES (:batch_id, :id);

-- name: insert_tags
INSERT INTO perdure_run_tags (environment, key, value, run_id)
VALUES (:environment, :key, :value, :run_id);

-- name: take_keys
-- A key that is free from some time on may be taken over from then on.
INSERT INTO perdure_keys AS keys (environment, kind, scope, name, run_id, payload_hash)
VALUES (:environment, :kind, :scope, :name, :run_id, :payload_hash)
    ON CONFLICT (environment, kind, scope, name) DO UPDATE
   SET run_id = excluded.run_id, payload_hash = excluded.payload_hash, free_at = NULL
 WHERE keys.free_at <= now();

-- name: read_keys
SELECT keys.environment, keys.kind, keys.scope, keys.name, keys.run_id, keys.payload_hash
  FROM json_each(:wanted) AS wanted
  JOIN perdure_keys AS keys ON keys.environment = wanted.value ->> 'environment'
   AND keys.kind = wanted.value ->> 'kind'
   AND keys.scope = wanted.value ->> 'scope'
   AND keys.name = wanted.value ->> 'name';

-- name: drop_keys
DELETE FROM perdure_keys
 WHERE environment = :environment AND kind = :kind AND scope = :scope AND name = :name
   AND run_id = :run_id;

-- name: free_keys
UPDATE perdure_keys
   SET free_at = :free_at
 WHERE environment = :environment AND kind = :kind AND scope = :scope AND name = :name
   AND run_id = :run_id;

-- name: insert_dead_letters
INSERT INTO perdure_dead_letters (run_id, environment, task, queue, occurrence_key, reason,
                          failure_kind, fingerprint, message, opened_at, status)
VALUES (:run_id, :environment, :task, :queue, :occurrence_key, :reason,
        :failure_kind, :fingerprint, :message, :opened_at, :status);

-- name: close_dead_letters
-- The guard: one that was closed before stays as it is, and its run does not come back. So does one
-- of another environment, if one is given. The `+` keeps the search off the index of closings, in
-- which it would compare each open letter with each closing.
UPDATE perdure_dead_letters AS letters
   SET status = closed.value ->> 'status', closed_at = closed.value ->> 'closed_at',
       closed_by = closed.value ->> 'closed_by', closed_reason = closed.value ->> 'closed_reason',
       replay_run_id = closed.value ->> 'replay_run_id'
  FROM json_each(:closings) AS closed
 WHERE letters.run_id = closed.value ->> 'run_id' AND +letters.closed_at IS NULL
   AND (closed.value ->> 'environment' IS NULL
        OR letters.environment = closed.value ->> 'environment')
RETURNING run_id;

-- name: find_dead_letters
SELECT run_id, environment, task, queue, occurrence_key, reason, failure_kind, fingerprint,
       message, opened_at, status, closed_at, closed_by, closed_reason, replay_run_id
  FROM perdure_dead_letters
 WHERE environment = :environment
   AND (:cursor IS NULL OR run_id < :cursor)
   AND (:status IS NULL OR status = :status)
   AND (:task IS NULL OR task = :task)
   AND (:queue IS NULL OR queue = :queue)
   AND (:failure_kind IS NULL OR failure_kind = :failure_kind)
   AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
 ORDER BY run_id DESC
 LIMIT :limit;

-- name: find_dead_letter_ids
-- The conditions of `find_dead_letters`, of letters that were opened by then.
SELECT run_id
  FROM perdure_dead_letters
 WHERE environment = :environment AND opened_at <= :opened_until
   AND (:cursor IS NULL OR run_id < :cursor)
   AND (:status IS NULL OR status = :status)
   AND (:task IS NULL OR task = :task)
   AND (:queue IS NULL OR queue = :queue)
   AND (:failure_kind IS NULL OR failure_kind = :failure_kind)
   AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
 ORDER BY run_id DESC
 LIMIT :limit;

-- name: count_dead_letters
-- The conditions of `find_dead_letters`.
SELECT count(*)
  FROM (SELECT 1
          FROM perdure_dead_letters
         WHERE environment = :environment
           AND (:status IS NULL OR status = :status)
           AND (:task IS NULL OR task = :task)
           AND (:queue IS NULL OR queue = :queue)
           AND (:failure_kind IS NULL OR failure_kind = :failure_kind)
           AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
         LIMIT :most) AS found;

-- name: insert_outbox
INSERT INTO perdure_outbox (run_id, environment, queue, available_at, delivery)
VALUES (:run_id, :environment, :queue, :available_at, :delivery);

-- name: delete_outbox
DELETE FROM perdure_outbox
 WHERE position IN (SELECT value FROM json_each(:positions));

-- part: served
-- The tasks that a worker knows, each in its version. The casts let SQLite index the rows.
served (task, version) AS MATERIALIZED (
    SELECT CAST(value ->> 0 AS TEXT), CAST(value ->> 1 AS INTEGER) FROM json_each(:tasks))

-- name: claim_candidates
-- Jumps from lane to lane (a lane is one queue, with or without
-- keys, one task, version and priority), so that neither runs in the
-- future nor tasks or versions this worker does not know cost more than one jump. Of each due lane the
-- first few are ranked, queues taking turns; one that is alone needs none, and numbering its runs
-- costs as much as finding them. An hour is 3,600,000,000 microseconds.
-- All in one text: JSON holds neither of the two separators.
-- The jump seeks past the last instant of a lane, since SQLite begins to read at the values of a
-- row comparison, not after them; and without `+` it would seek by the queue alone. Rows go by
-- rowid from one part to the next: by id, each would be looked up twice.
WITH RECURSIVE {served}, lane (head) AS (
    SELECT (SELECT rowid
              FROM perdure_runs AS runs
             WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
             ORDER BY queue, keyed, task, version, priority, claimable_at
             LIMIT 1)
    UNION ALL
    SELECT (SELECT next.rowid
              FROM perdure_runs AS next
             WHERE next.environment = :environment
               AND next.claimable_at IS NOT NULL AND next.gate IS NULL
               AND (next.queue, next.keyed, next.task, next.version, next.priority,
                    next.claimable_at)
                   > (+runs.queue, +runs.keyed, +runs.task, +runs.version, +runs.priority,
                      9223372036854775807)
             ORDER BY next.queue, next.keyed, next.task, next.version, next.priority,
                      next.claimable_at
             LIMIT 1)
      FROM lane
      JOIN perdure_runs AS runs ON runs.rowid = lane.head
), due AS MATERIALIZED (
    SELECT runs.queue, runs.keyed, runs.task, runs.version, runs.priority
      FROM lane
      JOIN perdure_runs AS runs ON runs.rowid = lane.head
     WHERE runs.claimable_at <= now()
       AND EXISTS (SELECT 1 FROM served
                    WHERE served.task = runs.task AND served.version >= runs.version)
       AND (:queues IS NULL OR runs.queue IN (SELECT value FROM json_each(:queues)))
), first AS NOT MATERIALIZED (
    SELECT runs.rowid AS run, runs.id, due.queue,
           runs.claimable_at - runs.priority * 3600000000 AS claim_rank
      FROM due
      JOIN perdure_runs AS runs ON runs.rowid IN (
           SELECT first.rowid
             FROM perdure_runs AS first
            WHERE first.environment = :environment AND first.gate IS NULL
              AND first.queue = due.queue AND first.keyed = due.keyed
              AND first.task = due.task AND first.version = due.version
              AND first.priority = due.priority AND first.claimable_at <= now()
            ORDER BY first.claimable_at, first.id
            LIMIT (SELECT min(:wanted, max(5000, 4 * :wanted) / count(*) + 1) FROM due))
), numbered AS (
    SELECT run, id, claim_rank, 1 AS turn
      FROM first
     WHERE (SELECT count(DISTINCT queue) FROM due) = 1
    UNION ALL
    SELECT run, id, claim_rank,
           row_number() OVER (PARTITION BY queue ORDER BY claim_rank, id) AS turn
      FROM first
     WHERE (SELECT count(DISTINCT queue) FROM due) > 1
), ranked AS MATERIALIZED (
    SELECT run, id, claim_rank
      FROM numbered
     ORDER BY turn, claim_rank, id
     LIMIT :wanted
)
SELECT group_concat(packed, char(30))
  FROM (SELECT runs.id || char(31) || runs.state || char(31) || history.events AS packed
          FROM ranked
          JOIN perdure_runs AS runs ON runs.rowid = ranked.run
          JOIN perdure_history AS history
            ON history.run_id = runs.id AND history.first_sequence = 1
         ORDER BY ranked.claim_rank, ranked.id);

-- name: claim_clock
-- The time, and whether there are limits to look at.
SELECT now(),
       EXISTS (SELECT 1 FROM perdure_limits
                WHERE environment = :environment
                  AND (max_leases IS NOT NULL OR rate_interval IS NOT NULL OR paused = 1 OR fair = 1));

-- part: lanes
-- The head of each lane: each row jumps to the next one. See `claim_candidates`.
SELECT (SELECT id
          FROM perdure_runs AS runs
         WHERE environment = :environment AND claimable_at IS NOT NULL AND gate IS NULL
         ORDER BY queue, keyed, task, version, priority, claimable_at
         LIMIT 1)
UNION ALL
SELECT (SELECT next.id
          FROM perdure_runs AS next
         WHERE next.environment = :environment
           AND next.claimable_at IS NOT NULL AND next.gate IS NULL
           AND (next.queue, next.keyed, next.task, next.version, next.priority,
                next.claimable_at)
               > (+runs.queue, +runs.keyed, +runs.task, +runs.version, +runs.priority,
                  9223372036854775807)
         ORDER BY next.queue, next.keyed, next.task, next.version, next.priority,
                  next.claimable_at
         LIMIT 1)
  FROM lane
  JOIN perdure_runs AS runs ON runs.id = lane.head

-- name: next_claimable
-- When the next lane that this worker serves becomes due.
WITH RECURSIVE {served}, lane (head) AS (
    {lanes}
)
SELECT min(runs.claimable_at)
  FROM lane
  JOIN perdure_runs AS runs ON runs.id = lane.head
 WHERE EXISTS (SELECT 1 FROM served
                    WHERE served.task = runs.task AND served.version >= runs.version)
   AND (:queues IS NULL OR runs.queue IN (SELECT value FROM json_each(:queues)));

-- part: rooms
-- How many more each queue and task may start now; none: any number. It only narrows what claims
-- look at: what may start is judged in core.
SELECT limits.scope, limits.name, limits.fair, limits.paused, limits.opens_at,
       CASE WHEN limits.max_leases IS NULL THEN NULL
            WHEN limits.scope = 'queue' THEN limits.max_leases
                 - (SELECT count(*) FROM perdure_runs AS leased
                     WHERE leased.environment = limits.environment
                       AND leased.queue = limits.name AND leased.lease_token IS NOT NULL)
                 - (SELECT count(*) FROM perdure_runs AS reserved
                     WHERE reserved.environment = limits.environment
                       AND reserved.queue = limits.name AND reserved.gate = 'reserved')
            WHEN limits.scope = 'task' THEN limits.max_leases
                 - (SELECT count(*) FROM perdure_runs AS leased
                     WHERE leased.environment = limits.environment
                       AND leased.task = limits.name AND leased.lease_token IS NOT NULL)
                 - (SELECT count(*) FROM perdure_runs AS reserved INDEXED BY perdure_runs_reserved
                     WHERE reserved.environment = limits.environment
                       AND reserved.task = limits.name AND reserved.gate = 'reserved')
       END AS slots,
       CASE WHEN limits.rate_interval IS NULL THEN NULL
            WHEN limits.opens_at IS NULL THEN limits.rate_burst
            WHEN limits.opens_at > now() THEN 0
            ELSE min(limits.rate_burst, 1 + (now() - limits.opens_at) / limits.rate_interval)
       END AS tokens
  FROM perdure_limits AS limits
 WHERE limits.environment = :environment

-- part: room
-- The least of them; a billion stands for any number.
CASE WHEN rooms.paused = 1 THEN 0
     ELSE min(coalesce(rooms.slots, 1000000000), coalesce(rooms.tokens, 1000000000)) END

-- part: waking
-- When the first key of a known task that runs wait for may start one again.
CASE WHEN EXISTS (SELECT 1 FROM perdure_buckets INDEXED BY perdure_buckets_waiting
                   WHERE environment = :environment AND waiting = 1)
     THEN (SELECT min((SELECT opens_at FROM perdure_buckets
                        WHERE environment = :environment AND task = known.value ->> 0 AND waiting = 1
                        ORDER BY opens_at
                        LIMIT 1))
             FROM json_each(:tasks) AS known)
END

-- name: limited_candidates
-- The same where there are limits: lanes of queues and tasks that have no room are passed by, and
-- not more is read than there is room for; but `at_least` so many, to get past those whose keys
-- have none. Fair queues are looked at elsewhere.
WITH RECURSIVE {served}, lane (head) AS (
    {lanes}
), known AS MATERIALIZED (
    SELECT runs.queue, runs.keyed, runs.task, runs.version, runs.priority
      FROM lane
      JOIN perdure_runs AS runs ON runs.id = lane.head
     WHERE runs.claimable_at <= now()
       AND EXISTS (SELECT 1 FROM served
                    WHERE served.task = runs.task AND served.version >= runs.version)
       AND (:queues IS NULL OR runs.queue IN (SELECT value FROM json_each(:queues)))
       AND NOT EXISTS (SELECT 1 FROM perdure_limits
                        WHERE environment = :environment AND scope = 'queue'
                          AND name = runs.queue AND fair = 1)
), roomy AS MATERIALIZED (
    SELECT known.*,
           coalesce((SELECT {room} FROM ({rooms}) AS rooms
                      WHERE rooms.scope = 'queue' AND rooms.name = known.queue), 1000000000)
           AS queue_room,
           coalesce((SELECT {room} FROM ({rooms}) AS rooms
                      WHERE rooms.scope = 'task' AND rooms.name = known.task), 1000000000)
           AS task_room
      FROM known
), due AS MATERIALIZED (
    SELECT queue, keyed, task, version, priority, max(queue_room, :at_least) AS queue_room,
           max(min(queue_room, task_room), :at_least) AS room
      FROM roomy
     WHERE queue_room > 0 AND task_room > 0
), numbered AS MATERIALIZED (
    SELECT runs.id, runs.claimable_at - runs.priority * 3600000000 AS claim_rank, due.queue_room,
           row_number() OVER (PARTITION BY due.queue
                              ORDER BY runs.claimable_at - runs.priority * 3600000000, runs.id)
           AS turn
      FROM due
      JOIN perdure_runs AS runs ON runs.id IN (
           SELECT first.id
             FROM perdure_runs AS first
            WHERE first.environment = :environment AND first.gate IS NULL
              AND first.queue = due.queue AND first.keyed = due.keyed
              AND first.task = due.task AND first.version = due.version
              AND first.priority = due.priority AND first.claimable_at <= now()
            ORDER BY first.claimable_at, first.id
            LIMIT (SELECT min(:wanted, max(room), max(5000, 4 * :wanted) / count(*) + 1)
                     FROM due))
), ranked AS MATERIALIZED (
    SELECT id, claim_rank
      FROM numbered
     WHERE turn <= queue_room
     ORDER BY turn, claim_rank
     LIMIT (SELECT min(:wanted, coalesce(sum(room), 0)) FROM due)
)
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM ranked
  JOIN perdure_runs AS runs ON runs.id = ranked.id
  JOIN perdure_history AS history ON history.run_id = runs.id AND history.first_sequence = 1
 ORDER BY ranked.claim_rank, ranked.id;

-- name: limited_clock
-- The time, and what there is to look at: limits, fair queues, keys that wait for their rate.
SELECT now(),
       EXISTS (SELECT 1 FROM perdure_limits
                WHERE environment = :environment
                  AND (max_leases IS NOT NULL OR rate_interval IS NOT NULL OR paused = 1 OR fair = 1)),
       (SELECT json_group_array(name)
          FROM (SELECT name FROM perdure_limits INDEXED BY perdure_limits_fair
                 WHERE environment = :environment AND fair = 1 AND scope = 'queue' AND paused = 0
                   AND (:queues IS NULL OR name IN (SELECT value FROM json_each(:queues)))
                 ORDER BY name)),
       {waking};

-- name: claim_named
-- The same for runs somebody knows by name: a push, or a run executed where it was asked for.
WITH {served}
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM perdure_runs AS runs
  JOIN perdure_history AS history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.id IN (SELECT value FROM json_each(:ids))
   AND runs.environment = :environment AND runs.claimable_at <= now()
   AND (runs.gate IS NULL OR runs.gate IN ('reserved', 'suspect'))
   AND EXISTS (SELECT 1 FROM served
                    WHERE served.task = runs.task AND served.version >= runs.version)
   AND (:queues IS NULL OR runs.queue IN (SELECT value FROM json_each(:queues)))
 ORDER BY runs.id
 LIMIT :wanted;

-- name: find_suspects
-- Due runs that are executed alone, unless their queue or task is paused.
WITH {served}
SELECT runs.id
  FROM perdure_runs AS runs
 WHERE runs.environment = :environment AND runs.gate = 'suspect' AND runs.claimable_at <= now()
   AND NOT EXISTS (SELECT 1 FROM perdure_limits AS limits
                    WHERE limits.environment = :environment AND limits.paused = 1
                      AND ((limits.scope = 'queue' AND limits.name = runs.queue)
                           OR (limits.scope = 'task' AND limits.name = runs.task)))
   AND EXISTS (SELECT 1 FROM served
                    WHERE served.task = runs.task AND served.version >= runs.version)
   AND (:queues IS NULL OR runs.queue IN (SELECT value FROM json_each(:queues)))
 ORDER BY runs.claimable_at, runs.id
 LIMIT :most;

-- name: lock_turns
SELECT queue, after_key
  FROM perdure_turns
 WHERE environment = :environment AND queue IN (SELECT value FROM json_each(:queues))
 ORDER BY queue;

-- name: read_rooms
SELECT wanted.value ->> 'scope', wanted.value ->> 'name', {room}
  FROM json_each(:wanted) AS wanted
 CROSS JOIN ({rooms}) AS rooms
    ON rooms.scope = wanted.value ->> 'scope' AND rooms.name = wanted.value ->> 'name';

-- part: next_is_due
(next.claimable_at <= now() AND EXISTS (SELECT 1 FROM served
                    WHERE served.task = next.task AND served.version >= next.version))

-- part: is_counted
(next.concurrency_key = lane.key AND lane.is_counted)

-- name: fair_lanes
-- Jumps from lane to lane through the keys of a fair queue, until enough keys have been found that
-- have something due, or it has gone far enough.
WITH RECURSIVE {served}, lane (key, task, version, priority, is_due, is_counted, keys, visit) AS (
    SELECT first.concurrency_key, first.task, first.version, first.priority, first.is_due, first.is_due,
           first.is_due, 1
      FROM (SELECT next.concurrency_key, next.task, next.version, next.priority, {next_is_due} AS is_due
              FROM perdure_runs AS next INDEXED BY perdure_runs_by_key
             WHERE next.environment = :environment AND next.queue = :queue
               AND next.claimable_at IS NOT NULL AND next.gate IS NULL
               AND next.concurrency_key IS NOT NULL AND next.concurrency_key > :after
             ORDER BY next.concurrency_key, next.task, next.version, next.priority, next.claimable_at
             LIMIT 1) AS first
    UNION ALL
    SELECT next.concurrency_key, next.task, next.version, next.priority, {next_is_due},
           {next_is_due} OR {is_counted}, lane.keys + ({next_is_due} AND NOT {is_counted}),
           lane.visit + 1
      FROM lane
      JOIN perdure_runs AS next ON next.id = (
           SELECT id
             FROM perdure_runs INDEXED BY perdure_runs_by_key
            WHERE environment = :environment AND queue = :queue
              AND claimable_at IS NOT NULL AND gate IS NULL AND concurrency_key IS NOT NULL
              AND (concurrency_key, task, version, priority, claimable_at)
                  > (+lane.key, +lane.task, +lane.version, +lane.priority, 9223372036854775807)
            ORDER BY concurrency_key, task, version, priority, claimable_at
            LIMIT 1)
     WHERE lane.visit < :visits AND (lane.keys < :most_keys OR next.concurrency_key = lane.key)
)
SELECT key, task, version, priority, is_due
  FROM lane
 ORDER BY visit;

-- name: unkeyed_lanes
-- The lanes of a fair queue's runs that have no key.
WITH RECURSIVE {served}, lane (head) AS (
    SELECT (SELECT id
              FROM perdure_runs AS runs
             WHERE environment = :environment AND queue = :queue AND keyed = 0
               AND claimable_at IS NOT NULL AND gate IS NULL
             ORDER BY task, version, priority, claimable_at
             LIMIT 1)
    UNION ALL
    SELECT (SELECT next.id
              FROM perdure_runs AS next
             WHERE next.environment = :environment AND next.queue = :queue AND next.keyed = 0
               AND next.claimable_at IS NOT NULL AND next.gate IS NULL
               AND (next.task, next.version, next.priority, next.claimable_at)
                   > (+runs.task, +runs.version, +runs.priority, 9223372036854775807)
             ORDER BY next.task, next.version, next.priority, next.claimable_at
             LIMIT 1)
      FROM lane
      JOIN perdure_runs AS runs ON runs.id = lane.head
)
SELECT NULL, runs.task, runs.version, runs.priority, runs.claimable_at <= now()
  FROM lane
  JOIN perdure_runs AS runs ON runs.id = lane.head
 WHERE EXISTS (SELECT 1 FROM served
                    WHERE served.task = runs.task AND served.version >= runs.version);

-- name: fair_candidates
-- Of each lane the first few; of each key one a turn, by rank. `place` is the key's in the circle.
WITH lane AS MATERIALIZED (
    SELECT value ->> 'key' AS key, value ->> 'task' AS task,
           value ->> 'version' AS version, value ->> 'priority' AS priority,
           value ->> 'place' AS place
      FROM json_each(:lanes)
), first AS MATERIALIZED (
    SELECT runs.id, lane.place, runs.claimable_at - runs.priority * 3600000000 AS claim_rank
      FROM lane
      JOIN perdure_runs AS runs ON runs.id IN (
           SELECT keyed.id
             FROM perdure_runs AS keyed INDEXED BY perdure_runs_by_key
            WHERE keyed.environment = :environment AND keyed.queue = :queue
              AND keyed.gate IS NULL AND keyed.concurrency_key IS NOT NULL
              AND keyed.concurrency_key = lane.key AND keyed.task = lane.task AND keyed.version = lane.version
              AND keyed.priority = lane.priority AND keyed.claimable_at <= now()
            ORDER BY keyed.claimable_at, keyed.id
            LIMIT (SELECT min(:wanted, 1000 / count(*) + 1) FROM lane))
    UNION ALL
    SELECT runs.id, lane.place, runs.claimable_at - runs.priority * 3600000000
      FROM lane
      JOIN perdure_runs AS runs ON runs.id IN (
           SELECT free.id
             FROM perdure_runs AS free
            WHERE free.environment = :environment AND free.queue = :queue
              AND free.gate IS NULL AND free.keyed = 0
              AND free.task = lane.task AND free.version = lane.version
              AND free.priority = lane.priority AND free.claimable_at <= now()
            ORDER BY free.claimable_at, free.id
            LIMIT (SELECT min(:wanted, 1000 / count(*) + 1) FROM lane))
     WHERE lane.key IS NULL
), ranked AS MATERIALIZED (
    SELECT id, place,
           row_number() OVER (PARTITION BY place ORDER BY claim_rank, id) AS turn
      FROM first
     ORDER BY turn, place
     LIMIT :wanted
)
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM ranked
  JOIN perdure_runs AS runs ON runs.id = ranked.id
  JOIN perdure_history AS history ON history.run_id = runs.id AND history.first_sequence = 1
 ORDER BY ranked.turn, ranked.place;

-- name: set_turns
UPDATE perdure_turns
   SET after_key = :after_key
 WHERE environment = :environment AND queue = :queue;

-- name: limited_next_claimable
-- The same where there are limits: not before its queue and task let it start.
WITH RECURSIVE {served}, lane (head) AS (
    {lanes}
), known AS MATERIALIZED (
    SELECT runs.queue, runs.task, runs.claimable_at
      FROM lane
      JOIN perdure_runs AS runs ON runs.id = lane.head
     WHERE EXISTS (SELECT 1 FROM served
                    WHERE served.task = runs.task AND served.version >= runs.version)
       AND (:queues IS NULL OR runs.queue IN (SELECT value FROM json_each(:queues)))
), open AS MATERIALIZED (
    SELECT max(known.claimable_at,
               coalesce((SELECT rooms.opens_at FROM ({rooms}) AS rooms
                          WHERE rooms.scope = 'queue' AND rooms.name = known.queue), 0),
               coalesce((SELECT rooms.opens_at FROM ({rooms}) AS rooms
                          WHERE rooms.scope = 'task' AND rooms.name = known.task), 0))
           AS claimable_at
      FROM known
     WHERE NOT EXISTS (SELECT 1 FROM ({rooms}) AS rooms
                        WHERE rooms.scope = 'queue' AND rooms.name = known.queue
                          AND (rooms.paused = 1 OR rooms.slots <= 0))
       AND NOT EXISTS (SELECT 1 FROM ({rooms}) AS rooms
                        WHERE rooms.scope = 'task' AND rooms.name = known.task
                          AND rooms.slots <= 0)
    UNION ALL
    SELECT {waking}
)
SELECT min(claimable_at) FROM open;

-- name: lock_limits
SELECT limits.scope, limits.name, limits.max_leases, limits.paused, limits.rate_interval,
       limits.rate_burst, limits.opens_at
  FROM json_each(:wanted) AS wanted
 CROSS JOIN perdure_limits AS limits ON limits.environment = :environment
   AND limits.scope = wanted.value ->> 'scope' AND limits.name = wanted.value ->> 'name'
   AND (limits.max_leases IS NOT NULL OR limits.rate_interval IS NOT NULL OR limits.paused = 1);

-- name: count_holders
-- Leases and reservations.
SELECT wanted.value ->> 'scope', wanted.value ->> 'name', wanted.value ->> 'key',
       CASE wanted.value ->> 'scope'
       WHEN 'queue' THEN (SELECT count(*) FROM perdure_runs
                           WHERE environment = :environment
                             AND queue = wanted.value ->> 'name' AND lease_token IS NOT NULL)
                         + (SELECT count(*) FROM perdure_runs
                             WHERE environment = :environment
                               AND queue = wanted.value ->> 'name' AND gate = 'reserved')
       WHEN 'task' THEN (SELECT count(*) FROM perdure_runs
                          WHERE environment = :environment
                            AND task = wanted.value ->> 'name' AND lease_token IS NOT NULL)
                        + (SELECT count(*) FROM perdure_runs INDEXED BY perdure_runs_reserved
                            WHERE environment = :environment
                              AND task = wanted.value ->> 'name' AND gate = 'reserved')
       WHEN 'key' THEN (SELECT count(*) FROM perdure_runs
                         WHERE environment = :environment AND task = wanted.value ->> 'name'
                           AND concurrency_key = wanted.value ->> 'key'
                           AND lease_token IS NOT NULL)
                       + (SELECT count(*) FROM perdure_runs
                           WHERE environment = :environment AND task = wanted.value ->> 'name'
                             AND concurrency_key = wanted.value ->> 'key'
                             AND gate = 'reserved')
       ELSE (SELECT count(*) FROM perdure_runs
              WHERE environment = :environment
                AND schedule_id = wanted.value ->> 'name' AND holds_slot = 1)
       END
  FROM json_each(:wanted) AS wanted;

-- name: read_buckets
SELECT buckets.task, buckets.key, buckets.opens_at
  FROM json_each(:wanted) AS wanted
 CROSS JOIN perdure_buckets AS buckets ON buckets.environment = :environment
   AND buckets.task = wanted.value ->> 'task' AND buckets.key = wanted.value ->> 'key';

-- name: waking_keys
-- The keys that runs wait for and that may start one again.
SELECT buckets.task, buckets.key
  FROM json_each(:tasks) AS known
 CROSS JOIN perdure_buckets AS buckets
    ON buckets.environment = :environment AND buckets.task = known.value
 WHERE buckets.waiting = 1 AND buckets.opens_at <= now()
 ORDER BY buckets.opens_at
 LIMIT :limit;

-- name: take_tokens
UPDATE perdure_limits
   SET opens_at = :opens_at
 WHERE environment = :environment AND scope = :scope AND name = :name;

-- name: put_buckets
-- Whether runs wait is looked up last, after they were parked or let in.
INSERT INTO perdure_buckets (environment, task, key, opens_at, full_at, waiting)
VALUES (:environment, :task, :key, :opens_at, :full_at,
        EXISTS (SELECT 1 FROM perdure_runs WHERE environment = :environment AND gate = :gate))
    ON CONFLICT (environment, task, key) DO UPDATE
   SET opens_at = excluded.opens_at, full_at = excluded.full_at, waiting = excluded.waiting;

-- name: wake_buckets
-- Whoever takes a token of one next finds out whether others still wait.
UPDATE perdure_buckets
   SET waiting = 0
 WHERE environment = :environment AND task = :task AND key = :key;

-- name: settle_buckets
-- A task's keys have another rate: at worst, they wait for one token of it.
UPDATE perdure_buckets
   SET opens_at = min(opens_at, now() + :interval),
       full_at = min(opens_at, now() + :interval) + :spread
 WHERE environment = :environment AND task = :task;

-- name: delete_full_buckets
DELETE FROM perdure_buckets
 WHERE (environment, task, key) IN (
       SELECT environment, task, key
         FROM perdure_buckets
        WHERE full_at <= now() AND waiting = 0
        ORDER BY full_at
        LIMIT :limit);

-- name: open_gate
-- By rank, like claims: a few of each lane, and the first of them. Paused queues are passed by.
WITH RECURSIVE lane (head) AS (
    SELECT (SELECT id
              FROM perdure_runs AS runs
             WHERE environment = :environment AND gate = :gate
             ORDER BY queue, task, priority
             LIMIT 1)
    UNION ALL
    SELECT (SELECT next.id
              FROM perdure_runs AS next
             WHERE next.environment = :environment AND next.gate = :gate
               AND (next.queue, next.task, next.priority, next.claimable_at)
                   > (+runs.queue, +runs.task, +runs.priority, 9223372036854775807)
             ORDER BY next.queue, next.task, next.priority
             LIMIT 1)
      FROM lane
      JOIN perdure_runs AS runs ON runs.id = lane.head
), open AS MATERIALIZED (
    SELECT runs.queue, runs.task, runs.priority
      FROM lane
      JOIN perdure_runs AS runs ON runs.id = lane.head
     WHERE NOT EXISTS (SELECT 1 FROM perdure_limits
                        WHERE environment = :environment AND scope = 'queue'
                          AND name = runs.queue AND paused = 1)
)
UPDATE perdure_runs AS runs
   SET gate = NULL
 WHERE id IN (
       SELECT parked.id
         FROM open
         JOIN perdure_runs AS parked ON parked.id IN (
              SELECT first.id
                FROM perdure_runs AS first
               WHERE first.environment = :environment AND first.gate = :gate
                 AND first.queue = open.queue AND first.task = open.task
                 AND first.priority = open.priority
               ORDER BY first.claimable_at, first.id
               LIMIT :room)
        ORDER BY parked.claimable_at - parked.priority * 3600000000, parked.id
        LIMIT :room)
RETURNING id;

-- name: park_runs
UPDATE perdure_runs
   SET gate = :gate
 WHERE id = :id;

-- name: read_gates
-- Jumps from gate to gate, however many wait behind each: past every queue of one, since a BLOB
-- comes after all texts.
WITH RECURSIVE parked (head) AS (
    SELECT (SELECT id
              FROM perdure_runs AS runs
             WHERE gate IS NOT NULL
               AND (environment, gate, queue) > (:after_environment, :after_gate, x'')
             ORDER BY environment, gate
             LIMIT 1)
    UNION ALL
    SELECT (SELECT next.id
              FROM perdure_runs AS next
             WHERE next.gate IS NOT NULL
               AND (next.environment, next.gate, next.queue)
                   > (+runs.environment, +runs.gate, x'')
             ORDER BY next.environment, next.gate
             LIMIT 1)
      FROM parked
      JOIN perdure_runs AS runs ON runs.id = parked.head
)
SELECT runs.environment, runs.gate
  FROM parked
  JOIN perdure_runs AS runs ON runs.id = parked.head
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
       opens_at = CASE WHEN excluded.rate_interval IS NOT NULL
                       THEN min(limits.opens_at, now() + excluded.rate_interval) END,
       paused = excluded.paused, fair = excluded.fair, body = excluded.body
 WHERE limits.version = excluded.version - 1
RETURNING name;

-- name: insert_turns
INSERT INTO perdure_turns (environment, queue, after_key)
VALUES (:environment, :queue, '')
    ON CONFLICT (environment, queue) DO NOTHING;

-- name: read_gates_of_runs
SELECT id, gate
  FROM perdure_runs
 WHERE id IN (SELECT value FROM json_each(:ids)) AND gate IS NOT NULL;

-- name: read_standing
-- What `lock_limits` finds, without a lock: to tell, not to judge.
SELECT limits.scope, limits.name, limits.max_leases, limits.paused, limits.rate_interval,
       limits.rate_burst, limits.opens_at
  FROM json_each(:wanted) AS wanted
 CROSS JOIN perdure_limits AS limits ON limits.environment = :environment
   AND limits.scope = wanted.value ->> 'scope' AND limits.name = wanted.value ->> 'name';

-- name: lock_leases
SELECT runs.id
  FROM json_each(:wanted) AS wanted
  JOIN perdure_runs AS runs
    ON runs.id = wanted.value ->> 'id' AND runs.lease_token = wanted.value ->> 'token';

-- name: renew_leases
-- No sequence, no event, no indexed column.
UPDATE perdure_runs
   SET lease_expires_at = max(lease_expires_at, now() + :ttl)
 WHERE id = :id AND lease_token = :token;

-- name: read_leases
SELECT runs.id, runs.lease_token, runs.lease_expires_at, runs.status
  FROM perdure_runs AS runs
 WHERE runs.id IN (SELECT value FROM json_each(:ids));

-- name: leases_of_worker
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM perdure_runs AS runs INDEXED BY perdure_runs_leased
  JOIN perdure_history AS history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.lease_worker = :worker_id AND runs.lease_token IS NOT NULL;

-- name: put_off
-- Runs that this code cannot process: try again in an hour, newer code may be able to.
UPDATE perdure_runs
   SET attention_at = now() + 3600000000
 WHERE id = :id;

-- name: prove_writable
-- Fails where the file is read-only or the disk is full. Something must change: SQLite does not
-- write a row that stays as it is.
INSERT INTO perdure_records AS records (environment, kind, name, version, seen_at, body)
SELECT '', 'write_check', '', 1, now(), ''
 WHERE EXISTS (SELECT 1 FROM perdure_runs WHERE lease_token IS NOT NULL)
    ON CONFLICT (environment, kind, name)
    DO UPDATE SET version = records.version + 1, seen_at = excluded.seen_at;

-- name: due_for_attention
-- Leases are few beside runs: all of them are looked through, so that no index follows their expiry.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM (SELECT id, attention_at AS since
          FROM (SELECT id, attention_at
                  FROM perdure_runs
                 WHERE attention_at <= now() AND lease_expires_at IS NULL
                 ORDER BY attention_at
                 LIMIT :limit)
        UNION ALL
        SELECT id, lease_expires_at
          FROM perdure_runs INDEXED BY perdure_runs_leased
         WHERE lease_token IS NOT NULL AND lease_expires_at <= now()
           AND (attention_at IS NULL OR attention_at <= now())
         ORDER BY since
         LIMIT :limit) AS due
  JOIN perdure_runs AS runs ON runs.id = due.id
  JOIN perdure_history AS history ON history.run_id = runs.id AND history.first_sequence = 1
 ORDER BY due.since;

-- name: get_runs
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM perdure_runs AS runs
  JOIN perdure_history AS history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.id IN (SELECT value FROM json_each(:ids));

-- name: read_columns
-- All there is about runs, for whoever compares.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events,
       runs.id, runs.environment, runs.queue, runs.task, runs.version, runs.priority, runs.status,
       runs.sequence,
       runs.claimable_at, runs.attention_at, runs.lease_token, runs.lease_worker,
       runs.lease_expires_at, runs.holds_slot, runs.gate, runs.created_at, runs.finished_at,
       runs.concurrency_key, runs.schedule_id, runs.nominal_at, runs.batch_id, runs.parent_id,
       runs.failure_kind, runs.fingerprint, runs.state,
       (SELECT json_group_object(key, value) FROM perdure_run_tags WHERE run_id = runs.id),
       EXISTS (SELECT 1 FROM perdure_batches
                WHERE batch_id = runs.batch_id AND run_id = runs.id),
       EXISTS (SELECT 1 FROM perdure_dead_letters WHERE run_id = runs.id)
  FROM perdure_runs AS runs
  JOIN perdure_history AS history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.id IN (SELECT value FROM json_each(:ids));

-- name: get_ended_runs
-- The plus keeps SQLite from walking through all that ever ended.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM perdure_runs AS runs
  JOIN perdure_history AS history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.id IN (SELECT value FROM json_each(:ids)) AND +runs.finished_at IS NOT NULL;

-- name: find_runs
-- The conditions that apply are added by name, from the queries called `where_…`. The connection
-- stops reading at the row that reaches `max_bytes`: SQLite would have to read a text to know its
-- length.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM perdure_runs AS runs
  JOIN perdure_history AS history ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.environment = :environment AND :max_bytes > 0 AND {conditions}
 ORDER BY runs.id DESC
 LIMIT :limit;

-- name: where_cursor
runs.id < :cursor;

-- name: where_statuses
runs.status IN (SELECT value FROM json_each(:statuses));

-- name: where_kinds
runs.failure_kind IN (SELECT value FROM json_each(:kinds));

-- name: where_tag
EXISTS (SELECT 1 FROM perdure_run_tags AS run_tags
         WHERE run_tags.environment = runs.environment AND run_tags.key = :tag_key
           AND run_tags.value = :tag_value AND run_tags.run_id = runs.id);

-- name: where_batch_id
runs.id IN (SELECT run_id FROM perdure_batches WHERE batch_id = :batch_id);

-- name: where_parent_id
runs.parent_id = :parent_id;

-- name: where_text
(instr(runs.task, :text) > 0 OR instr(runs.id, :text) > 0 OR instr(runs.state, :text) > 0);

-- name: count_ended
SELECT (finished_at - :since) / :step AS number, status, count(*)
  FROM perdure_runs
 WHERE status IN (SELECT value FROM json_each(:statuses))
   AND finished_at >= :since AND environment = :environment
 GROUP BY number, status
 ORDER BY number, status;

-- name: count_pace
SELECT queue, count(*)
  FROM perdure_runs
 WHERE status IN (SELECT value FROM json_each(:statuses))
   AND finished_at >= :since AND environment = :environment
 GROUP BY queue;

-- name: latest_ended
SELECT id
  FROM perdure_runs
 WHERE status IN (SELECT value FROM json_each(:statuses))
   AND finished_at >= :since AND environment = :environment
 ORDER BY finished_at DESC, id DESC
 LIMIT :limit;

-- name: read_changes
SELECT CAST(position AS TEXT), run_id, first_sequence, events
  FROM perdure_history
 WHERE position > CAST(:cursor AS INTEGER)
 ORDER BY position
 LIMIT :limit;

-- name: latest_change
-- The last one may have been pruned.
SELECT CAST(max(coalesce((SELECT max(position) FROM perdure_history), 0),
                coalesce((SELECT position FROM perdure_feed_pruned), 0)) AS TEXT);

-- name: finished_before
SELECT id, environment, schedule_id, nominal_at
  FROM perdure_runs
 WHERE status = :status AND finished_at <= :before
 ORDER BY finished_at
 LIMIT :limit;

-- name: closed_before
-- Runs whose dead letter was closed before then.
SELECT runs.id, runs.environment, runs.schedule_id, runs.nominal_at
  FROM perdure_dead_letters AS letters INDEXED BY perdure_dead_letters_closed
 CROSS JOIN perdure_runs AS runs ON runs.id = letters.run_id
 WHERE letters.closed_at <= :before AND runs.status = :status
 ORDER BY letters.closed_at
 LIMIT :limit;

-- name: count_closed_before
-- Count the rows of `closed_before`, up to `most`.
SELECT count(*)
  FROM (SELECT 1 FROM perdure_dead_letters AS letters INDEXED BY perdure_dead_letters_closed
         WHERE letters.closed_at <= :before
         LIMIT :most) AS found;

-- name: opened_before
-- Runs whose dead letter has been open since before then.
SELECT runs.id, runs.environment, runs.schedule_id, runs.nominal_at
  FROM perdure_dead_letters AS letters INDEXED BY perdure_dead_letters_closed
 CROSS JOIN perdure_runs AS runs ON runs.id = letters.run_id
 WHERE letters.closed_at IS NULL AND letters.opened_at <= :before AND runs.status = :status
 ORDER BY letters.opened_at
 LIMIT :limit;

-- name: count_opened_before
-- Count the rows of `opened_before`, up to `most`.
SELECT count(*)
  FROM (SELECT 1 FROM perdure_dead_letters AS letters INDEXED BY perdure_dead_letters_closed
         WHERE letters.closed_at IS NULL AND letters.opened_at <= :before
         LIMIT :most) AS found;

-- name: finished_among
SELECT id
  FROM perdure_runs
 WHERE id IN (SELECT value FROM json_each(:ids)) AND finished_at IS NOT NULL;

-- name: long_histories
-- Those of the index `perdure_runs_long`. The second condition only lets it be searched.
SELECT id, folded_to, sequence
  FROM perdure_runs
 WHERE sequence - folded_to >= 128 AND sequence >= 128
 ORDER BY sequence DESC
 LIMIT :limit;

-- name: rows_to_fold
SELECT first_sequence, CAST(position AS TEXT), commit_id, events
  FROM perdure_history
 WHERE run_id = :run_id AND first_sequence > :after AND first_sequence <= :until
 ORDER BY first_sequence
 LIMIT :limit;

-- name: insert_folded
INSERT INTO perdure_history (run_id, first_sequence, position, commit_id, events)
VALUES (:run_id, :first_sequence, CAST(:at AS INTEGER), :commit_id, :events);

-- name: delete_history
DELETE FROM perdure_history
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: delete_tags
DELETE FROM perdure_run_tags
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: delete_batches
DELETE FROM perdure_batches
 WHERE (batch_id, run_id) IN (
       SELECT batch_id, id FROM perdure_runs WHERE id IN (SELECT value FROM json_each(:ids)));

-- name: delete_dead_letters
DELETE FROM perdure_dead_letters
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: delete_runs
DELETE FROM perdure_runs
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: server_started
SELECT NULL;

-- name: put_record
-- Only over the version it was made from; whose version is stale gets no row back.
INSERT INTO perdure_records AS records (environment, kind, name, version, seen_at, body)
VALUES (:environment, :kind, :name, :version, now(), :body)
    ON CONFLICT (environment, kind, name) DO UPDATE
   SET version = excluded.version, seen_at = excluded.seen_at, body = excluded.body
 WHERE records.version = excluded.version - 1
RETURNING name;

-- name: insert_audit
INSERT INTO perdure_audit (environment, position, body, hash)
VALUES (:environment, :position, :body, :hash);

-- name: read_webhooks
SELECT id, environment, name, version, body
  FROM perdure_webhooks
 WHERE :environment IS NULL OR environment = :environment
 ORDER BY environment, name;

-- name: insert_deliveries
INSERT INTO perdure_webhook_deliveries (webhook_id, number, body)
VALUES (:webhook_id, :number, :body);

-- name: mark_pruned
-- Before they are deleted: the last of the changes that go.
INSERT INTO perdure_feed_pruned (one, position)
SELECT 1, max(position)
  FROM perdure_history
 WHERE run_id IN (SELECT value FROM json_each(:ids))
HAVING max(position) IS NOT NULL
    ON CONFLICT (one) DO UPDATE
   SET position = max(perdure_feed_pruned.position, excluded.position);

-- name: read_pruned
SELECT CAST(position AS TEXT)
  FROM perdure_feed_pruned;

-- name: delete_free_keys
DELETE FROM perdure_keys
 WHERE (environment, kind, scope, name) IN (
       SELECT environment, kind, scope, name
         FROM perdure_keys
        WHERE free_at <= now()
        LIMIT :limit)
RETURNING name;

-- name: insert_logs
-- A line whose answer was lost is written again and kept once; one of a pruned run is nobody's.
INSERT INTO perdure_run_logs (run_id, attempt, number, at, level, logger, message, fields)
SELECT :run_id, :attempt, :number, :at, :level, :logger, :message, :fields
 WHERE EXISTS (SELECT 1 FROM perdure_runs WHERE id = :run_id)
    ON CONFLICT (run_id, attempt, number) DO NOTHING;

-- name: trim_logs
DELETE FROM perdure_run_logs
 WHERE run_id = :run_id AND attempt = :attempt
   AND (number < :keep_from OR number > :keep_to);

-- name: put_progress
-- Of two attempts at once, the one that lost its lease is the older one.
INSERT INTO perdure_run_progress AS run_progress (run_id, attempt, at, fraction, message)
SELECT :run_id, :attempt, :at, :fraction, :message
 WHERE EXISTS (SELECT 1 FROM perdure_runs WHERE id = :run_id)
    ON CONFLICT (run_id) DO UPDATE
   SET attempt = excluded.attempt, at = excluded.at, fraction = excluded.fraction,
       message = excluded.message
 WHERE excluded.attempt >= run_progress.attempt;

-- name: read_progress
SELECT run_id, attempt, at, fraction, message
  FROM perdure_run_progress
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: delete_logs
DELETE FROM perdure_run_logs
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: delete_progress
DELETE FROM perdure_run_progress
 WHERE run_id IN (SELECT value FROM json_each(:ids));

-- name: count_lanes
-- What is due and what is later, lane by lane as a claim sees them, of each lane only so many.
WITH RECURSIVE lane (head) AS (
    {lanes}
     LIMIT :lanes
)
SELECT runs.queue, runs.task, runs.version,
       sum((SELECT count(*)
              FROM (SELECT 1
                      FROM perdure_runs AS one
                     WHERE one.environment = :environment AND one.gate IS NULL
                       AND one.queue = runs.queue AND one.keyed = runs.keyed
                       AND one.task = runs.task AND one.version = runs.version
                       AND one.priority = runs.priority AND one.claimable_at <= now()
                     LIMIT :most))),
       sum((SELECT count(*)
              FROM (SELECT 1
                      FROM perdure_runs AS one
                     WHERE one.environment = :environment AND one.gate IS NULL
                       AND one.queue = runs.queue AND one.keyed = runs.keyed
                       AND one.task = runs.task AND one.version = runs.version
                       AND one.priority = runs.priority AND one.claimable_at > now()
                     LIMIT :most))),
       min(runs.claimable_at)
  FROM lane
  JOIN perdure_runs AS runs ON runs.id = lane.head
 GROUP BY runs.queue, runs.task, runs.version;

-- name: count_expired_leases
SELECT count(*)
  FROM (SELECT 1
          FROM perdure_runs INDEXED BY perdure_runs_leased
         WHERE environment = :environment AND lease_token IS NOT NULL
           AND lease_expires_at <= now()
         LIMIT :most) AS expired;

-- name: count_schedules
-- Schedules that have a next time, and those of them whose time has come.
SELECT count(*), coalesce(sum(next_at <= schedule_now()), 0)
  FROM (SELECT next_at
          FROM perdure_schedules
         WHERE environment = :environment AND next_at IS NOT NULL
         ORDER BY next_at
         LIMIT :most) AS planned;

-- name: holders_of_queue
-- Who holds a limit, for whoever asks why: leases and reservations, a few of them.
SELECT id FROM perdure_runs
 WHERE environment = :environment AND queue = :name AND lease_token IS NOT NULL
UNION ALL
SELECT id FROM perdure_runs
 WHERE environment = :environment AND queue = :name AND gate = 'reserved'
 ORDER BY id
 LIMIT :most;

-- name: holders_of_task
SELECT id FROM perdure_runs
 WHERE environment = :environment AND task = :name AND lease_token IS NOT NULL
UNION ALL
SELECT id FROM perdure_runs INDEXED BY perdure_runs_reserved
 WHERE environment = :environment AND task = :name AND gate = 'reserved'
 ORDER BY id
 LIMIT :most;

-- name: holders_of_key
SELECT id FROM perdure_runs
 WHERE environment = :environment AND task = :name AND concurrency_key = :key
   AND lease_token IS NOT NULL
UNION ALL
SELECT id FROM perdure_runs
 WHERE environment = :environment AND task = :name AND concurrency_key = :key
   AND gate = 'reserved'
 ORDER BY id
 LIMIT :most;

-- name: holders_of_schedule
SELECT id FROM perdure_runs INDEXED BY perdure_runs_slots
 WHERE environment = :environment AND schedule_id = :name AND holds_slot = 1
 ORDER BY id
 LIMIT :most;

-- name: count_ahead
-- How many due runs of a queue come before this rank, lane by lane, of each lane only so many.
WITH RECURSIVE lane (head) AS (
    SELECT (SELECT id
              FROM perdure_runs AS runs
             WHERE environment = :environment AND queue = :queue
               AND claimable_at IS NOT NULL AND gate IS NULL
             ORDER BY keyed, task, version, priority, claimable_at
             LIMIT 1)
    UNION ALL
    SELECT (SELECT next.id
              FROM perdure_runs AS next
             WHERE next.environment = :environment AND next.queue = :queue
               AND next.claimable_at IS NOT NULL AND next.gate IS NULL
               AND (next.keyed, next.task, next.version, next.priority, next.claimable_at)
                   > (+runs.keyed, +runs.task, +runs.version, +runs.priority, 9223372036854775807)
             ORDER BY next.keyed, next.task, next.version, next.priority, next.claimable_at
             LIMIT 1)
      FROM lane
      JOIN perdure_runs AS runs ON runs.id = lane.head
     LIMIT :lanes
)
SELECT coalesce(sum((SELECT count(*)
              FROM (SELECT 1
                      FROM perdure_runs AS one
                     WHERE one.environment = :environment AND one.gate IS NULL
                       AND one.queue = :queue AND one.keyed = runs.keyed
                       AND one.task = runs.task AND one.version = runs.version
                       AND one.priority = runs.priority
                       AND one.claimable_at <= now()
                       AND (one.claimable_at, one.id)
                           < (:rank + runs.priority * 3600000000, :id)
                     LIMIT :most))), 0)
  FROM lane
  JOIN perdure_runs AS runs ON runs.id = lane.head;

-- name: read_places
-- How far schedules are, without a lock: who is too late need not take keys first.
SELECT schedules.environment, schedules.name, schedules.version, schedules.cursor
  FROM json_each(:wanted) AS wanted
 CROSS JOIN perdure_schedules AS schedules ON schedules.environment = wanted.value ->> 'environment'
   AND schedules.name = wanted.value ->> 'name';

-- name: lock_schedules
-- In order of name, and last of all that a transaction locks.
SELECT schedules.environment, schedules.name, schedules.version, schedules.cursor
  FROM json_each(:wanted) AS wanted
 CROSS JOIN perdure_schedules AS schedules ON schedules.environment = wanted.value ->> 'environment'
   AND schedules.name = wanted.value ->> 'name'
 ORDER BY schedules.environment, schedules.name;

-- name: update_schedules
-- The rows are locked and were compared; the cursor never goes back all the same.
UPDATE perdure_schedules
   SET version = :version, cursor = :cursor, next_at = :next_at, defined_by = :defined_by,
       body = :body
 WHERE environment = :environment AND name = :name AND cursor <= :cursor;

-- name: advance_schedules
-- Only how far they are: whatever else stands in the row is not this transaction's.
UPDATE perdure_schedules
   SET cursor = :cursor, next_at = :next_at
 WHERE environment = :environment AND name = :name AND cursor <= :cursor;

-- name: put_slots
-- How many runs of a schedule may be active. Its row is the schedule's alone to change, and is
-- locked, or new like the schedule.
INSERT INTO perdure_limits AS limits (environment, scope, name, version, max_leases, paused,
                                      fair, body)
VALUES (:environment, :scope, :name, 1, :max_leases, 0, 0, :body)
    ON CONFLICT (environment, scope, name) DO UPDATE
   SET version = limits.version + 1, max_leases = excluded.max_leases, body = excluded.body;

-- name: forget_times
-- The rows are locked. Until where the record of a schedule's times has gaps; that only grows.
UPDATE perdure_schedules
   SET forgotten_until = :until
 WHERE environment = :environment AND name = :name
   AND (forgotten_until IS NULL OR forgotten_until < :until);

-- name: insert_spans
INSERT INTO perdure_skipped_spans (environment, schedule_id, first_at, last_at, count, reason,
                                   recorded_at, evidence)
VALUES (:environment, :schedule_id, :first_at, :last_at, :count, :reason, :recorded_at,
        :evidence);

-- name: covering_spans
-- Which of these times lie in a span. Spans do not overlap: the first that ends after a time is
-- the only one that can hold it.
SELECT wanted.value ->> 'run_id'
  FROM json_each(:wanted) AS wanted
 WHERE (SELECT first_at FROM perdure_skipped_spans
         WHERE environment = wanted.value ->> 'environment'
           AND schedule_id = wanted.value ->> 'schedule_id'
           AND last_at >= wanted.value ->> 'at'
         ORDER BY last_at
         LIMIT 1) <= wanted.value ->> 'at';

-- name: due_schedules
SELECT name, version, cursor, forgotten_until, body
  FROM perdure_schedules
 WHERE environment = :environment AND next_at IS NOT NULL AND next_at <= schedule_now()
   AND name NOT IN (SELECT value FROM json_each(:passing))
 ORDER BY next_at, name
 LIMIT :limit;

-- name: next_schedule
-- When the next schedule that is not due yet will be.
SELECT next_at
  FROM perdure_schedules
 WHERE environment = :environment AND next_at IS NOT NULL AND next_at > schedule_now()
 ORDER BY next_at
 LIMIT 1;

-- name: get_schedules
SELECT name, version, cursor, forgotten_until, body
  FROM perdure_schedules
 WHERE environment = :environment
   AND name IN (SELECT value FROM json_each(:names));

-- name: list_schedules_defined_by
SELECT name, version, cursor, forgotten_until, body
  FROM perdure_schedules INDEXED BY perdure_schedules_defined
 WHERE environment = :environment AND defined_by = :defined_by AND name > :after
 ORDER BY name
 LIMIT :limit;

-- name: unended_runs
-- Runs of schedules that have not ended, of each the oldest.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM json_each(:names) AS wanted
 CROSS JOIN perdure_runs AS runs ON runs.id IN (
       SELECT mine.id
         FROM perdure_runs AS mine INDEXED BY perdure_runs_unended
        WHERE mine.environment = :environment AND mine.schedule_id = wanted.value
          AND mine.finished_at IS NULL
        ORDER BY mine.id
        LIMIT :limit)
  JOIN perdure_history AS history ON history.run_id = runs.id AND history.first_sequence = 1;

-- name: runs_at_nominal
-- What became of the times of a schedule, in their order.
SELECT runs.id, runs.state, runs.lease_expires_at, history.events
  FROM perdure_runs AS runs INDEXED BY perdure_runs_nominal
 CROSS JOIN perdure_history AS history
    ON history.run_id = runs.id AND history.first_sequence = 1
 WHERE runs.environment = :environment AND runs.schedule_id = :name
   AND runs.nominal_at >= :first AND runs.nominal_at <= :last
 ORDER BY runs.nominal_at, runs.id
 LIMIT :limit;

-- name: read_neglect
-- What was put aside, counted only so far, since when maintenance should have looked, and the end
-- that is the longest ago.
SELECT (SELECT count(*)
          FROM (SELECT 1 FROM perdure_runs
                 WHERE environment = :environment AND gate = 'unreadable'
                 LIMIT :most) AS aside),
       (SELECT min(since)
          FROM (SELECT min(attention_at) AS since FROM perdure_runs
                 WHERE attention_at IS NOT NULL AND lease_expires_at IS NULL
                UNION ALL
                SELECT min(lease_expires_at) FROM perdure_runs INDEXED BY perdure_runs_leased
                 WHERE lease_token IS NOT NULL)),
       (SELECT min(finished_at) FROM perdure_runs
         WHERE status = :ended AND finished_at IS NOT NULL);
