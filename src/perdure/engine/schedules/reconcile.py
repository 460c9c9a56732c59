"""Schedules that code or a manifest states, made those that are stored.

Code speaks when an app opens, for the schedules it defines. Those it once defined and no longer
does are reported, if their task is still the app's: to delete them is an operator's decision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from msgspec.structs import replace

from perdure.core.run.run import Actor
from perdure.core.schedule import (
    Change,
    DefinedBy,
    Reconciliation,
    Schedule,
    ScheduleStep,
    Stated,
    changed_fields,
    changing,
    check_ahead,
    creating,
    decide_update,
    new_schedule,
    reconcile,
)
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.runtime.slices import TRANSACTION_ITEMS, slice_items
from perdure.engine.schedules.change import (
    announce,
    making,
    runnable,
    tasks_by_name,
    unended_runs,
    wish_or_none,
)
from perdure.engine.tasks.catalogue import MOST_CONFLICTS
from perdure.errors import (
    InvalidInput,
    PerdureError,
    ScheduleConflict,
    StorageUnavailable,
    UnreadableHistory,
)
from perdure.storage.contract.schedules import Stepped
from perdure.telemetry import schedule_records

PAGE = TRANSACTION_ITEMS


class SchedulingCode(Protocol):
    """What an app's code says about schedules. `is_spoken_for`: another app has logged it."""

    @property
    def actor(self) -> Actor: ...

    @property
    def is_spoken_for(self) -> bool: ...

    @property
    def stated_schedules(self) -> Mapping[str, Stated]: ...

    @property
    def tasks(self) -> Collection[str]: ...


async def reconcile_code(runtime: Runtime, code: SchedulingCode) -> Reconciliation:
    """What the app's code says, made true; and what is to be known about the rest, said."""
    stated = list(code.stated_schedules.values())
    if not code.tasks:
        return Reconciliation()
    found = await apply_stated(runtime, stated, DefinedBy.CODE, code.actor)
    orphaned = tuple(it for it in found.orphaned if it.definition.task in code.tasks)
    found = replace(found, orphaned=orphaned)
    if not code.is_spoken_for:
        _tell(found, runtime.now())
    return found


def _tell(found: Reconciliation, now: datetime) -> None:
    for one in found.added:
        schedule_records.SCHEDULE_ADDED.say(schedule_id=one.definition.id)
        _tell_if_over(one, now)
    for before, one in found.changed:
        changed = changed_fields(before.definition, one.definition)
        fields = ", ".join([*changed, *(["it was deleted"] if before.deleted else [])])
        schedule_records.SCHEDULE_CHANGED.say(schedule_id=before.id, fields=fields)
        if "cadence" in changed:
            _tell_if_over(one, now)
    for kept in found.kept:
        schedule_records.SCHEDULE_KEPT.say(schedule_id=kept.schedule.id, because=kept.because)
    if found.orphaned:
        names = [it.id for it in found.orphaned]
        schedule_records.SCHEDULES_ORPHANED.say(schedules=names, names=", ".join(names))


def _tell_if_over(stated: Stated, now: datetime) -> None:
    """Code must start all the same: a deployment is no place to learn of an old date."""
    try:
        check_ahead(stated.definition.cadence, now)
    except InvalidInput as error:
        schedule_records.SCHEDULE_IS_OVER.say(schedule_id=stated.definition.id, error=str(error))


async def apply_stated(
    runtime: Runtime,
    stated: Sequence[Stated],
    by: DefinedBy,
    actor: Actor,
    *,
    dry_run: bool = False,
) -> Reconciliation:
    """What had to be done, and has been, unless it is a dry run."""
    first: Reconciliation | None = None
    for _ in range(MOST_CONFLICTS):
        stated, stored = await _compared(runtime, stated, by)
        found = reconcile(stated, stored, by)
        first = first or found
        if dry_run or not (found.added or found.changed):
            return first
        if await _carry_out(runtime, found, by, actor):
            return first
    raise StorageUnavailable("schedules are being changed by many at once; try again")


