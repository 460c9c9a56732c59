"""A storage whose answers are counted: the one seam through which every fact passes.

What is committed by whatever part of this process, client, worker, maintenance or operator, is
counted here and nowhere else.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from perdure.core.commit import Commit
from perdure.core.events import (
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
from perdure.core.run import Lease, Run
from perdure.storage.protocol import Claimed, Committed, Existing, Outcome, Renewed, Storage
from perdure.storage.schedule_protocol import StepOutcome, Stepped
from perdure.telemetry import table
from perdure.telemetry.registry import Labels, Registry

if TYPE_CHECKING:
    from perdure.core.schedule.step import ScheduleStep

Call = Callable[..., Awaitable[Any]]

_OUTCOMES: dict[type, str] = {
    RunSucceeded: "succeeded",
    RunFailed: "failed",
    RunDeadLettered: "failed",
    RunRetryScheduled: "retrying",
    RunReleased: "released",
    RunCancelled: "cancelled",
}


def metered(storage: Storage, registry: Registry) -> Storage:
    """The same storage, counted and timed."""
    return cast(Storage, _Metered(storage, registry))


class _Metered:
    def __init__(self, storage: Storage, registry: Registry) -> None:
        self._storage = storage
        self._facts = Facts(registry)
        self._seconds = registry.histogram(table.STORAGE_SECONDS)
        self._errors = registry.counter(table.STORAGE_ERRORS)
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
        self._triggered = registry.counter(table.RUNS_TRIGGERED)
        self._finished = registry.counter(table.RUNS_FINISHED)
        self._started = registry.counter(table.ATTEMPTS_STARTED)
        self._attempts = registry.counter(table.ATTEMPTS_FINISHED)
        self._recovered = registry.counter(table.LEASES_RECOVERED)
        self._renewed = registry.counter(table.LEASES_RENEWED)
        self._claims = registry.counter(table.CLAIMS)
        self._attempt_seconds = registry.histogram(table.ATTEMPT_SECONDS)
        self._queue_wait = registry.histogram(table.QUEUE_WAIT_SECONDS)
        self._claim_size = registry.histogram(table.CLAIM_SIZE)
        self._commit_size = registry.histogram(table.COMMIT_SIZE)

    def committed(
        self, outcomes: Sequence[Outcome], batch: Sequence[Commit], telling: object = ()
    ) -> None:
        if not batch:
            return
        self._commit_size.observe(len(batch))
        steps: list[Commit] = []
        asked: list[Labels] = []
        for commit, outcome in zip(batch, outcomes, strict=True):
            if commit.expected_sequence == 0:
                asked.append((commit.run.task, commit.run.queue, _answer(outcome)))
            if outcome.__class__ is Committed:
                steps.append(commit)
        if asked:
            self._triggered.add_all(Tally(asked))
        if len(asked) < len(batch):
            self._count_attempts(steps)
        ended = [_ended(c.run) for c in steps if c.run.finished_at is not None]
        if ended:
            self._finished.add_all(Tally(ended))

    def claimed(self, answer: Claimed, request: object, outcomes: Sequence[Commit] = ()) -> None:
        self._claims.add()
        self.committed(answer.outcomes, outcomes)
        if answer.runs:
            self._claim_size.observe(len(answer.runs))
            leased = [(run, run.lease) for run in answer.runs if run.lease is not None]
            begun = [_of(run) for run, lease in leased if lease.attempt is not None]
            self._started.add_all(Tally(begun))
            self._queue_wait.observe_all(
                [((run.queue,), _waited(run, lease)) for run, lease in leased]
            )

    def stepped(self, outcomes: Sequence[StepOutcome], steps: Sequence[ScheduleStep]) -> None:
        for step, outcome in zip(steps, outcomes, strict=True):
            if isinstance(outcome, Stepped):
                self.committed(outcome.outcomes, step.commits)

    def renewed(self, answer: Renewed, renewals: object) -> None:
        self._renewed.add(len(answer.renewed))

    def _count_attempts(self, steps: Sequence[Commit]) -> None:
        """Of runs that were there before. Every run comes along here: each line counts."""
        ended: list[Labels] = []
        seconds: list[tuple[Labels, float]] = []
        recovered = 0
        for commit in steps:
            run, of = commit.run, (commit.run.task, commit.run.queue)
            recovered += commit.needs_expiry
            for event in commit.events:
                outcome = _OUTCOMES.get(event.__class__)
                if outcome is not None and _ends_attempt(event):
                    failure, trace = run.failure, event.execution_trace
                    ended.append((*of, outcome, "" if failure is None else failure.kind.value))
                    took = trace.get("total_ms") if trace else None
                    if isinstance(took, int | float):  # a worker far away may say what it likes
                        seconds.append((of, took / 1000))
                elif event.__class__ is RunStarted:
                    self._started.add(1, of)
        self._recovered.add(recovered)
        if ended:
            self._attempts.add_all(Tally(ended))
            self._attempt_seconds.observe_all(seconds)


def _of(run: Run) -> Labels:
    return run.task, run.queue


def _ended(run: Run) -> Labels:
    return run.task, run.queue, run.status.value


def _ends_attempt(event: Event) -> TypeGuard[Completion | RunCancelled]:
    """A cancellation says nothing about attempts, but for where their time went."""
    if event.__class__ is RunCancelled:
        return event.execution_trace is not None
    return isinstance(event, Completion) and event.attempt is not None


def _waited(run: Run, lease: Lease) -> float:
    return max((lease.claimed_at - (run.run_at or run.created_at)).total_seconds(), 0.0)


def _answer(outcome: Outcome) -> str:
    if isinstance(outcome, Committed):
        return "created"
    return "existing" if isinstance(outcome, Existing) else "refused"
