"""Every log record, named once. Nothing is logged that is not listed here; the page
`docs/reference/telemetry.md` is generated from this table and from `metrics`."""

from __future__ import annotations

from logging import DEBUG, ERROR, INFO, WARNING

from perdure.telemetry import schedule_records
from perdure.telemetry.record import Record

_WORKER, _TASK = "perdure.worker", "perdure.task"
_RUN = ("run_id",)
_ERROR = ("error",)

LATE_OUTCOME = Record(
    _WORKER,
    WARNING,
    "late outcome of %(run_id)s refused",
    _RUN,
    "An attempt ended after its lease was lost.",
)
OUTCOME_IMPOSSIBLE = Record(
    _WORKER,
    ERROR,
    "cannot record how an attempt of %(run_id)s ended",
    _RUN,
    "It is recorded as `system`.",
)
OUTCOME_REFUSED = Record(
    _WORKER,
    ERROR,
    "outcome of %(run_id)s refused: %(why)s",
    ("run_id", "why"),
    "Storage will never take it; the run fails, as `system`.",
)
DRAIN_ASKED = Record(
    _WORKER, INFO, "asked to drain", ("worker_id", "by", "reason"), "By an operator: it will end."
)
DRAINING = Record(
    _WORKER,
    WARNING,
    "stopping; waiting for %(runs)s runs to end",
    ("runs", "run_ids"),
    "Until the drain is over. `run_ids` has at most 20 of them.",
)
ATTEMPT_FAILED = Record(
    "perdure.attempts",
    WARNING,
    "attempt %(attempt)s of %(task)s %(run_id)s failed: %(error)s; %(next)s",
    ("run_id", "task", "attempt", "error", "next"),
    "Recorded so. The message says it all, because many look at nothing else.",
)
HANDLER_NOT_IMPORTABLE = Record(
    _WORKER,
    ERROR,
    "cannot import the handler of %(task)s here: %(error)s; its runs are left to other workers",
    ("task", "error"),
    "For half a minute, then the worker claims runs of the task again.",
)
STORAGE_AWAITED = Record(
    "perdure.storage",
    WARNING,
    "the storage cannot be reached: %(error)s; waiting for it",
    ("error",),
    "While a process starts. It tries again and again, and says when it has succeeded.",
)
STORAGE_REACHED = Record(
    "perdure.storage",
    INFO,
    "the storage is reached, after %(seconds)s s",
    ("seconds",),
    "The process goes on to start.",
)
ATTEMPT_INTERRUPTED = Record(
    "perdure.attempts",
    WARNING,
    "attempt %(attempt)s of %(task)s %(run_id)s lost its transaction: %(error)s; it is made again",
    ("run_id", "task", "attempt", "error"),
    "The database went away before the commit. The attempt is not counted as a failure.",
)
HANDLER_STUCK = Record(
    "perdure.attempts",
    ERROR,
    "handler of %(task)s %(run_id)s is stuck: %(reason)s",
    ("run_id", "task", "executor", "reason"),
    "It did not end when pressed to; it keeps its slot until it does.",
)
LEASE_LOST = Record(
    "perdure.leases", WARNING, "lease of %(run_id)s lost", _RUN, "It is stopped; others may own it."
)
STORAGE_AWAY = Record(
    "perdure.service",
    WARNING,
    "storage does not answer %(service)s: %(error)s",
    ("service", "error"),
    "Tried again soon. Nothing is lost; claims, outcomes and renewals wait. Logged once an outage, "
    "and every minute while it lasts.",
)
STORAGE_BACK = Record(
    "perdure.service",
    INFO,
    "storage answers %(service)s again, after %(seconds)s s",
    ("service", "seconds"),
    "The outage is over; what waited goes on.",
)
SERVICE_FAILED = Record(
    "perdure.service",
    ERROR,
    "%(service)s failed; it goes on",
    ("service",),
    "A bug. One pass was lost; the next one comes soon.",
)
RUN_NOT_ATTENDED = Record(
    "perdure.maintenance", ERROR, "cannot attend to %(run_id)s", _RUN, "A bug, or a damaged run."
)
LOOP_BLOCKED = Record(
    "perdure.worker",
    WARNING,
    "the handlers' loop has been blocked for %(seconds)s s by %(blocked_by)s",
    ("task", "run_id", "where", "blocked_by", "seconds"),
    "An `async def` handler computes or waits without `await`: others on its loop wait, and no "
    'timeout can stop it. Use `def`, `asyncio.to_thread` or `executor="process"`.',
)
LOOP_ANSWERS = Record(
    "perdure.worker",
    INFO,
    "the handlers' loop answers again; it was blocked for %(seconds)s s by %(blocked_by)s",
    ("blocked_by", "seconds"),
    "The end of that.",
)
WORKER_READY = Record(
    "perdure.process", INFO, "worker ready", ("worker_id", "pid"), "It claims from now on."
)
WORKER_STOPS = Record("perdure.process", INFO, "worker stops", ("worker_id", "pid"), "It drains.")
WORKER_STOPPED = Record(
    "perdure.process", INFO, "worker stopped", ("worker_id", "pid"), "It holds nothing any more."
)
SCHEDULER_READY = Record(
    "perdure.process", INFO, "scheduler ready", ("pid",), "It makes what is due from now on."
)
SCHEDULER_STOPPED = Record(
    "perdure.process", INFO, "scheduler stopped", ("pid",), "Others go on, or a later one does."
)
METRICS_SERVED = Record(
    "perdure.process", INFO, "metrics at %(address)s", ("address",), "`--metrics` was given."
)
PROCESS_STARTED = Record(
    "perdure.pool", INFO, "worker process %(pid)s started", ("pid",), "One of `--processes`."
)
PROCESS_DIED = Record(
    "perdure.pool",
    WARNING,
    "worker process died (exit code %(code)s); another takes its place",
    ("code",),
    "Its runs are recovered when their leases expire.",
)
PROCESS_KILLED = Record(
    "perdure.pool",
    ERROR,
    "worker process %(pid)s killed: it had not ended",
    ("pid",),
    "Out of patience.",
)
SUSPECT_STARTED = Record(
    "perdure.isolation",
    WARNING,
    "run %(run_id)s executes alone in process %(pid)s",
    ("run_id", "pid"),
    "Workers died while they executed it.",
)
SUSPECT_ENDED = Record(
    "perdure.isolation",
    INFO,
    "the process of run %(run_id)s ended with exit code %(code)s",
    ("run_id", "code"),
    "A negative code is a signal: then the run has killed its process.",
)
SUSPECT_NOT_STARTED = Record(
    "perdure.isolation",
    ERROR,
    "run %(run_id)s gets no process of its own: %(error)s",
    ("run_id", "error"),
    "It is tried again with the next heartbeat.",
)
HINT_NOT_TAKEN = Record(
    "perdure.hints", ERROR, "a hint could not be taken", (), "A bug in a listener; polling helps."
)
HINT_LOST = Record(
    "perdure.hints", DEBUG, "hint lost: %(error)s", _ERROR, "The next poll finds the work."
)
HINT_NOT_SENT = Record("perdure.hints", ERROR, "a hint could not be sent", (), "A bug; as above.")
REQUEST = Record(
    "perdure.requests",
    INFO,
    "%(method)s %(route)s %(status)s",
    ("method", "route", "status", "seconds", "request_id", "key_id"),
    "The API server has answered. The route is that of the table, without ids.",
)
REQUEST_FAILED = Record(
    "perdure.server",
    ERROR,
    "request %(request_id)s failed",
    ("request_id",),
    "A bug; it was answered with 500.",
)
REQUEST_STORAGE_ERROR = Record(
    "perdure.server",
    WARNING,
    "request %(request_id)s: %(error)s",
    ("request_id", "error"),
    "The storage could not do, or refused, what a request needed. The response names the request "
    "id only.",
)
SERVER_READY = Record(
    "perdure.server", INFO, "server ready at %(address)s", ("address", "pid"), "It takes requests."
)
SERVER_OPEN = Record(
    "perdure.server",
    WARNING,
    "there are no keys: whoever can log in on this machine may do everything",
    (),
    "Until the first `perdure keys create`; or start it with --require-keys.",
)
SERVER_CONFINED = Record(
    "perdure.server",
    WARNING,
    "room for %(connections)s connections only: this process may open %(files)s files",
    ("connections", "files"),
    "More are told to come again later. Allow it more files: `ulimit -n`, `LimitNOFILE=`.",
)
SERVER_STOPPED = Record("perdure.server", INFO, "server stopped", ("pid",), "Nothing is open.")
STREAM_DROPPED = Record(
    "perdure.server",
    INFO,
    "a stream was dropped: its client is too slow",
    ("request_id",),
    "It may come back with the last id that it has seen.",
)
NO_HINTS = Record(
    "perdure.hints", INFO, "no hints for now: %(error)s", _ERROR, "Polling alone, until then."
)
HINTS_FAILED = Record(
    "perdure.hints", ERROR, "hints could not be heard", (), "A bug; reconnecting."
)
POOLER_IN_THE_WAY = Record(
    "perdure.hints",
    WARNING,
    "a pooler keeps hints away: polling alone, unless you give listen_url",
    (),
    "LISTEN needs a connection of its own.",
)
NOT_INTRODUCED = Record(
    "perdure.app",
    WARNING,
    "%(what)s that code states were not told to the server: %(error)s",
    ("what", "error"),
    "The API key does not allow it: open the app beside the database, or with a key that does.",
)
UNREADABLE_RUN = Record(
    "perdure.storage",
    ERROR,
    "unreadable run %(run_id)s: %(why)s",
    ("run_id", "why"),
    "Parked; never tried in a loop.",
)
CLOCK_SET_BACK = Record(
    "perdure.storage",
    WARNING,
    "this machine's clock is %(lead)s behind the database's time",
    ("lead",),
    "The clock was set back, or was ahead before. Runs and leases follow the database's time, "
    "which never runs backwards; schedules follow the machine's clock. Correct the clock.",
)
UNREADABLE_RECORD = Record(
    "perdure.catalogue",
    ERROR,
    "cannot read %(record)s: %(error)s",
    ("record", "error"),
    "Stored by newer code, or damaged. It is left out until it is stored again.",
)
VARIABLE_MISSPELT = Record(
    "perdure.app",
    WARNING,
    "%(variable)s is no setting; did you mean %(meant)s?",
    ("variable", "meant"),
    "A variable of the environment that begins like ours. It has no effect.",
)
LIMIT_UNREADABLE = Record(
    "perdure.storage",
    ERROR,
    "nobody can read who set the limit of %(limit)s: %(error)s",
    ("limit", "error"),
    "Stored by newer code, or damaged. It holds as it was; only an operator can change it.",
)
_WEBHOOK = ("webhook", "environment", "why")
WEBHOOK_FAILING = Record(
    "perdure.webhooks",
    WARNING,
    "webhook %(webhook)s failed: %(why)s",
    (*_WEBHOOK, "failures", "next_try_at"),
    "Tried again then; what it would have told waits in its order.",
)
WEBHOOK_DISABLED = Record(
    "perdure.webhooks",
    ERROR,
    "webhook %(webhook)s is disabled: %(why)s",
    _WEBHOOK,
    "Nothing is sent until `perdure webhooks resume` or `replay`; its place is kept.",
)
WEBHOOK_WELL = Record(
    "perdure.webhooks",
    INFO,
    "webhook %(webhook)s works again",
    ("webhook", "environment", "failures"),
    "After so many failures in a row.",
)
WEBHOOK_GAP = Record(
    "perdure.webhooks",
    ERROR,
    "changes were pruned before webhook %(webhook)s was told of them",
    ("webhook", "environment", "after", "until"),
    "It had fallen behind for longer than runs are kept. Some may have concerned it.",
)
QUARANTINED = Record(
    "perdure.quarantine",
    ERROR,
    "%(kind)s %(id)s cannot be processed and is skipped: %(error)s",
    ("kind", "id", "error"),
    "Damaged, or written by newer code. Others continue; logged once an hour for each.",
)
WEBHOOKS_NOT_SENT = Record(
    "perdure.webhooks",
    ERROR,
    "webhooks are not sent by this process: %(why)s",
    ("why",),
    "Other processes may send them.",
)
_LINES = ("lines", "error")
LINES_NOT_STORED = Record(
    "perdure.logs", WARNING, "%(lines)s log lines not stored: %(error)s", _LINES, "Tried again."
)
LINES_DROPPED = Record(
    "perdure.logs", ERROR, "%(lines)s log lines dropped: %(error)s", _LINES, "Storage refused."
)
SPAN_FAILED = Record(
    "perdure.tracing",
    WARNING,
    "tracing failed at %(call)s: %(error)s",
    ("call", "error"),
    "Runs are not affected.",
)
ASKED_TO_STOP = Record(
    _TASK, INFO, "asked to stop", ("reason",), "The first rung; in the run's log."
)
PRESSED_TO_STOP = Record(
    _TASK, INFO, "pressed to stop", ("reason",), "The second rung; in the run's log."
)
LOG_IS_LONG = Record(
    _TASK,
    WARNING,
    "that is enough for a log; how it ends is in the output",
    ("lines",),
    "A command wrote more lines than are kept; in the run's log.",
)
PROGRESS = Record(
    _TASK, INFO, "progress", ("fraction", "progress"), "`ctx.progress`: said, and kept as such."
)

RECORDS: tuple[Record, ...] = tuple(
    value
    for value in (*globals().values(), *vars(schedule_records).values())
    if isinstance(value, Record)
)
