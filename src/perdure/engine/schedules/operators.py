"""`app.schedules`: look at schedules, change them, run them by hand, and ask why they did not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from msgspec.structs import replace

from perdure.core.decide.create import NewRun, decide_create
from perdure.core.json_text import in_utc
from perdure.core.run.run import Actor
from perdure.core.schedule import (
    Cadence,
    Change,
    DefinedBy,
    Definition,
    Explanation,
    Reconciliation,
    Schedule,
    Stated,
    Touch,
    check_ahead,
    creating,
    decide_delete,
    decide_pause,
    decide_resume,
    decide_update,
    new_schedule,
    next_times,
    triggered,
)
from perdure.engine.client.handle import RunHandle
from perdure.engine.client.handles import Handles
from perdure.engine.definition.task import Task
from perdure.engine.operators.filters import page_limit
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.input import OPERATOR, By, actor_of, count, reason_of, text
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import OpenComponents, Runtime
from perdure.engine.runtime.write import create
from perdure.engine.schedules.backfill import Backfilled, backfill_range, check_range, count_range
from perdure.engine.schedules.change import (
    Decide,
    Seen,
    change_schedule,
    schedule_told,
    stored_schedule,
)
from perdure.engine.schedules.history import (
    Occurrences,
    explain_time,
    last_occurrences,
    occurrences_between,
)
from perdure.engine.schedules.options import (
    ScheduleKeywords,
    Target,
    asked_of,
    cadence_of,
    changed_definition,
    make_definition,
    scheduled_key,
    target_of,
    target_of_entry,
    unknown_target,
)
from perdure.engine.schedules.reconcile import apply_stated
from perdure.engine.tasks.catalogue import find_task
from perdure.errors import (
    InvalidInput,
    InvalidTask,
    ScheduleConflict,
    ScheduleExists,
    ScheduleNotFound,
    TaskNotFound,
)
from perdure.storage.contract.schedules import Stepped

MOST_PREVIEWED = 1000

AnyTask = str | Task[..., Any]
Tasks = Mapping[str, Task[..., Any]]


@explain_methods
class Schedules:
    """By name. `by` names the operator. What takes a name raises ScheduleNotFound."""

    def __init__(self, runtime: Runtime, tasks: Tasks, handles: Handles) -> None:
        self._components: OpenComponents = runtime
        self._runtime = runtime
        self._tasks = tasks
        self._handles = handles

    # Looking

    async def list(
        self, *, limit: int = 100, after: str = "", deleted: bool = False
    ) -> Sequence[Schedule]:
        """A page in order of name, `after` one of them; deleted ones only if asked for. A page
        that is not full is the last one."""
        return await self._runtime.storage.list_schedules(
            self._runtime.environment,
            limit=page_limit(limit),
            after=text(after, "after"),
            deleted=deleted,
        )

    async def get(self, name: str, *, deleted: bool = False) -> Schedule:
        """The schedule as it is now; a deleted one only with `deleted`."""
        return await (stored_schedule(self._runtime, name) if deleted else self._existing(name))

    async def preview(
        self, what: str | Cadence, times: int = 10, *, after: datetime | None = None
    ) -> Sequence[datetime]:
        """The next times of a schedule, or of a cadence that is none yet, `after` then or now."""
        if isinstance(what, str):
            what = (await self._existing(what)).cadence
        cadence = cadence_of(what, "what")
        check_times(times)
        start = self._components.now() if after is None else in_utc(after, "after")
        return list(next_times(cadence, start, times))

    async def occurrences(
        self, name: str, start: datetime, end: datetime, *, limit: int = 100
    ) -> Occurrences:
        """What became of its times from `start` to `end`, both included: the first of them."""
        return await occurrences_between(self._runtime, name, start, end, limit)

    async def last(self, name: str, *, limit: int = 10) -> Occurrences:
        """Its last runs, those made by hand or backfilled too, in the order of their times; and
        the last spans of times that were not run."""
        return await last_occurrences(self._runtime, name, limit)

    async def why(self, name: str, at: datetime) -> Explanation:
        """Why did it not run then? The occurrence, the policy and the evidence. `at` may be a time
        on a clock that jumped over it (`tzinfo=ZoneInfo(…)`); then that is said."""
        return await explain_time(self._runtime, name, at)

    # Changing

    async def create(
        self,
        name: str,
        cadence: Cadence,
        task: AnyTask,
        *,
        by: By = OPERATOR,
        **settings: Unpack[ScheduleKeywords],
    ) -> Schedule:
        """A new schedule. Raises ScheduleExists and TaskNotFound."""
        definition = await self.define(name, cadence, task, **settings)
        actor, now = actor_of(by), await self._runtime.storage.now()
        check_ahead(cadence, now)
        schedule = new_schedule(definition, now, environment=self._runtime.environment, by=actor)
        [outcome] = await self._runtime.storage.put_schedules([creating(schedule, actor)])
        if isinstance(outcome, Stepped):
            return schedule_told(self._runtime, schedule)
        if not isinstance(outcome, ScheduleConflict):
            raise outcome
        stored = await stored_schedule(self._runtime, name)
        if stored == schedule:  # by an earlier try of ours
            return schedule_told(self._runtime, schedule)
        if stored.deleted is None:
            raise ScheduleExists(name)
        return await change_schedule(
            self._runtime, name, actor, _reviving(definition, actor), deleted=True
        )

    async def update(
        self,
        name: str,
        *,
        by: By = OPERATOR,
        cadence: Cadence | None = None,
        task: AnyTask | None = None,
        reason: str | None = None,
        **settings: Unpack[ScheduleKeywords],
    ) -> Schedule:
        """Change what is given, and nothing else; None is the default or the task's rule again.
        A cadence of the same kind keeps the options that it does not name. Runs that exist stay as
        they are, and what was due is decided as it was; only later occurrences are different."""
        actor, why = actor_of(by), reason_of(reason)
        before = (await self._existing(name)).definition
        target = await self._target(task) if task is not None else await self._same(before.task)

        def define(old: Definition) -> Definition:
            # Whoever says nothing about the task leaves it as somebody else has changed it by now.
            own = target if task is not None else replace(target, task=old.task)
            return changed_definition(old, own, settings, cadence)

        return await self._change(name, _updating(define, actor, why), by)

    async def replace(
        self,
        name: str,
        cadence: Cadence,
        task: AnyTask,
        *,
        by: By = OPERATOR,
        reason: str | None = None,
        **settings: Unpack[ScheduleKeywords],
    ) -> Schedule:
        """Say all of it anew: what is not given is as by default."""
        actor, why = actor_of(by), reason_of(reason)
        definition = await self.define(name, cadence, task, **settings)
        return await self._change(name, _updating(lambda before: definition, actor, why), by)

    async def pause(self, name: str, reason: str | None = None, *, by: By = OPERATOR) -> Schedule:
        """No more occurrences until it is resumed; runs that exist go on. Pausing twice changes
        nothing, unless for another reason, which then holds."""
        actor, why = actor_of(by), reason_of(reason)
        return await self._change(
            name, lambda it, seen: _to(it, decide_pause(it, actor, seen.now, why)), by
        )

    async def resume(self, name: str, *, by: By = OPERATOR) -> Schedule:
        """Go on. What was missed meanwhile is treated by the misfire policy. Raises InvalidInput
        for one that is disabled: `update(name, enabled=True)` ends that."""
        return await self._change(name, lambda it, seen: _to(it, decide_resume(it, seen.now)), by)

    async def delete(self, name: str, reason: str | None = None, *, by: By = OPERATOR) -> Schedule:
        """No more occurrences; its history stays, and so do runs that exist. What was due is
        decided before."""
        return await self._change(name, _deleting(actor_of(by), reason_of(reason)), by)

    async def define(
        self, name: str, cadence: Cadence, task: AnyTask, **settings: Unpack[ScheduleKeywords]
    ) -> Definition:
        """A definition, checked; nothing is stored. Raises InvalidInput and TaskNotFound."""
        usual = self._components.defaults.of_schedules
        return make_definition(name, cadence, await self._target(task), settings, usual)

    async def apply(
        self, definitions: Sequence[Definition], *, by: By = OPERATOR, dry_run: bool = False
    ) -> Reconciliation:
        """Make the stored schedules say what a manifest says: what was added, changed, and found
        as it should be; and those an earlier manifest had that this one has not, which stay."""
        stated = [Stated(definition) for definition in definitions]
        manifest = DefinedBy.MANIFEST
        return await apply_stated(self._runtime, stated, manifest, actor_of(by), dry_run=dry_run)

    # Running

    async def trigger(self, name: str, reason: str, *, by: By = OPERATOR) -> RunHandle[Any]:
        """Run it now, for a reason that stays with the run. Its cadence goes on as it would."""
        actor, why = actor_of(by), reason_of(reason) or ""
        schedule = await self._existing(name)
        now = self._runtime.now()
        run_id = self._runtime.ids.run_id(now)
        wish = triggered(schedule, await self._wish(schedule), run_id, why)
        events = decide_create(wish, run_id, actor, now)
        await create(self._runtime.storage, events, self._runtime.ids)
        self._runtime.hints.publish([hints.work(schedule.environment, wish.queue)])
        return self._handles.make(run_id, wish.task, created=True)

    async def backfill(
        self, name: str, start: datetime, end: datetime, reason: str, *, by: By = OPERATOR
    ) -> Backfilled:
        """Run its times from `start` to `end`, both included, that have not been run. Twice is
        once. If they were many, `rest_after` says from where to go on. Times that the schedule has
        not come to yet are left to it; those that may have run, but of which retention has left no
        record, are not run either."""
        actor, why = actor_of(by), reason_of(reason) or ""
        schedule = await self._existing(name)
        wish = await self._wish(schedule)
        first, last = check_range(start, end)
        return await backfill_range(
            self._runtime, self._handles, schedule, wish, (first, last), why, actor
        )

    async def count_backfill(self, name: str, start: datetime, end: datetime) -> int:
        """How many times from `start` to `end`, both included, a backfill would run."""
        first, last = check_range(start, end)
        return await count_range(self._runtime, await self._existing(name), (first, last))

    # How

    async def _existing(self, name: str) -> Schedule:
        schedule = await stored_schedule(self._runtime, name)
        if schedule.deleted is not None:
            raise ScheduleNotFound(name)
        return schedule

    async def _target(self, task: AnyTask) -> Target:
        name = task if isinstance(task, str) else getattr(task, "name", "")
        limit = self._components.defaults.payload_limit
        own = target_of(self._tasks, text(name, "task"), limit)
        if own is not None:
            return own
        entry = await find_task(self._runtime.storage, self._runtime.environment, name)
        return target_of_entry(entry, limit)

    async def _same(self, task: str) -> Target:
        """The task that a schedule has already, whether anybody knows it or not."""
        try:
            return await self._target(task)
        except TaskNotFound:
            return unknown_target(self._runtime.defaults, task)

    async def _change(self, name: str, decide: Decide, by: By) -> Schedule:
        return await change_schedule(self._runtime, name, actor_of(by), decide)

    async def _wish(self, schedule: Schedule) -> NewRun:
        runtime = self._runtime
        entry = await find_task(runtime.storage, runtime.environment, schedule.definition.task)
        return asked_of(entry, scheduled_key(entry, schedule.definition))


def check_times(times: int) -> int:
    """How many times a preview may have. Raises InvalidInput."""
    if count(times, "times") > MOST_PREVIEWED:
        raise InvalidInput("times", f"must be at most {MOST_PREVIEWED}, not {times}")
    return times


def state(
    tasks: Tasks,
    stated: MutableMapping[str, Stated],
    defaults: Defaults,
    task: Any,
    cadence: Cadence,
    name: str | None,
    settings: ScheduleKeywords,
) -> Any:
    """The task; its schedule is stored when the app opens. Raises InvalidInput."""
    limit = defaults.payload_limit
    own = target_of(tasks, task.name, limit) if isinstance(task, Task) else None
    if own is None:
        shown = getattr(task, "__qualname__", None) or repr(task)
        advice = "is no task of this app; put @app.schedule above @app.task, not below"
        raise InvalidTask(f"{shown:.80}", advice)
    chosen = task.name if name is None else name
    if chosen in stated:
        raise InvalidInput("name", f"there is a schedule {chosen!r} already; give each its own")
    definition = make_definition(chosen, cadence, own, settings, defaults.of_schedules)
    stated[chosen] = Stated(definition, task.settings.version)
    return task


def _to(schedule: Schedule, after: Schedule | None) -> Change:
    """Stored even if nothing changes: then whatever an operator tried before, and was told had
    failed, cannot land any more."""
    return Change(None, after or replace(schedule, version=schedule.version + 1))


def _updating(
    define: Callable[[Definition], Definition], actor: Actor, reason: str | None
) -> Decide:
    def decide(schedule: Schedule, seen: Seen) -> Change:
        touch = Touch(by=actor, at=seen.now, reason=reason)
        definition = define(schedule.definition)
        if definition.cadence != schedule.cadence:
            check_ahead(definition.cadence, seen.now)
        return decide_update(
            schedule, definition, seen.now, seen.runs, touch=touch, is_known=seen.is_known
        )

    return decide


def _deleting(actor: Actor, reason: str | None) -> Decide:
    def decide(schedule: Schedule, seen: Seen) -> Change:
        deleted = decide_delete(
            schedule, actor, seen.now, seen.runs, reason=reason, is_known=seen.is_known
        )
        return deleted or _to(schedule, None)

    return decide


def _reviving(definition: Definition, actor: Actor) -> Decide:
    """A deleted schedule begins anew: with its history, but without what held it."""

    def decide(schedule: Schedule, seen: Seen) -> Change:
        change = decide_update(
            schedule, definition, seen.now, defined_by=DefinedBy.OPERATOR, by=actor
        )
        assert change.schedule is not None
        return Change(change.plan, replace(change.schedule, paused=None, pauses=()))

    return decide
