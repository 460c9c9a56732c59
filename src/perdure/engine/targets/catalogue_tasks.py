"""A worker without the code of tasks: it serves what stands in the catalogue.

Requests it may make for whoever can write there, within its guard. Commands are something else:
who may write the catalogue could run anything here, so they are served only where they are named.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from perdure.engine.definition.task import Task
from perdure.engine.runtime.input import choice
from perdure.engine.runtime.secret import only
from perdure.engine.runtime.service import Service
from perdure.engine.targets.target_task import (
    TargetApp,
    TargetTask,
    check_executable,
    task_of_catalogue,
)
from perdure.engine.tasks.catalogue import TaskEntry, settings_of, target_kind
from perdure.engine.tasks.options import Executor
from perdure.errors import InvalidInput

EVERY = timedelta(seconds=2)
"""So soon a task that was defined or changed elsewhere is served as it is now."""

TARGETS = (Executor.HTTP, Executor.SHELL)


def target_kinds(names: Iterable[str]) -> frozenset[Executor]:
    """Which kinds of target to serve. Raises InvalidInput."""
    if isinstance(names, str):
        raise InvalidInput("targets", f"must be a list, e.g. [{names!r}], not {names!r}")
    kinds = frozenset(choice(name, Executor, "targets") for name in names)
    for kind in kinds.difference(TARGETS):
        raise InvalidInput("targets", f"must be http or shell, not {kind!s}")
    return kinds


class Serving(Service):
    """Keeps `tasks` as the app and the catalogue say; what the app says itself comes first."""

    def __init__(
        self,
        app: TargetApp,
        tasks: Mapping[str, Task[..., Any]],
        read_tasks: Callable[[], Awaitable[Sequence[TaskEntry]]],
        kinds: frozenset[Executor],
    ) -> None:
        """`tasks`: what the app says itself; `app`: the one that the others shall belong to;
        `read_tasks`: reads the catalogue."""
        super().__init__(app.clock)
        self._app = app
        self._read_tasks = read_tasks
        self._kinds = kinds
        self._allow = only(app.defaults.target_secrets, "target_secrets")
        self._entries: dict[str, TaskEntry] = {}
        self._known: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = ChainMap(tasks, self._known)  # type: ignore[arg-type]

    async def run_once(self) -> None:
        entries = await self._read_tasks()
        served = {e.name: e for e in entries if target_kind(e.target) in self._kinds}
        for name in self._entries.keys() - served.keys():
            del self._known[name]
        for name, entry in served.items():
            if self._entries.get(name) != entry:
                self._known[name] = self._made(entry)
        self._entries = served

    async def rest(self) -> None:
        await self._clock.sleep(EVERY)

    def _made(self, entry: TaskEntry) -> TargetTask:
        return task_of_catalogue(self._app, settings_of(entry), self._allow)


def check_served(tasks: Mapping[str, Task[..., Any]], kinds: frozenset[Executor]) -> None:
    """Raises InvalidTask if this process could not execute what it is to serve."""
    own = {task.settings.executor for task in tasks.values()}
    check_executable(own | kinds)
