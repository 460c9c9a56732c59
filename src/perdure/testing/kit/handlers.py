"""Handlers as the kit calls them: `async def` step by step, `def` here and now.

A `def` handler runs on the test's own thread, outside of any loop, so that debuggers, patches,
thread-local connections and transactions of the test hold for it too.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from perdure.core.json_text import decode_value
from perdure.engine.attempt.context import Context, current
from perdure.engine.attempt.target_failure import TargetFailed
from perdure.engine.definition.task import Task
from perdure.engine.execution.attempts import Handlers
from perdure.engine.execution.threads import Job, Threads
from perdure.engine.tasks.options import Executor
from perdure.engine.worker.host import WorkerApp, WorkerHost
from perdure.testing.kit.boundaries import (
    Boundaries,
    WorkerKilled,
    freeze_if_dead,
    stop_if_dead,
)
from perdure.testing.virtual.nested import outside_of_any_loop

if TYPE_CHECKING:
    from perdure.app.app import App

Key = tuple[str, int]
"""A run's id and the number of the attempt."""


class Witness:
    """What was seen of the handlers: how often they began, what they raised, where they are."""

    def __init__(self) -> None:
        self.begun: list[Key] = []
        self.raised: dict[Key, BaseException] = {}
        self.executing: dict[Key, Coroutine[Any, Any, Any]] = {}

    def place_of(self, key: Key) -> str | None:
        """The line at which a handler waits, innermost last."""
        coroutine: Any = self.executing.get(key)
        lines = []
        while inspect.iscoroutine(coroutine) and coroutine.cr_frame is not None:
            frame = coroutine.cr_frame
            lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            coroutine = coroutine.cr_await
        return " → ".join(lines) or None


class Watched:
    """Wraps the functions of tasks, so that the boundaries inside are passed one by one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, boundaries: Boundaries, witness: Witness):
        self._loop = loop
        self._boundaries = boundaries
        self._witness = witness
        self.answers: dict[str, Any] = {}

    def task(self, task: Task[..., Any]) -> Task[..., Any]:
        if task.settings.target is not None:
            settings = replace(task.settings, executor=Executor.ASYNC)
            return Task(task.app, self._async(self._stand_in), settings, task.signature)
        is_async = task.settings.executor is Executor.ASYNC
        settings = task.settings
        if not is_async:
            settings = replace(settings, executor=Executor.THREAD)
        function = self._async(task.function) if is_async else self._sync(task.function)
        key = task.key_function
        return Task(task.app, function, settings, task.signature, key_function=key)

    async def _stand_in(self, ctx: Context) -> Any:
        """For a target: in a test nothing is sent, and no command is started."""
        name = ctx.run.task
        if name not in self.answers:
            advice = f"say what comes back: perdure_kit.answer({name!r}, …)"
            raise TargetFailed("NoAnswer", f"no target is reached here; {advice}", retryable=False)
        answer = self.answers[name]
        return answer(decode_value(ctx.run.payload_json)) if callable(answer) else answer

    def _sync(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**arguments: Any) -> Any:
            context = current()
            self._begin(context)
            stop_if_dead()
            try:
                value = function(**arguments)
            except BaseException as error:
                stop_if_dead()
                self._failed(context, error)
                stop_if_dead()
                raise
            stop_if_dead()
            self._boundaries.reach(f"{_name(context)} returns")
            stop_if_dead()
            return value

        return call

    def _async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def call(**arguments: Any) -> Any:
            context = current()
            self._begin(context)
            await freeze_if_dead(self._loop)
            try:
                value = await self._watched(context, function(**arguments))
            except BaseException as error:
                await freeze_if_dead(self._loop)
                self._failed(context, error)
                await freeze_if_dead(self._loop)
                raise
            self._boundaries.reach(f"{_name(context)} returns")
            await freeze_if_dead(self._loop)
            return value

        return call

    async def _watched(self, context: Context, coroutine: Coroutine[Any, Any, Any]) -> Any:
        key = (context.run.id, context.attempt)
        self._witness.executing[key] = coroutine
        try:
            return await self._step_by_step(context, coroutine)
        finally:
            self._witness.executing.pop(key, None)

    @types.coroutine
    def _step_by_step(
        self, context: Context, coroutine: Coroutine[Any, Any, Any]
    ) -> Generator[Any, Any, Any]:
        """Each time it waits is a boundary. A dead one is not woken: its process has no steps."""
        resume: Callable[[], Any] = functools.partial(coroutine.send, None)
        while True:
            try:
                awaited = resume()
            except StopIteration as stop:
                return stop.value
            self._boundaries.reach(f"{_name(context)} waits at {_line_of(coroutine)}")
            try:
                resume = functools.partial(coroutine.send, (yield awaited))
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001  # for the handler to take
                resume = functools.partial(coroutine.throw, error)

    def _begin(self, context: Context) -> None:
        self._witness.begun.append((context.run.id, context.attempt))
        self._boundaries.reach(f"{_name(context)} begins")

    def _failed(self, context: Context, error: BaseException) -> None:
        if not isinstance(error, WorkerKilled):
            self._witness.raised[context.run.id, context.attempt] = error
            self._boundaries.reach(f"{_name(context)} raises {type(error).__name__}")


def _name(context: Context) -> str:
    return f"{context.run.task} (attempt {context.attempt})"


def _line_of(coroutine: Any) -> str:
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return "its end"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class WatchedTasks(dict[str, Task[..., Any]]):
    """The app's tasks, wrapped when they are first needed: tests define tasks as they go."""

    def __init__(self, app: WorkerApp, watched: Watched) -> None:
        super().__init__()
        self._app = app
        self._watched = watched

    def __missing__(self, name: str) -> Task[..., Any]:
        self[name] = self._watched.task(self._app.served_tasks[name])
        return self[name]


class InlineThreads(Threads):
    """No threads at all."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__("perdure-kit")
        self._loop = loop

    def submit(self, job: Job) -> None:
        self._loop.call_soon(self._do, job)

    def _do(self, job: Job) -> None:
        with suppress(WorkerKilled):  # in the middle of its transaction's commit
            with outside_of_any_loop():
                say = job()
            say()


class KitHost(WorkerHost):
    """The real worker, on one loop, with watched handlers."""

    def __init__(self, app: App, watched: Watched) -> None:
        super().__init__(app, app.defaults.concurrency, None, same_loop=True)
        self._watched = watched

    def _make_handlers(self, tasks: Mapping[str, Task[..., Any]]) -> Handlers:
        handlers = super()._make_handlers(WatchedTasks(self._app, self._watched))
        handlers._threads = InlineThreads(asyncio.get_running_loop())
        return handlers

    @property
    def is_busy(self) -> bool:
        """Whether it holds a run, or has something to write down."""
        return bool(not self._worker.is_idle or self._handlers._calls)

    def next_timer(self) -> float | None:
        """When an attempt will be timed out, or pressed to stop."""
        times = [watchdog.when for watchdog in self._handlers._watchdogs.values()]
        return min((time for time in times if time is not None), default=None)
