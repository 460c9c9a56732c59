"""A storage whose answers are counted: the one seam through which every fact passes.

What is committed by whatever part of this process, client, worker, maintenance or operator, is
counted here and nowhere else.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from perdure.core.run.commit import Commit
from perdure.core.run.events import (
    Completion,
    Event,
    RunCancelled,
    RunDeadLettered,
    RunFailed,
    RunReleased,
    RunRetryScheduled,
    RunStarted,
    RunSucceeded,
)
from perdure.core.run.failure import FailureKind
from perdure.core.run.run import Run
from perdure.storage.contract.runs import Claimed, Committed, Existing, Outcome, Renewed
from perdure.storage.contract.schedules import StepOutcome, Stepped
from perdure.storage.contract.storage import Storage
from perdure.telemetry import metrics
from perdure.telemetry.registry import Labels, Registry

if TYPE_CHECKING:
    from perdure.core.schedule.transition import ScheduleStep

Call = Callable[..., Awaitable[Any]]

_OUTCOMES: dict[type, str] = {
    RunSucceeded: "succeeded",
    RunFailed: "failed",
    RunDeadLettered: "failed",
    RunRetryScheduled: "retrying",
    RunReleased: "released",
    RunCancelled: "cancelled",
}
_LOST = "lost", FailureKind.CRASH.value
"""Outcome and kind of failure of an attempt that its worker's death ended, at no cost."""
_NUMBERS = (float, int)


def metered(storage: Storage, registry: Registry) -> Storage:
    """The same storage, counted and timed."""
    return cast(Storage, _Metered(storage, registry))


class _Metered:
    def __init__(self, storage: Storage, registry: Registry) -> None:
        self._storage = storage
        self._facts = Facts(registry)
        self._seconds = registry.histogram(metrics.STORAGE_SECONDS)
        self._errors = registry.counter(metrics.STORAGE_ERRORS)
        self._after: dict[str, Callable[..., None]] = {
            "commit": self._facts.committed,
            "claim": self._facts.claimed,
            "renew": self._facts.renewed,
            "put_schedules": self._facts.stepped,
        }

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if name.startswith("_") or not inspect.iscoroutinefunction(found):
            return found
        timed = self._timed(name, found)
        self.__dict__[name] = timed
        return timed

    def _timed(self, name: str, call: Call) -> Call:
        labels, after = (name,), self._after.get(name)

        async def timed(*arguments: Any, **options: Any) -> Any:
            time = asyncio.get_running_loop().time
            began = time()
            try:
                answer = await call(*arguments, **options)
            except Exception as error:
                self._errors.add(1, (name, type(error).__name__))
                raise
            finally:
                self._seconds.observe(time() - began, labels)
            if after is not None:
                after(answer, *arguments, **options)
            return answer

        return timed


