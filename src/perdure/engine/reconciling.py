"""Schedules that code or a manifest states, made those that are stored.

Code speaks when an app opens, for the schedules it defines. Those it once defined and no longer
does are reported, if their task is still the app's: to delete them is an operator's decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.core.decide.create import NewRun
from perdure.core.run import SYSTEM, Actor
from perdure.core.schedule import (
    Change,
    DefinedBy,
    Reconciliation,
    Schedule,
    ScheduleStep,
    Stated,
    Touch,
    changing,
    creating,
    decide_update,
    new_schedule,
    reconcile,
)
from perdure.engine import hints
from perdure.engine.catalogue import MOST_CONFLICTS, TaskEntry
from perdure.engine.scheduling import announce, making, tasks_by_name, unended_runs, wish_for
from perdure.errors import (
    PerdureError,
    ScheduleConflict,
    StorageUnavailable,
    UnreadableHistory,
)
from perdure.storage.schedule_protocol import Stepped
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.engine.app import App

PAGE = 500


async def reconcile_code(app: App) -> Reconciliation:
    """What the app's code says, made true; and what is to be known about the rest, said."""
    stated = list(app.stated_schedules.values())
    if not app.tasks:
        return Reconciliation()
    found = await apply_stated(app, stated, DefinedBy.CODE, app.actor)
    orphaned = tuple(it for it in found.orphaned if it.definition.task in app.tasks)
    if orphaned:
        table.SCHEDULES_ORPHANED.say(schedules=[it.id for it in orphaned])
    for kept in found.kept:
        table.SCHEDULE_KEPT.say(schedule_id=kept.schedule.id, because=kept.because)
    return replace(found, orphaned=orphaned)


async def apply_stated(
    app: App, stated: Sequence[Stated], by: DefinedBy, actor: Actor, *, dry_run: bool = False
) -> Reconciliation:
    """What had to be done, and has been, unless it is a dry run."""
    first: Reconciliation | None = None
    for _ in range(MOST_CONFLICTS):
        stated, stored = await _compared(app, stated, by)
        found = reconcile(stated, stored, by)
        first = first or found
        if dry_run or not (found.added or found.changed):
            return first
        if await _carry_out(app, found, by, actor):
            return first
    raise StorageUnavailable("schedules are being changed by many at once; try again")


async def _compared(
    app: App, stated: Sequence[Stated], by: DefinedBy
) -> tuple[list[Stated], list[Schedule]]:
    """What is stated, but for schedules that cannot be read; and what is stored: those that are
    named, and those that were so before."""
    known, unreadable = await _named(app, [one.definition.id for one in stated])
    comparable = [one for one in stated if one.definition.id not in unreadable]
    after = ""
    while True:
        page = await app.storage.list_schedules(
            app.environment, limit=PAGE, after=after, defined_by=by
        )
        known |= {schedule.id: schedule for schedule in page}
        if len(page) < PAGE:
            return comparable, list(known.values())
        after = page[-1].id


async def _named(app: App, names: list[str]) -> tuple[dict[str, Schedule], set[str]]:
    """Those of these that exist, and those that cannot be read, which has been said."""
    try:
        return (await app.storage.get_schedules(app.environment, names) if names else {}), set()
    except UnreadableHistory:
        if len(names) == 1:
            table.UNREADABLE_SCHEDULE.say(schedule_id=names[0])
            return {}, set(names)
    known: dict[str, Schedule] = {}
    unreadable: set[str] = set()
    for name in names:
        found, hidden = await _named(app, [name])
        known |= found
        unreadable |= hidden
    return known, unreadable


async def _carry_out(app: App, found: Reconciliation, by: DefinedBy, actor: Actor) -> bool:
    """Whether all of it is stored; if not, somebody was faster, or there is more to do."""
    now = await app.storage.now()
    steps = [creating(_new(app, one, now, by, actor), actor) for one in found.added]
    changed, is_whole = await _changes(app, found, now, by, actor)
    outcomes = await app.storage.put_schedules([*steps, *changed])
    for outcome in outcomes:
        if isinstance(outcome, PerdureError) and not isinstance(outcome, ScheduleConflict):
            raise outcome
    announce(app, changed)
    app.hints.publish([hints.schedules(app.environment)])
    return is_whole and all(isinstance(outcome, Stepped) for outcome in outcomes)


def _new(app: App, stated: Stated, now: datetime, by: DefinedBy, actor: Actor) -> Schedule:
    return new_schedule(
        stated.definition,
        now,
        environment=app.environment,
        defined_by=by,
        definition_version=stated.version,
        by=actor,
    )


async def _changes(
    app: App, found: Reconciliation, now: datetime, by: DefinedBy, actor: Actor
) -> tuple[list[ScheduleStep], bool]:
    """The steps, and whether they are all there is to do."""
    if not found.changed:
        return [], True
    tasks = await tasks_by_name(app)
    runs = await unended_runs(app, [schedule for schedule, _ in found.changed])
    steps, is_whole = [], True
    for schedule, stated in found.changed:
        decidable = _decidable(schedule, tasks)
        change = decide_update(
            decidable,
            stated.definition,
            now,
            runs.get(schedule.id, ()),
            defined_by=by,
            definition_version=stated.version,
            by=actor,
        )
        change = _as_held_before(change, schedule)
        is_whole = is_whole and change.schedule is not None
        wish = NewRun(task=schedule.definition.task)
        if change.plan is not None and decidable is schedule:
            wish = wish_for(tasks, schedule)
        steps.append(changing(schedule, change, making(app, wish, now), actor))
    return steps, is_whole


def _decidable(schedule: Schedule, tasks: Mapping[str, TaskEntry]) -> Schedule:
    """The schedule, or, if its task is unknown, as if it were paused: nobody could decide what was
    due, so that is left to the definition that comes."""
    if schedule.definition.task in tasks or schedule.paused is not None:
        return schedule
    return replace(schedule, paused=Touch(by=SYSTEM, at=schedule.cursor))


def _as_held_before(change: Change, before: Schedule) -> Change:
    """Paused only if it was; and one that was deleted begins anew, without what held it."""
    if change.schedule is None:
        return change
    held = before if before.deleted is None else replace(before, paused=None, last_pause=None)
    after = replace(change.schedule, paused=held.paused, last_pause=held.last_pause)
    return Change(change.plan, after)
