"""How attempts ended, until that is durable: each with one commit, which keeps its id however
often it is tried. Those prepared together share one: no two of them are of one run's step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from perdure.core.commit import Commit, prepare_commit
from perdure.core.decide.lease import NO_EVIDENCE, Evidence
from perdure.core.run import Run
from perdure.engine import hints
from perdure.engine.leases import Leases
from perdure.engine.outcome import (
    Ending,
    decide_ending,
    not_executed,
    not_stored,
    redact_ending,
    say_failures,
)
from perdure.engine.storage_time import StorageTime
from perdure.errors import LeaseLost, SequenceConflict
from perdure.storage.protocol import Committed, Outcome, Storage
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.engine.app import App


class Finished(msgspec.Struct, gc=False):
    """An attempt that ended and is not recorded yet. `is_stuck`: its handler goes on, and keeps
    its slot until it ends. `is_refused`: the storage would not take what the attempt ended with,
    and that is what is to be recorded now."""

    run: Run
    token: str
    ending: Ending
    evidence: Evidence = NO_EVIDENCE
    is_stuck: bool = False
    commit: Commit | None = None
    is_refused: bool = False


class Recorder:
    """What is still to be recorded. Nothing leaves it but by being stored, or by losing its
    lease."""

    def __init__(
        self,
        app: App,
        storage: Storage,
        hint: hints.Hints,
        leases: Leases,
        time: StorageTime,
    ) -> None:
        self.finished: list[Finished] = []
        self._app = app
        self._storage = storage
        self._hints = hint
        self._leases = leases
        self._time = time

    def take(self) -> list[Finished]:
        """What is to be recorded now, each with its commit; what lost its lease is dropped."""
        finished, self.finished = self.finished, []
        now, commit_id = self._time.now(), self._app.ids.commit_id()
        return [
            item
            for item in finished
            if item.commit is not None or self._prepare(item, now, commit_id)
        ]

    def put_back(self, finished: Sequence[Finished]) -> None:
        """Whether it was stored is unknown; the same commits again will tell."""
        self.finished[:0] = finished

    async def settle(self, finished: Sequence[Finished], outcomes: Iterable[Outcome]) -> None:
        again: list[Finished] = []
        for item, outcome in zip(finished, outcomes, strict=True):
            if isinstance(outcome, Committed):
                self._leases.drop(item.token)
                if item.commit is not None and item.commit.run.failure is not None:
                    say_failures(item.commit.run, item.commit.events, self._app.redactor)
            elif isinstance(outcome, SequenceConflict):
                again.append(item)
            else:
                self._refused(item, outcome)
        self._hints.publish(_news(self._app.environment, finished))
        if again:
            await self._decide_again(again)

    def _prepare(self, item: Finished, now: datetime, commit_id: str) -> bool:
        try:
            self._leases.check(item.run.id, item.token)
            item.commit = self._commit_of(item, now, commit_id)
        except LeaseLost:
            self._leases.drop(item.token)
            table.LATE_OUTCOME.say(run_id=item.run.id)
            return False
        except Exception as error:  # noqa: BLE001  # it must not keep the others
            item.ending, item.evidence = not_executed(error), NO_EVIDENCE
            item.commit = self._commit_of(item, now, commit_id)
            table.OUTCOME_IMPOSSIBLE.say_with_error(run_id=item.run.id)
        return True

    def _commit_of(self, item: Finished, now: datetime, commit_id: str) -> Commit:
        jitter = self._app.clock.jitter
        item.ending = redact_ending(item.ending, self._app.redactor)
        events = decide_ending(item.run, item.token, item.ending, now, jitter, item.evidence)
        return prepare_commit(item.run, events, commit_id)

    def _refused(self, item: Finished, why: object) -> None:
        """The storage will never take it. That it will not is recorded instead."""
        if item.is_refused:
            self._leases.drop(item.token)
        else:
            failed = not_stored(str(why))
            self.finished.append(Finished(item.run, item.token, failed, is_refused=True))
        table.OUTCOME_REFUSED.say(run_id=item.run.id, why=str(why))

    async def _decide_again(self, items: Sequence[Finished]) -> None:
        """Somebody wrote to these runs meanwhile, e.g. asked for a cancellation."""
        try:
            found = await self._storage.get([item.run.id for item in items])
        except BaseException:
            self.put_back(items)  # they will conflict again, and be decided then
            raise
        for item in items:
            if item.run.id in found:
                item.run, item.commit = found[item.run.id], None
                self.finished.append(item)
            else:
                self._leases.drop(item.token)


def _news(environment: str, finished: Sequence[Finished]) -> set[str]:
    """Who should look: those who wait for results, and workers if something is due again."""
    runs = [item.commit.run for item in finished if item.commit is not None]
    due = {run.queue for run in runs if run.claimable_at and run.claimable_at <= run.updated_at}
    topics = {hints.work(environment, queue) for queue in due}
    return topics | {hints.done(environment)} if runs else topics
