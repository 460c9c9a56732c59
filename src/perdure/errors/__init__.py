"""Every exception of Perdure.

::

    PerdureError
    ├── InvalidInput                bad value at the door; nothing was written
    │   ├── InvalidValue            a payload, result or key that JSON or a database cannot keep
    │   ├── PayloadTooLarge
    │   ├── InvalidPayload          arguments that do not fit the task's signature
    │   ├── ResultMismatch          a result that does not fit the task's return annotation
    │   ├── InvalidTask             a function that cannot be a task
    │   └── InvalidManifest         files that cannot be applied; each problem with its line
    ├── SequenceConflict            somebody else appended first: reload, decide again
    ├── InvariantViolation          an impossible event, projection or history
    ├── LeaseLost                   the token offered is not the run's
    ├── NotAllowed                  the run's status does not allow what was asked
    │   └── AlreadyRetried          the run has a retry or rerun already
    ├── TransactionError            `ctx.transaction()` cannot be, or was rolled back
    ├── UnreadableHistory           stored by newer code, or damaged
    ├── AppNotOpen                  the app was used outside `async with app:`
    ├── OutsideRun                  `current()` was called where no attempt runs
    ├── AppOnAnotherLoop            the app is open on another event loop
    ├── WouldBlockLoop              a `_sync` method that waits was called on a running loop
    ├── RunNotFound
    ├── TaskNotFound
    ├── QueueNotFound
    ├── ScheduleNotFound
    ├── ScheduleExists              there is one of that name already
    ├── ScheduleConflict            somebody else moved the schedule first: reload, decide again
    ├── KeyNotFound                 no API key has this id
    ├── WebhookNotFound
    ├── WorkerNotFound              no live worker has this id
    ├── IdempotencyConflict         the same key was used for another payload
    ├── SingletonConflict           another active run has the singleton key
    ├── RunUnsuccessful             the awaited run ended otherwise than by success
    │   ├── RunFailed               failed or dead-lettered
    │   ├── RunCancelled
    │   ├── RunExpired
    │   └── RunSkipped
    ├── ResultTimeout               the awaited run has not ended in time
    └── StorageError
        ├── StorageUnavailable      transient: retry
        ├── SchemaMismatch          the database has another schema version than this code
        ├── AccessRefused           the server does not let this API key do that
        └── StorageRefused          the database refused the statement for good

`SequenceConflict`, `InvariantViolation` and `LeaseLost` never stand in for one another.
All arguments go to `super().__init__`, so every error survives pickling.
"""

from __future__ import annotations

from perdure.errors.base import PerdureError
from perdure.errors.input import (
    InvalidInput,
    InvalidManifest,
    InvalidPayload,
    InvalidTask,
    InvalidValue,
    PayloadTooLarge,
    ResultMismatch,
)
from perdure.errors.result import (
    ResultTimeout,
    RunCancelled,
    RunExpired,
    RunFailed,
    RunSkipped,
    RunUnsuccessful,
)
from perdure.errors.storage import (
    AccessRefused,
    SchemaMismatch,
    StorageError,
    StorageRefused,
    StorageUnavailable,
)


class SequenceConflict(PerdureError):
    """Another writer appended to the run first. Reload it and decide again."""

    retryable = True

    def __init__(
        self, run_id: str, expected: int, actual: int | None, because: str | None = None
    ) -> None:
        super().__init__(run_id, expected, actual, because)
        self.run_id = run_id
        self.expected = expected
        self.actual = actual
        self.because = because

    def __str__(self) -> str:
        found = "does not exist" if self.actual is None else f"is at sequence {self.actual}"
        problem = self.because or f"it {found}, not at {self.expected}"
        return f"run {self.run_id}: {problem}; reload it and decide again"


class InvariantViolation(PerdureError):
    """An event, a projection or a history that the model does not allow."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(run_id, problem)
        self.run_id = run_id
        self.problem = problem

    def __str__(self) -> str:
        return f"run {self.run_id}: {self.problem}"


class LeaseLost(PerdureError):
    """The token offered is not the run's. Stop: somebody else may own the run now."""

    def __init__(
        self, run_id: str, problem: str = "the token offered does not hold its lease"
    ) -> None:
        super().__init__(run_id, problem)
        self.run_id = run_id
        self.problem = problem

    def __str__(self) -> str:
        return f"run {self.run_id}: {self.problem}"


class NotAllowed(PerdureError):
    """What was asked does not fit the run's status."""

    def __init__(self, run_id: str, action: str, status: str, advice: str) -> None:
        super().__init__(run_id, action, status, advice)
        self.run_id = run_id
        self.action = action
        self.status = status
        self.advice = advice

    def __str__(self) -> str:
        return f"cannot {self.action} run {self.run_id} while it is {self.status}: {self.advice}"


class AlreadyRetried(NotAllowed):
    """The run has a retry or rerun already; `again` makes another one."""

    def __init__(self, run_id: str, action: str, status: str, successor_id: str) -> None:
        advice = (
            f"{successor_id} is its retry or rerun already; look at that one, or use again=True"
        )
        super().__init__(run_id, action, status, advice)
        self.args = (run_id, action, status, successor_id)
        self.successor_id = successor_id


class TransactionError(PerdureError):
    """What `ctx.transaction()` cannot do, or why it was rolled back."""


