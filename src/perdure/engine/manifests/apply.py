"""`app.manifests`: make what is stored say what files say, and write files from what is stored.

Applying a manifest is an operator's act: it says what holds, also for schedules that code or
another operator defined. Everything is checked before anything is written. Then targets go into
the catalogue, and each schedule is compared and set; half an application is mended by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.json_text import decode_value
from perdure.core.run.run import Actor, Policy
from perdure.core.schedule import (
    DefinedBy,
    Definition,
    Reconciliation,
    Schedule,
    Stated,
    Touch,
    check_ahead,
    rfc3339,
)
from perdure.engine.definition.task import Task
from perdure.engine.manifests.manifest import Manifest
from perdure.engine.manifests.parse import StatedSchedule, StatedTask
from perdure.engine.manifests.render import (
    Differing,
    Said,
    added,
    differing,
    say_schedule,
    say_task,
)
from perdure.engine.observability.record_redaction import Showing
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.input import OPERATOR, By, actor_of, did_you_mean
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import OpenComponents, Runtime
from perdure.engine.runtime.slices import gather_in_slices, map_in_slices, slice_items
from perdure.engine.schedules.change import tasks_by_name
from perdure.engine.schedules.operators import Schedules
from perdure.engine.schedules.options import (
    Target,
    make_definition,
    target_of,
    target_of_entry,
    unknown_target,
    usual_policy,
)
from perdure.engine.schedules.pages import all_schedules
from perdure.engine.schedules.reconcile import apply_stated
from perdure.engine.tasks.catalogue import TaskEntry, publish_tasks
from perdure.errors import InvalidInput, InvalidManifest, ScheduleNotFound

Entries = Mapping[str, TaskEntry]
Tasks = Mapping[str, Task[..., Any]]
MakeEntry = Callable[[StatedTask], TaskEntry]
"""Make the entry of a task that a manifest states, as it goes into the catalogue. Raise
InvalidInput."""

PRUNED = "no manifest has it any more"
"""The reason that stays with a schedule deleted by `prune`."""


class Action(StrEnum):
    """What becomes of something because of a manifest."""

    ADD = "add"
    CHANGE = "change"
    KEEP = "keep"
    DELETE = "delete"


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one schedule or task. `because`: who said otherwise before, and why that does
    not hold any more."""

    what: str
    name: str
    action: Action
    fields: tuple[Differing, ...] = ()
    because: str | None = None


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """What applying a manifest did, or in a dry run would do."""

    dry_run: bool
    items: tuple[Applied, ...]
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether anything was stored otherwise than stated."""
        return any(item.action is not Action.KEEP for item in self.items)

    def shown(self, showing: Showing) -> Application:
        """Without secrets in what was stored or is stated."""
        items = [replace(it, fields=_shown(it.fields, showing)) for it in self.items]
        return replace(self, items=tuple(items))


def _shown(fields: Sequence[Differing], showing: Showing) -> tuple[Differing, ...]:
    old, new = (
        showing.value({field.field: getattr(field, side) for field in fields})
        for side in ("old", "new")
    )
    return tuple(Differing(it.field, old[it.field], new[it.field]) for it in fields)


@explain_methods
class Manifests:
    """`by` names the operator."""

    def __init__(
        self, runtime: Runtime, schedules: Schedules, tasks: Tasks, make_entry: MakeEntry
    ) -> None:
        self._components: OpenComponents = runtime
        self._runtime = runtime
        self._schedules = schedules
        self._tasks = tasks
        self._make_entry = make_entry

    async def apply(
        self, manifest: Manifest, *, by: By = OPERATOR, dry_run: bool = False, prune: bool = False
    ) -> Application:
        """Make what is stored say what `manifest` says; twice is once. With `prune`, schedules that
        an earlier manifest had and this one has not are deleted. Raises InvalidManifest."""
        runtime, actor = self._runtime, actor_of(by)
        known = await self._known_tasks()
        stored = await self._stored(manifest)
        checked = _Checked(
            runtime.defaults, self._tasks, known, stored, await runtime.storage.now()
        )
        await checked.check(manifest, self._make_entry)
        definitions = await map_in_slices(
            lambda one: _spelled(one, stored.get(one.id)), checked.definitions
        )
        if not dry_run:
            await publish_tasks(runtime.storage, runtime.environment, checked.tasks, _replaces)
        stated = [Stated(definition) for definition in definitions]
        found = await apply_stated(runtime, stated, DefinedBy.MANIFEST, actor, dry_run=dry_run)
        if prune and not dry_run:
            await self._delete(found.orphaned, actor)
        said = self._saying({**known, **{entry.name: entry for entry in checked.tasks}})
        tasks = await gather_in_slices(_tasks(checked.tasks, known, said))
        schedules = await gather_in_slices(_schedules(found, said, prune))
        notes = await gather_in_slices(_notes(manifest, checked, found, known, prune))
        return Application(dry_run=dry_run, items=(*tasks, *schedules), notes=tuple(notes))

    async def export(self, names: Sequence[str] | None = None) -> Said:
        """These schedules, or all, and the targets that manifests gave them, as a manifest.
        Raises ScheduleNotFound."""
        schedules = await self._chosen(names)
        known = await self._known_tasks()
        said = self._saying(known)
        needed = dict.fromkeys(schedule.definition.task for schedule in schedules)
        own = [known[name] for name in needed if name in known and known[name].by_manifest]
        tasks = [said.task(entry) for entry in own]
        made = [said.schedule(schedule.definition) for schedule in schedules]
        return {**({"tasks": tasks} if tasks else {}), "schedules": made}

    async def say(self, schedule: Schedule) -> Said:
        """A schedule, deleted or not, as a manifest would say it."""
        return self._saying(await self._known_tasks()).schedule(schedule.definition)

    def _saying(self, known: Entries) -> _Saying:
        return _Saying(self._components.defaults, self._tasks, known)

    async def _known_tasks(self) -> Entries:
        return await tasks_by_name(self._runtime)

    async def _chosen(self, names: Sequence[str] | None) -> list[Schedule]:
        if names is None:
            return [it async for it in all_schedules(self._schedules) if it.deleted is None]
        return await self._named(names)

    async def _named(self, names: Sequence[str]) -> list[Schedule]:
        found = await self._runtime.storage.get_schedules(self._runtime.environment, names)
        for name in names:
            if name not in found or found[name].deleted is not None:
                raise ScheduleNotFound(name)
        return [found[name] for name in names]

    async def _stored(self, manifest: Manifest) -> Mapping[str, Schedule]:
        names = [stated.name for stated in manifest.schedules]
        stored: dict[str, Schedule] = {}
        for some in slice_items(names):
            storage, environment = self._runtime.storage, self._runtime.environment
            stored |= await storage.get_schedules(environment, some)
        return stored

    async def _delete(self, schedules: Sequence[Schedule], by: Actor) -> None:
        for schedule in schedules:
            await self._schedules.delete(schedule.id, PRUNED, by=by)


class _Checked:
    """A manifest's entries and definitions, once `check` has found nothing wrong."""

    def __init__(
        self,
        defaults: Defaults,
        tasks: Tasks,
        known: Entries,
        stored: Mapping[str, Schedule],
        now: datetime,
    ) -> None:
        self._defaults = defaults
        self._tasks = tasks
        self._known = known
        self._stored = stored
        self._now = now
        self._problems: list[str] = []
        self.unknown: list[StatedSchedule] = []
        self.tasks: list[TaskEntry] = []
        self.definitions: list[Definition] = []
        self._own: dict[str, TaskEntry] = {}

    async def check(self, manifest: Manifest, make_entry: MakeEntry) -> None:
        """Raises InvalidManifest with all that is wrong."""
        entries = await map_in_slices(lambda it: self._entry(it, make_entry), manifest.tasks)
        self.tasks = [entry for entry in entries if entry is not None]
        self._own = {entry.name: entry for entry in self.tasks}
        definitions = await map_in_slices(self._definition, manifest.schedules)
        self.definitions = [definition for definition in definitions if definition is not None]
        if self._problems:
            raise InvalidManifest(self._problems)

    def _entry(self, stated: StatedTask, make_entry: MakeEntry) -> TaskEntry | None:
        try:
            entry, own = make_entry(stated), self._tasks.get(stated.name)
            if own is not None and own.name == stated.name:
                raise _defined_by_code(stated.name)
            if stated.name in self._known:
                _replaces(entry, self._known[stated.name])
        except InvalidInput as error:
            self._problems.append(stated.where.problem(error))
            return None
        return entry

    def _definition(self, stated: StatedSchedule) -> Definition | None:
        try:
            target, usual = self._target(stated), self._defaults.of_schedules
            made = make_definition(stated.name, stated.cadence, target, stated.settings, usual)
            if not self._has_it_already(made):
                check_ahead(made.cadence, self._now)
        except InvalidInput as error:
            self._problems.append(stated.where.problem(error))
            return None
        return made if stated.policy is None else replace(made, policy=stated.policy)

    def _has_it_already(self, definition: Definition) -> bool:
        """Then its times may be over: to apply a manifest twice is to apply it once."""
        stored = self._stored.get(definition.id)
        return (
            stored is not None and stored.deleted is None and stored.cadence == definition.cadence
        )

    def _target(self, stated: StatedSchedule) -> Target:
        limit = self._defaults.payload_limit
        own = target_of(self._tasks, stated.task, limit)
        if own is not None:
            return own
        entry = self._own.get(stated.task) or self._known.get(stated.task)
        if entry is not None:
            return target_of_entry(entry, limit)
        self.unknown.append(stated)
        return unknown_target(self._defaults, stated.task)


