"""Every route there is."""

from __future__ import annotations

from perdure import errors as e
from perdure.engine.protocol.scope import Scope
from perdure.web import sse as stream
from perdure.web.operations import (
    bulk,
    health,
    keys,
    manifests,
    overview,
    runs,
    schedules,
    webhooks,
)
from perdure.web.operations import limits as control
from perdure.web.operations.operation import ANY_KEY, Route
from perdure.web.worker.routes import WORKER_ROUTES

_READ, _TRIGGER, _OPERATE, _ADMIN = Scope.READ, Scope.TRIGGER, Scope.OPERATE, Scope.ADMIN
_RUN = "/v1/runs/{run_id}"
_LETTER = "/v1/dead-letters/{run_id}"
_SCHEDULE = "/v1/schedules/{schedule}"
_NO_SCHEDULE = (e.ScheduleNotFound,)
_CHANGED = (e.ScheduleNotFound, e.ScheduleConflict, e.TaskNotFound)
_PAYLOAD = (e.InvalidPayload, e.PayloadTooLarge)
_KEYS = (e.IdempotencyConflict, e.SingletonConflict)

RUNS = (
    Route("POST", "/v1/runs", _TRIGGER, runs.trigger_run, "Ask for a run of a task",
          (e.TaskNotFound, e.RunNotFound, *_PAYLOAD, *_KEYS), 201, (200,),
          takes_idempotency_key=True, takes_trace_context=True),
    Route("POST", "/v1/runs:batch", _TRIGGER, runs.trigger_batch,
          "Ask for several runs; one bad item does not stop the others", _PAYLOAD,
          takes_trace_context=True),
    Route("POST", "/v1/runs:bulk", _OPERATE, bulk.bulk_runs,
          "Count runs that fit; and, once expected, order something about all of them",
          (e.NotAllowed,), 202, (200,)),
    Route("GET", "/v1/runs", _READ, runs.list_runs, "Runs, newest first"),
    Route("GET", "/v1/runs:count", _READ, bulk.count_runs,
          "Count runs that match a filter, up to 1,000,000"),
    Route("GET", "/v1/runs:details", _READ, runs.get_run_details,
          "Several runs by their ids, each with everything about it"),
    Route("GET", _RUN, _READ, runs.get_run, "A run; its ETag is its sequence"),
    Route("GET", f"{_RUN}/events", _READ, runs.list_events, "A run's history"),
    Route("GET", f"{_RUN}/attempts", _READ, runs.list_attempts, "A run's attempts"),
    Route("GET", f"{_RUN}/logs", _READ, runs.list_logs, "What a run's attempts said"),
    Route("GET", f"{_RUN}/progress", _READ, runs.get_progress,
          "How far the latest attempt has come"),
    Route("GET", f"{_RUN}/why", _READ, runs.explain_run, "Why a run is where it is"),
    Route("GET", f"{_RUN}/bundle", _READ, runs.get_bundle, "Everything about a run, to pass on"),
    Route("POST", f"{_RUN}/cancel", _OPERATE, runs.cancel_run,
          "End a run, or ask its worker to", (e.NotAllowed,)),
    Route("POST", f"{_RUN}/pause", _OPERATE, runs.pause_run, "Hold a run back", (e.NotAllowed,)),
    Route("POST", f"{_RUN}/resume", _OPERATE, runs.resume_run, "Let a paused run go on",
          (e.NotAllowed,)),
    Route("POST", f"{_RUN}/reschedule", _OPERATE, runs.reschedule_run,
          "Another time, priority or queue", (e.NotAllowed,)),
    Route("POST", f"{_RUN}/wake", _OPERATE, runs.wake_run,
          "Let a waiting run go on: what it waits for is there", (e.NotAllowed,)),
    Route("POST", f"{_RUN}/reset-idempotency-key", _OPERATE, runs.reset_idempotency_key,
          "Let the next trigger with this run's idempotency key make a new run"),
    Route("POST", f"{_RUN}/retry", _OPERATE, runs.retry_run, "Try a failed run again, as a new one",
          (e.NotAllowed, *_PAYLOAD, *_KEYS), 201, also=(200,)),
    Route("POST", f"{_RUN}/rerun", _OPERATE, runs.rerun_run, "A new run like this ended one",
          (e.NotAllowed, *_PAYLOAD, *_KEYS), 201, also=(200,)),
)  # fmt: skip