class Facts:
    """Counts what storage has answered."""

    def __init__(self, registry: Registry) -> None:
        self._triggered = registry.counter(metrics.RUNS_TRIGGERED)
        self._finished = registry.counter(metrics.RUNS_FINISHED)
        self._started = registry.counter(metrics.ATTEMPTS_STARTED)
        self._attempts = registry.counter(metrics.ATTEMPTS_FINISHED)
        self._recovered = registry.counter(metrics.LEASES_RECOVERED)
        self._renewed = registry.counter(metrics.LEASES_RENEWED)
        self._claims = registry.counter(metrics.CLAIMS)
        self._attempt_seconds = registry.histogram(metrics.ATTEMPT_SECONDS)
        self._queue_wait = registry.histogram(metrics.QUEUE_WAIT_SECONDS)
        self._claim_size = registry.histogram(metrics.CLAIM_SIZE)
        self._commit_size = registry.histogram(metrics.COMMIT_SIZE)
        self._occurrences = registry.counter(metrics.SCHEDULE_OCCURRENCES)

    def committed(
        self, outcomes: Sequence[Outcome], batch: Sequence[Commit], telling: object = ()
    ) -> None:
        if not batch:
            return
        self._commit_size.observe(len(batch))
        asked: list[Labels] = []
        steps: list[Commit] = []
        for commit, outcome in zip(batch, outcomes, strict=True):
            if commit.expected_sequence == 0:
                asked.append((commit.run.task, commit.run.queue, _answer(outcome)))
            if outcome.__class__ is Committed:
                steps.append(commit)
        self._triggered.count(asked)
        self._count_steps(steps)

    def claimed(self, answer: Claimed, request: object, outcomes: Sequence[Commit] = ()) -> None:
        self.committed(answer.outcomes, outcomes)
        self.claimed_runs(answer.runs)

    def claimed_runs(self, runs: Sequence[Run]) -> None:
        self._claims.add()
        if not runs:
            return
        self._claim_size.observe(len(runs))
        begun: list[Labels] = []
        waits: defaultdict[str, list[float]] = defaultdict(list)
        for run in runs:
            lease = run.lease
            if lease is not None:
                waited = (lease.claimed_at - (run.run_at or run.created_at)).total_seconds()
                waits[run.queue].append(waited if waited > 0 else 0.0)
                if lease.attempt is not None:
                    begun.append((run.task, run.queue))
        self._started.count(begun)
        for queue, seconds in waits.items():
            self._queue_wait.observe_all(seconds, (queue,))

    def stepped(self, outcomes: Sequence[StepOutcome], steps: Sequence[ScheduleStep]) -> None:
        for step, outcome in zip(steps, outcomes, strict=True):
            if isinstance(outcome, Stepped):
                self.committed(outcome.outcomes, step.commits)
                self._count_occurrences(step, outcome)

    def _count_occurrences(self, step: ScheduleStep, stored: Stepped) -> None:
        """A skipped time has a run that has ended, or is one of many in a span."""
        pairs = zip(step.commits, stored.outcomes, strict=True)
        durable = [commit for commit, outcome in pairs if isinstance(outcome, Committed)]
        created = [commit.run for commit in durable if commit.expected_sequence == 0]
        skipped = sum(run.is_terminal for run in created)
        self._occurrences.add(len(created) - skipped, ("run",))
        self._occurrences.add(skipped + sum(span.count for span in step.spans), ("skipped",))

    def renewed(self, answer: Renewed, renewals: object) -> None:
        self._renewed.add(len(answer.renewed))

    def _count_steps(self, steps: Sequence[Commit]) -> None:
        """Every run comes along here several times in its life: each line counts."""
        finished: list[Labels] = []
        attempts: list[Labels] = []
        seconds: defaultdict[Labels, list[float]] = defaultdict(list)
        recovered = 0
        for commit in steps:
            run = commit.run
            task, queue = of = run.task, run.queue
            if run.finished_at is not None:
                finished.append((task, queue, run.status._value_))
            recovered += commit.needs_expiry
            if commit.is_death:
                attempts.append((task, queue, *_LOST))
            for event in commit.events:
                outcome = _OUTCOMES.get(event.__class__)
                if outcome is not None and _ends_attempt(event):
                    kind = "" if run.failure is None else run.failure.kind._value_
                    attempts.append((task, queue, outcome, kind))
                    took = event.execution_trace and event.execution_trace.get("total_ms")
                    if isinstance(took, _NUMBERS):  # a worker far away may say what it likes
                        seconds[of].append(took / 1000)
                elif event.__class__ is RunStarted:
                    self._started.add(1, of)
        self._finished.count(finished)
        self._attempts.count(attempts)
        self._recovered.add(recovered)
        for labels, values in seconds.items():
            self._attempt_seconds.observe_all(values, labels)


def _ends_attempt(event: Event) -> TypeGuard[Completion | RunCancelled]:
    """A cancellation says nothing about attempts, but for where their time went."""
    if event.__class__ is RunCancelled:
        return event.execution_trace is not None
    return isinstance(event, Completion) and event.attempt is not None


def _answer(outcome: Outcome) -> str:
    if isinstance(outcome, Committed):
        return "created"
    return "existing" if isinstance(outcome, Existing) else "refused"
