"""What a bulk command does with a batch of runs: one decision for each, one commit for all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from perdure.core.decide import (
    decide_cancel,
    decide_pause,
    decide_rerun,
    decide_resume,
    decide_retry,
)
from perdure.core.run.commit import Commit
from perdure.core.run.effects import DeadLetterStatus, close_dead_letter
from perdure.core.run.run import Run
from perdure.engine.operators.bulk_order import Action, Order
from perdure.engine.operators.reruns import (
    DecideAgain,
    RerunRequest,
    Tasks,
    accept_rerun,
    prepare_rerun,
)
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.ids import DerivedIds
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.runtime.slices import map_in_slices
from perdure.engine.runtime.write import Decide, advance_all
from perdure.errors import NotAllowed, PerdureError, SequenceConflict, StorageError

TopicsOf = Callable[[Run], Iterable[str]]


class BulkAction:
    """Applies one order to batches of runs. The ids of new runs follow from `order_id`."""

    def __init__(self, runtime: Runtime, tasks: Tasks, order: Order, order_id: str) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._order = order
        self._new_ids = DerivedIds(order.before, order_id)

    async def apply(self, runs: Sequence[Run]) -> list[PerdureError]:
        """Do what the order says with each run. Return the errors of those that were refused.

        Raises StorageError; what is stored by then stays.
        """
        refusals = await self._dispatch(runs)
        for error in refusals:
            if isinstance(error, StorageError):
                raise error
        return refusals

    async def _dispatch(self, runs: Sequence[Run]) -> list[PerdureError]:
        by, reason = self._order.by, self._order.reason
        match self._order.action:
            case Action.CANCEL:
                return await self._advance(
                    runs, lambda run, now: decide_cancel(run, by, now, reason), _cancel_topics
                )
            case Action.PAUSE:
                return await self._advance(
                    runs, lambda run, now: decide_pause(run, by, now, reason), lambda run: ()
                )
            case Action.RESUME:
                return await self._advance(
                    runs, lambda run, now: decide_resume(run, by, now), _work_topics
                )
            case Action.RERUN:
                return await self._repeat(runs, decide_rerun)
            case Action.RETRY | Action.REPLAY:
                return await self._repeat(runs, decide_retry)
            case Action.DISCARD:
                return await self._discard(runs)

    async def _advance(
        self, runs: Sequence[Run], decide: Decide, topics_of: TopicsOf
    ) -> list[PerdureError]:
        runtime = self._runtime
        advanced = await advance_all(runtime.storage, runs, decide, runtime.now(), runtime.ids)
        results = advanced.values()
        self._publish(topics_of, [run for run in results if isinstance(run, Run)])
        return [error for error in results if isinstance(error, PerdureError)]

    async def _repeat(self, runs: Sequence[Run], decide: DecideAgain) -> list[PerdureError]:
        """Make a new run from each. Those that an earlier attempt of the order made are done."""
        request = RerunRequest(decide=decide, actor=self._order.by, reason=self._order.reason)
        again, repeated = replace(request, again=True), await self._repeated(runs, decide)
        now, refusals = self._runtime.now(), []

        def prepare(run: Run) -> tuple[Run, Commit] | None:
            try:
                asked = again if run.id in repeated else request
                return run, prepare_rerun(
                    self._runtime, self._tasks, run, asked, self._new_ids.derive(run.id), now
                )
            except PerdureError as error:
                refusals.append(error)
            return None

        prepared = [pair for pair in await map_in_slices(prepare, runs) if pair is not None]
        outcomes = await self._runtime.storage.commit([commit for _, commit in prepared])
        for (run, commit), outcome in zip(prepared, outcomes, strict=True):
            try:
                accept_rerun(run, outcome, commit.run.id)
            except SequenceConflict as conflict:
                refusals.append(_refuse_closed(run) if decide is decide_retry else conflict)
            except PerdureError as error:
                refusals.append(error)
        self._publish(_work_topics, [commit.run for _, commit in prepared])
        return refusals

    async def _repeated(self, runs: Sequence[Run], decide: DecideAgain) -> Collection[str]:
        """Those that have a retry or rerun already, if that does not keep them from another."""
        if decide is not decide_rerun:
            return ()
        storage, environment = self._runtime.storage, self._runtime.environment
        return await storage.successors(environment, [run.id for run in runs]) if runs else ()

    async def _discard(self, runs: Sequence[Run]) -> list[PerdureError]:
        discarded, by, reason = DeadLetterStatus.DISCARDED, self._order.by, self._order.reason
        now = self._runtime.now()
        closings = [close_dead_letter(run, discarded, by, now, reason=reason) for run in runs]
        closed = await self._runtime.storage.close_dead_letters(closings)
        return [
            NotAllowed(run.id, "discard", run.status, "it has no open dead letter")
            for run in runs
            if run.id not in closed
        ]

    def _publish(self, topics_of: TopicsOf, runs: Iterable[Run]) -> None:
        topics = {topic for run in runs for topic in topics_of(run)}
        if topics:
            self._runtime.hints.publish(sorted(topics))


def _cancel_topics(run: Run) -> list[str]:
    topics = [hints.done(run.environment)]
    if run.lease is not None:
        topics.append(hints.cancel(run.lease.worker_id))
    return topics


def _work_topics(run: Run) -> list[str]:
    return [hints.work(run.environment, run.queue)]


def _refuse_closed(run: Run) -> NotAllowed:
    return NotAllowed(run.id, "retry", run.status, "its dead letter is not open any more")
