"""Records what workers report: the server decides, with the stored run and its own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime

from perdure.core.commit import Commit, prepare_commit
from perdure.core.decide.lease import Evidence
from perdure.core.events import (
    Event,
    RunDeadLettered,
    RunLeaseClaimed,
    RunReleased,
    RunRetryScheduled,
)
from perdure.core.lifecycle import EventType
from perdure.core.run import Run
from perdure.core.values import check_text
from perdure.engine import hints
from perdure.engine.app import App
from perdure.engine.database_backend import outcome_of
from perdure.engine.outcome import decide_ending
from perdure.engine.protocol.attempts import Report, ReturnedMessage
from perdure.engine.protocol.checks import check_message
from perdure.engine.protocol.values import ending_of_message
from perdure.engine.worker_backend import CONFLICT, LOST, Conflict, Recorded, Refused, ReportOutcome
from perdure.errors import LeaseLost, PerdureError, StorageUnavailable
from perdure.storage.protocol import Claimed, ClaimRequest, Outcome
from perdure.telemetry import table

MAX_ROUNDS = 20
"""How often a report is decided anew because another writer was faster."""
LARGE_RESULT_BYTES = 64 * 1024
"""After a report with a longer result other requests have their turn."""
MAX_HISTORY = 200
"""How many of a run's last events are searched for a report that was recorded before."""

_ENDINGS = frozenset(
    {
        EventType.SUCCEEDED,
        EventType.FAILED,
        EventType.DEAD_LETTERED,
        EventType.RETRY_SCHEDULED,
        EventType.RELEASED,
        EventType.CANCELLED,
        EventType.LEASE_RETURNED,
    }
)

Decided = Commit | ReportOutcome


