"""Schedules in a simulation: which there are, who meddles with them, and whether each of their
times is decided exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from random import Random  # seeded
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core.invariants import check_occurrences
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.core.schedule import (
    Cadence,
    Schedule,
    SkippedSpan,
    SkipReason,
    cron,
    every,
    is_own_occurrence,
    rfc3339,
)
from perdure.errors import PerdureError
from perdure.testing.virtual.time import EPOCH
from simulation.database import Database
from simulation.faults import LATEST
from simulation.notes import Notes
from simulation.workload import Script

if TYPE_CHECKING:
    from simulation.world import World

TASKS = ("plain", "plain", "narrow", "once")
OVERLAPS = ("forbid", "allow", "skip", "queue_latest", "replace")


class Planned(msgspec.Struct, frozen=True):
    """A schedule that every node's code defines."""

    task: str
    cadence: Cadence
    settings: dict[str, Any]


def plan_schedules(chance: Random, span: float) -> dict[str, Planned]:
    """A few; they end before the scenario heals, so that everything can end."""
    return {f"s{n}": _plan(chance, span) for n in range(chance.randint(1, 3))}


def _plan(chance: Random, span: float) -> Planned:
    end = EPOCH + timedelta(seconds=span * 0.8)
    seconds, acts = chance.choice((0.0, 0.3, 2.0)), chance.choice((("ok",), ("fail", "ok")))
    settings: dict[str, Any] = {
        "payload": {"script": Script(acts, seconds)},
        "overlap": chance.choice(OVERLAPS),
        "misfire": chance.choice(("skip", "run_once", "catch_up", "catch_up")),
        "misfire_grace": chance.choice((1.0, 1.0, 60.0)),
        "max_concurrency": chance.randint(1, 2),
    }
    each = every(chance.choice((1.0, 1.3, 2.0)), anchor=EPOCH, end=end)
    cadence = chance.choice((cron("* * * * * *", end=end), each))
    return Planned(chance.choice(TASKS), cadence, settings)


class ScheduleWatch:
    """Knows every occurrence and every span that was ever stored."""

    def __init__(self, database: Database, notes: Notes) -> None:
        self._database = database
        self._notes = notes
        self._times: dict[str, set[datetime]] = defaultdict(set)
        self._spans: dict[tuple[str, datetime], SkippedSpan] = {}
        self._active: Counter[str | None] = Counter()
        self.schedules: dict[str, Schedule] = {}
        self.paused: set[str] = set()
        """Schedules whose pause was acknowledged, and whose resumption nobody asked for since."""

    def created(self, run: Run, now: datetime) -> None:
        """A run was stored for the first time."""
        name, nominal = run.schedule_id, run.source.nominal_time
        if name is None or nominal is None or not is_own_occurrence(run):
            return
        if nominal in self._times[name]:
            self._notes.fail(f"schedule {name}: {rfc3339(nominal)} was made twice")
        if nominal > now:
            self._notes.fail(f"schedule {name}: {rfc3339(nominal)} was made before its time")
        if name in self.paused:
            self._notes.fail(f"schedule {name}: made {rfc3339(nominal)} though it is paused")
        self._times[name].add(nominal)
        if run.reason is not None:
            self._notes.sometimes("occurrence skipped")

    def look(self) -> None:
        """After a write."""
        for schedule in self._database.schedules():
            before = self.schedules.get(schedule.id)
            if before is not None and schedule.cursor < before.cursor:
                self._notes.fail(f"schedule {schedule.id}: its cursor went back")
            self.schedules[schedule.id] = schedule
        for span in self._database.spans():
            self._spans[span.schedule_id, span.last] = span

    def due(self, now: datetime) -> list[str]:
        """Schedules with times that nobody has decided yet, though they have come."""
        return [name for name, it in self.schedules.items() if it.next_at and it.next_at <= now]

    def check(self) -> None:
        """Of each cadence, every time up to the cursor is on record once."""
        for name, schedule in self.schedules.items():
            spans = [span for (owner, _), span in self._spans.items() if owner == name]
            for problem in check_occurrences(schedule, self._times[name], spans):
                self._notes.fail(f"schedule {name}: {problem}")

    def superseded(self, before: Run, after: Run) -> None:
        """Only by the cadence's own newer occurrences, and only what has not begun."""
        if after.status is not Status.SKIPPED or after.reason != SkipReason.SUPERSEDED:
            return
        self._notes.sometimes("occurrence superseded")
        if before.counters.claims:
            self._notes.fail(f"run {after.id}: superseded though it had begun")
        if before.source.reason is not None:
            self._notes.fail(f"run {after.id}: superseded though an operator had asked for it")

    def check_slots(self, runs: Iterable[Run], most: Mapping[str, int | None]) -> None:
        """An occurrence is active from its first claim to its end. More than allowed are so only
        where less was allowed since."""
        active = Counter(run.schedule_id for run in runs if _is_active(run))
        for name, count in active.items():
            allowed = most.get(name or "")
            if allowed is not None and count > max(allowed, self._active[name]):
                self._notes.fail(f"schedule {name}: {count} active runs, at most {allowed} allowed")
        self._active = active

    def times(self, name: str) -> set[datetime]:
        """The nominal times of its runs."""
        return self._times[name]


def _is_active(run: Run) -> bool:
    """Said anew: what the engine says of it is what is to be checked."""
    begun = run.counters.claims > 0 or run.dispatch_expires_at is not None
    return run.schedule_id is not None and begun and run.finished_at is None


class ScheduleMeddler:
    """Pauses, resumes, edits and triggers schedules; and lets them go on in the end."""

    def __init__(self, world: World, app: Any, chance: Random, pace: float) -> None:
        self._world = world
        self._app = app
        self._chance = chance
        self._pace = pace

    async def run(self) -> None:
        names = sorted(self._world.scenario.schedules)
        while not self._world.is_healed:
            await asyncio.sleep(self._chance.uniform(0.2, 2.0) * self._pace)
            act = self._chance.choice(
                (self._pause, self._resume, self._resume, self._edit, self._run)
            )
            await self._attempt(act(self._chance.choice(names)))
        await asyncio.sleep(LATEST)  # what was said before may still be on its way
        while names:
            await asyncio.sleep(0.1)
            names = [name for name in names if not await self._attempt(self._resume(name))]

    async def _attempt(self, act: Any) -> bool:
        try:
            await act
        except PerdureError as error:
            self._world.notes.say("meddler", type(error).__name__)
            return False
        return True

    async def _pause(self, name: str) -> None:
        await self._app.schedules.pause(name, "enough")
        self._world.oracle.schedules.paused.add(name)

    async def _resume(self, name: str) -> None:
        paused = self._world.oracle.schedules.paused
        if name in paused:
            self._world.notes.sometimes("schedule paused and resumed")
        paused.discard(name)
        await self._app.schedules.resume(name)

    async def _edit(self, name: str) -> None:
        overlap, most = self._chance.choice(OVERLAPS), self._chance.randint(1, 3)
        await self._app.schedules.update(name, overlap=overlap, max_concurrency=most)

    async def _run(self, name: str) -> None:
        handle = await self._app.schedules.trigger(name, "because")
        run = self._world.oracle.runs.get(handle.id)
        if run is None or run.source.reason != "because":
            self._world.notes.fail(f"run {handle.id}: triggered by hand, and lost with its reason")