class _Saying:
    """Says what is stored, by the tasks as they are now."""

    def __init__(self, defaults: Defaults, tasks: Tasks, known: Entries) -> None:
        self._defaults = defaults
        self._tasks = tasks
        self._known = known

    def schedule(self, definition: Definition) -> Said:
        own = target_of(self._tasks, definition.task, self._defaults.payload_limit)
        known = own or self._known.get(definition.task)
        policy = usual_policy(self._defaults) if known is None else known.policy
        return say_schedule(definition, policy, self._defaults.of_schedules)

    def task(self, entry: TaskEntry) -> Said:
        return say_task(entry, _usual_target_policy(self._defaults), self._defaults.queue)


def _usual_target_policy(defaults: Defaults) -> Policy:
    return replace(usual_policy(defaults), timeout=defaults.target_timeout)


def _replaces(new: TaskEntry, known: TaskEntry) -> bool:
    """Whether it changes what is known. Raises InvalidInput if that is not a manifest's."""
    if not known.by_manifest:
        raise _defined_by_code(known.name)
    return new != known


def _defined_by_code(name: str) -> InvalidInput:
    advice = "say `task:` instead of `target:`, or choose another name"
    return InvalidInput("name", f"the task {name!r} is defined by code; {advice}")


def _spelled(stated: Definition, stored: Schedule | None) -> Definition:
    """With its payload spelled as it is stored, where that says the same."""
    if stored is None or _canonical(stated) != _canonical(stored.definition):
        return stated
    return replace(stated, payload_json=stored.definition.payload_json)


