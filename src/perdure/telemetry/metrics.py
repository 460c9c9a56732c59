"""Every metric, named once. Nothing is counted that is not listed here; the page
`docs/reference/telemetry.md` is generated from this table and from `table`."""

from __future__ import annotations

from perdure.telemetry.metric import QUICK, Metric, counter, gauge, seconds, sizes

_OF_TASK = ("task", "queue")


RUNS_TRIGGERED = counter(
    "runs_triggered",
    "Runs asked for here; outcome: created, existing (a key was taken), refused, or borrowed (in a "
    "transaction that was still open).",
    (*_OF_TASK, "outcome"),
)
RUNS_FINISHED = counter(
    "runs_finished", "Runs that ended by a commit of this process.", (*_OF_TASK, "status")
)
ATTEMPTS_STARTED = counter("attempts_started", "Attempts begun here.", _OF_TASK)
ATTEMPTS_FINISHED = counter(
    "attempts_finished",
    "Attempts whose end was recorded here; failure_kind is empty unless they failed. Outcome "
    "lost: the worker died beside other runs, which costs no attempt.",
    (*_OF_TASK, "outcome", "failure_kind"),
)
ATTEMPT_SECONDS = seconds("attempt", "How long handlers took.", _OF_TASK)
QUEUE_WAIT_SECONDS = seconds("queue_wait", "From due to claimed.", ("queue",))
CLAIMS = counter("claims", "Claims made here, empty ones too.")
CLAIM_SIZE = sizes("claim_size", "Runs handed over by one claim that found some.")
COMMIT_SIZE = sizes("commit_size", "Commits that shared one transaction: the group commit.")
STORAGE_SECONDS = seconds("storage", "How long storage took to answer.", ("operation",), QUICK)
STORAGE_ERRORS = counter("storage_errors", "Calls of storage that raised.", ("operation", "error"))
LEASES_RENEWED = counter("leases_renewed", "Leases kept by a renewal.")
LEASES_LOST = counter("leases_lost", "Leases this process held and lost.")
LEASES_RECOVERED = counter("leases_recovered", "Expired leases ended here, by maintenance.")
HANDLERS_STUCK = counter("handlers_stuck", "Handlers given up: they did not end when pressed to.")
WORKER_SLOTS = gauge("worker_slots", "Places for handlers in this process.")
WORKER_SLOTS_USED = gauge("worker_slots_used", "Places taken, stuck handlers' too.")
LOOP_LAG = gauge("loop_lag_seconds", "How late the loop of async handlers answers.", unit="s")
LOOP_BLOCKS = counter(
    "loop_blocks", "Times that the loop of async handlers was blocked for two seconds or more."
)
HINTS_SENT = counter("hints_sent", "Wake-ups sent to other processes, coalesced.")
HINTS_RECEIVED = counter("hints_received", "Wake-ups that came from other processes.")
LOG_LINES = counter("log_lines", "Lines of runs' logs stored.")
LOG_LINES_LEFT_OUT = counter("log_lines_left_out", "Lines pushed out by newer ones, or lost.")
SCHEDULE_LAG_SECONDS = seconds(
    "schedule_lag", "From an occurrence's time to the decision that made its run.", ()
)
SCHEDULE_OCCURRENCES = counter(
    "schedule_occurrences",
    "Scheduled times decided here; outcome: run (a run was created) or skipped.",
    ("outcome",),
)
SCHEDULES = gauge("schedules", "Schedules that have a next time. Counted up to 10,000.")
SCHEDULES_DUE = gauge(
    "schedules_due", "Schedules whose time has come and is not decided yet. Up to 10,000."
)
SCHEDULE_OLDEST_SECONDS = gauge(
    "schedule_oldest_due_seconds", "How long the schedule longest due has been waiting.", unit="s"
)
SCHEDULE_NEXT = gauge(
    "schedule_next_timestamp_seconds",
    "Unix time at which the next schedule is due; none: no schedule has a next time.",
    unit="s",
)
LAST_TICK = gauge(
    "last_tick_timestamp_seconds",
    "Unix time of the last complete pass in this process; service: maintenance or scheduler.",
    ("service",),
    "s",
)
HTTP_REQUESTS = counter(
    "http_requests", "Requests answered by the API server.", ("method", "route", "status")
)
HTTP_SECONDS = seconds("http", "How long answers took.", ("method", "route"), QUICK)
STREAMS = gauge("streams", "Clients that follow the stream of changes.")
STREAMS_DROPPED = counter("streams_dropped", "Clients dropped because they were too slow.")
WEBHOOK_POSTS = counter(
    "webhook_posts", "Posts to endpoints of webhooks; outcome: delivered or failed.", ("outcome",)
)
WEBHOOK_SECONDS = seconds("webhook", "How long endpoints of webhooks took.", ("outcome",))
WEBHOOK_LAG_SECONDS = seconds("webhook_lag", "From an event to its delivery.", ())
WEBHOOKS = gauge("webhooks", "Webhooks by their state.", ("state",))
_BY_QUEUE = ("queue",)
QUEUE_DUE = gauge("queue_due", "Runs waiting for a worker. Counted up to 10,000 a task.", _BY_QUEUE)
QUEUE_LATER = gauge("queue_later", "Runs due later. Counted up to 10,000 a task.", _BY_QUEUE)
QUEUE_OLDEST_SECONDS = gauge(
    "queue_oldest_due_seconds", "How long the run longest due has been waiting.", _BY_QUEUE, "s"
)
QUEUE_PARKED = gauge("queue_parked", "Runs behind a full limit. Up to 10,000.", _BY_QUEUE)
QUEUE_LEASED = gauge("queue_leased", "Runs some worker holds. Up to 10,000.", _BY_QUEUE)
DEAD_LETTERS = gauge("dead_letters", "Open dead letters. Counted up to 10,000.", _BY_QUEUE)
LEASES_EXPIRED = gauge(
    "leases_expired", "Leases that have expired and are not recovered yet. Up to 10,000."
)

METRICS: tuple[Metric, ...] = tuple(v for v in list(globals().values()) if isinstance(v, Metric))
