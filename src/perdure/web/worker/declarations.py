"""What an app's code defines, declared by a worker: tasks, limits and schedules.

A key without `admin` may define tasks that are functions of its own workers. Limits, schedules
and targets hold for others, too: they need `admin`, and leave an audit entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from perdure.core.audit_chain import AuditEntry
from perdure.core.decide.create import check_policy, check_priority
from perdure.core.json_text import check_label
from perdure.core.limits.settings import Values, check_concurrency
from perdure.core.schedule import DefinedBy, Stated, check_definition
from perdure.engine.operators.declared_limits import declare_limits, undeclared_limits
from perdure.engine.protocol.scope import Scope
from perdure.engine.protocol.values import stated_of_message
from perdure.engine.protocol.workers import DeclareAnswer, DeclareRequest, Declined
from perdure.engine.runtime.input import lease_length
from perdure.engine.schedules.reconcile import apply_stated, reconcile_code
from perdure.engine.tasks.catalogue import (
    KnownTask,
    TaskEntry,
    known_tasks,
    publish_tasks,
    settings_of,
    wins,
)
from perdure.engine.tasks.concurrency_key import check_key_path
from perdure.engine.tasks.reserved_names import refuse_reserved, refuse_reserved_names
from perdure.errors import AccessRefused, InvalidInput, PerdureError
from perdure.web.offload import json_size
from perdure.web.operations.operation import Call
from perdure.web.operations.runs import client

MAX_ENTRY_BYTES = 512 * 1024
MAX_CATALOGUE = 10_000
"""Tasks of an environment."""
MAX_CATALOGUE_BYTES = 16 * 1024 * 1024
"""JSON of all tasks of an environment."""

_NEEDS_ADMIN = "that needs the scope admin, which the key does not have"


async def declare(call: Call, body: DeclareRequest) -> DeclareAnswer:
    async with call.at.catalogue_turns:
        return await _declare(call, body)


async def _declare(call: Call, body: DeclareRequest) -> DeclareAnswer:
    declaring = Declaring(call)
    accepted = await declaring.tasks(body.tasks)
    code = DeclaredCode(call, accepted, body)
    await declaring.limits(code)
    await declaring.schedules(code)
    await declaring.audit()
    return DeclareAnswer(
        accepted=tuple(entry.name for entry in accepted), declined=tuple(declaring.declined)
    )


class DeclaredCode:
    """An app's code, as far as limits and schedules are concerned."""

    is_spoken_for = False

    def __init__(self, call: Call, tasks: Iterable[TaskEntry], body: DeclareRequest) -> None:
        self.actor = client(call)
        self.tasks = {entry.name: KnownTask(settings_of(entry)) for entry in tasks}
        self.queue_settings: dict[str, Values] = {it.name: it.values for it in body.queues}
        self.stated_schedules: dict[str, Stated] = {
            it.id: stated_of_message(it) for it in body.schedules
        }


