"""The app: tasks are defined on it, runs are asked for through it, services run inside it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from perdure.core.rates import Rate, make_rate
from perdure.core.run import Actor
from perdure.core.settings import Values
from perdure.core.values import check_label
from perdure.engine import forks
from perdure.engine.clock import SystemClock
from perdure.engine.configuration import configured
from perdure.engine.context import Context
from perdure.engine.defaults import Defaults
from perdure.engine.definition import TaskDecorator, check_function, keywords_of, task_settings
from perdure.engine.door import Duration, client_of, duration, only_known
from perdure.engine.executors.defining import TargetTasks
from perdure.engine.facade import SyncFacade
from perdure.engine.hints import Hints, Hub
from perdure.engine.ids import Ids
from perdure.engine.importable import locate
from perdure.engine.metered import metered
from perdure.engine.metrics import Metrics
from perdure.engine.options import Executor, TaskKeywords
from perdure.engine.redaction import Redact, Redaction
from perdure.engine.signature import Signature
from perdure.engine.task import Task
from perdure.engine.threshold import Door, to_the_end
from perdure.engine.tracing import tracing_of
from perdure.errors import AppNotOpen, InvalidInput, InvalidTask
from perdure.storage import Storage, check_url, open_storage, options_of
from perdure.storage.protocol import Clock

if TYPE_CHECKING:
    # Imported when first used: whoever only defines tasks must not wait for it.
    from perdure.core.schedule import Cadence, Stated
    from perdure.engine.client import Client
    from perdure.engine.limits import Limits, Queues
    from perdure.engine.maintenance import Maintenance
    from perdure.engine.opened import Opened
    from perdure.engine.operators import DeadLetters, Runs, Workers
    from perdure.engine.results import Results
    from perdure.engine.schedule_options import ScheduleKeywords
    from perdure.engine.scheduler import Scheduler
    from perdure.engine.schedules import Schedules
    from perdure.engine.task import AsyncContextTask, AsyncTask, ContextTask, PlainTask
    from perdure.engine.worker_host import WorkerHost

P = ParamSpec("P")
R = TypeVar("R")
TaskT = TypeVar("TaskT", bound=Task[..., Any])


_NOTHING: Any = object()


class App(TargetTasks):
    """Opens the storage behind `url` (default: `PERDURE_URL`, else `sqlite:///perdure.db`).

    Without `defaults`, what `PERDURE_*` and `[tool.perdure]` say holds; see `perdure config`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        environment: str | None = None,
        defaults: Defaults | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        actor: Actor | str | None = None,
        redact: Redact | None = None,
        tracing: Any = None,
        **storage_options: Any,
    ) -> None:
        self.defaults = configured().defaults if defaults is None else defaults
        self.url = check_url(url or os.environ.get("PERDURE_URL") or self.defaults.url)
        only_known(storage_options, (*_OPTIONS, *options_of(self.url)), "option of an App here")
        named = self.defaults.environment if environment is None else environment
        self.environment = check_label(named, "environment")
        self.clock = clock or SystemClock()
        self.ids = ids or Ids()
        self.actor = client_of(actor)
        self.storage_options = storage_options
        self.tasks: dict[str, Task[..., Any]] = {}
        self.redact = redact or Redaction()
        self.tracing = tracing_of(tracing)
        self.metrics = Metrics(self)
        self.hub: Hub = Hub(self.ids.token(), self.metrics.registry)
        self.original: App = self
        self.sync = SyncFacade(self)
        self.queue_settings: dict[str, Values] = {}
        self.stated_schedules: dict[str, Stated] = {}
        self._door = Door()
        self._opened: Opened | None = None
        self._times_opened = 0
        forks.forgets_its_parent(self)

    # Defining

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

        `name`, `queue`, `retry`, `timeout`, `priority`, `ttl`, `lease_ttl`, `on_lease_expired`,
        `executor`, `version`, `concurrency`, `concurrency_per_key`, `rate`, `rate_per_key`,
        `record_heartbeats`.
        """
        only_known(settings, _KEYWORDS, "setting of a task")
        if function is _NOTHING:
            return TaskDecorator(lambda function: self._define(function, settings))
        return self._define(function, settings)

    def _define(self, function: Callable[..., Any], settings: TaskKeywords) -> Task[..., Any]:
        check_function(function, settings.get("name"))
        made = task_settings(function, self.defaults, **settings)
        if made.executor is Executor.PROCESS:
            locate(function)
        return self._add(Task(self, function, made, Signature(function, Context)))

    def _add(self, task: Task[..., Any]) -> Task[..., Any]:
        if task.name in self.tasks:
            raise InvalidTask("name", f"there is a task {task.name!r} already; give it another")
        self.tasks[task.name] = task
        return task

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
        from perdure.engine.schedules import state

        return lambda task: state(self, task, cadence, name, settings)

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
        from perdure.engine.opened import Opened

        self._times_opened = 0
        self._opened = opened = await Opened.open(self)
        try:
            await opened.introduce(self)
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
        twin.tasks, twin.hub, twin.queue_settings = self.tasks, self.hub, self.queue_settings
        twin.stated_schedules = self.stated_schedules
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
    def queues(self) -> Queues:
        return self._open.queues

    @property
    def limits(self) -> Limits:
        return self._open.limits

    @property
    def schedules(self) -> Schedules:
        return self._open.schedules

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
        self,
        *,
        concurrency: int | None = None,
        queues: Sequence[str] | None = None,
        drain: Duration | None = None,
        same_loop: bool = False,
        targets: Sequence[str] = (),
    ) -> WorkerHost:
        """A worker inside this process: `async with app.worker(concurrency=10):`. It serves all
        queues, or those named; `drain` is how long runs may take to end when it stops; `targets`
        ("http", "shell"): tasks that others put into the catalogue, too."""
        from perdure.engine.worker_host import WorkerHost

        places = self.defaults.concurrency if concurrency is None else concurrency
        return WorkerHost(
            self,
            places,
            queues,
            drain=drain,
            same_loop=same_loop,
            targets=targets,
        )

    def executing(self, run_id: str) -> WorkerHost:
        """A worker for one run only, here: unless another one has it already."""
        from perdure.engine.worker_host import WorkerHost

        return WorkerHost(self, 1, None, run_ids=[run_id])

    def maintenance(self) -> Maintenance:
        """Recovery and clean-up inside this process: `async with app.maintenance():`."""
        from perdure.engine.maintenance import Maintenance

        return Maintenance(self)

    def scheduler(self) -> Scheduler:
        """Makes what is scheduled inside this process: `async with app.scheduler():`."""
        from perdure.engine.scheduler import Scheduler

        return Scheduler(self)

    @asynccontextmanager
    async def run_all(
        self,
        *,
        concurrency: int | None = None,
        queues: Sequence[str] | None = None,
        drain: Duration | None = None,
        same_loop: bool = False,
    ) -> AsyncIterator[Self]:
        """Open the app and run every service in this process; see `worker`."""
        worker = self.worker(
            concurrency=concurrency, queues=queues, drain=drain, same_loop=same_loop
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self)
            await stack.enter_async_context(self.maintenance())
            await stack.enter_async_context(self.scheduler())
            await stack.enter_async_context(worker)
            yield self

    async def tick(self, *, grace: Duration | None = None) -> None:
        """One pass of scheduler and maintenance. If it finds expired leases it stays until it may
        take them: for `grace`, by default the renewal interval, during which the storage must have
        answered, so that an outage costs nobody's lease. `grace=0` takes them at once."""
        from perdure.engine.maintenance import Maintenance
        from perdure.engine.scheduler import Scheduler

        chosen = None if grace is None else duration(grace, "grace")
        await Scheduler(self).run_once()
        await Maintenance(self, grace=chosen).tick()


_KEYWORDS, _OPTIONS = keywords_of(task_settings), keywords_of(App.__init__)