CONTROL = (
    Route("GET", "/v1/tasks", _READ, overview.list_tasks, "Every known task"),
    Route("GET", "/v1/tasks/{task}", _READ, overview.get_task, "A task", (e.TaskNotFound,)),
    Route("GET", "/v1/queues", _READ, control.list_queues, "Every queue, and what holds for it"),
    Route("GET", "/v1/queues/{queue}", _READ, control.get_queue, "A queue",
          (e.QueueNotFound,)),
    Route("PATCH", "/v1/queues/{queue}", _OPERATE, control.set_queue,
          "Say what holds for a queue, whatever code says", (e.QueueNotFound,)),
    Route("POST", "/v1/queues/{queue}/reset", _OPERATE, control.reset_queue,
          "Give a queue's settings back to code", (e.QueueNotFound,)),
    Route("POST", "/v1/queues/{queue}/pause", _OPERATE, control.pause_queue, "Pause a queue",
          (e.QueueNotFound,)),
    Route("POST", "/v1/queues/{queue}/resume", _OPERATE, control.resume_queue, "Resume a queue",
          (e.QueueNotFound,)),
    Route("GET", "/v1/limits", _READ, control.list_limits, "What holds for every task"),
    Route("GET", "/v1/limits/{task}", _READ, control.get_limit, "What holds for a task",
          (e.TaskNotFound,)),
    Route("PATCH", "/v1/limits/{task}", _OPERATE, control.set_limit,
          "Say what holds for a task, whatever code says", (e.TaskNotFound,)),
    Route("POST", "/v1/limits/{task}/reset", _OPERATE, control.reset_limit,
          "Give a task's limits back to code", (e.TaskNotFound,)),
    Route("GET", "/v1/dead-letters", _READ, control.list_dead_letters,
          "Runs that somebody has to decide about, newest first"),
    Route("POST", "/v1/dead-letters:bulk", _OPERATE, bulk.bulk_dead_letters,
          "Count dead letters that fit; and, once expected, decide about all of them",
          (e.NotAllowed,), 202, (200,)),
    Route("GET", "/v1/dead-letters:count", _READ, bulk.count_dead_letters,
          "Count open dead letters that match a filter, up to 1,000,000"),
    Route("GET", _LETTER, _READ, control.get_dead_letter, "A run's dead letter"),
    Route("POST", f"{_LETTER}/replay", _OPERATE, control.replay_dead_letter,
          "Try it again as a new run", (e.NotAllowed, *_PAYLOAD, *_KEYS), 201, also=(200,)),
    Route("POST", f"{_LETTER}/discard", _OPERATE, control.discard_dead_letter,
          "Close it without another try", (e.NotAllowed,)),
    Route("GET", "/v1/workers", _READ, overview.list_workers, "Workers of the last hour"),
    Route("GET", "/v1/workers/{worker}/leases", _READ, control.list_worker_leases,
          "The runs that a worker holds", (e.WorkerNotFound,)),
    Route("POST", "/v1/workers/{worker}/drain", _OPERATE, control.drain_worker,
          "Ask a worker to end as SIGTERM would", (e.WorkerNotFound,)),
    Route("GET", "/v1/stats", _READ, overview.get_stats, "Numbers for dashboards"),
    Route("GET", "/v1/overview", _READ, health.get_overview,
          "Queues, workers, the latest failures, and what ended within a minute"),
    Route("GET", "/v1/doctor", _READ, health.get_doctor,
          "What is wrong with the database, and what to do about it"),
    Route("GET", "/v1/integrity", _READ, health.examine_integrity,
          "Replay the histories of a page of runs and compare them with what is stored"),
    Route("GET", "/v1/integrity/tally", _READ, health.tally_integrity,
          "Count a page of runs by queue and status, as they are found"),
    Route("GET", "/v1/integrity/counts", _READ, health.count_integrity,
          "Count all runs by queue and status, as the database counts them"),
    Route("GET", "/v1/integrity/strays", _READ, health.list_strays,
          "Runs that are not found with the others, because a part of them is missing"),
    Route("GET", "/v1/stream", _READ, stream.stream_changes, "Changes as they come (SSE)",
          media_type="text/event-stream"),
)  # fmt: skip

