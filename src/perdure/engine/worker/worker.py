"""Claims runs, has them executed, keeps their leases, has recorded how they ended.

Everything here runs on the I/O loop. Claim loops overlap, so that database and Python work at
the same time; outcomes ride with the next claim. A handler is begun only after the commit
that holds its `run.started`. `Recorder` has the outcomes to be recorded, `Doubt` the lost claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from perdure.core.decide.ending import Unserved
from perdure.core.run.run import Run
from perdure.engine.attempt.transaction import TransactionTerms
from perdure.engine.execution.attempts import Closed, Handlers, Report, SlotFreed
from perdure.engine.execution.watchdog import StopReason
from perdure.engine.execution.worker_backend import Finished, WorkClaimed, WorkerBackend
from perdure.engine.observability.log_writer import RunLogs
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.outage_log import TROUBLE, OutageLog
from perdure.engine.runtime.runtime import Components
from perdure.engine.runtime.service import Service
from perdure.engine.runtime.storage_time import StorageTime
from perdure.engine.tasks.catalogue import Drain
from perdure.engine.worker.heartbeat import Heartbeat
from perdure.engine.worker.isolation import Isolation, Starter
from perdure.engine.worker.leases import Leases
from perdure.engine.worker.lost_claims import Doubt
from perdure.engine.worker.outcomes import Recorder
from perdure.engine.worker.record import Registration
from perdure.engine.worker.versions import Tasks
from perdure.engine.worker.work_scope import WorkScope
from perdure.errors import StorageUnavailable
from perdure.telemetry import metrics, table
from perdure.telemetry.registry import Gauges

MAX_CLAIM_BATCH = 500
"""Runs of one claim: more at once would only keep database and Python waiting for each other."""
DRAIN_LOG_DELAY_S = 1.0
"""Seconds after which a stop logs what it waits for."""
HANDLER_STOP_TIMEOUT_S = 1.0
"""Seconds that handlers have to stop after the drain, once they are asked to."""
OUTCOME_COMMIT_TIMEOUT_S = 5.0
"""Seconds that a stop waits for the commits of their outcomes."""
SETTLE_TIMEOUT_S = 2.0
"""Seconds allowed to find out about claims that got no answer."""
DEREGISTER_TIMEOUT_S = 0.5
"""Seconds that a stop waits until its worker record says that it has stopped."""


class Worker:
    """One process's worker. `start` and `stop` are called on the I/O loop."""

    _watching: asyncio.Timeout | None = None
    """How long the loop that keeps watch will wait."""

    def __init__(
        self,
        components: Components,
        backend: WorkerBackend,
        hint: hints.Hints,
        handlers: Handlers,
        terms: TransactionTerms,
        *,
        concurrency: int,
        queues: Sequence[str] | None,
        run_ids: Sequence[str] | None = None,
        tasks: Tasks,
        starter: Starter | None = None,
        on_drain: Callable[[Drain], None] = lambda wish: None,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_idle`: called when a worker of named runs holds none, after a claim or a record."""
        self.id = components.ids.worker_id()
        self._components = components
        self._backend, self._hints = backend, hint
        self._on_drain, self._on_idle = on_drain, on_idle
        self._handlers, self._terms = handlers, terms
        self._concurrency = concurrency
        self._free, self._claims_in_flight, self._cancel_hints = concurrency, 0, 0
        self._wake, self._changed, self._watch = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self._make_services()
        self._scope = WorkScope(components, self._wake.set, tasks, queues, run_ids)
        self._isolation = Isolation(components.clock.elapsed, starter)
        self._claimers: list[asyncio.Task[None]] = []
        self._next_look: datetime | None = None
        self._is_stopping = self._is_in_a_hurry = self._is_hinted = False
        self._drain: asyncio.Timeout | None = None
        self._farewells: list[Callable[[], None]] = []

    def _make_services(self) -> None:
        components, backend, hint = self._components, self._backend, self._hints
        self._time = StorageTime(backend, components.clock)
        self._leases = Leases(
            components, backend, self._on_lost, self._on_cancel, self._handlers.is_ending
        )
        self._recorder = Recorder(components, backend, hint, self._leases, self._time)
        self._doubt = Doubt(components, backend, self.id, self._time, self._changed.set)
        self._registration = Registration(components.clock, backend, self.id)
        self._stuck = components.registry.counter(metrics.HANDLERS_STUCK)
        self._heartbeat = Heartbeat(components, self._beat)
        self._logs = RunLogs(backend, hint, components, self._time.now, self._heartbeat.beat_now)
        self._services: list[Service] = [self._leases, self._doubt, self._heartbeat]
        self._outages = OutageLog("Worker", components.clock)

    async def start(self) -> None:
        if self._backend.needs_registration:
            await self._register()
        loop = asyncio.get_running_loop()
        self._handlers.connect(loop, self._on_reports, self._logs, self._terms)
        self._farewells.append(self._components.registry.watch(self._gauges))
        self._farewells.append(self._hints.hub.listen(self._on_hint))
        # With room for three full claims, one may be in the database while two meet in Python.
        loops = 2 if self._concurrency < 3 * MAX_CLAIM_BATCH else 3
        self._claimers = [asyncio.create_task(self._claim_for_ever()) for _ in range(loops)]
        for service in self._services:
            service.start()

    async def stop(self, drain: timedelta) -> None:
        """Stop claiming, let attempts end until the deadline, hand over the rest."""
        self._is_stopping = True
        self._wake.set()
        isolation = asyncio.create_task(self._isolation.stop())
        if not await self._drained(timedelta(0) if self._is_in_a_hurry else drain):
            self._handlers.stop_all(StopReason.SHUTDOWN)
            if self._has_work and not await self._empty(asyncio.timeout(HANDLER_STOP_TIMEOUT_S)):
                self._handlers.give_up_all()
                await self._empty(asyncio.timeout(OUTCOME_COMMIT_TIMEOUT_S))
        await self._logs.close()
        for farewell in self._farewells:
            farewell()
        for claimer in self._claimers:
            claimer.cancel()
        await asyncio.gather(*self._claimers, return_exceptions=True)
        await asyncio.gather(*(service.stop() for service in self._services), isolation)
        await self._leave()

    async def _leave(self) -> None:
        """Whoever asks now learns that nobody works here. If it cannot be said, time tells."""
        with suppress(StorageUnavailable, TimeoutError):
            async with asyncio.timeout(DEREGISTER_TIMEOUT_S):
                await self._register(stopped=True)

    def hurry(self) -> None:
        """Drain no longer."""
        self._is_in_a_hurry = True
        if self._drain is not None:
            self._drain.reschedule(asyncio.get_running_loop().time())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, nothing to be recorded, and nothing in question."""
        return not (self._has_work or self._claims_in_flight or self._doubt.is_unsettled)

    @property
    def _has_work(self) -> bool:
        """Whether anything is held, or to be recorded."""
        return bool(self._leases.held or self._recorder.finished)

    async def _beat(self) -> None:
        self._handlers.dismiss_idle()
        wish = await self._register()
        if wish is not None and not self._is_stopping:
            self._on_drain(wish)
        if self._scope.run_ids is not None or self._is_stopping:
            return
        suspects = await self._backend.find_suspects(self._scope.of_suspects())
        if self._isolation.offer(suspects):  # once it has been stopped, it starts no process
            self._wake.set()

    async def _register(self, *, stopped: bool = False) -> Drain | None:
        return await self._registration.beat(
            concurrency=self._concurrency,
            running=len(self._leases.held),
            queues=self._scope.registered_queues,
            stopping=self._is_stopping,
            stopped=stopped,
            tasks=self._scope.tasks,
            not_importable=self._scope.import_failures.problems,
            loop_watch=self._handlers.loop_watch,
            awaiting=self._logs.awaits.among({run.id for run in self._leases.held.values()}),
        )

    async def _drained(self, within: timedelta) -> bool:
        """Whether everything has ended by itself, in time."""
        log = self._leases.log_drain
        saying = asyncio.get_running_loop().call_later(DRAIN_LOG_DELAY_S, log)
        self._drain = asyncio.timeout(within.total_seconds())
        try:
            return await self._empty(self._drain)
        finally:
            self._drain = None
            saying.cancel()

    async def _empty(self, patience: asyncio.Timeout) -> bool:
        try:
            async with patience:
                while self._has_work:
                    self._changed.clear()
                    await self._changed.wait()
                return await self._settle()
        except TimeoutError:
            return False

    async def _settle(self) -> bool:
        """Find out about claims without an answer, but not for long: with nothing to end and
        nothing to record, a storage that is away must not keep the process."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                while not self.is_idle:
                    self._changed.clear()
                    await self._changed.wait()
        return not self._has_work and not self._claims_in_flight

    def _on_hint(self, topics: hints.Topics | None) -> None:
        if topics is None or any(map(self._scope.concerns, topics)):
            self._is_hinted = True
            self._wake.set()
        if topics is None or hints.cancel(self.id) in topics:
            self._cancel_hints += 1
            self._leases.renew_now()
        if topics is not None and hints.drain(self.id) in topics:
            self._heartbeat.beat_now()

    async def _idle(self) -> None:
        """Until there is something to do: a hint, a report, the next due time, or the poll. One
        loop at a time keeps watch: two that claim the same run would keep each other waiting."""
        async with self._watch:
            try:
                async with asyncio.timeout(None) as self._watching:
                    self._be_patient()
                    await self._wake.wait()
            except TimeoutError:
                pass
            finally:
                self._watching = None
            self._wake.clear()

    def _be_patient(self) -> None:
        """Have whoever keeps watch wait for as long as may be, by what is known now."""
        wait = self._components.defaults.poll
        if self._next_look is not None and self._free and not self._is_stopping:
            wait = min(wait, max(self._next_look - self._time.now(), timedelta(milliseconds=1)))
        if self._watching is not None and not self._watching.expired():
            until = asyncio.get_running_loop().time() + wait.total_seconds()
            self._watching.reschedule(until)

    async def _claim_for_ever(self) -> None:
        while True:
            if await self._outages.went_well(self._turns()):
                await self._idle()
            else:
                await self._components.clock.sleep(TROUBLE)

    async def _turns(self) -> None:
        while await self._turn():
            pass

    async def _turn(self) -> bool:
        """Record what has ended and claim for the free slots; whether there may be more."""
        await self._recorder.judge_misfits()
        places, suspect = self._places()
        finished = self._recorder.take()
        if not places and not finished:
            return False
        runs = await self._record_and_claim(finished, places, suspect)
        is_full = len(runs) == places > 0
        if is_full:
            self._wake.set()  # there may be enough for others
        # What a hint during the claim spoke of, the claim may have missed.
        return is_full or bool(self._recorder.finished) or (places > 0 and self._is_hinted)

    def _places(self) -> tuple[int, str | None]:
        """How many runs to claim, or which suspect: it is claimed alone, by name."""
        if self._is_stopping or not self._free:
            return 0, None
        held, is_claiming = self._leases.held, self._claims_in_flight > 0
        if self._isolation.allows_others(held.values(), is_claiming=is_claiming):
            return min(self._free, max(self._concurrency // 2, 1), MAX_CLAIM_BATCH), None
        suspect = self._isolation.take(is_busy=bool(held) or is_claiming)
        return int(suspect is not None), suspect

    async def _record_and_claim(
        self, finished: list[Finished], places: int, suspect: str | None
    ) -> Sequence[Run]:
        """The runs that were claimed, and begun. If the storage does not answer, what has ended
        is still to be recorded; once it has, nothing that fails can undo its answer."""
        self._free -= places
        self._is_hinted = self._is_hinted and not places
        self._claims_in_flight += 1
        told_before = self._cancel_hints
        try:
            answer = await self._ask(finished, places, suspect)
        except BaseException:
            self._recorder.put_back(finished)
            self._free += places
            raise
        else:
            self._outages.record_answer()
            self._take_over(answer.runs, places)
            if self._cancel_hints > told_before:  # of these may be the run that was meant
                self._leases.renew_now()
        finally:
            self._claims_in_flight -= 1
            self._changed.set()
            if self._isolation.is_waiting:
                self._wake.set()
        try:
            await self._recorder.settle(finished, answer.outcomes)
        finally:
            self._changed.set()
        if suspect is None:
            self._plan_next_look(answer, places)
        self._be_patient()
        if self._scope.run_ids is not None and self.is_idle:
            self._on_idle()
        return answer.runs

    async def _ask(
        self, finished: Sequence[Finished], places: int, suspect: str | None
    ) -> WorkClaimed:
        await self._logs.settle(item.token for item in finished)
        if not places:
            outcomes = await self._backend.report(finished)
            return WorkClaimed(outcomes=tuple(outcomes), now=self._time.now())
        request = self._scope.make_claim(self.id, places, suspect)
        try:
            claimed = await self._backend.claim(request, finished)
        except BaseException:
            self._doubt.add(request.tokens)
            raise
        self._time.learn(claimed.now)
        return claimed

    def _take_over(self, runs: Sequence[Run], places: int) -> None:
        """They are ours now: hold their leases, and begin."""
        self._free += places - len(runs)
        self._leases.hold(runs)
        self._handlers.begin(runs)

    def _plan_next_look(self, answer: WorkClaimed, places: int) -> None:
        """When to claim without being told to. Of runs known by name, what else is due says
        nothing; but we know of those that we have just given back."""
        if self._scope.run_ids is None:
            self._next_look = answer.next_claimable_at if places else self._next_look
            return
        looks = [self._next_look, *(it.claimable_at for it in answer.recorded)]
        self._next_look = min((it for it in looks if it and it > answer.now), default=None)

    def _on_reports(self, reports: Sequence[Report]) -> None:
        for report in reports:
            if isinstance(report, SlotFreed):
                self._free += 1
                continue
            if report.is_stuck:
                self._stuck.add()
            else:
                self._free += 1
            if isinstance(report, Finished):
                self._finish(report)
            else:
                self._close(report)
        self._changed.set()
        self._wake.set()

    def _finish(self, finished: Finished) -> None:
        run = self._leases.held.get(finished.token)
        if run is None:
            table.LATE_OUTCOME.say(run_id=finished.run.id)
        else:
            finished.run = run  # a heartbeat may have been recorded since the attempt began
            if finished.ending.__class__ is Unserved and self._scope.import_failures.note(
                run.task, finished.ending
            ):
                self._heartbeat.beat_now()  # so that `why` and the doctor name it
            self._recorder.finished.append(finished)

    def _close(self, closed: Closed) -> None:
        if closed.topics is None:
            self._leases.lose(closed.token)
            table.LATE_OUTCOME.say(run_id=closed.run_id)
        else:
            self._leases.drop(closed.token)
            self._hints.publish(closed.topics)

    def _gauges(self) -> Gauges:
        return {
            metrics.WORKER_SLOTS: {(): self._concurrency},
            metrics.WORKER_SLOTS_USED: {(): self._concurrency - self._free},
        }

    def _on_lost(self, token: str) -> None:
        self._handlers.stop(token, StopReason.LEASE_LOST)
        self._changed.set()

    def _on_cancel(self, token: str) -> None:
        self._handlers.stop(token, StopReason.CANCELLED)
