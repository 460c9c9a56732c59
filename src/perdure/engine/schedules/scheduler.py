"""Makes occurrences when their time has come. Any number may run: each time is decided once.

It sleeps until the next schedule is due, a hint comes, or the poll; the storage's clock decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from perdure.core.run.run import Run
from perdure.core.schedule import (
    Schedule,
    ScheduleStep,
    advancing,
    decide_occurrences,
    place_of,
)
from perdure.engine.maintenance.tick_record import TickRecord
from perdure.engine.observability.metrics import Metrics
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.runtime import RuntimeProvider
from perdure.engine.runtime.service import AppService
from perdure.engine.runtime.storage_time import StorageTime
from perdure.engine.schedules.change import announce, making, tasks_by_name, unended_runs, wish_for
from perdure.engine.tasks.catalogue import TaskEntry
from perdure.errors import InvalidInput, PerdureError, ScheduleConflict, TaskNotFound
from perdure.storage.contract.schedules import DueSchedules, Stepped
from perdure.telemetry import metrics, schedule_records

BATCH = 100
"""So many schedules are decided at once."""
MOST_RUNS = 1000
"""So many runs are made in a transaction, or those of one schedule."""
MOST_ROUNDS = 20
"""So many batches a pass; then others have their turn."""
SPREAD = timedelta(milliseconds=5)
"""Schedulers that wait for one instant come a little apart."""
MOMENT = timedelta(milliseconds=1)
PATIENCE = 30.0
"""So many seconds a schedule that cannot be decided is passed by, before the next try."""


class Scheduler(AppService):
    """Of the app's environment. It needs nobody's code: the catalogue knows the tasks."""

    def __init__(self, provider: RuntimeProvider, metrics_of_app: Metrics) -> None:
        components = provider.components
        super().__init__(provider, components.defaults.poll)
        self._environment = components.environment
        self._next_at: datetime | None = None
        self._passed_by: dict[str, float] = {}
        self._waiting: set[str] = set()
        """Schedules without a known task of which that has been said."""
        self._wake = asyncio.Event()
        self._stop_listening: Callable[[], None] = lambda: None
        self._time: StorageTime | None = None
        self._ticks = TickRecord(provider, metrics_of_app, "scheduler")
        self._lag = components.registry.histogram(metrics.SCHEDULE_LAG_SECONDS)

    def start(self) -> None:
        self._stop_listening = self._runtime.hub.listen(self._on_hint)
        super().start()

    async def stop(self) -> None:
        self._stop_listening()
        await super().stop()

    async def run_once(self) -> None:
        """Decide whatever is due."""
        self._wake.clear()
        for _ in range(MOST_ROUNDS):
            due = await self._look()
            if not due.schedules:
                break
            await self._decide(due)
        else:
            self._wake.set()  # there is more
        await self._ticks.record(due.now)

    async def rest(self) -> None:
        wait = self._interval
        if self._next_at is not None and self._time is not None:
            wait = min(wait, max(self._next_at - self._time.now(), MOMENT))
        try:
            async with asyncio.timeout((wait + SPREAD * abs(self._clock.jitter())).total_seconds()):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _on_hint(self, topics: hints.Topics | None) -> None:
        if topics is None or hints.schedules(self._environment) in topics:
            self._wake.set()

    async def _look(self) -> DueSchedules:
        due = await self._runtime.storage.due_schedules(
            self._environment, limit=BATCH, passing=self._passing()
        )
        if self._time is None:
            self._time = StorageTime(self._runtime.storage, self._clock, due.now)
        self._time.learn(due.now)
        self._next_at = due.next_at
        for name in due.unreadable:
            self._pass_by(name)
            schedule_records.UNREADABLE_SCHEDULE.log_hourly(self._log_key(name), schedule_id=name)
        return due

    async def _decide(self, due: DueSchedules) -> None:
        tasks = await tasks_by_name(self._runtime)
        runs = await unended_runs(self._runtime, due.schedules)
        steps = [
            step
            for schedule in due.schedules
            if (step := self._step(schedule, due.now, tasks, runs)) is not None
        ]
        for group in _groups(steps):
            await self._store(group, due.now)

    def _step(
        self,
        schedule: Schedule,
        now: datetime,
        tasks: Mapping[str, TaskEntry],
        runs: Mapping[str, Sequence[Run]],
    ) -> ScheduleStep | None:
        """One that cannot be decided must not keep the others."""
        try:
            plan = decide_occurrences(schedule, now, runs.get(schedule.id, ()))
            if plan is None:
                # Whoever computed its next time knew other zones. Now ours is written down.
                return ScheduleStep(schedule=schedule, expected=place_of(schedule))
            step = advancing(schedule, plan, making(self._runtime, wish_for(tasks, schedule), now))
            self._waiting.discard(schedule.id)
            return step
        except TaskNotFound as unknown:
            self._wait_for(schedule.id, unknown.task)
            return None
        except InvalidInput as error:
            self._refuse(schedule.id, error)
            return None
        except Exception:  # noqa: BLE001  # a bug
            self._pass_by(schedule.id)
            key = self._log_key(schedule.id)
            schedule_records.SCHEDULE_NOT_DECIDED.log_hourly(key, schedule_id=schedule.id)
            return None

    def _wait_for(self, name: str, task: str) -> None:
        """Usual while a deployment is under way, so it is said once."""
        self._pass_by(name)
        if name not in self._waiting:
            self._waiting.add(name)
            schedule_records.SCHEDULE_WAITS.say(schedule_id=name, task=task)

    async def _store(self, steps: Sequence[ScheduleStep], now: datetime) -> None:
        outcomes = await self._runtime.storage.put_schedules(steps)
        pairs = list(zip(steps, outcomes, strict=True))
        stored = [step for step, outcome in pairs if isinstance(outcome, Stepped)]
        announce(self._runtime, stored)
        self._measure(stored, now)
        for step, outcome in pairs:
            if isinstance(outcome, PerdureError) and not isinstance(outcome, ScheduleConflict):
                self._refuse(step.schedule.id, outcome)

    def _refuse(self, name: str, error: PerdureError) -> None:
        self._pass_by(name)
        key = self._log_key(name)
        schedule_records.SCHEDULE_REFUSED.log_hourly(key, schedule_id=name, error=str(error))

    def _log_key(self, name: str) -> str:
        return f"{self._environment}:{name}"

    def _measure(self, steps: Sequence[ScheduleStep], now: datetime) -> None:
        for step in steps:
            for commit in step.commits:
                nominal = commit.run.source.nominal_time
                if commit.expected_sequence == 0 and nominal and not commit.run.is_terminal:
                    self._lag.observe((now - nominal).total_seconds())

    def _pass_by(self, name: str) -> None:
        self._passed_by[name] = self._clock.elapsed() + PATIENCE

    def _passing(self) -> list[str]:
        now = self._clock.elapsed()
        self._passed_by = {name: at for name, at in self._passed_by.items() if at > now}
        return sorted(self._passed_by)


def _groups(steps: Sequence[ScheduleStep]) -> Iterator[list[ScheduleStep]]:
    """Steps that share a transaction: not too many runs, but at least one step."""
    group: list[ScheduleStep] = []
    for step in steps:
        runs = sum(len(it.commits) for it in group)
        if group and runs + len(step.commits) > MOST_RUNS:
            yield group
            group = []
        group.append(step)
    if group:
        yield group
