"""How schedules are moved, by whomever: load, decide, store; and again if somebody was faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from perdure.core.decide.create import NewRun
from perdure.core.run.commit import Commit
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, Run
from perdure.core.schedule import Change, Making, Overlap, Schedule, ScheduleStep, changing
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.input import text
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.schedules.options import asked_of, scheduled_key
from perdure.engine.tasks.catalogue import MOST_CONFLICTS, TaskEntry, known_tasks
from perdure.errors import (
    InvalidInput,
    ScheduleConflict,
    ScheduleNotFound,
    StorageUnavailable,
    TaskNotFound,
)
from perdure.storage.contract.schedules import Stepped

LOOKS_AT_RUNS = frozenset({Overlap.SKIP, Overlap.QUEUE_LATEST, Overlap.REPLACE})
MOST_UNENDED = 10_000
"""So many of a schedule's unended runs a decision looks at; those that came first."""


class Seen(NamedTuple):
    """What a change is decided by: the time, what of the schedule's runs has not ended, and
    whether its task is known and runs of it can be made."""

    now: datetime
    runs: Sequence[Run]
    is_known: bool


Decide = Callable[[Schedule, Seen], Change]
"""What is to become of a schedule."""


async def stored_schedule(runtime: Runtime, name: str) -> Schedule:
    """Also a deleted one. Raises ScheduleNotFound."""
    found = await runtime.storage.get_schedules(runtime.environment, [text(name, "name")])
    if name not in found:
        raise ScheduleNotFound(name)
    return found[name]


async def change_schedule(
    runtime: Runtime, name: str, by: Actor, decide: Decide, *, deleted: bool = False
) -> Schedule:
    """The schedule after what `decide` says about it; again where somebody was faster."""
    intended: Schedule | None = None
    for _ in range(MOST_CONFLICTS):
        schedule = await stored_schedule(runtime, name)
        if intended is not None and _is_same(schedule, intended):
            return schedule_told(runtime, schedule)  # an earlier try, whose answer was lost
        if schedule.deleted is not None and not deleted:
            raise ScheduleNotFound(name)
        now, runs = await runtime.storage.now(), await unended_runs(runtime, [schedule])
        tasks = await tasks_by_name(runtime)
        seen = Seen(now, runs.get(name, ()), runnable(tasks, schedule))
        change = decide(schedule, seen)
        step = changing(schedule, change, making(runtime, wish_or_none(tasks, schedule), now), by)
        [outcome] = await runtime.storage.put_schedules([step])
        if isinstance(outcome, Stepped):
            announce(runtime, [step])
            if change.schedule is not None:
                await runtime.storage.open_gates(runtime.defaults.maintenance_batch)
                return schedule_told(runtime, change.schedule)
        elif not isinstance(outcome, ScheduleConflict):
            raise outcome
        intended = change.schedule
    raise StorageUnavailable(f"schedule {name} is being changed by many at once; try again")


def schedule_told(runtime: Runtime, schedule: Schedule) -> Schedule:
    """Have schedulers look, who may sleep for longer than is right now; the schedule itself."""
    runtime.hints.publish([hints.schedules(schedule.environment)])
    return schedule


def _is_same(stored: Schedule, intended: Schedule) -> bool:
    """But for what moves by itself."""
    cursor, forgotten = intended.cursor, intended.forgotten_until
    return replace(stored, cursor=cursor, forgotten_until=forgotten) == intended


async def tasks_by_name(runtime: Runtime) -> dict[str, TaskEntry]:
    return {entry.name: entry for entry in await known_tasks(runtime.storage, runtime.environment)}


async def unended_runs(
    runtime: Runtime, schedules: Iterable[Schedule]
) -> Mapping[str, Sequence[Run]]:
    """What the overlap policies of these want to know."""
    wanted = [it.id for it in schedules if it.definition.overlap in LOOKS_AT_RUNS]
    if not wanted:
        return {}
    return await runtime.storage.unended(runtime.environment, wanted, limit=MOST_UNENDED)


def making(runtime: Runtime, task: NewRun, now: datetime) -> Making:
    return Making(task=task, run_id=runtime.ids.run_id, commit_id=runtime.ids.commit_id, now=now)


def wish_for(tasks: Mapping[str, TaskEntry], schedule: Schedule) -> NewRun:
    """What its task asks for. Raises TaskNotFound, and InvalidInput if a key is missing."""
    entry = tasks.get(schedule.definition.task)
    if entry is None:
        raise TaskNotFound(schedule.definition.task)
    return asked_of(entry, scheduled_key(entry, schedule.definition))


def wish_or_none(tasks: Mapping[str, TaskEntry], schedule: Schedule) -> NewRun:
    """The same; or just the task's name if it is not `runnable`: then no run is made of it."""
    try:
        return wish_for(tasks, schedule)
    except (TaskNotFound, InvalidInput):
        return NewRun(task=schedule.definition.task)


def runnable(tasks: Mapping[str, TaskEntry], schedule: Schedule) -> bool:
    """Return whether its task is known, and its runs have the key that the task needs. If not, a
    change must be possible all the same, and missed times are kept for after it."""
    try:
        wish_for(tasks, schedule)
    except (TaskNotFound, InvalidInput):
        return False
    return True


def announce(runtime: Runtime, steps: Iterable[ScheduleStep]) -> None:
    """Have workers look at what was made, and those who wait for what was ended."""
    runtime.hints.publish({topic for step in steps for it in step.commits for topic in _topics(it)})


def _topics(commit: Commit) -> Iterable[str]:
    run = commit.run
    if run.status is Status.CANCELLATION_REQUESTED and run.lease is not None:
        return [hints.cancel(run.lease.worker_id)]
    if run.is_terminal:
        return [hints.done(run.environment)]
    return [hints.work(run.environment, run.queue)]
