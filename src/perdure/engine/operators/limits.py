"""`app.queues` and `app.limits`: how many at once, how many in a time.

An operator's value wins, setting by setting, until it is reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from perdure.core.json_text import as_it_will_be_read, check_label
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.rates import Rate, make_rate
from perdure.core.limits.settings import (
    Limit,
    Pause,
    Source,
    Values,
    check_concurrency,
    give_back,
    overrule,
    pause,
    resume,
)
from perdure.core.run.run import Actor
from perdure.engine.definition.task import Task
from perdure.engine.operators.audit_log import recorded
from perdure.engine.operators.declared_limits import (
    Known,
    find_limit,
    next_version,
    place_of,
    read_limits,
)
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.input import OPERATOR, By, actor_of, find_similar, flag, reason_of, text
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.tasks.catalogue import MOST_CONFLICTS, known_tasks
from perdure.errors import InvalidInput, QueueNotFound, StorageUnavailable, TaskNotFound
from perdure.storage.contract.runs import RunFilter

AnyTask = str | Task[..., Any]
RateLike = Rate | str | None | UnsetType


class Setting(msgspec.Struct, frozen=True):
    """What holds, whose word it is and since when; and what code says, whether or not it holds."""

    value: Any
    source: Source
    by: Actor | None
    at: datetime | None
    code: Any


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a queue. `paused` tells who paused it, when and why."""

    name: str
    paused: Pause | None
    concurrency: Setting
    rate: Setting
    fair: Setting


class TaskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a task, and for each concurrency key of it."""

    task: str
    concurrency: Setting
    rate: Setting
    concurrency_per_key: Setting
    rate_per_key: Setting


@explain_methods
class Queues:
    """`app.queues`: pause queues, and say what holds for them. `by` names the operator.

    A queue that no task, setting or run names raises QueueNotFound. With `create`, `set` and
    `pause` also take such a queue: for settings that must hold before its first run."""

    def __init__(self, runtime: Runtime, queue_settings: Mapping[str, Values]) -> None:
        self._runtime = runtime
        self._queue_settings = queue_settings

    async def list(self) -> Sequence[QueueState]:
        """Every queue that a task or a setting names."""
        known = await read_limits(self._runtime)
        names = {name for scope, name in known if scope is LimitScope.QUEUE}
        names |= await _queue_names(self._runtime, self._queue_settings)
        return [self._state(known, name) for name in sorted(names)]

    async def get(self, name: str) -> QueueState:
        known = await read_limits(self._runtime)
        await self._check(text(name, "queue"), known)
        return self._state(known, name)

    async def pause(
        self, name: str, reason: str | None = None, *, by: By = OPERATOR, create: bool = False
    ) -> QueueState:
        """No run of it is claimed until it is resumed; attempts that run go on. A second pause
        replaces the reason."""
        at, actor, why = self._runtime.now(), actor_of(by), reason_of(reason)
        return await self._change(name, lambda limit: pause(limit, actor, at, why), create)

    async def resume(self, name: str, *, by: By | UnsetType = OPERATOR) -> QueueState:
        """Let its runs go on, at once. The audit log keeps `by`."""
        async with recorded(self._runtime, by, "resume_queue", name):
            return await self._change(name, resume)

    async def set(
        self,
        name: str,
        *,
        concurrency: int | UnsetType | None = UNSET,
        rate: RateLike = UNSET,
        fair: bool | UnsetType = UNSET,
        by: By = OPERATOR,
        create: bool = False,
    ) -> QueueState:
        """From now on, whatever code says. None means no limit."""
        if fair is not UNSET:
            flag(fair, "fair")
        values = Values(concurrency=concurrency, rate=_rate(rate, "rate"), fair=fair)
        _check_given("concurrency, rate or fair", values)
        at = self._runtime.now()
        return await self._change(name, _overruling(values, actor_of(by), at), create)

    async def reset(self, name: str, *, by: By | UnsetType = OPERATOR) -> QueueState:
        """Give it back to code. A paused queue stays paused. The audit log keeps `by`."""
        async with recorded(self._runtime, by, "reset_queue", name):
            return await self._change(name, give_back)

    async def _change(
        self, name: str, change: Callable[[Limit], Limit], create: bool = False
    ) -> QueueState:
        check_label(name, "queue")
        if not flag(create, "create"):
            await self._check(name, await read_limits(self._runtime))
        limit = await _change(self._runtime, LimitScope.QUEUE, name, change)
        await _tell(self._runtime, {name})
        return self._state({place_of(limit): limit}, name)

    async def _check(self, name: str, known: Known) -> None:
        """Raise QueueNotFound unless a setting, a task or a run names the queue."""
        if (LimitScope.QUEUE, name) in known:
            return
        names = await _queue_names(self._runtime, self._queue_settings)
        if name in names:
            return
        runs = RunFilter(environment=self._runtime.environment, queue=name)
        if not await self._runtime.storage.count(runs, most=1):
            names |= {known_name for scope, known_name in known if scope is LimitScope.QUEUE}
            raise QueueNotFound(name, find_similar(name, sorted(names)))

    def _state(self, known: Known, name: str) -> QueueState:
        limit = find_limit(self._runtime, known, LimitScope.QUEUE, name)
        return QueueState(
            name=name,
            paused=limit.pause,
            concurrency=_setting(limit, "concurrency"),
            rate=_setting(limit, "rate"),
            fair=_setting(limit, "fair"),
        )


@explain_methods
class Limits:
    """`app.limits`: say what holds for tasks and their keys. `by` names the operator."""

    def __init__(self, runtime: Runtime, queue_settings: Mapping[str, Values]) -> None:
        self._runtime = runtime
        self._queue_settings = queue_settings

    async def list(self) -> Sequence[TaskLimits]:
        """Every task of the catalogue."""
        known = await read_limits(self._runtime)
        entries = await known_tasks(self._runtime.storage, self._runtime.environment)
        return [self._state(known, name) for name in sorted(entry.name for entry in entries)]

    async def get(self, task: AnyTask) -> TaskLimits:
        """Raises TaskNotFound."""
        name = await self._check(task)
        return self._state(await read_limits(self._runtime), name)

    async def set(
        self,
        task: AnyTask,
        *,
        concurrency: int | UnsetType | None = UNSET,
        rate: RateLike = UNSET,
        concurrency_per_key: int | UnsetType | None = UNSET,
        rate_per_key: RateLike = UNSET,
        by: By = OPERATOR,
    ) -> TaskLimits:
        """From now on, whatever code says. None means no limit. Raises TaskNotFound."""
        name = await self._check(task)
        if concurrency_per_key is not UNSET:
            check_concurrency(concurrency_per_key, "concurrency_per_key")
        values = {
            LimitScope.TASK: Values(concurrency=concurrency, rate=_rate(rate, "rate")),
            LimitScope.KEY: Values(
                concurrency=concurrency_per_key, rate=_rate(rate_per_key, "rate_per_key")
            ),
        }
        _check_given("concurrency, rate, concurrency_per_key or rate_per_key", *values.values())
        at, actor = self._runtime.now(), actor_of(by)
        for scope, said in values.items():
            if said.given:
                await _change(self._runtime, scope, name, _overruling(said, actor, at))
        return await self._told(name)

    async def reset(self, task: AnyTask, *, by: By | UnsetType = OPERATOR) -> TaskLimits:
        """Give it back to code. The audit log keeps `by`. Raises TaskNotFound."""
        async with recorded(self._runtime, by, "reset_limit", task_name(task)):
            name = await self._check(task)
            for scope in (LimitScope.TASK, LimitScope.KEY):
                await _change(self._runtime, scope, name, give_back)
            return await self._told(name)

    async def _told(self, task: str) -> TaskLimits:
        await _tell(self._runtime, await _queue_names(self._runtime, self._queue_settings))
        return self._state(await read_limits(self._runtime), task)

    async def _check(self, task: AnyTask) -> str:
        name = task_name(task)
        entries = await known_tasks(self._runtime.storage, self._runtime.environment)
        names = {entry.name for entry in entries}
        if name not in names:
            raise TaskNotFound(name, find_similar(name, sorted(names)))
        return name

    def _state(self, known: Known, task: str) -> TaskLimits:
        whole = find_limit(self._runtime, known, LimitScope.TASK, task)
        keyed = find_limit(self._runtime, known, LimitScope.KEY, task)
        return TaskLimits(
            task=task,
            concurrency=_setting(whole, "concurrency"),
            rate=_setting(whole, "rate"),
            concurrency_per_key=_setting(keyed, "concurrency"),
            rate_per_key=_setting(keyed, "rate"),
        )


def task_name(task: AnyTask) -> str:
    return text(task if isinstance(task, str) else getattr(task, "name", task), "task")


def _check_given(known: str, *values: Values) -> None:
    """Whoever sets nothing has forgotten something."""
    if not any(said.given for said in values):
        raise InvalidInput("concurrency", f"nothing is set; give {known}, or `reset`")


def _overruling(values: Values, by: Actor, at: datetime) -> Callable[[Limit], Limit]:
    return lambda limit: overrule(limit, values, by, at)


def _setting(limit: Limit, field: str) -> Setting:
    word, code = limit.said(field), getattr(limit.code, field)
    signed = None if limit.unreadable is not None else word
    default = False if field == "fair" else None
    return Setting(
        value=default if word is None else word.value,
        source=limit.source(field),
        by=None if signed is None else signed.by,
        at=None if signed is None else signed.at,
        code=default if code is None else code.value,
    )


def _rate(value: RateLike, field: str) -> Rate | UnsetType | None:
    return UNSET if value is UNSET else make_rate(value, field)


async def _change(
    runtime: Runtime, scope: LimitScope, name: str, change: Callable[[Limit], Limit]
) -> Limit:
    """Return the limit after `change`; try again after a conflict. Store it also if nothing
    changes: then an earlier change that was reported as failed cannot be stored any more."""
    for _ in range(MOST_CONFLICTS):
        limit = find_limit(runtime, await read_limits(runtime), scope, name)
        changed = as_it_will_be_read(next_version(replace(change(limit), unreadable=None)), "limit")
        [stored] = await runtime.storage.put_limits([changed])
        if stored:
            return changed
    raise StorageUnavailable(f"{scope} {name} is being changed by many at once; try again")


async def _queue_names(runtime: Runtime, queue_settings: Iterable[str]) -> set[str]:
    entries = await known_tasks(runtime.storage, runtime.environment)
    return {entry.queue for entry in entries} | set(queue_settings)


async def _tell(runtime: Runtime, queues: set[str]) -> None:
    """Let in who need not wait any more, and have workers look."""
    await runtime.storage.open_gates(runtime.defaults.maintenance_batch)
    runtime.hints.publish([hints.work(runtime.environment, queue) for queue in queues])
