"""A worker inside somebody's process: handlers on the caller's loop, all I/O on its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol, Self

from perdure.engine.attempt.transaction import TransactionTerms
from perdure.engine.definition.task import Task
from perdure.engine.execution.attempts import Handlers
from perdure.engine.execution.watchdog import Ladder
from perdure.engine.execution.worker_backend import WorkerBackend
from perdure.engine.process.io_thread import IoThread, SameLoop
from perdure.engine.process.open_lock import to_the_end
from perdure.engine.runtime.input import Duration, count, duration, queue_names
from perdure.engine.runtime.runtime import Components, RuntimeProvider
from perdure.engine.runtime.wakeups import Hints
from perdure.engine.targets.catalogue_tasks import Serving, check_served, target_kinds
from perdure.engine.targets.target_task import TargetApp
from perdure.engine.tasks.catalogue import Drain, TaskEntry
from perdure.engine.worker.isolation import Starter
from perdure.engine.worker.worker import Worker
from perdure.storage.contract.transactions import Transactions
from perdure.telemetry import table

Stopping = Future[None] | asyncio.Future[None]
"""Ends when everything has been handed over."""

BRIEFLY = timedelta(seconds=1)
"""The drain of a worker whose block is left because of an error."""


class WorkerApp(RuntimeProvider, TargetApp, Protocol):
    """What a worker needs of the app whose tasks it executes."""

    @property
    def served_tasks(self) -> Mapping[str, Task[..., Any]]: ...

    @property
    def backend(self) -> WorkerBackend:
        """The open app's own. Raise AppNotOpen."""

    def open_backend(self) -> WorkerBackend:
        """Return another one, for another loop."""