class UnreadableHistory(PerdureError):
    """A stored event this code cannot read: newer than the code, or damaged."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what = what
        self.problem = problem

    def __str__(self) -> str:
        return f"cannot read {self.what}: {self.problem}"


class AppNotOpen(PerdureError):
    """The app was used before it was opened. Use it inside `async with app:`, or, from code that
    cannot await, through `app.sync` and the `_sync` methods, which open it by themselves."""

    def __str__(self) -> str:
        return (
            "open the app first: `async with app:`; code that cannot await uses app.sync.runs, "
            "task.trigger_sync and run.result_sync, which open it by themselves"
        )


class OutsideRun(PerdureError, LookupError):
    """There is no current run here. Only handlers, and what they call, have one."""

    def __str__(self) -> str:
        return "no attempt runs here; `current()` answers inside a handler only"


class AppOnAnotherLoop(PerdureError):
    """An app is open on one event loop at a time. On others use a twin of it, or the methods
    that end in `_sync`."""

    def __str__(self) -> str:
        advice = "use `async with app.twin() as app:`, or the methods that end in _sync"
        return f"the app is open on another event loop; here, {advice}"


class WouldBlockLoop(PerdureError):
    """A method for code that cannot await was called on a running event loop, which it would
    block, perhaps for ever: what it waits for may have to happen there."""

    def __init__(self, method: str, instead: str) -> None:
        super().__init__(method, instead)
        self.method = method
        self.instead = instead

    def __str__(self) -> str:
        return f"{self.method} would block the event loop it was called on; {self.instead}"


class RunNotFound(PerdureError):
    """There is no such run, or it was pruned."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"there is no run {self.run_id}; it may have been pruned"


class TaskNotFound(PerdureError):
    """No app or worker has ever registered this task. `similar`: a known, similar name."""

    def __init__(self, task: str, similar: str | None = None) -> None:
        super().__init__(task, similar)
        self.task = task
        self.similar = similar

    def __str__(self) -> str:
        hint = f"did you mean {self.similar}? If not, " if self.similar else ""
        return f"no task {self.task!r} is known; {hint}start an app or a worker that defines it"


class QueueNotFound(PerdureError):
    """No task, setting or run names this queue. `similar`: a known queue with a similar name."""

    def __init__(self, queue: str, similar: str | None = None) -> None:
        super().__init__(queue, similar)
        self.queue = queue
        self.similar = similar

    def __str__(self) -> str:
        hint = f"did you mean {self.similar}?" if self.similar else "app.queues.list() names them"
        return f"there is no queue {self.queue!r:.80}; {hint}"


class ScheduleNotFound(PerdureError):
    """There is no such schedule, or it was deleted."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(schedule_id)
        self.schedule_id = schedule_id

    def __str__(self) -> str:
        return f"there is no schedule {self.schedule_id!r}; app.schedules.list() names them all"


class ScheduleExists(PerdureError):
    """There is a schedule of that name already."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(schedule_id)
        self.schedule_id = schedule_id

    def __str__(self) -> str:
        return f"there is a schedule {self.schedule_id!r} already; replace it, or use another name"


class ScheduleConflict(PerdureError):
    """Another writer moved the schedule, or one of its runs, first. Decide again."""

    retryable = True

    def __init__(self, schedule_id: str, because: str) -> None:
        super().__init__(schedule_id, because)
        self.schedule_id = schedule_id
        self.because = because

    def __str__(self) -> str:
        return f"schedule {self.schedule_id}: {self.because}; reload it and decide again"


class KeyNotFound(PerdureError):
    """No API key has this id."""

    def __init__(self, key_id: str) -> None:
        super().__init__(key_id)
        self.key_id = key_id

    def __str__(self) -> str:
        return f"there is no key {self.key_id!r:.80}; `perdure keys list` shows those there are"


class WebhookNotFound(PerdureError):
    """There is no such webhook, or it was deleted."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"there is no webhook {self.name!r:.80}; app.webhooks.list() names them all"


class WorkerNotFound(PerdureError):
    """There is no such worker, or it has ended, or was not heard of for the length of a lease."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(worker_id)
        self.worker_id = worker_id

    def __str__(self) -> str:
        name = f"{self.worker_id!r:.80}"
        return f"no live worker is called {name}; app.workers.list() names those there are"


class IdempotencyConflict(PerdureError):
    """The idempotency key belongs to a run with another payload."""

    def __init__(self, key: str, run_id: str) -> None:
        super().__init__(key, run_id)
        self.key = key
        self.run_id = run_id

    def __str__(self) -> str:
        advice = "use a key that names what is asked for"
        used = f"idempotency key {self.key!r} was used for run {self.run_id}"
        return f"{used} with another payload; {advice}"


class SingletonConflict(PerdureError):
    """Another active run of the task has the singleton key."""

    def __init__(self, key: str, run_id: str) -> None:
        super().__init__(key, run_id)
        self.key = key
        self.run_id = run_id

    def __str__(self) -> str:
        return f"run {self.run_id} is active under singleton key {self.key!r}; wait for its end"


__all__ = [
    "AccessRefused",
    "AlreadyRetried",
    "AppNotOpen",
    "AppOnAnotherLoop",
    "IdempotencyConflict",
    "InvalidInput",
    "InvalidManifest",
    "InvalidPayload",
    "InvalidTask",
    "InvalidValue",
    "InvariantViolation",
    "KeyNotFound",
    "LeaseLost",
    "NotAllowed",
    "OutsideRun",
    "PayloadTooLarge",
    "PerdureError",
    "QueueNotFound",
    "ResultMismatch",
    "ResultTimeout",
    "RunCancelled",
    "RunExpired",
    "RunFailed",
    "RunNotFound",
    "RunSkipped",
    "RunUnsuccessful",
    "ScheduleConflict",
    "ScheduleExists",
    "ScheduleNotFound",
    "SchemaMismatch",
    "SequenceConflict",
    "SingletonConflict",
    "StorageError",
    "StorageRefused",
    "StorageUnavailable",
    "TaskNotFound",
    "TransactionError",
    "UnreadableHistory",
    "WebhookNotFound",
    "WorkerNotFound",
    "WouldBlockLoop",
]