SCHEDULES = (
    Route("GET", "/v1/schedules", _READ, schedules.list_schedules, "Schedules by name"),
    Route("POST", "/v1/schedules", _OPERATE, schedules.create_schedule, "Make a new schedule",
          (e.ScheduleExists, e.ScheduleConflict, e.TaskNotFound, *_PAYLOAD), 201),
    Route("POST", "/v1/schedules:reconcile", _OPERATE, schedules.reconcile_schedules,
          "Make the stored schedules equal to a manifest's definitions",
          (e.ScheduleConflict, e.TaskNotFound, *_PAYLOAD)),
    Route("POST", "/v1/schedules:apply", _OPERATE, manifests.apply_manifest,
          "Make schedules say what files say; targets in them need admin, too",
          (e.ScheduleConflict, e.InvalidManifest)),
    Route("GET", _SCHEDULE, _READ, schedules.get_schedule, "A schedule", _NO_SCHEDULE),
    Route("PUT", _SCHEDULE, _OPERATE, schedules.put_schedule, "Make a schedule, or say it all anew",
          (*_CHANGED, *_PAYLOAD), 200, (201,), takes_if_none_match=True),
    Route("PATCH", _SCHEDULE, _OPERATE, schedules.patch_schedule, "Change what is given",
          (*_CHANGED, *_PAYLOAD)),
    Route("POST", f"{_SCHEDULE}/pause", _OPERATE, schedules.pause_schedule,
          "No more occurrences until it is resumed", _CHANGED),
    Route("POST", f"{_SCHEDULE}/resume", _OPERATE, schedules.resume_schedule, "Go on", _CHANGED),
    Route("POST", f"{_SCHEDULE}/trigger", _OPERATE, schedules.trigger_schedule,
          "Run it now; its cadence goes on as it would", _CHANGED, 201, (200,)),
    Route("POST", f"{_SCHEDULE}/backfill", _OPERATE, schedules.backfill_schedule,
          "Count times that were not run; and, once expected, run them", _CHANGED),
    Route("GET", f"{_SCHEDULE}/backfill", _READ, schedules.count_backfill,
          "Count the times that a backfill would run", _NO_SCHEDULE),
    Route("GET", f"{_SCHEDULE}/preview", _READ, schedules.preview_schedule, "Its next times",
          _NO_SCHEDULE),
    Route("GET", f"{_SCHEDULE}/occurrences", _READ, schedules.list_occurrences,
          "What became of its times", _NO_SCHEDULE),
    Route("GET", f"{_SCHEDULE}/last", _READ, schedules.list_last_occurrences,
          "Its last runs and skipped spans", _NO_SCHEDULE),
    Route("GET", f"{_SCHEDULE}/why", _READ, schedules.explain_schedule,
          "Why it did not run at an instant", _NO_SCHEDULE),
    Route("DELETE", _SCHEDULE, _OPERATE, schedules.delete_schedule,
          "No more occurrences; its history stays", _CHANGED),
)  # fmt: skip

ADMIN = (
    Route("GET", "/v1/keys", _ADMIN, keys.list_keys, "Keys of this environment"),
    Route("POST", "/v1/keys", _ADMIN, keys.create_key, "A new key; its text is told once", (),
          201),
    Route("POST", "/v1/keys/{key_id}/revoke", _ADMIN, keys.revoke_key, "End a key",
          (e.KeyNotFound,)),
    Route("POST", "/v1/keys/{key_id}/rotate", _ADMIN, keys.rotate_key,
          "A new secret; the old one stays good for a while", (e.KeyNotFound,)),
    Route("GET", "/v1/audit", _ADMIN, control.list_audit, "What operators did; newest first"),
    Route("GET", "/v1/audit:sealed", _ADMIN, control.list_sealed_audit,
          "The text that the hashes of the audit log cover, to verify it; oldest first"),
)  # fmt: skip

_HOOK = "/v1/webhooks/{webhook}"
_NO_HOOK = (e.WebhookNotFound,)

WEBHOOKS = (
    Route("GET", "/v1/webhooks", _READ, webhooks.list_webhooks, "Who is told of runs"),
    Route("POST", "/v1/webhooks", _ADMIN, webhooks.create_webhook, "Post events to an endpoint",
          (), 201),
    Route("GET", _HOOK, _READ, webhooks.get_webhook, "A webhook", _NO_HOOK),
    Route("PATCH", _HOOK, _ADMIN, webhooks.change_webhook, "Change what is given", _NO_HOOK),
    Route("DELETE", _HOOK, _ADMIN, webhooks.delete_webhook, "Forget a webhook", _NO_HOOK),
    Route("GET", f"{_HOOK}/deliveries", _READ, webhooks.list_deliveries,
          "Its latest posts, newest first", _NO_HOOK),
    Route("POST", f"{_HOOK}/pause", _OPERATE, webhooks.pause_webhook, "Send nothing for now",
          _NO_HOOK),
    Route("POST", f"{_HOOK}/resume", _OPERATE, webhooks.resume_webhook,
          "Go on where it stopped, also after it was disabled", _NO_HOOK),
    Route("POST", f"{_HOOK}/replay", _OPERATE, webhooks.replay_webhook,
          "Tell everything again from a place on", _NO_HOOK),
    Route("POST", f"{_HOOK}/test", _OPERATE, webhooks.test_webhook,
          "Post `webhook.test` now, and tell what came of it", _NO_HOOK),
)  # fmt: skip

MACHINES = (
    Route("GET", "/v1/identity", ANY_KEY, health.get_identity,
          "The environment and scopes of the key that asks, and the server's time"),
    Route("GET", "/metrics", _READ, overview.get_metrics, "Prometheus metrics of this process",
          media_type="text/plain"),
    Route("GET", "/", None, overview.get_index, "Where to go on from here"),
    Route("GET", "/healthz", None, overview.healthz, "200 while the server lives"),
    Route("GET", "/readyz", None, overview.readyz, "503 while its storage is not usable",
          also=(503,)),
    Route("GET", "/openapi.json", None, overview.get_openapi, "This document"),
)  # fmt: skip

ROUTES: tuple[Route, ...] = (
    *RUNS, *CONTROL, *SCHEDULES, *WEBHOOKS, *ADMIN, *WORKER_ROUTES, *MACHINES,
)  # fmt: skip
