"""What operators do: look, cancel, retry, rerun, pause, resume, reschedule, discard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from perdure.core.alias import resolve_status
from perdure.core.attempts import Attempt, derive_attempts
from perdure.core.decide import (
    decide_cancel,
    decide_pause,
    decide_rerun,
    decide_reschedule,
    decide_resume,
    decide_retry,
    decide_wake,
)
from perdure.core.effects import (
    DeadLetter,
    DeadLetterClosed,
    DeadLetterStatus,
    KeyKind,
    close_dead_letter,
    freed_idempotency_key,
)
from perdure.core.events import Event
from perdure.core.lifecycle import Status
from perdure.core.run import Actor, ActorType, Run
from perdure.engine import hints, write
from perdure.engine.catalogue import WorkerEntry, known_workers
from perdure.engine.handle import RunHandle
from perdure.engine.reading_logs import Bundle, follow_logs, read_bundle, read_logs
from perdure.errors import NotAllowed, PerdureError, SingletonConflict
from perdure.storage.protocol import Committed, Existing, Outcome, Page, RecordedEvent, RunFilter
from perdure.storage.run_log import LogLine, Progress

if TYPE_CHECKING:
    from perdure.engine.app import App

OPERATOR = Actor(ActorType.OPERATOR)


class Runs:
    """`app.runs`: look at runs and steer them. `by` names the operator."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def get(self, run_id: str) -> Run:
        """Raises RunNotFound."""
        return await write.load(self._app.storage, run_id)

    def handle(self, run_id: str) -> RunHandle[Any]:
        """A run to wait for, known by its id only, e.g. from another process."""
        return RunHandle(self._app, run_id, None, created=False)

    async def list(
        self,
        *,
        status: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **filters: Any,
    ) -> Page:
        """A page, newest first. `status` may be a seed system's word; see `RunFilter`."""
        filters.setdefault("environment", self._app.environment)
        wanted = None if status is None else resolve_status(status)
        return await self._app.storage.find(
            RunFilter(status=wanted, **filters), limit=limit, cursor=cursor
        )

    async def events(self, run_id: str, *, after: int = 0) -> Sequence[RecordedEvent]:
        return await self._app.storage.events(run_id, after=after)

    async def attempts(self, run_id: str) -> Sequence[Attempt]:
        return derive_attempts([recorded.event for recorded in await self.events(run_id)])

    async def logs(
        self, run_id: str, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[LogLine]:
        """What its handlers said, oldest first, `after` a line's `cursor`."""
        return await read_logs(self._app, run_id, after, limit)

    def follow(self, run_id: str, *, after: str | None = None) -> AsyncIterator[LogLine]:
        """The same as it is said, until the run has ended: `async for line in …`."""
        return follow_logs(self._app, run_id, after)

    async def progress(self, run_id: str) -> Progress | None:
        """How far its latest attempt says it is."""
        return (await self._app.storage.progress([run_id])).get(run_id)

    async def bundle(self, run_id: str) -> Bundle:
        """Everything about it, for whoever is to help: plain data, without secrets."""
        return await read_bundle(self._app, run_id)

    async def cancel(self, run_id: str, reason: str | None = None, by: Actor = OPERATOR) -> Run:
        """End it at once, or ask its owner to stop. Asking twice changes nothing."""
        run = await self._advance(run_id, lambda run, now: decide_cancel(run, by, now, reason))
        topics = [hints.done(run.environment)]
        if run.lease is not None:
            topics.append(hints.cancel(run.lease.worker_id))
        self._app.hints.publish(topics)
        return run

    async def pause(self, run_id: str, reason: str | None = None, by: Actor = OPERATOR) -> Run:
        return await self._advance(run_id, lambda run, now: decide_pause(run, by, now, reason))

    async def resume(self, run_id: str, by: Actor = OPERATOR) -> Run:
        run = await self._advance(run_id, lambda run, now: decide_resume(run, by, now))
        return self._announce(run)

    async def reschedule(self, run_id: str, by: Actor = OPERATOR, **changes: Any) -> Run:
        """Another `run_at`, `priority` or `queue`."""
        run = await self._advance(
            run_id, lambda run, now: decide_reschedule(run, by, now, **changes)
        )
        return self._announce(run)

    async def wake(self, run_id: str, by: Actor = OPERATOR) -> Run:
        """What a waiting run waited for is there."""
        run = await self._advance(run_id, lambda run, now: decide_wake(run, by, now))
        return self._announce(run)

    async def reset_idempotency_key(self, run_id: str) -> Run:
        """Let the next trigger with this run's idempotency key make a new run."""
        run = await self.get(run_id)
        await self._app.storage.free_keys(run.id, freed_idempotency_key(run))
        return run

    async def rerun(
        self, run_id: str, reason: str | None = None, by: Actor = OPERATOR, **arguments: Any
    ) -> RunHandle[Any]:
        """A new run like this ended one; with `arguments`, with another payload."""
        run = await self.get(run_id)
        return await self._again(run, decide_rerun, reason, by, arguments, None)

    async def retry(
        self, run_id: str, reason: str | None = None, by: Actor = OPERATOR, **arguments: Any
    ) -> RunHandle[Any]:
        """A new try at a run that failed; its dead letter, if it has one, is closed with it."""
        run = await self.get(run_id)
        closed = None
        if run.status is Status.DEAD_LETTERED:
            now = self._app.time()
            closed = close_dead_letter(run, DeadLetterStatus.REPLAYED, by, now)
        return await self._again(run, decide_retry, reason, by, arguments, closed)

    async def _again(
        self,
        run: Run,
        decide: Callable[..., Sequence[Event]],
        reason: str | None,
        by: Actor,
        arguments: dict[str, Any],
        closed: DeadLetterClosed | None,
    ) -> RunHandle[Any]:
        task = self._app.tasks.get(run.task)
        payload = run.payload_json
        if task is not None:
            payload = task.signature.encode(arguments or task.signature.decode(payload))
        now = self._app.time()
        new_id = self._app.ids.run_id(now)
        events = decide(run, new_id, by, now, reason=reason, payload_json=payload)
        if closed is not None:
            closed = _linked(closed, new_id)
        outcome = await write.create(
            self._app.storage, events, self._app.ids, dead_letter_closed=closed
        )
        _refuse_taken(outcome)
        self._app.hints.publish([hints.work(run.environment, run.queue)])
        return RunHandle(self._app, new_id, task.signature if task else None, created=True)

    async def _advance(
        self, run_id: str, decide: Callable[[Run, datetime], Sequence[Event]]
    ) -> Run:
        app = self._app
        return await write.advance(app.storage, run_id, decide, app.time(), app.ids)

    def _announce(self, run: Run) -> Run:
        self._app.hints.publish([hints.work(run.environment, run.queue)])
        return run


def _linked(closed: DeadLetterClosed, replay_run_id: str) -> DeadLetterClosed:
    return DeadLetterClosed(
        run_id=closed.run_id,
        status=closed.status,
        closed_at=closed.closed_at,
        closed_by=closed.closed_by,
        replay_run_id=replay_run_id,
    )


def _refuse_taken(outcome: Outcome) -> None:
    if isinstance(outcome, Existing) and outcome.key.kind is KeyKind.SINGLETON:
        raise SingletonConflict(outcome.key.name, outcome.run_id)
    if not isinstance(outcome, Committed):
        raise PerdureError(f"unexpected: {outcome}")


class DeadLetters:
    """`app.dead_letters`: runs that an operator has to decide about."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def list(self, *, status: str | None = "open", limit: int = 100) -> Sequence[DeadLetter]:
        wanted = None if status is None else DeadLetterStatus(status)
        return await self._app.storage.dead_letters(
            self._app.environment, status=wanted, limit=limit
        )

    async def replay(
        self, run_id: str, reason: str | None = None, by: Actor = OPERATOR, **arguments: Any
    ) -> RunHandle[Any]:
        """Try it again as a new run. Two operators make one run."""
        return await self._app.runs.retry(run_id, reason, by, **arguments)

    async def discard(self, run_id: str, by: Actor = OPERATOR) -> None:
        """Raises NotAllowed if it is not open any more."""
        run = await self._app.runs.get(run_id)
        closed = close_dead_letter(run, DeadLetterStatus.DISCARDED, by, self._app.time())
        if not await self._app.storage.close_dead_letter(closed):
            raise NotAllowed(run_id, "discard", run.status, "it has no open dead letter")


class Workers:
    """`app.workers`: who works."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def list(self) -> Sequence[WorkerEntry]:
        """Every worker that said so within the last hour; `seen_at` tells when it last did."""
        return await known_workers(self._app.storage, self._app.environment)

    async def leases(self, worker_id: str) -> Sequence[Run]:
        """The runs a worker holds."""
        return await self._app.storage.leases(worker_id)