class WorkerHost:
    """`async with app.worker(concurrency=10, queues=["mail"]):`"""

    # Made when the block is entered.
    _components: Components
    _handlers: Handlers
    _io: IoThread | SameLoop
    _backend: WorkerBackend
    _worker: Worker

    def __init__(
        self,
        app: WorkerApp,
        concurrency: int,
        queues: Sequence[str] | None,
        *,
        drain: Duration | None = None,
        same_loop: bool = False,
        run_ids: Sequence[str] | None = None,
        targets: Sequence[str] = (),
        starter: Starter | None = None,
        on_drain: Callable[[], object] | None = None,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_drain`: called when an operator has asked it to drain; by default it begins to
        stop. `on_idle`: called on the I/O loop, when a worker of named runs holds none of them."""
        self._app = app
        self._run_ids = run_ids
        self._starter = starter
        self._concurrency = count(concurrency, "concurrency")
        self._queues = queue_names(queues)
        self._targets = target_kinds(targets)
        self._tasks: Mapping[str, Task[..., Any]] = app.served_tasks
        self._drain = app.defaults.drain_deadline if drain is None else duration(drain, "drain")
        self._same_loop = same_loop
        self._stopping: Stopping | None = None
        self._asked_first = threading.Lock()
        self._is_running = False
        self.drain_wish: Drain | None = None
        """What somebody asked for from afar; it then stops, unless somebody else sees to that."""
        self.on_drain: Callable[[], object] = on_drain or self.begin_stop
        self._on_idle = on_idle
        self._serving: Serving | None = None
        self._transactions: Transactions | None = None
        self._here = AsyncExitStack()
        self._there = AsyncExitStack()

    @property
    def id(self) -> str:
        return self._worker.id

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._app)
            self._components = self._app.components
            check_served(self._tasks, self._targets)
            if self._targets:
                self._serving = Serving(self._app, self._tasks, self._read_tasks, self._targets)
                self._tasks = self._serving.tasks
            self._handlers = self._make_handlers(self._tasks)
            stack.push_async_callback(self._close_handlers)
            self._io = SameLoop() if self._same_loop else IoThread("perdure-io")
            stack.push_async_callback(self._io.close)
            await self._io.call(self._start(self._shared_backend()))
            self._here = stack.pop_all()
        self._is_running = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        await self.stop(self._drain_after(kind))

    def begin_stop(self) -> Stopping:
        """Begin to stop, from any thread and even while a handler blocks the loop. Leaving the
        block, or `stop`, then waits for the end of it."""
        return self._begin_stop(self._drain)

    def _begin_stop(self, drain: timedelta) -> Stopping:
        with self._asked_first:
            if self._stopping is None:
                self._stopping = self._io.submit(self._stop(drain))
            return self._stopping

    def _asked_to_drain(self, wish: Drain) -> None:
        """On the I/O loop."""
        self.drain_wish = wish
        table.DRAIN_ASKED.say(worker_id=self.id, by=wish.by.id, reason=wish.reason)
        self.on_drain()

    async def stop(self, drain: timedelta) -> None:
        """To the end, also if cancelled meanwhile; but then without draining any longer."""
        await to_the_end(self._end(drain), lambda: self._io.post(self._worker.hurry))

    async def _end(self, drain: timedelta) -> None:
        if not self._is_running:
            return
        self._is_running = False
        async with self._here:
            await asyncio.wrap_future(self._begin_stop(drain))

    def _drain_after(self, kind: type[BaseException] | None) -> timedelta:
        """Whoever leaves because something is broken wants to know of it. To be cancelled is
        an ordinary way to end."""
        if kind is None or issubclass(kind, asyncio.CancelledError):
            return self._drain
        return min(self._drain, BRIEFLY)

    async def _read_tasks(self) -> list[TaskEntry]:
        return await self._backend.known_tasks()

    def _make_handlers(self, tasks: Mapping[str, Task[..., Any]]) -> Handlers:
        defaults = self._components.defaults
        return Handlers(
            tasks,
            ladder=Ladder(defaults.cancel_grace, defaults.abandon_after),
            result_limit=defaults.result_limit,
            tracing=self._app.tracing,
        )

    async def _close_handlers(self) -> None:
        await self._handlers.close()
        if self._transactions is not None:
            await self._transactions.close()

    def _shared_backend(self) -> WorkerBackend | None:
        """Return the app's own where that may be used from any loop; none: it needs another."""
        backend = self._app.backend
        return backend if self._same_loop or not backend.loop_bound else None

    async def _start(self, shared: WorkerBackend | None) -> None:
        """On the I/O loop."""
        async with AsyncExitStack() as stack:
            self._backend = shared or self._app.open_backend()
            if shared is None:
                stack.push_async_callback(self._backend.close)
            hints = Hints(
                self._components.hub, self._components.clock, self._backend.hint_transport()
            )
            hints.start()
            stack.push_async_callback(hints.stop)
            self._transactions = self._backend.transactions()
            if self._serving is not None:
                await stack.enter_async_context(self._keep_serving(self._serving))
            self._worker = self._make_worker(hints, self._transactions)
            await self._worker.start()
            await stack.enter_async_context(self._handlers.watched_loop(self._components))
            self._there = stack.pop_all()

    def _make_worker(self, hints: Hints, transactions: Transactions) -> Worker:
        terms = TransactionTerms(
            components=self._components,
            backend=self._backend,
            transactions=transactions,
            io_loop=asyncio.get_running_loop(),
            trace=self._handlers.trace,
            on_committed=self._app.metrics.committed,
        )
        return Worker(
            self._components,
            self._backend,
            hints,
            self._handlers,
            terms,
            concurrency=self._concurrency,
            queues=self._queues,
            run_ids=self._run_ids,
            tasks=self._tasks,
            starter=self._starter,
            on_drain=self._asked_to_drain,
            on_idle=self._on_idle,
        )

    @asynccontextmanager
    async def _keep_serving(self, serving: Serving) -> AsyncIterator[None]:
        """Tasks of the catalogue, too, from the first claim on."""
        await serving.run_once()
        serving.start()
        try:
            yield
        finally:
            await serving.stop()

    async def _stop(self, drain: timedelta) -> None:
        async with self._there:
            await self._worker.stop(drain)
