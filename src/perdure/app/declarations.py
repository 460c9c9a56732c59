"""What an app declares before it is opened: tasks, queues and schedules."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

from perdure.core.json_text import check_label
from perdure.core.limits.rates import Rate, make_rate
from perdure.core.limits.settings import Values
from perdure.engine.attempt.context import Context
from perdure.engine.definition.definition import (
    TaskDecorator,
    check_function,
    keywords_of,
    task_settings,
)
from perdure.engine.definition.task import Task
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.input import only_known
from perdure.engine.runtime.keywords import explain_keywords
from perdure.engine.tasks.concurrency_key import check_key_arguments
from perdure.engine.tasks.location import locate
from perdure.engine.tasks.options import Executor, TargetKeywords, TaskKeywords
from perdure.engine.tasks.reserved_names import refuse_reserved_names
from perdure.engine.tasks.signature import Signature
from perdure.errors import InvalidInput, InvalidTask

if TYPE_CHECKING:
    # Imported when first used: whoever only defines tasks must not wait for it.
    from perdure.core.schedule import Cadence, Stated
    from perdure.engine.definition.task import (
        Anything,
        AsyncContextTask,
        AsyncOptionalContextTask,
        AsyncTask,
        ContextTask,
        OptionalContextTask,
        PlainTask,
    )
    from perdure.engine.runtime.secret import Secret
    from perdure.engine.schedules.options import ScheduleKeywords
    from perdure.engine.targets.target_task import TargetApp
    from perdure.engine.tasks.target import Stdout, Text

P = ParamSpec("P")
R = TypeVar("R")
TaskT = TypeVar("TaskT", bound=Task[..., Any])


_NOTHING: Any = object()
_KEYWORDS = keywords_of(task_settings)


class Declarations:
    """The part of an app that is spoken to at import time."""

    def __init__(self, defaults: Defaults) -> None:
        self.defaults = defaults
        self.tasks: dict[str, Task[..., Any]] = {}
        self.aliases: dict[str, Task[..., Any]] = {}
        self.queue_settings: dict[str, Values] = {}
        self.stated_schedules: dict[str, Stated] = {}

    @property
    def _app(self) -> TargetApp:
        return cast("TargetApp", self)

    @overload
    def task(  # type: ignore[overload-overlap]  # the narrower one comes first
        self, function: Callable[Concatenate[Anything, ...], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[..., R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Anything, ...], R], /) -> PlainTask[..., R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]  # the narrower one comes first
        self, function: Callable[Concatenate[Context | None, P], Coroutine[Any, Any, R]], /
    ) -> AsyncOptionalContextTask[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]  # the narrower one comes first
        self, function: Callable[Concatenate[Context | None, P], R], /
    ) -> OptionalContextTask[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]  # the narrower one comes first
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]  # the narrower one comes first
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, /, **settings: Unpack[TaskKeywords]) -> TaskDecorator: ...

    def task(self, function: Any = _NOTHING, /, **settings: Unpack[TaskKeywords]) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(queue="mail", retry=Retry(5))`.

        `name`, `aliases`, `queue`, `retry`, `timeout`, `priority`, `ttl`, `lease_ttl`,
        `on_lease_expired`, `executor`, `version`, `concurrency`, `concurrency_per_key`, `rate`,
        `rate_per_key`, `concurrency_key`, `record_heartbeats`.
        """
        only_known(settings, _KEYWORDS, "setting of a task")
        if function is _NOTHING:
            return TaskDecorator(lambda function: self._define(function, settings))
        return self._define(function, settings)

    def engine_task(self, **settings: Unpack[TaskKeywords]) -> TaskDecorator:
        """Define a task of the engine's own, whose name users' tasks may not have."""
        return TaskDecorator(lambda function: self._put(self._made(function, settings)))

    def _define(self, function: Callable[..., Any], settings: TaskKeywords) -> Task[..., Any]:
        return self._add(self._made(function, settings))

    def _made(self, function: Callable[..., Any], settings: TaskKeywords) -> Task[..., Any]:
        check_function(function, settings.get("name"))
        made = task_settings(function, self.defaults, **settings)
        if made.executor is Executor.PROCESS:
            locate(function)
        signature, key = Signature(function, Context), settings.get("concurrency_key")
        check_key_arguments(key, signature.names)
        key_function = None if isinstance(key, str) else key
        return Task(self._app, function, made, signature, key_function=key_function)

    def _add(self, task: Task[..., Any]) -> Task[..., Any]:
        refuse_reserved_names(task.name, task.settings.aliases)
        return self._put(task)

    def _put(self, task: Task[..., Any]) -> Task[..., Any]:
        aliases = [name for name in task.settings.aliases if name != task.name]
        for field, names in (("name", [task.name]), ("aliases", aliases)):
            for name in names:
                if name in self.served_tasks:
                    raise InvalidTask(field, f"there is a task {name!r} already; give it another")
        self.tasks[task.name] = task
        self.aliases |= dict.fromkeys(aliases, task)
        return task

    @property
    def served_tasks(self) -> Mapping[str, Task[..., Any]]:
        """By every name that a run may have: a task that was renamed has runs under its old one."""
        return ChainMap(self.tasks, self.aliases) if self.aliases else self.tasks

    def http_task(
        self,
        name: str,
        *,
        url: str,
        method: str = "POST",
        headers: Mapping[str, Text] | None = None,
        signing_secret: Secret | Sequence[Secret] | None = None,
        response_limit: int | None = None,
        truncate: bool = False,
        **settings: Unpack[TargetKeywords],
    ) -> Task[..., Any]:
        """A task that is a request: its payload is posted to `url`, the answer is its result.
        `settings` are those of `task`; `timeout` is 300 s unless it says otherwise."""
        from perdure.engine.targets.target_task import http_target, target_task

        only_known(settings, TargetKeywords.__annotations__, "setting of an http task")
        target = http_target(url, method, headers, signing_secret, response_limit, truncate)
        return self._add(target_task(self._app, name, target, settings))

    def shell_task(
        self,
        name: str,
        *,
        argv: Sequence[str],
        env: Mapping[str, Text] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        permanent: Sequence[int] = (),
        stdout: Stdout | str = "text",
        output_limit: int | None = None,
        truncate: bool = False,
        **settings: Unpack[TargetKeywords],
    ) -> Task[..., Any]:
        """A task that is a command: it reads its payload from standard input, and what it writes
        to standard output is its result. `settings` as for `http_task`."""
        from perdure.engine.targets.target_task import shell_target, target_task

        only_known(settings, TargetKeywords.__annotations__, "setting of a shell task")
        target = shell_target(argv, env, cwd, permanent, stdout, output_limit, truncate)
        return self._add(target_task(self._app, name, target, settings))

    @explain_keywords
    def queue(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: Rate | str | None = None,
        fair: bool = False,
    ) -> None:
        """Say all about a queue: at most so many leases at once, so many starts in a time, and
        whether its keys take turns. What operators say wins; see `app.queues`."""
        if check_label(name, "queue") in self.queue_settings:
            raise InvalidInput("queue", f"{name!r} was spoken of already; say all of it at once")
        if type(fair) is not bool:
            raise InvalidInput("fair", f"must be True or False, not {fair!r}")
        self.queue_settings[name] = Values(concurrency=concurrency, rate=make_rate(rate), fair=fair)

    def schedule(
        self, cadence: Cadence, *, name: str | None = None, **settings: Unpack[ScheduleKeywords]
    ) -> Callable[[TaskT], TaskT]:
        """Run a task again and again: `@app.schedule(cron("0 9 * * *"))` above `@app.task`. It is
        named like the task unless `name` says otherwise; the name is its identity."""
        from perdure.engine.schedules.operators import state
        from perdure.engine.schedules.options import cadence_of

        cadence_of(cadence)

        def declare(task: TaskT) -> TaskT:
            tasks, stated = self.served_tasks, self.stated_schedules
            state(tasks, stated, self.defaults, task, cadence, name, settings)
            return task

        return declare
