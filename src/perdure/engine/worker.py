"""Claims runs, has them executed, keeps their leases, writes how they ended.

Everything here runs on the I/O loop. Two claim loops overlap, so that database and Python work
at the same time; outcomes ride with the next claim. A handler is begun only after the commit
that holds its `run.started`.
"""

from __future__ import annotations

import asyncio
import logging
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
from perdure.engine.outcome import Ending, HandedOver, decide_ending
from perdure.errors import (
    LeaseLost,
    PerdureError,
    SequenceConflict,
    StorageError,
    StorageUnavailable,
)
from perdure.storage.protocol import ClaimRequest, Committed, Outcome, Storage

if TYPE_CHECKING:
    from perdure.engine.app import App

log = logging.getLogger("perdure.worker")

LOOPS = 2
TROUBLE = timedelta(milliseconds=500)


class Finished(msgspec.Struct):
    """An attempt that ended and is not recorded yet. `commit` keeps its id when repeated."""

    run: Run
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
    ) -> None:
        self.id = app.ids.worker_id()
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
        self._next_look: datetime | None = None
        self._claims_in_flight = 0
        self._doubtful = False
        self._stopping = False
        self._recorded = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._offset = timedelta(0)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._handlers.connect(loop, self._on_reports)
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
                self._give_up_the_rest()
                await self._drained(timedelta(seconds=5))
        self._stop_listening()
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
                log.debug("no heartbeat", extra={"error": str(error)})
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
                while self._leases.held or self._finished or self._claims_in_flight:
                    self._recorded.clear()
                    await self._recorded.wait()
        except TimeoutError:
            return False
        return True

    def _give_up_the_rest(self) -> None:
        """What does not even end when asked is released; its late outcome will be refused."""
        known = {finished.run.id for finished in self._finished}
        for run in self._leases.held.values():
            if run.id not in known:
                self._finished.append(Finished(run, HandedOver(), Evidence()))
        self._wake.set()

    # Waking

    def _on_hint(self, topics: hints.Topics | None) -> None:
        if topics is None or any(self._concerns_me(topic) for topic in topics):
            self._wake.set()
        if topics is None or hints.cancel(self.id) in topics:
            self._leases.renew_now()

    def _concerns_me(self, topic: str) -> bool:
        kind, _, rest = topic.partition(":")
        environment, _, queue = rest.partition(":")
        mine = self._queues is None or queue in self._queues
        return kind == "work" and environment == self._app.environment and mine

    async def _idle(self) -> None:
        """Until there is something to do: a hint, a report, the next due time, or the poll."""
        wait = self._app.defaults.poll
        if self._next_look is not None:
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
                log.warning("storage does not answer", extra={"error": str(error)})
                await self._app.clock.sleep(TROUBLE)
            except PerdureError:
                log.exception("a turn of the worker failed")
                await self._app.clock.sleep(TROUBLE)
            if not more:
                await self._idle()

    async def _turn(self) -> bool:
        """Record what has ended and claim for the free slots; whether there may be more."""
        if self._doubtful and self._claims_in_flight == 0:
            await self._settle_doubt()
        places = 0 if self._stopping else self._free
        finished = self._take_finished()
        if not places and not finished:
            return False
        self._free -= places
        self._claims_in_flight += 1
        try:
            runs = await self._record_and_claim(finished, places)
        except PerdureError:
            self._finished[:0] = finished
            self._free += places
            self._doubtful = self._doubtful or places > 0
            raise
        finally:
            self._claims_in_flight -= 1
            self._recorded.set()
        self._free += places - len(runs)
        return bool(self._finished) or len(runs) == places > 0

    async def _record_and_claim(self, finished: list[Finished], places: int) -> tuple[Run, ...]:
        commits = [item.commit for item in finished if item.commit is not None]
        if not places:
            await self._settle(finished, await self._storage.commit(commits))
            return ()
        claimed = await self._storage.claim(self._request(places), commits)
        self._offset = claimed.now - self._app.clock.now()
        self._next_look = claimed.next_claimable_at
        self._leases.hold(claimed.runs)
        self._handlers.begin(claimed.runs)
        await self._settle(finished, claimed.outcomes)
        return claimed.runs

    def _request(self, places: int) -> ClaimRequest:
        ids = self._app.ids
        return ClaimRequest(
            worker_id=self.id,
            tokens=tuple(ids.token() for _ in range(places)),
            tasks=tuple(self._app.tasks),
            queues=self._queues,
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
            token = self._leases.token_of(item.run.id)
            events = decide_ending(
                item.run, token, item.ending, self._now(), self._app.clock.jitter(), item.evidence
            )
        except LeaseLost:
            log.warning("late outcome refused", extra={"run_id": item.run.id})
            self._leases.drop(item.run.id)
            return False
        item.commit = prepare_commit(item.run, events, self._app.ids.commit_id())
        return True

    async def _settle(self, finished: Sequence[Finished], outcomes: Iterable[Outcome]) -> None:
        again: list[Finished] = []
        for item, outcome in zip(finished, outcomes, strict=True):
            if isinstance(outcome, Committed):
                self._leases.drop(item.run.id)
            elif isinstance(outcome, SequenceConflict):
                again.append(item)
            else:
                log.error("outcome refused", extra={"run_id": item.run.id, "why": str(outcome)})
                self._leases.drop(item.run.id)
        self._hints.publish([hints.done(self._app.environment)] if finished else [])
        if again:
            await self._decide_again(again)

    async def _decide_again(self, items: Sequence[Finished]) -> None:
        """Somebody wrote to these runs meanwhile, e.g. asked for a cancellation."""
        found = await self._storage.get([item.run.id for item in items])
        for item in items:
            if item.run.id in found:
                self._finished.append(Finished(found[item.run.id], item.ending, item.evidence))
            else:
                self._leases.drop(item.run.id)
        self._wake.set()

    async def _settle_doubt(self) -> None:
        """A claim's answer was lost: leases we do not know of are given back."""
        self._doubtful = False
        for run in await self._storage.leases(self.id):
            if run.id in self._leases.held or run.lease is None:
                continue
            events = decide_shutdown(run, run.lease.token, self._now())
            await self._storage.commit([prepare_commit(run, events, self._app.ids.commit_id())])

    # Reports from the handlers, and news about leases

    def _on_reports(self, reports: Sequence[Report]) -> None:
        for report in reports:
            if not isinstance(report, Ended):
                self._free += 1
                continue
            self._free += not report.is_stuck
            run = self._leases.held.get(report.run_id)
            if run is None or report.ending is None:
                self._leases.drop(report.run_id)
                continue
            trace = {"total_ms": round(report.milliseconds, 3)}
            self._finished.append(Finished(run, report.ending, Evidence(execution_trace=trace)))
        self._recorded.set()
        self._wake.set()

    def _on_lost(self, run_id: str) -> None:
        self._handlers.stop(run_id, StopReason.LEASE_LOST)

    def _on_cancel(self, run_id: str) -> None:
        self._handlers.stop(run_id, StopReason.CANCELLED)

    def _now(self) -> datetime:
        return self._app.clock.now() + self._offset