def _canonical(definition: Definition) -> bytes:
    return msgspec.json.encode(decode_value(definition.payload_json), order="deterministic")


def _tasks(entries: Sequence[TaskEntry], known: Entries, said: _Saying) -> Iterator[Applied]:
    for entry in entries:
        old = known.get(entry.name)
        new = said.task(entry)
        if old is None:
            yield Applied(what="task", name=entry.name, action=Action.ADD, fields=added(new))
        elif old == entry:
            yield Applied(what="task", name=entry.name, action=Action.KEEP)
        else:
            fields = tuple(differing(said.task(old), new))
            yield Applied(what="task", name=entry.name, action=Action.CHANGE, fields=fields)


def _schedules(found: Reconciliation, said: _Saying, prune: bool) -> Iterator[Applied]:
    for one in found.added:
        fields = added(said.schedule(one.definition))
        yield Applied(what="schedule", name=one.definition.id, action=Action.ADD, fields=fields)
    for schedule, one in found.changed:
        old, new = said.schedule(schedule.definition), said.schedule(one.definition)
        yield Applied(
            what="schedule",
            name=schedule.id,
            action=Action.CHANGE,
            fields=tuple(differing(old, new)),
            because=_overruled(schedule),
        )
    for schedule in found.unchanged:
        yield Applied(
            what="schedule", name=schedule.id, action=Action.KEEP, because=_already(schedule)
        )
    for schedule in found.orphaned if prune else ():
        yield Applied(what="schedule", name=schedule.id, action=Action.DELETE, because=PRUNED)


def _overruled(schedule: Schedule) -> str | None:
    """Who said otherwise, if it was no manifest."""
    if schedule.deleted is not None:
        return f"it was deleted {_by(schedule.deleted)}; it begins anew, with its history"
    if schedule.touched is not None:
        return f"an operator had changed it {_by(schedule.touched)}; the manifest holds"
    if schedule.defined_by is DefinedBy.CODE:
        return "it was defined by code; the manifest holds, and code is not heard any more"
    if schedule.defined_by is DefinedBy.OPERATOR:
        return "an operator had made it by hand; the manifest holds"
    return None


def _already(schedule: Schedule) -> str | None:
    if schedule.defined_by is DefinedBy.MANIFEST:
        return None
    return f"it says so already, and stays defined by {schedule.defined_by}"


def _by(touch: Touch) -> str:
    why = f" ({touch.reason})" if touch.reason else ""
    return f"by {touch.by.id or touch.by.type} at {rfc3339(touch.at)}{why}"


def _notes(
    manifest: Manifest, checked: _Checked, found: Reconciliation, known: Entries, prune: bool
) -> Iterator[str]:
    yield from manifest.notes
    for stated in checked.unknown:
        unknown = f"no app or worker has made the task {stated.task!r} known yet"
        hint = did_you_mean(stated.task, known)
        yield f"{stated.name} waits: {unknown}, so its payload was not checked{hint}"
    for entry in checked.tasks:
        if known.get(entry.name) != entry:
            yield f"{entry.name} is executed by workers with --targets {entry.executor} only"
    for schedule in [*found.unchanged, *(before for before, _ in found.changed)]:
        if schedule.paused is not None and schedule.deleted is None:
            yield f"{schedule.id} is paused {_by(schedule.paused)}, and stays so"
    if found.orphaned and not prune:
        names = ", ".join(schedule.id for schedule in found.orphaned)
        yield f"in an earlier manifest, not in this one, and left as they are: {names}"
