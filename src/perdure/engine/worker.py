"""Claims runs, has them executed, keeps their leases, writes how they ended.

Everything here runs on the I/O loop. Two claim loops overlap, so that database and Python work
at the same time; outcomes ride with the next claim. A handler is begun only after the commit
that holds its `run.started`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from perdure.core.commit import Commit, prepare_commit
from perdure.core.decide import decide_shutdown
from perdure.core.decide.lease import Evidence
from perdure.core.run import Run
from perdure.engine import hints
from perdure.engine.attempt import StopReason
from perdure.engine.catalogue import Registration
from perdure.engine.handlers import Ended, Handlers, Report
from perdure.engine.leases import Leases
from perdure.engine.outcome import Ending, Settled, decide_ending, not_executed, say_failures
from perdure.engine.run_logs import RunLogs
from perdure.engine.storage_time import StorageTime
from perdure.errors import (
    LeaseLost,
    SequenceConflict,
    StorageError,
    StorageUnavailable,
)
from perdure.storage.protocol import ClaimRequest, Committed, Outcome, Storage
from perdure.telemetry import table
from perdure.telemetry.registry import Gauges

if TYPE_CHECKING:
    from perdure.engine.app import App

LOOPS = 2
TROUBLE = timedelta(milliseconds=500)


class Finished(msgspec.Struct):
    """An attempt that ended and is not recorded yet. `commit` keeps its id when repeated."""

    run: Run
    token: str
    ending: Ending
    evidence: Evidence
    commit: Commit | None = None


class Worker:
    """One process's worker. `start` and `stop` are called on the I/O loop."""

    def __init__(
        self,
        app: App,
        storage: Storage,
        hint: hints.Hints,
        handlers: Handlers,
        *,
        concurrency: int,
        queues: Sequence[str] | None,
        run_ids: Sequence[str] | None = None,
    ) -> None:
        self.id = app.ids.worker_id()
        self._run_ids = None if run_ids is None else tuple(run_ids)
        self._app = app
        self._storage = storage
        self._hints = hint
        self._handlers = handlers
        self._queues = None if queues is None else tuple(queues)
        self._concurrency = concurrency
        self._free = concurrency
        self._registration = Registration(app, storage, self.id)
        self._leases = Leases(app, storage, self.id, self._on_lost, self._on_cancel)
        self._finished: list[Finished] = []
        self._wake = asyncio.Event()
        self._hinted = False
        self._renew_after_claim = False
        self._next_look: datetime | None = None
        self._claims_in_flight = 0
        self._doubted: set[str] = set()
        self._stopping = False
        self._recorded = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._time = StorageTime(app.clock)
        registry = app.metrics.registry
        self._stuck = registry.counter(table.HANDLERS_STUCK)
        self._logs = RunLogs(storage, hint, app.clock, self._now, app.redact, registry)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._handlers.connect(loop, self._on_reports, self._logs)
        self._stop_watching = self._app.metrics.registry.watch(self._gauges)
        self._stop_listening = self._hints.hub.listen(self._on_hint)
        self._tasks = [asyncio.create_task(self._claim_loop()) for _ in range(LOOPS)]
        self._tasks.append(asyncio.create_task(self._leases.renew_for_ever()))
        self._tasks.append(asyncio.create_task(self._beat_for_ever()))

    async def stop(self, drain: timedelta) -> None:
        """Stop claiming, let attempts end until the deadline, hand over the rest."""
        self._stopping = True
        self._wake.set()
        if not await self._drained(drain):
            self._handlers.stop_all(StopReason.SHUTDOWN)
            if not await self._drained(timedelta(seconds=1)):
                self._handlers.give_up_all()
                await self._drained(timedelta(seconds=5))
        await self._logs.close()
        self._stop_listening()
        self._stop_watching()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _beat_for_ever(self) -> None:
        """Keep this worker's line in the registry fresh. Nothing depends on it."""
        while True:
            try:
                await self._beat()
                await self._registration.forget_the_dead()
            except StorageError as error:
                table.NO_HEARTBEAT.say(error=str(error))
            await self._app.clock.sleep(self._app.defaults.renewal_interval)

    async def _beat(self) -> None:
        await self._registration.beat(
            concurrency=self._concurrency,
            running=len(self._leases.held),
            queues=self._queues,
            stopping=self._stopping,
        )

    async def _drained(self, within: timedelta) -> bool:
        """Whether nothing is held any more."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                while (
                    self._leases.held or self._finished or self._claims_in_flight or self._doubted
                ):
                    self._recorded.clear()
                    await self._recorded.wait()
        except TimeoutError:
            return False
        return True

    # Waking

    def _on_hint(self, topics: hints.Topics | None) -> None:
        if topics is None or any(self._concerns_me(topic) for topic in topics):
            self._hinted = True
            self._wake.set()
        if topics is None or hints.cancel(self.id) in topics:
            self._renew_after_claim = self._claims_in_flight > 0  # until none is in flight
            self._leases.renew_now()

    def _concerns_me(self, topic: str) -> bool:
        kind, _, rest = topic.partition(":")
        environment, _, queue = rest.partition(":")
        mine = self._queues is None or queue in self._queues
        return kind == "work" and environment == self._app.environment and mine

    async def _idle(self) -> None:
        """Until there is something to do: a hint, a report, the next due time, or the poll."""
        wait = self._app.defaults.poll
        if self._next_look is not None and self._free and not self._stopping:
            wait = min(wait, max(self._next_look - self._now(), timedelta(milliseconds=1)))
        try:
            async with asyncio.timeout(wait.total_seconds()):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    # Claiming

    async def _claim_loop(self) -> None:
        while True:
            more = False
            try:
                more = await self._turn()
            except StorageUnavailable as error:
                table.WORKER_STORAGE_AWAY.say(error=str(error))
                await self._app.clock.sleep(TROUBLE)
            except Exception:  # noqa: BLE001  # the loop must go on
                table.TURN_FAILED.say_with_error()
                await self._app.clock.sleep(TROUBLE)
            if not more:
                await self._idle()

    async def _turn(self) -> bool:
        """Record what has ended and claim for the free slots; whether there may be more."""
        if self._doubted:
            await self._settle_doubt()
        places = 0 if self._stopping else min(self._free, max(self._concurrency // 2, 1))
        finished = self._take_finished()
        if not places and not finished:
            return False
        self._free -= places
        self._hinted = self._hinted and not places
        self._claims_in_flight += 1
        try:
            runs = await self._record_and_claim(finished, places)
        except Exception:
            self._finished[:0] = finished
            self._free += places
            raise
        finally:
            self._claims_in_flight -= 1
            self._renew_after_claim = self._renew_after_claim and self._claims_in_flight > 0
            self._recorded.set()
        self._free += places - len(runs)
        # What a hint during the claim spoke of, the claim may have missed.
        return bool(self._finished) or len(runs) == places > 0 or (places > 0 and self._hinted)

    async def _record_and_claim(self, finished: list[Finished], places: int) -> tuple[Run, ...]:
        await self._logs.settle(item.token for item in finished)
        commits = [item.commit for item in finished if item.commit is not None]
        if not places:
            await self._settle(finished, await self._storage.commit(commits))
            return ()
        request = self._request(places)
        try:
            claimed = await self._storage.claim(request, commits)
        except Exception:
            self._doubted |= set(request.tokens)
            raise
        self._time.learn(claimed.now)
        # Of runs known by name, what else is due says nothing.
        self._next_look = claimed.next_claimable_at if self._run_ids is None else None
        self._hold(claimed.runs)
        self._handlers.begin(claimed.runs)
        await self._settle(finished, claimed.outcomes)
        return claimed.runs

    def _hold(self, runs: Sequence[Run]) -> None:
        self._leases.hold(runs)
        if self._renew_after_claim:  # one of these may be the run that was to be cancelled
            self._leases.renew_now()

    def _request(self, places: int) -> ClaimRequest:
        ids = self._app.ids
        return ClaimRequest(
            worker_id=self.id,
            tokens=tuple(ids.token() for _ in range(places)),
            tasks=tuple(self._app.tasks),
            queues=self._queues,
            run_ids=self._run_ids,
            start=places,
            lease_ttl=self._app.defaults.lease_ttl,
            environment=self._app.environment,
            commit_id=ids.commit_id(),
        )

    # Recording

    def _take_finished(self) -> list[Finished]:
        """What is to be recorded now, each with its commit; what lost its lease is dropped."""
        finished, self._finished = self._finished, []
        return [item for item in finished if item.commit is not None or self._prepare(item)]

    def _prepare(self, item: Finished) -> bool:
        try:
            self._leases.check(item.run.id, item.token)
            item.commit = self._commit_of(item)
        except LeaseLost:
            table.LATE_OUTCOME.say(run_id=item.run.id)
            self._leases.drop(item.token)
            self._recorded.set()
            return False
        except Exception as error:  # noqa: BLE001  # it must not keep the others
            table.OUTCOME_IMPOSSIBLE.say_with_error(run_id=item.run.id)
            item.ending = not_executed(error)
            item.commit = self._commit_of(item)
        return True

    def _commit_of(self, item: Finished) -> Commit:
        now, jitter = self._now(), self._app.clock.jitter()
        events = decide_ending(item.run, item.token, item.ending, now, jitter, item.evidence)
        return prepare_commit(item.run, events, self._app.ids.commit_id())

    async def _settle(self, finished: Sequence[Finished], outcomes: Iterable[Outcome]) -> None:
        again: list[Finished] = []
        for item, outcome in zip(finished, outcomes, strict=True):
            if isinstance(outcome, Committed):
                self._leases.drop(item.token)
                if item.commit is not None:
                    say_failures(item.commit.run, item.commit.events)
            elif isinstance(outcome, SequenceConflict):
                again.append(item)
            else:
                table.OUTCOME_REFUSED.say(run_id=item.run.id, why=str(outcome))
                self._leases.drop(item.token)
        self._hints.publish(_news(finished))
        if again:
            await self._decide_again(again)

    async def _decide_again(self, items: Sequence[Finished]) -> None:
        """Somebody wrote to these runs meanwhile, e.g. asked for a cancellation."""
        try:
            found = await self._storage.get([item.run.id for item in items])
        except StorageUnavailable:
            self._finished += items  # will conflict again, and be decided then
            return
        for item in items:
            if item.run.id in found:
                run = found[item.run.id]
                self._finished.append(Finished(run, item.token, item.ending, item.evidence))
            else:
                self._leases.drop(item.token)
        self._wake.set()

    async def _settle_doubt(self) -> None:
        """Claims whose answer was lost: what they got is given back. By their tokens, since other
        claims may be under way. The doubt ends only when all of it is given back."""
        doubted = set(self._doubted)
        for run in await self._storage.leases(self.id):
            if run.lease is None or run.lease.token not in doubted:
                continue
            events = decide_shutdown(run, run.lease.token, self._now())
            await self._storage.commit([prepare_commit(run, events, self._app.ids.commit_id())])
        self._doubted -= doubted
        self._recorded.set()

    # Reports from the handlers, and news about leases

    def _on_reports(self, reports: Sequence[Report]) -> None:
        for report in reports:
            if not isinstance(report, Ended):
                self._free += 1
                continue
            self._free += not report.is_stuck
            self._stuck.add(report.is_stuck)
            if isinstance(report.ending, Settled):
                self._leases.drop(report.token)
                self._hints.publish(report.ending.topics)
                continue
            run = self._leases.held.get(report.token)
            if run is None or report.ending is None:
                table.LATE_OUTCOME.say(run_id=report.run_id)
                self._leases.drop(report.token)
                continue
            evidence = Evidence(execution_trace=report.trace)
            self._finished.append(Finished(run, report.token, report.ending, evidence))
        self._recorded.set()
        self._wake.set()

    def _gauges(self) -> Gauges:
        used = self._concurrency - self._free
        return {table.WORKER_SLOTS: {(): self._concurrency}, table.WORKER_SLOTS_USED: {(): used}}

    def _on_lost(self, token: str) -> None:
        self._handlers.stop(token, StopReason.LEASE_LOST)
        self._recorded.set()

    def _on_cancel(self, token: str) -> None:
        self._handlers.stop(token, StopReason.CANCELLED)

    def _now(self) -> datetime:
        return self._time.now()


def _news(finished: Sequence[Finished]) -> set[str]:
    """Who should look: those who wait for results, and workers if something is due again."""
    runs = [item.commit.run for item in finished if item.commit is not None]
    topics = {hints.done(run.environment) for run in runs}
    due = [run for run in runs if run.claimable_at and run.claimable_at <= run.updated_at]
    return topics | {hints.work(run.environment, run.queue) for run in due}
