"""What an app's code says about queues and tasks, stored when the app opens.

Code declares its values for its tasks, unless the catalogue knows a newer version, and for the
queues it names. A value that it no longer declares is withdrawn; for a queue, by an app that has
one of the tasks which that queue had in the declaring app. Without versions, the last app to open
wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import UNSET
from msgspec.structs import replace

from perdure.core.limits.admission import LimitScope
from perdure.core.limits.settings import Limit, Values, declare
from perdure.core.run.run import Actor
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.tasks.catalogue import MOST_CONFLICTS, known_tasks
from perdure.engine.tasks.options import TaskSettings
from perdure.telemetry import table

Place = tuple[LimitScope, str]
Known = dict[Place, Limit]


class SettledTask(Protocol):
    @property
    def settings(self) -> TaskSettings: ...


class LimitingCode(Protocol):
    """What an app's code says about queues and tasks."""

    @property
    def actor(self) -> Actor: ...

    @property
    def tasks(self) -> Mapping[str, SettledTask]: ...

    @property
    def queue_settings(self) -> Mapping[str, Values]: ...


async def declare_limits(runtime: Runtime, code: LimitingCode) -> None:
    """Store what this app's code says; again after a conflict. Unreadable limits are left alone."""
    for _ in range(MOST_CONFLICTS):
        changed = await undeclared_limits(runtime, code)
        if not changed or all(
            await runtime.storage.put_limits([next_version(it) for it in changed])
        ):
            return


async def undeclared_limits(runtime: Runtime, code: LimitingCode) -> list[Limit]:
    """Return the limits of the app's code that differ from what is stored."""
    known = await read_limits(runtime)
    _say_unreadable(known)
    changed = [
        limit for limit in _declared(runtime, code, known) if limit != known.get(place_of(limit))
    ]
    changed = [limit for limit in changed if limit.unreadable is None]
    return await _of_newest_tasks(runtime, code.tasks, changed)


def _say_unreadable(known: Known) -> None:
    for limit in known.values():
        if limit.unreadable is not None:
            name = f"{limit.scope} {limit.name}"
            table.LIMIT_UNREADABLE.say(limit=name, error=limit.unreadable)


def _declared(runtime: Runtime, code: LimitingCode, known: Known) -> Iterator[Limit]:
    """Every limit that this app speaks for, as it would have it."""
    by, at = code.actor, runtime.now()
    homes = {name: task.settings.queue for name, task in code.tasks.items()}
    own: dict[str, list[str]] = {}
    for task_name, queue in homes.items():
        own.setdefault(queue, []).append(task_name)
    for name, values in code.queue_settings.items():
        tasks = own.get(name, [])
        yield declare(find_limit(runtime, known, LimitScope.QUEUE, name), values, by, at, tasks)
    for (scope, name), limit in known.items():
        forgotten = scope is LimitScope.QUEUE and name not in code.queue_settings
        if forgotten and any(homes.get(task) == name for task in limit.homes):
            yield declare(limit, Values(), by, at)
    for name, task in code.tasks.items():
        for scope, values in _said_of(task.settings):
            if values.given or (scope, name) in known:
                yield declare(find_limit(runtime, known, scope, name), values, by, at)


def _said_of(settings: TaskSettings) -> Iterator[tuple[LimitScope, Values]]:
    for scope, concurrency, rate in (
        (LimitScope.TASK, settings.concurrency, settings.rate),
        (LimitScope.KEY, settings.concurrency_per_key, settings.rate_per_key),
    ):
        yield (
            scope,
            Values(
                concurrency=UNSET if concurrency is None else concurrency,
                rate=UNSET if rate is None else rate,
            ),
        )


async def _of_newest_tasks(
    runtime: Runtime, tasks: Mapping[str, SettledTask], limits: Sequence[Limit]
) -> list[Limit]:
    """Without those of tasks that the catalogue knows in a higher version than ours."""
    if all(limit.scope is LimitScope.QUEUE for limit in limits):
        return list(limits)
    entries = await known_tasks(runtime.storage, runtime.environment)
    newest = {entry.name: entry.version or 0 for entry in entries}
    return [
        limit
        for limit in limits
        if limit.scope is LimitScope.QUEUE
        or (tasks[limit.name].settings.version or 0) >= newest.get(limit.name, 0)
    ]


async def read_limits(runtime: Runtime) -> Known:
    return {place_of(limit): limit for limit in await runtime.storage.limits(runtime.environment)}


def place_of(limit: Limit) -> Place:
    return limit.scope, limit.name


def find_limit(runtime: Runtime, known: Known, scope: LimitScope, name: str) -> Limit:
    return known.get((scope, name)) or Limit(
        scope=scope, name=name, environment=runtime.environment
    )


def next_version(limit: Limit) -> Limit:
    return replace(limit, version=limit.version + 1)
