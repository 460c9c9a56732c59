"""What operators do: look, cancel, retry, rerun, pause, resume, reschedule, discard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from perdure.core.audit_chain import AuditEntry
from perdure.core.decide import (
    decide_cancel,
    decide_pause,
    decide_rerun,
    decide_reschedule,
    decide_resume,
    decide_retry,
    decide_wake,
)
from perdure.core.run.attempts import Attempt, derive_attempts
from perdure.core.run.effects import (
    DeadLetter,
    DeadLetterStatus,
    close_dead_letter,
    freed_idempotency_key,
)
from perdure.core.run.events import Event, RecordedEvent
from perdure.core.run.run import Run
from perdure.engine.client.handle import RunHandle
from perdure.engine.client.handles import Handles
from perdure.engine.observability.log_reader import Bundle, follow_logs, read_bundle, read_logs
from perdure.engine.operators.audit_log import AuditLog
from perdure.engine.operators.filters import (
    LetterFilters,
    RunFilters,
    Statuses,
    make_filter,
    make_letter_filter,
    page_limit,
)
from perdure.engine.operators.reruns import Payload, RerunRequest, Tasks
from perdure.engine.operators.retries import Reruns
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime import write
from perdure.engine.runtime.input import (
    OPERATOR,
    By,
    actor_of,
    count,
    flag,
    reason_of,
    run_id_of,
    text,
)
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import OpenComponents, Runtime
from perdure.errors import (
    NotAllowed,
    RunNotFound,
    SequenceConflict,
)
from perdure.storage.contract.inspection import LetterPage
from perdure.storage.contract.logs import LogLine, Progress
from perdure.storage.contract.runs import Page

if TYPE_CHECKING:
    from perdure.core.explain.why import Why

AnyRun = str | RunHandle[Any] | Run
"""Which run: its id, its handle, or the run as it was seen."""

Decide = Callable[[Run, datetime], Sequence[Event]]

ExplainRun = Callable[[str], Awaitable["Why"]]
"""Explain where the run with this id is. Raise RunNotFound."""


@explain_methods
class Runs:
    """`app.runs`: look at runs and steer them. `by` names the operator. A run may be given by its
    id or by its handle; all raise RunNotFound. With `expected`, only a run that is still at this
    sequence is steered; another one raises SequenceConflict."""

    def __init__(
        self, runtime: Runtime, tasks: Tasks, handles: Handles, explain: ExplainRun
    ) -> None:
        self._components: OpenComponents = runtime
        self._runtime = runtime
        self._handles = handles
        self._explain = explain
        self._reruns = Reruns(runtime, tasks, handles)

    async def get(self, run: AnyRun) -> Run:
        """The run as it is now."""
        return await write.load(self._runtime.storage, run_id_of(run), self._runtime.environment)

    def handle(self, run: AnyRun) -> RunHandle[Any]:
        """A run to wait for, known by its id only, e.g. from another process."""
        return self._handles.make(run_id_of(run), created=False)

    async def list(
        self,
        *,
        status: Statuses | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **filters: Unpack[RunFilters],
    ) -> Page:
        """A page, newest first. `status` may be several, also words of the seed systems; see
        `RunFilters`."""
        words = {"status": status, **filters}
        wanted = make_filter(self._runtime.environment, words, self._runtime.now())
        if cursor is not None:
            text(cursor, "cursor")
        return await self._runtime.storage.find(wanted, limit=page_limit(limit), cursor=cursor)

    async def why(self, run: AnyRun) -> Why:
        """Why it does not run, or who runs it, or how it ended: every reason, as a sentence and
        as data."""
        return await self._explain(run_id_of(run))

    async def events(self, run: AnyRun, *, after: int = 0) -> Sequence[RecordedEvent]:
        """Its history, or what came after an event's sequence."""
        run_id = run_id_of(run)
        found = await self._runtime.storage.events(run_id, after=count(after, "after", least=0))
        if not found or found[0].event.environment != self._runtime.environment:
            await self.get(run_id)
        return found

    async def attempts(self, run: AnyRun) -> Sequence[Attempt]:
        return derive_attempts([recorded.event for recorded in await self.events(run)])

    async def logs(
        self, run: AnyRun, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[LogLine]:
        """What its handlers said, oldest first, `after` a line's `cursor`."""
        return await read_logs(self._runtime.storage, await self._own_id(run), after, limit)

    def follow(self, run: AnyRun, *, after: str | None = None) -> AsyncIterator[LogLine]:
        """The same as it is said, until the run has ended: `async for line in …`."""
        return follow_logs(self._components, self, run_id_of(run), after)

    async def progress(self, run: AnyRun) -> Progress | None:
        """How far its latest attempt says it is."""
        run_id = await self._own_id(run)
        return (await self._runtime.storage.progress([run_id])).get(run_id)

    async def bundle(self, run: AnyRun) -> Bundle:
        """Everything about it, for whoever is to help: plain data, without secrets."""
        return await read_bundle(self._runtime, await self.get(run))

    async def cancel(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        expected: int | None = None,
    ) -> Run:
        """End it at once, or ask its owner to stop. Asking twice changes nothing."""
        actor, why = actor_of(by), reason_of(reason)
        after = await self._advance(
            run, lambda run, now: decide_cancel(run, actor, now, why), expected
        )
        topics = [hints.done(after.environment)]
        if after.lease is not None:
            topics.append(hints.cancel(after.lease.worker_id))
        self._runtime.hints.publish(topics)
        return after

    async def pause(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        expected: int | None = None,
    ) -> Run:
        """Hold it back until it is resumed."""
        actor, why = actor_of(by), reason_of(reason)
        return await self._advance(
            run, lambda run, now: decide_pause(run, actor, now, why), expected
        )

    async def resume(self, run: AnyRun, *, by: By = OPERATOR, expected: int | None = None) -> Run:
        """Let a paused run go on."""
        actor = actor_of(by)
        after = await self._advance(run, lambda run, now: decide_resume(run, actor, now), expected)
        return self._announce(after)

    async def reschedule(
        self,
        run: AnyRun,
        *,
        by: By = OPERATOR,
        run_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        reason: str | None = None,
        expected: int | None = None,
    ) -> Run:
        """Another `run_at`, `priority` or `queue`."""
        actor, why = actor_of(by), reason_of(reason)

        def decide(run: Run, now: datetime) -> Sequence[Event]:
            return decide_reschedule(
                run, actor, now, run_at=run_at, priority=priority, queue=queue, reason=why
            )

        return self._announce(await self._advance(run, decide, expected))

    async def wake(self, run: AnyRun, *, by: By = OPERATOR) -> Run:
        """What a waiting run waited for is there."""
        actor = actor_of(by)
        after = await self._advance(run, lambda run, now: decide_wake(run, actor, now))
        return self._announce(after)

    async def reset_idempotency_key(
        self, run: AnyRun, reason: str | None = None, *, by: By = OPERATOR
    ) -> Run:
        """Let the next trigger with this run's idempotency key make a new run. That is nothing
        that happens to the run, so the audit log keeps it."""
        actor, why = actor_of(by), reason_of(reason)
        found = await self.get(run)
        await self._runtime.storage.free_keys(found.id, freed_idempotency_key(found))
        entry = AuditEntry(
            at=self._runtime.now(),
            actor=actor,
            action="reset_idempotency_key",
            target=found.id,
            reason=why,
            outcome="done",
        )
        await AuditLog(self._runtime).write(entry)
        return found

    async def rerun(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        payload: Payload | None = None,
        new_id: str | None = None,
    ) -> RunHandle[Any]:
        """A new run like this ended one; with `payload`, with other arguments. Asked for twice
        with one `new_id` it is made once."""
        actor, why = actor_of(by), reason_of(reason)
        found = await self.get(run)
        request = RerunRequest(decide=decide_rerun, actor=actor, reason=why, payload=payload)
        return await self._reruns.rerun(found, request, new_id)

    async def retry(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        payload: Payload | None = None,
        new_id: str | None = None,
        again: bool = False,
    ) -> RunHandle[Any]:
        """A new try at a run that failed; its dead letter, if it has one, is closed with it.

        Raises AlreadyRetried if it has a retry or rerun, unless `again`; NotAllowed if its dead
        letter was discarded.
        """
        actor, why, insists = actor_of(by), reason_of(reason), flag(again, "again")
        found = await self.get(run)
        request = RerunRequest(decide=decide_retry, actor=actor, reason=why, payload=payload)
        return await self._reruns.retry(found, request, new_id, again=insists)

    async def successors(self, runs: Sequence[AnyRun]) -> dict[str, str]:
        """By the ids of these runs, the first retry or rerun of those that have one."""
        ids = [run_id_of(run) for run in runs]
        return await self._runtime.storage.successors(self._runtime.environment, ids) if ids else {}

    async def _advance(self, run: AnyRun, decide: Decide, expected: int | None = None) -> Run:
        def decide_if_expected(run: Run, now: datetime) -> Sequence[Event]:
            if expected not in (None, run.sequence):
                raise SequenceConflict(run.id, expected or 0, run.sequence)
            return decide(run, now)

        runtime = self._runtime
        place = (runtime.storage, run_id_of(run), runtime.environment)
        return await write.advance(*place, decide_if_expected, runtime.now(), runtime.ids)

    async def _own_id(self, run: AnyRun) -> str:
        """Return the run's id. Raise RunNotFound, also for a run of another environment."""
        if isinstance(run, Run):
            return write.check_environment(run, self._runtime.environment).id
        return (await self.get(run)).id

    def _announce(self, run: Run) -> Run:
        self._runtime.hints.publish([hints.work(run.environment, run.queue)])
        return run


@explain_methods
class DeadLetters:
    """`app.dead_letters`: runs that an operator has to decide about."""

    def __init__(self, runtime: Runtime, runs: Runs) -> None:
        self._runtime = runtime
        self._runs = runs

    async def list(self, *, status: str | None = "open", limit: int = 100) -> Sequence[DeadLetter]:
        """Newest first. `status`: open, replayed, discarded; None for all."""
        return list((await self.page(status=status, limit=limit)).letters)

    async def page(
        self,
        *,
        status: str | None = "open",
        limit: int = 100,
        cursor: str | None = None,
        **filters: Unpack[LetterFilters],
    ) -> LetterPage:
        """The same with more filters, and a cursor to go on with."""
        return await find_letters(
            self._runtime, status=status, limit=limit, cursor=cursor, **filters
        )

    async def get(self, run: AnyRun) -> DeadLetter:
        """Raises RunNotFound, also if the run never had one."""
        letter = await self._runtime.storage.dead_letter(run_id_of(run))
        if letter is None or letter.environment != self._runtime.environment:
            raise RunNotFound(run_id_of(run))
        return letter

    async def replay(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        payload: Payload | None = None,
        new_id: str | None = None,
    ) -> RunHandle[Any]:
        """Try it again as a new run. Two operators make one run: the second gets NotAllowed,
        which names it."""
        return await self._runs.retry(run, reason, by=by, payload=payload, new_id=new_id)

    async def discard(self, run: AnyRun, reason: str | None = None, *, by: By = OPERATOR) -> None:
        """Nobody tries it again. Raises NotAllowed if it is not open any more."""
        actor, why = actor_of(by), reason_of(reason)
        found, now = await self._runs.get(run), self._runtime.now()
        closed = close_dead_letter(found, DeadLetterStatus.DISCARDED, actor, now, reason=why)
        if not await self._runtime.storage.close_dead_letters([closed]):
            raise NotAllowed(found.id, "discard", found.status, "it has no open dead letter")


async def find_letters(
    runtime: Runtime,
    *,
    status: str | None = "open",
    limit: int = 100,
    cursor: str | None = None,
    **filters: Unpack[LetterFilters],
) -> LetterPage:
    wanted = make_letter_filter(runtime.environment, status, filters)
    return await runtime.storage.find_dead_letters(wanted, limit=page_limit(limit), cursor=cursor)
