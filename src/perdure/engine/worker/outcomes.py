"""How attempts ended, until that is durable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from perdure.core.decide.ending import Raised, Unserved
from perdure.core.decide.lease import NO_EVIDENCE
from perdure.core.run.lifecycle import EventType
from perdure.engine.attempt.ending import log_failure, not_executed, not_stored, redact_ending
from perdure.engine.execution.worker_backend import (
    Conflict,
    Finished,
    Lost,
    Recorded,
    Refused,
    ReportOutcome,
    WorkerBackend,
)
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.runtime import Components
from perdure.engine.runtime.storage_time import StorageTime
from perdure.engine.worker.leases import Leases
from perdure.errors import LeaseLost
from perdure.telemetry import table


class Recorder:
    """What is still to be recorded. An item leaves it by being stored, or by losing its lease."""

    def __init__(
        self,
        components: Components,
        backend: WorkerBackend,
        hint: hints.Hints,
        leases: Leases,
        time: StorageTime,
    ) -> None:
        self.finished: list[Finished] = []
        self._components = components
        self._backend = backend
        self._hints = hint
        self._leases = leases
        self._time = time

    def take(self) -> list[Finished]:
        """Return what is to be recorded now, prepared; drop what lost its lease. Those prepared
        together share a commit id: no two of them are about the same step of a run."""
        finished, self.finished = self.finished, []
        now, commit_id = self._time.now(), self._components.ids.commit_id()
        return [
            item for item in finished if item.is_prepared or self._prepare(item, now, commit_id)
        ]

    async def judge_misfits(self) -> None:
        """Look for workers that payloads might fit which did not fit this one."""
        finished = self.finished
        misfits = [it for it in finished if it.ending.__class__ is Unserved and not it.is_prepared]
        if misfits:
            await self._backend.judge_misfits(misfits, self._time.now())

    def put_back(self, finished: Sequence[Finished]) -> None:
        """Keep items that may or may not be stored. Sending them again tells."""
        self.finished[:0] = finished

    async def settle(self, finished: Sequence[Finished], outcomes: Iterable[ReportOutcome]) -> None:
        conflicts: list[Finished] = []
        topics: set[str] = set()
        for item, outcome in zip(finished, outcomes, strict=True):
            if outcome.__class__ is Recorded:
                self._leases.drop(item.token)
                self._log(item, outcome)
                if outcome.claimable_at is not None and outcome.claimable_at <= outcome.at:
                    topics.add(hints.work(self._components.environment, item.run.queue))
            elif isinstance(outcome, Conflict):
                conflicts.append(item)
            elif isinstance(outcome, Lost):
                self._lose(item)
            elif isinstance(outcome, Refused):
                self._refuse(item, outcome.why)
        if finished:
            self._hints.publish(topics | {hints.done(self._components.environment)})
        if conflicts:
            await self._refresh(conflicts)

    def _prepare(self, item: Finished, now: datetime, commit_id: str) -> bool:
        try:
            self._leases.check(item.run.id, item.token)
            self._make_ready(item, now, commit_id)
        except LeaseLost:
            self._lose(item)
            return False
        except Exception as error:  # noqa: BLE001  # it must not keep the others
            item.ending, item.evidence = not_executed(error), NO_EVIDENCE
            self._make_ready(item, now, commit_id)
            table.OUTCOME_IMPOSSIBLE.say_with_error(run_id=item.run.id)
        item.is_prepared = True
        return True

    def _make_ready(self, item: Finished, now: datetime, commit_id: str) -> None:
        """Make the ending ready to be sent, without secrets."""
        item.ending = redact_ending(item.ending, self._components.redactor)
        self._backend.prepare(item, now, commit_id)

    def _lose(self, item: Finished) -> None:
        self._leases.lose(item.token)
        table.LATE_OUTCOME.say(run_id=item.run.id)

    def _log(self, item: Finished, recorded: Recorded) -> None:
        ending = item.ending
        if isinstance(ending, (Raised, Unserved)) and recorded.event in _FOLLOWS:
            follows = _FOLLOWS[recorded.event](recorded)
            log_failure(item.run, ending.failure, follows, self._components.redactor)

    def _refuse(self, item: Finished, why: str) -> None:
        """The backend will never take the ending. That it will not is recorded instead."""
        if item.is_refused:
            self._leases.drop(item.token)
        else:
            failed = not_stored(why)
            self.finished.append(Finished(item.run, item.token, failed, is_refused=True))
        table.OUTCOME_REFUSED.say(run_id=item.run.id, why=why)

    async def _refresh(self, items: Sequence[Finished]) -> None:
        """Another writer changed these runs, e.g. an operator asked for a cancellation."""
        try:
            found = await self._backend.refresh(items)
        except BaseException:
            self.put_back(items)  # they will conflict again, and be refreshed then
            raise
        for item in items:
            if item.run.id in found:
                item.is_prepared = False
                self.finished.append(item)
            else:
                self._leases.drop(item.token)


_FOLLOWS: dict[EventType, Any] = {
    EventType.RETRY_SCHEDULED: lambda it: f"next try at {_instant(it.claimable_at)}",
    EventType.DEAD_LETTERED: lambda it: f"dead-lettered: {it.reason}",
    EventType.FAILED: lambda it: "that was the end of it",
    EventType.RELEASED: lambda it: f"left to another worker from {_instant(it.claimable_at)} on",
}
"""What follows a failed attempt, in words."""


def _instant(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(timespec="milliseconds")