class Declaring:
    """One request's."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._is_admin = Scope.ADMIN in call.caller.scopes
        self.declined: list[Declined] = []
        self._written: dict[str, list[str]] = {}
        """What needed `admin` and was written."""
        self._refused_targets: list[str] = []
        self._target_names: frozenset[str] = frozenset()
        """Names and aliases of the catalogue's tasks that have a target."""

    # Tasks

    async def tasks(self, entries: Sequence[TaskEntry]) -> list[TaskEntry]:
        """Write those that may be written. Return those that the catalogue may now have."""
        app = self._call.app
        known = {entry.name: entry for entry in await known_tasks(app.storage, app.environment)}
        self._target_names = target_names(known.values())
        accepted = [entry for entry in entries if self._is_accepted(entry, known)]
        self._check_room(accepted, known)
        await publish_tasks(app.storage, app.environment, accepted, self._replaces)
        return accepted

    def _is_accepted(self, entry: TaskEntry, known: Mapping[str, TaskEntry]) -> bool:
        try:
            check_entry(entry)
            if not self._is_admin:
                self._check_targets(entry, known)
            elif self._touches_target(entry) and entry != known.get(entry.name):
                self._written.setdefault("targets", []).append(entry.name)
        except PerdureError as error:
            self.declined.append(Declined(what="task", name=entry.name[:200], why=str(error)))
            return False
        return True

    def _check_targets(self, entry: TaskEntry, known: Mapping[str, TaskEntry]) -> None:
        """Raise AccessRefused for what would write, change, strip or take over a target."""
        if known.get(entry.name) == entry:
            return
        if entry.target is not None or self._touches_target(entry):
            self._refused_targets.append(entry.name)
            what = f"task {entry.name!r:.80} has, or takes over, a target that others execute"
            raise AccessRefused(f"{what}; {_NEEDS_ADMIN}")

    def _touches_target(self, entry: TaskEntry) -> bool:
        """Whether the entry has a target, or one of its names is that of a task with one."""
        names = {entry.name, *entry.aliases}
        return entry.target is not None or not self._target_names.isdisjoint(names)

    def _replaces(self, new: TaskEntry, known: TaskEntry) -> bool:
        """Judged again when it is written: another key may have been faster."""
        may_write = self._is_admin or (new.target is None and known.target is None)
        return may_write and wins(new, known)

    def _check_room(self, entries: Sequence[TaskEntry], known: Mapping[str, TaskEntry]) -> None:
        """Raise InvalidInput if the catalogue would become too large. What is in it may stay."""
        after = {**known, **{entry.name: entry for entry in entries}}
        if after == known:
            return
        if len(after) > MAX_CATALOGUE:
            problem = f"the environment would have {len(after)} tasks, more than {MAX_CATALOGUE}"
            raise InvalidInput("tasks", problem)
        size = sum(map(json_size, after.values()))
        if size > MAX_CATALOGUE_BYTES:
            problem = f"the environment's tasks would have {size} bytes of JSON"
            raise InvalidInput("tasks", f"{problem}, more than {MAX_CATALOGUE_BYTES}")

    # Limits and schedules

    async def limits(self, code: DeclaredCode) -> None:
        runtime = self._call.app.runtime
        changed = await undeclared_limits(runtime, code)
        if not changed:
            return
        names = [f"{limit.scope} {limit.name}" for limit in changed]
        if self._is_admin:
            await declare_limits(runtime, code)
            self._written["limits"] = names
        else:
            self.declined.append(Declined(what="limits", name=names[0], why=_NEEDS_ADMIN))

    async def schedules(self, code: DeclaredCode) -> None:
        stated = list(code.stated_schedules.values())
        if not code.tasks:
            return
        try:
            for one in stated:
                refuse_reserved(one.definition.task)
                check_definition(one.definition)
            found = await apply_stated(
                self._call.app.runtime, stated, DefinedBy.CODE, code.actor, dry_run=True
            )
        except InvalidInput as error:
            self.declined.append(Declined(what="schedules", why=str(error)))
            return
        names = [one.definition.id for one in found.added]
        names += [schedule.id for schedule, _ in found.changed]
        if self._is_admin:
            await reconcile_code(self._call.app.runtime, code)
            self._written |= {"schedules": names} if names else {}
        elif names:
            self.declined.append(Declined(what="schedules", name=names[0], why=_NEEDS_ADMIN))

    # The audit log

    async def audit(self) -> None:
        """Write an entry about what needed `admin`, and about refused targets."""
        if self._written:
            await self._write("done", self._written)
        if self._refused_targets:
            await self._write("scope-missing", {"targets": self._refused_targets})

    async def _write(self, outcome: str, what: Mapping[str, list[str]]) -> None:
        names = [name for several in what.values() for name in several]
        entry = AuditEntry(
            at=self._call.app.time(),
            actor=self._call.by,
            action="declare",
            target=",".join(names[:10])[:1000],
            request_id=self._call.request_id,
            outcome=outcome,
            details={kind: several[:100] for kind, several in what.items()},
        )
        await self._call.at.audit_log.write(entry)


def target_names(entries: Iterable[TaskEntry]) -> frozenset[str]:
    """Return all names and aliases of the entries that have a target."""
    targets = [entry for entry in entries if entry.target is not None]
    return frozenset(name for entry in targets for name in (entry.name, *entry.aliases))


def check_entry(entry: TaskEntry) -> None:
    """Raise InvalidInput for a task that code could not define."""
    refuse_reserved_names(entry.name, entry.aliases)
    for field, text in (("name", entry.name), ("queue", entry.queue)):
        check_label(text, field)
    for alias in entry.aliases:
        check_label(alias, "aliases")
    check_priority(entry.priority)
    check_policy(entry.policy)
    if entry.policy.lease_ttl is not None:
        lease_length(entry.policy.lease_ttl, "lease_ttl")
    check_concurrency(entry.concurrency)
    check_concurrency(entry.concurrency_per_key, "concurrency_per_key")
    if entry.concurrency_key is not None:
        check_key_path(entry.concurrency_key)
    if entry.by_manifest:
        raise InvalidInput("by_manifest", "is for manifests only")
    if entry.version is not None and entry.version < 0:
        raise InvalidInput("version", f"must be 0 or more, not {entry.version}")
    size = len(msgspec.json.encode(entry))
    if size > MAX_ENTRY_BYTES:
        raise InvalidInput("task", f"has {size} bytes, more than {MAX_ENTRY_BYTES}")