async def _compared(
    runtime: Runtime, stated: Sequence[Stated], by: DefinedBy
) -> tuple[list[Stated], list[Schedule]]:
    """What is stated, but for schedules that cannot be read; and what is stored: those that are
    named, and those that were so before."""
    known, unreadable = await _named(runtime, [one.definition.id for one in stated])
    comparable = [one for one in stated if one.definition.id not in unreadable]
    after = ""
    while True:
        page = await runtime.storage.list_schedules(
            runtime.environment, limit=PAGE, after=after, defined_by=by
        )
        known |= {schedule.id: schedule for schedule in page}
        if len(page) < PAGE:
            return comparable, list(known.values())
        after = page[-1].id


async def _named(runtime: Runtime, names: list[str]) -> tuple[dict[str, Schedule], set[str]]:
    """Those of these that exist, and those that cannot be read, which has been said."""
    if len(names) > TRANSACTION_ITEMS:
        return await _named_in_slices(runtime, names)
    try:
        return (
            await runtime.storage.get_schedules(runtime.environment, names) if names else {}
        ), set()
    except UnreadableHistory:
        if len(names) == 1:
            schedule_records.UNREADABLE_SCHEDULE.say(schedule_id=names[0])
            return {}, set(names)
    return await _named_in_slices(runtime, names, 1)


async def _named_in_slices(
    runtime: Runtime, names: list[str], size: int = TRANSACTION_ITEMS
) -> tuple[dict[str, Schedule], set[str]]:
    known: dict[str, Schedule] = {}
    unreadable: set[str] = set()
    for some in slice_items(names, size):
        found, hidden = await _named(runtime, list(some))
        known |= found
        unreadable |= hidden
    return known, unreadable


async def _carry_out(runtime: Runtime, found: Reconciliation, by: DefinedBy, actor: Actor) -> bool:
    """Whether all of it is stored; if not, somebody was faster, or there is more to do."""
    parts = [Reconciliation(added=tuple(some)) for some in slice_items(found.added)]
    parts += [Reconciliation(changed=tuple(some)) for some in slice_items(found.changed)]
    done = [await _carry_out_part(runtime, part, by, actor) for part in parts]
    return all(done)


async def _carry_out_part(
    runtime: Runtime, found: Reconciliation, by: DefinedBy, actor: Actor
) -> bool:
    now = await runtime.storage.now()
    steps = [creating(_new(runtime, one, now, by, actor), actor) for one in found.added]
    changed, is_whole = await _changes(runtime, found, now, by, actor)
    outcomes = await runtime.storage.put_schedules([*steps, *changed])
    for outcome in outcomes:
        if isinstance(outcome, PerdureError) and not isinstance(outcome, ScheduleConflict):
            raise outcome
    announce(runtime, changed)
    runtime.hints.publish([hints.schedules(runtime.environment)])
    return is_whole and all(isinstance(outcome, Stepped) for outcome in outcomes)


def _new(runtime: Runtime, stated: Stated, now: datetime, by: DefinedBy, actor: Actor) -> Schedule:
    return new_schedule(
        stated.definition,
        now,
        environment=runtime.environment,
        defined_by=by,
        definition_version=stated.version,
        by=actor,
    )


async def _changes(
    runtime: Runtime, found: Reconciliation, now: datetime, by: DefinedBy, actor: Actor
) -> tuple[list[ScheduleStep], bool]:
    """The steps, and whether they are all there is to do."""
    if not found.changed:
        return [], True
    tasks = await tasks_by_name(runtime)
    runs = await unended_runs(runtime, [schedule for schedule, _ in found.changed])
    steps, is_whole = [], True
    for schedule, stated in found.changed:
        change = decide_update(
            schedule,
            stated.definition,
            now,
            runs.get(schedule.id, ()),
            defined_by=by,
            definition_version=stated.version,
            by=actor,
            is_known=runnable(tasks, schedule),
        )
        change = _begun_anew(change, schedule)
        is_whole = is_whole and change.schedule is not None
        steps.append(
            changing(schedule, change, making(runtime, wish_or_none(tasks, schedule), now), actor)
        )
    return steps, is_whole


def _begun_anew(change: Change, before: Schedule) -> Change:
    """One that was deleted begins without what held it."""
    if before.deleted is None or change.schedule is None:
        return change
    return Change(change.plan, replace(change.schedule, paused=None, pauses=()))
