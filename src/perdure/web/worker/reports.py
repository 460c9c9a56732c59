"""Records what workers report: the server decides, with the stored run and its own clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.app.app import App
from perdure.core.decide.ending import Unserved, decide_ending
from perdure.core.decide.lease import Evidence
from perdure.core.json_text import check_text
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.events import (
    Event,
    RunDeadLettered,
    RunLeaseClaimed,
    RunReleased,
    RunRetryScheduled,
)
from perdure.core.run.lifecycle import EventType
from perdure.core.run.run import Run
from perdure.engine.execution.worker_backend import (
    CONFLICT,
    LOST,
    Conflict,
    Recorded,
    Refused,
    ReportOutcome,
)
from perdure.engine.protocol.attempts import Report, ReturnedMessage, UnservedMessage
from perdure.engine.protocol.checks import check_message
from perdure.engine.protocol.chunks import count_one, in_parts
from perdure.engine.protocol.values import ending_of_message
from perdure.engine.runtime import wakeups as hints
from perdure.engine.worker.database_backend import outcome_of
from perdure.engine.worker.versions import LiveWorkers, load_live_workers
from perdure.errors import LeaseLost, PerdureError, StorageUnavailable
from perdure.storage.contract.runs import Claimed, ClaimRequest, Outcome
from perdure.telemetry import table
from perdure.web.offload import MAX_INLINE_BYTES
from perdure.web.worker.registry import MAX_RUNS_READ, WorkerRegistry

if TYPE_CHECKING:
    from perdure.web.operations.operation import Call

MAX_ROUNDS = 20
"""How often a report is decided anew because another writer was faster."""
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

    def __init__(self, app: App, registry: WorkerRegistry) -> None:
        self._app = app
        self._registry = registry

    async def record(self, call: Call, reports: Sequence[Report]) -> list[ReportOutcome]:
        """Return the outcome of each report. A report that cannot be decided is refused by
        itself. `call`: of the key whose workers report."""
        outcomes: list[ReportOutcome] = []
        for part in in_parts(reports, count_one, MAX_RUNS_READ):
            async with self._registry.turn(len(part)):
                outcomes += await self._record(call, part)
        return outcomes

    async def _record(self, call: Call, reports: Sequence[Report]) -> list[ReportOutcome]:
        outcomes: list[ReportOutcome] = [CONFLICT] * len(reports)
        pending = list(range(len(reports)))
        for _ in range(MAX_ROUNDS):
            decided = await self._decide(call, [reports[index] for index in pending])
            stored = await self._app.storage.commit(_commits(decided))
            pending = self._take(outcomes, pending, decided, stored)
            if not pending:
                break
        return outcomes

    async def record_and_claim(
        self, call: Call, reports: Sequence[Report], request: ClaimRequest
    ) -> tuple[Claimed, list[ReportOutcome]]:
        """Record the reports in the transaction of a claim, as many as are read at once; the
        others before it."""
        settled = await self.record(call, reports[:-MAX_RUNS_READ])
        reports = reports[-MAX_RUNS_READ:]
        outcomes: list[ReportOutcome] = [CONFLICT] * len(reports)
        async with self._registry.turn(len(reports)):
            decided = await self._decide(call, reports)
            claimed = await self._app.storage.claim(request, _commits(decided))
        pending = self._take(outcomes, list(range(len(reports))), decided, claimed.outcomes)
        if pending:
            await self._record_again(call, reports, pending, outcomes)
        return claimed, settled + outcomes

    async def _record_again(
        self,
        call: Call,
        reports: Sequence[Report],
        pending: Sequence[int],
        outcomes: list[ReportOutcome],
    ) -> None:
        """What fails here must not cost the worker its claim: those stay a conflict."""
        try:
            again = await self.record(call, [reports[index] for index in pending])
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

    async def _decide(self, call: Call, reports: Sequence[Report]) -> list[Decided]:
        if not reports:
            return []
        run_ids = (report.run_id for report in reports)
        runs = await self._registry.own_runs(run_ids, call.caller.id)
        now = self._app.time()
        live = await self._live_workers(reports, now)
        decide = partial(self._decide_one, runs=runs, now=now, live=live)
        if call.body_size <= MAX_INLINE_BYTES:
            decided = [decide(report) for report in reports]
        else:
            decided = await call.offload_each(decide, reports)
        return [
            await self._recorded_before(report, runs[report.run_id]) if it is None else it
            for report, it in zip(reports, decided, strict=True)
        ]

    async def _live_workers(self, reports: Sequence[Report], now: datetime) -> LiveWorkers | None:
        """Read the workers only if a payload did not fit one of them."""
        if not any(_is_misfit(report) for report in reports):
            return None
        since = now - self._app.defaults.lease_ttl
        return await load_live_workers(self._app.storage, self._app.environment, since)

    def _decide_one(
        self, report: Report, runs: Mapping[str, Run], now: datetime, live: LiveWorkers | None
    ) -> Decided | None:
        """Return None if only the run's history tells: its lease is not the one named."""
        run = runs.get(report.run_id)
        if run is None:
            return LOST
        try:
            if run.lease is None or run.lease.token != report.token:
                return None
            if run.lease.attempt != report.attempt:
                return LOST
            return self._commit(report, run, now, live)
        except LeaseLost:
            return LOST
        except PerdureError as error:
            return Refused(str(error))
        except Exception as error:  # noqa: BLE001  # one report must not keep the others
            table.OUTCOME_IMPOSSIBLE.say_with_error(run_id=run.id)
            return Refused(f"the server cannot record it: {type(error).__name__}")

    def _commit(self, report: Report, run: Run, now: datetime, live: LiveWorkers | None) -> Commit:
        report = self._checked(report)
        evidence = Evidence(execution_trace=report.execution_trace, output=report.output)
        ending = ending_of_message(report.ending)
        if live is not None and isinstance(ending, Unserved):
            ending = live.judge(run, ending)
        jitter = self._app.clock.jitter
        events = decide_ending(run, report.token, ending, now, jitter, evidence)
        return prepare_commit(run, events, self._app.ids.commit_id())

    def _checked(self, report: Report) -> Report:
        check_message(report)
        if not isinstance(report.ending, ReturnedMessage):
            return report
        limit = self._app.defaults.result_limit
        result = check_text(bytes(report.ending.result), field="result", limit=limit)
        return replace(report, ending=ReturnedMessage(result=result))

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


def _is_misfit(report: Report) -> bool:
    return isinstance(report.ending, UnservedMessage) and report.ending.misfit is not None


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