class Reporting:
    """Of one environment."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def record(self, reports: Sequence[Report]) -> list[ReportOutcome]:
        """Return the outcome of each report. A report that cannot be decided is refused by
        itself."""
        outcomes: list[ReportOutcome] = [CONFLICT] * len(reports)
        pending = list(range(len(reports)))
        for _ in range(MAX_ROUNDS):
            decided = await self._decide([reports[index] for index in pending])
            stored = await self._app.storage.commit(_commits(decided))
            pending = self._take(outcomes, pending, decided, stored)
            if not pending:
                break
        return outcomes

    async def record_and_claim(
        self, reports: Sequence[Report], request: ClaimRequest
    ) -> tuple[Claimed, list[ReportOutcome]]:
        """Record the reports in the transaction of a claim."""
        outcomes: list[ReportOutcome] = [CONFLICT] * len(reports)
        decided = await self._decide(reports)
        claimed = await self._app.storage.claim(request, _commits(decided))
        pending = self._take(outcomes, list(range(len(reports))), decided, claimed.outcomes)
        if pending:
            await self._record_again(reports, pending, outcomes)
        return claimed, outcomes

    async def _record_again(
        self, reports: Sequence[Report], pending: Sequence[int], outcomes: list[ReportOutcome]
    ) -> None:
        """What fails here must not cost the worker its claim: those stay a conflict."""
        try:
            again = await self.record([reports[index] for index in pending])
        except StorageUnavailable:
            return
        for index, outcome in zip(pending, again, strict=True):
            outcomes[index] = outcome

    def _take(
        self,
        outcomes: list[ReportOutcome],
        indexes: Sequence[int],
        decided: Sequence[Decided],
        stored: Sequence[Outcome],
    ) -> list[int]:
        """Write down what became of each. Return the indexes of those in conflict."""
        answers = iter(stored)
        topics: set[str] = set()
        for index, it in zip(indexes, decided, strict=True):
            if isinstance(it, Commit):
                outcomes[index] = outcome = outcome_of(it, next(answers))
                if isinstance(outcome, Recorded):
                    topics |= _topics(it.run, outcome)
            else:
                outcomes[index] = it
        self._app.hints.publish(topics)
        return [index for index in indexes if isinstance(outcomes[index], Conflict)]

    async def _decide(self, reports: Sequence[Report]) -> list[Decided]:
        if not reports:
            return []
        found = await self._app.storage.get([report.run_id for report in reports])
        now, own = self._app.time(), self._app.environment
        runs = {run_id: run for run_id, run in found.items() if run.environment == own}
        decided: list[Decided] = []
        for report in reports:
            decided.append(await self._decide_one(report, runs, now))
            if _is_large(report):
                await asyncio.sleep(0)  # checking a result of a megabyte takes a while
        return decided

    async def _decide_one(self, report: Report, runs: Mapping[str, Run], now: datetime) -> Decided:
        run = runs.get(report.run_id)
        if run is None:
            return LOST
        try:
            if run.lease is None or run.lease.token != report.token:
                return await self._recorded_before(report, run)
            if run.lease.attempt != report.attempt:
                return LOST
            return self._commit(report, run, now)
        except StorageUnavailable:
            raise
        except LeaseLost:
            return LOST
        except PerdureError as error:
            return Refused(str(error))
        except Exception as error:  # noqa: BLE001  # one report must not keep the others
            table.OUTCOME_IMPOSSIBLE.say_with_error(run_id=run.id)
            return Refused(f"the server cannot record it: {type(error).__name__}")

    def _commit(self, report: Report, run: Run, now: datetime) -> Commit:
        self._check(report)
        evidence = Evidence(execution_trace=report.execution_trace, output=report.output)
        ending = ending_of_message(report.ending)
        jitter = self._app.clock.jitter
        events = decide_ending(run, report.token, ending, now, jitter, evidence)
        return prepare_commit(run, events, self._app.ids.commit_id())

    def _check(self, report: Report) -> None:
        check_message(report)
        if isinstance(report.ending, ReturnedMessage):
            limit = self._app.defaults.result_limit
            check_text(bytes(report.ending.result), field="result", limit=limit)

    async def _recorded_before(self, report: Report, run: Run) -> ReportOutcome:
        """Return `Recorded` if this very lease ended with a report of its worker: the answer to
        it was lost."""
        after = max(run.sequence - MAX_HISTORY, 0)
        history = [it.event for it in await self._app.storage.events(run.id, after=after)]
        claims = [
            index
            for index, event in enumerate(history)
            if isinstance(event, RunLeaseClaimed) and event.token == report.token
        ]
        if not claims:
            return LOST
        claim = history[claims[0]]
        for event in history[claims[0] + 1 :]:
            if event.type is EventType.LEASE_CLAIMED:
                return LOST
            if event.type in _ENDINGS and event.actor == claim.actor:
                return _recorded(event) if _is_of(event, report.attempt) else LOST
        return LOST


def _is_large(report: Report) -> bool:
    ending = report.ending
    return isinstance(ending, ReturnedMessage) and len(bytes(ending.result)) > LARGE_RESULT_BYTES


def _is_of(event: Event, attempt: int) -> bool:
    """A cancellation and a returned claim name no attempt: there was one in that lease."""
    return getattr(event, "attempt", attempt) == attempt


def _recorded(event: Event) -> Recorded:
    claimable_at = None
    if isinstance(event, RunRetryScheduled):
        claimable_at = event.retry_at
    elif isinstance(event, RunReleased):
        claimable_at = event.resume_at
    reason = event.reason if isinstance(event, RunDeadLettered) else None
    return Recorded(event.type, event.occurred_at, claimable_at, reason)


def _commits(decided: Sequence[Decided]) -> list[Commit]:
    return [it for it in decided if isinstance(it, Commit)]


def _topics(run: Run, recorded: Recorded) -> set[str]:
    """The hints about a run whose attempt ended."""
    topics = {hints.done(run.environment)}
    if recorded.claimable_at is not None and recorded.claimable_at <= recorded.at:
        topics.add(hints.work(run.environment, run.queue))
    return topics
