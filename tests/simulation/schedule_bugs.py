"""Bugs of the bank about schedules: misses, doubles, and slots that hold too much or too little."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from perdure.core.run import effects
from perdure.core.run.run import Run
from perdure.core.schedule import Schedule, decide_resume, plan
from perdure.engine.schedules import operators as schedules
from perdure.engine.schedules.scheduler import Scheduler
from perdure.storage.contract.schedules import Stepped
from perdure.storage.sql.storage import SqlStorage
from perdure.storage.sql.write import schedules as scheduling
from simulation.bugs import BANK, Bug, Patch, bug

__all__ = ["BANK", "Bug"]


def _unguarded(patch: Patch) -> None:
    patch(scheduling, "_compare", lambda mine, places: None)


def _without_keys(patch: Patch) -> None:
    keys = effects._keys
    patch(effects, "_keys", lambda run: tuple(it for it in keys(run) if it.kind != "occurrence"))


@bug("a schedule's step does not compare where the schedule is")
def _(patch: Patch) -> None:
    _unguarded(patch)


@bug("nothing keeps an occurrence from being made twice")
def _(patch: Patch) -> None:
    _unguarded(patch)
    _without_keys(patch)


@bug("the cursor is stored before its occurrences are")
def _(patch: Patch) -> None:
    put = SqlStorage.put_schedules

    async def apart(self: Any, steps: Sequence[Any]) -> Any:
        bare = [replace(step, commits=()) for step in steps]
        outcomes = await put(self, bare)
        for step, outcome in zip(steps, outcomes, strict=True):
            if isinstance(outcome, Stepped):
                await self.commit(step.commits)
        return outcomes

    patch(SqlStorage, "put_schedules", apart)


@bug("a scheduler decides by its own clock")
def _(patch: Patch) -> None:
    look = Scheduler._look

    async def by_its_own(self: Scheduler) -> Any:
        return replace(await look(self), now=self._clock.now())

    patch(Scheduler, "_look", by_its_own)


@bug("a resumed schedule forgets what it missed")
def _(patch: Patch) -> None:
    resume = decide_resume

    def forgetful(schedule: Schedule, now: datetime) -> Schedule | None:
        resumed = resume(schedule, now)
        return None if resumed is None else replace(resumed, cursor=max(now, resumed.cursor))

    patch(schedules, "decide_resume", forgetful)


@bug("a retrying occurrence gives its slot away")
def _(patch: Patch) -> None:
    held = Run.holds_schedule_slot.fget  # type: ignore[attr-defined]  # a property
    leased = property(lambda run: held(run) and run.holds_room)
    patch(Run, "holds_schedule_slot", leased)


@bug("an ended occurrence keeps its slot")
def _(patch: Patch) -> None:
    kept = property(lambda run: run.schedule_id is not None and run.counters.claims > 0)
    patch(Run, "holds_schedule_slot", kept)


@bug("what an operator asked for is superseded")
def _(patch: Patch) -> None:
    patch(plan, "is_own_occurrence", lambda run: True)
