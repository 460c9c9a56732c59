"""A storage whose answers are counted: the one seam through which every fact passes.

What is committed by whatever part of this process, client, worker, maintenance or operator, is
counted here and nowhere else.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeGuard, cast

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
from perdure.core.run import Run
from perdure.storage.protocol import Claimed, Committed, Existing, Outcome, Renewed, Storage
from perdure.telemetry import table
from perdure.telemetry.registry import Labels, Registry

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

    def committed(self, outcomes: Sequence[Outcome], batch: Sequence[Commit]) -> None:
        if batch:
            self._commit_size.observe(len(batch))
            self._count(list(zip(batch, outcomes, strict=True)))

    def claimed(self, answer: Claimed, request: object, outcomes: Sequence[Commit] = ()) -> None:
        self._claims.add()
        self.committed(answer.outcomes, outcomes)
        if not answer.runs:
            return
        self._claim_size.observe(len(answer.runs))
        self._started.add_all(Tally(_of(run) for run in answer.runs if _is_started(run)))
        self._queue_wait.observe_all(((run.queue,), _waited(run)) for run in answer.runs)

    def renewed(self, answer: Renewed, renewals: object) -> None:
        self._renewed.add(len(answer.renewed))

    def _count(self, pairs: Sequence[tuple[Commit, Outcome]]) -> None:
        new = [pair for pair in pairs if pair[0].expected_sequence == 0]
        if new:
            self._triggered.add_all(Tally((*_of(c.run), _answer(o)) for c, o in new))
        stored = [commit for commit, outcome in pairs if isinstance(outcome, Committed)]
        if len(new) < len(pairs):
            self._count_steps(stored)
        ends = [commit.run for commit in stored if commit.run.finished_at is not None]
        if ends:
            self._finished.add_all(Tally((run.task, run.queue, run.status.value) for run in ends))

    def _count_steps(self, stored: Sequence[Commit]) -> None:
        """What happened to runs that were there before."""
        self._recovered.add(sum(commit.needs_expiry for commit in stored))
        ended: list[Labels] = []
        seconds: list[tuple[Labels, float]] = []
        for commit in stored:
            run = commit.run
            for event in commit.events:
                if isinstance(event, RunStarted):
                    self._started.add(1, _of(run))
                elif (outcome := _OUTCOMES.get(event.__class__)) and _ends_attempt(event):
                    kind = "" if run.failure is None else run.failure.kind.value
                    ended.append((run.task, run.queue, outcome, kind))
                    trace = event.execution_trace
                    if trace and "total_ms" in trace:
                        seconds.append(((run.task, run.queue), trace["total_ms"] / 1000))
        if ended:
            self._attempts.add_all(Tally(ended))
            self._attempt_seconds.observe_all(seconds)


def _of(run: Run) -> Labels:
    return run.task, run.queue


def _is_started(run: Run) -> bool:
    return run.lease is not None and run.lease.attempt is not None


def _ends_attempt(event: Event) -> TypeGuard[Completion | RunCancelled]:
    """A cancellation says nothing about attempts, but for where their time went."""
    if isinstance(event, Completion):
        return event.attempt is not None
    return isinstance(event, RunCancelled) and event.execution_trace is not None


def _waited(run: Run) -> float:
    assert run.lease is not None
    return max((run.lease.claimed_at - (run.run_at or run.created_at)).total_seconds(), 0.0)


def _answer(outcome: Outcome) -> str:
    if isinstance(outcome, Committed):
        return "created"
    return "existing" if isinstance(outcome, Existing) else "refused"
