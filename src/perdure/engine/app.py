"""The app: tasks are defined on it, runs are asked for through it, services run inside it."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from perdure.core.limits import Limit, LimitScope
from perdure.core.run import Actor, ActorType, OnLeaseExpired
from perdure.core.values import check_label
from perdure.engine import catalogue, forks
from perdure.engine.client import Client
from perdure.engine.clock import SystemClock
from perdure.engine.configuration import configured
from perdure.engine.context import Context
from perdure.engine.defaults import Defaults
from perdure.engine.door import Door, to_the_end
from perdure.engine.facade import SyncFacade
from perdure.engine.hints import Hints, Hub
from perdure.engine.ids import Ids
from perdure.engine.importable import locate
from perdure.engine.maintenance import Maintenance
from perdure.engine.metered import metered
from perdure.engine.metrics import Metrics
from perdure.engine.opened import Opened
from perdure.engine.operators import DeadLetters, Runs, Workers
from perdure.engine.options import Duration, Executor, Retry, TaskSettings, duration, make_policy
from perdure.engine.redaction import Redact, Redaction
from perdure.engine.results import Results
from perdure.engine.signature import Signature
from perdure.engine.task import Task
from perdure.engine.tracing import tracing_of
from perdure.engine.worker_host import WorkerHost
from perdure.errors import AppNotOpen, InvalidTask
from perdure.storage import Storage, open_storage
from perdure.storage.protocol import Clock

P = ParamSpec("P")
R = TypeVar("R")


class App:
    """Opens the storage behind `url` (default: `PERDURE_URL`, else `sqlite:///perdure.db`).

    Without `defaults`, what `PERDURE_*` and `[tool.perdure]` say holds; see `perdure config`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        environment: str | None = None,
        defaults: Defaults | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        actor: Actor | None = None,
        redact: Redact | None = None,
        tracing: Any = None,
        **storage_options: Any,
    ) -> None:
        self.defaults = configured().defaults if defaults is None else defaults
        self.url = url or os.environ.get("PERDURE_URL") or self.defaults.url
        self.environment = check_label(environment or self.defaults.environment, "environment")
        self.clock = clock or SystemClock()
        self.ids = ids or Ids()
        self.actor = actor or Actor(ActorType.CLIENT)
        self.storage_options = storage_options
        self.tasks: dict[str, Task[..., Any]] = {}
        self.redact = redact or Redaction()
        self.tracing = tracing_of(tracing)
        self.metrics = Metrics(self)
        self.hub: Hub = Hub(self.ids.token(), self.metrics.registry)
        self.original: App = self
        self.sync = SyncFacade(self)
        self._queue_limits: list[Limit] = []
        self._door = Door()
        self._opened: Opened | None = None
        self._times_opened = 0
        forks.forgets_its_parent(self)

    # Defining

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **settings: Any) -> TaskDecorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(queue="mail", retry=Retry(5))`.

        `name`, `queue`, `retry`, `timeout`, `priority`, `ttl`, `lease_ttl`, `on_lease_expired`,
        `executor`, `version`, `concurrency`, `concurrency_per_key`.
        """
        if function is not None:
            return self._define(function)
        return TaskDecorator(self, settings)

    def _define(self, function: Callable[..., Any], **settings: Any) -> Task[..., Any]:
        made = task_settings(function, self.defaults, **settings)
        if made.executor is Executor.PROCESS:
            locate(function)
        if made.name in self.tasks:
            raise InvalidTask("name", f"there is a task {made.name!r} already; give it another")
        task: Task[..., Any] = Task(self, function, made, Signature(function, Context))
        self.tasks[made.name] = task
        return task

    def queue(self, name: str, *, concurrency: int | None = None) -> None:
        """Say something about a queue: at most so many leases at once."""
        check_label(name, "queue")
        if concurrency is not None:
            self._queue_limits.append(self._limit(LimitScope.QUEUE, name, concurrency))

    def _limit(self, scope: LimitScope, name: str, most: int) -> Limit:
        return Limit(scope=scope, name=name, max_leases=most, environment=self.environment)

    # Opening

    async def __aenter__(self) -> Self:
        async with self._door.passing():
            if self._opened is None or self._opened.is_abandoned:
                await self._open_up()
            self._open.check_loop()
            self._times_opened += 1
        return self

    async def __aexit__(self, *exception: object) -> None:
        await to_the_end(self._leave())

    async def _open_up(self) -> None:
        self._times_opened = 0
        self._opened = opened = await Opened.open(self)
        try:
            await self._introduce()
        except BaseException:
            self._opened = None
            await opened.close()
            raise

    async def _leave(self) -> None:
        async with self._door.passing():
            self._times_opened -= 1
            if self._times_opened == 0 and self._opened is not None:
                opened, self._opened = self._opened, None
                await opened.close()

    def forget_the_parent(self) -> None:
        """After a fork: what was open belongs to the other process."""
        forks.leave_alone(self._opened, self.hub, self.sync, self.metrics)
        self.metrics = Metrics(self)
        self.hub = Hub(self.ids.token(), self.metrics.registry)
        self.sync = SyncFacade(self.original)
        self._door, self._opened, self._times_opened = Door(), None, 0

    async def _introduce(self) -> None:
        """Tell the storage what this app knows."""
        entries = [catalogue.entry_of(task) for task in self.tasks.values()]
        await catalogue.publish_tasks(self.storage, self.environment, entries)
        limits = self._limits()
        if limits:
            await self.storage.set_limits(limits)

    def _limits(self) -> list[Limit]:
        limits = list(self._queue_limits)
        for task in self.tasks.values():
            if task.settings.concurrency is not None:
                limits.append(self._limit(LimitScope.TASK, task.name, task.settings.concurrency))
            if task.settings.concurrency_per_key is not None:
                most = task.settings.concurrency_per_key
                limits.append(self._limit(LimitScope.KEY, task.name, most))
        return limits

    def twin(self) -> App:
        """The same app, closed: for another loop."""
        twin = App(
            self.url,
            environment=self.environment,
            defaults=self.defaults,
            clock=self.clock,
            ids=self.ids,
            actor=self.actor,
            redact=self.redact,
            tracing=self.tracing,
            **self.storage_options,
        )
        twin.original, twin.sync = self.original, self.sync
        twin.metrics = Metrics(twin, like=self.metrics)
        twin.tasks, twin.hub, twin._queue_limits = self.tasks, self.hub, self._queue_limits
        return twin

    def open_storage(self) -> Storage:
        """Another way into the same storage, for another loop."""
        return open_storage(self.url, self.clock, **self.storage_options)

    def connect(self) -> Storage:
        """The same, and what happens there is counted."""
        return metered(self.open_storage(), self.metrics.registry)

    # Using

    @property
    def storage(self) -> Storage:
        return self._open.storage

    @property
    def hints(self) -> Hints:
        return self._open.hints

    @property
    def client(self) -> Client:
        return self._open.client

    @property
    def results(self) -> Results:
        return self._open.results

    @property
    def runs(self) -> Runs:
        return self._open.runs

    @property
    def dead_letters(self) -> DeadLetters:
        return self._open.dead_letters

    @property
    def workers(self) -> Workers:
        return self._open.workers

    @property
    def _open(self) -> Opened:
        if self._opened is None:
            raise AppNotOpen
        self._opened.check_loop()
        return self._opened

    def time(self) -> datetime:
        """This process's estimate of the storage's time. It never judges a lease."""
        self._open.time.keep_fresh()
        return self._open.time.now()

    # Running

    def worker(
        self, *, concurrency: int | None = None, queues: Sequence[str] | None = None, **options: Any
    ) -> WorkerHost:
        """A worker inside this process: `async with app.worker(concurrency=10):`."""
        places = self.defaults.concurrency if concurrency is None else concurrency
        return WorkerHost(self, places, queues, **options)

    def executing(self, run_id: str) -> WorkerHost:
        """A worker for one run only, here: unless another one has it already."""
        return WorkerHost(self, 1, None, run_ids=[run_id])

    def maintenance(self) -> Maintenance:
        """Recovery and clean-up inside this process: `async with app.maintenance():`."""
        return Maintenance(self)

    @asynccontextmanager
    async def run_all(self, **worker_options: Any) -> AsyncIterator[Self]:
        """Open the app and run every service in this process."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self)
            await stack.enter_async_context(self.maintenance())
            await stack.enter_async_context(self.worker(**worker_options))
            yield self

    async def tick(self, *, grace: Duration | None = None) -> None:
        """One pass of maintenance. If it finds expired leases it stays until it may take them:
        for `grace`, by default the renewal interval, during which the storage must have answered,
        so that an outage costs nobody's lease. `grace=0` takes them at once."""
        chosen = None if grace is None else duration(grace, "grace")
        await Maintenance(self, grace=chosen).tick()


class TaskDecorator:
    """`@app.task(…)` with settings."""

    def __init__(self, app: App, settings: dict[str, Any]) -> None:
        self._app = app
        self._settings = settings

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Awaitable[R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._app._define(function, **self._settings)


def task_settings(
    function: Callable[..., Any],
    defaults: Defaults,
    *,
    name: str | None = None,
    queue: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    priority: int = 0,
    ttl: Duration | None = None,
    lease_ttl: Duration | None = None,
    on_lease_expired: OnLeaseExpired = OnLeaseExpired.RETRY,
    executor: str | None = None,
    version: int | None = None,
    concurrency: int | None = None,
    concurrency_per_key: int | None = None,
    record_heartbeats: bool = False,
) -> TaskSettings:
    """A task's definition from what the decorator was told. Raises InvalidInput."""
    is_async = inspect.iscoroutinefunction(function)
    chosen = Executor(executor or ("async" if is_async else "thread"))
    if is_async != (chosen is Executor.ASYNC):
        raise InvalidTask("executor", f"{chosen} does not fit {function.__qualname__}")
    return TaskSettings(
        name=check_label(name or function.__name__, "name"),
        queue=check_label(queue or defaults.queue, "queue"),
        executor=chosen,
        policy=make_policy(
            retry or Retry(max_attempts=defaults.max_attempts),
            timeout=timeout,
            lease_ttl=lease_ttl,
            on_lease_expired=on_lease_expired,
            record_heartbeats=record_heartbeats,
        ),
        priority=priority,
        ttl=None if ttl is None else duration(ttl, "ttl"),
        version=version,
        concurrency=concurrency,
        concurrency_per_key=concurrency_per_key,
    )
