"""A worker inside somebody's process: handlers on the caller's loop, all I/O on its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from perdure.engine.app.connect import open_backend
from perdure.engine.execution.attempts import Handlers
from perdure.engine.execution.transaction import TransactionTerms
from perdure.engine.execution.watchdog import Ladder
from perdure.engine.runtime.input import Duration, count, duration, queue_names
from perdure.engine.runtime.io_thread import IoThread, SameLoop
from perdure.engine.runtime.open_lock import to_the_end
from perdure.engine.runtime.wakeups import Hints
from perdure.engine.runtime.worker_backend import WorkerBackend
from perdure.engine.targets.catalogue_tasks import Serving, check_served, target_kinds
from perdure.engine.tasks.catalogue import Drain
from perdure.engine.tasks.task import Task
from perdure.engine.worker.isolation import Starter
from perdure.engine.worker.worker import Worker
from perdure.storage.contract.transactions import Transactions
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.engine.app.app import App

Stopping = Future[None] | asyncio.Future[None]
"""Ends when everything has been handed over."""

BRIEFLY = timedelta(seconds=1)
"""The drain of a worker whose block is left because of an error."""


class WorkerHost:
    """`async with app.worker(concurrency=10, queues=["mail"]):`"""

    # Made when the block is entered.
    _handlers: Handlers
    _io: IoThread | SameLoop
    _backend: WorkerBackend
    _worker: Worker

    def __init__(
        self,
        app: App,
        concurrency: int,
        queues: Sequence[str] | None,
        *,
        drain: Duration | None = None,
        same_loop: bool = False,
        run_ids: Sequence[str] | None = None,
        targets: Sequence[str] = (),
        starter: Starter | None = None,
    ) -> None:
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
        self.on_drain: Callable[[], object] = self.begin_stop
        self.on_idle: Callable[[], object] = lambda: None
        """Called on the I/O loop, when a worker of named runs holds none of them."""
        self._transactions: Transactions | None = None
        self._here = AsyncExitStack()
        self._there = AsyncExitStack()

    @property
    def id(self) -> str:
        return self._worker.id

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._app)
            check_served(self._app, self._targets)
            self._handlers = self._make_handlers()
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

    def _tell_idle(self) -> None:
        self.on_idle()

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

    def _make_handlers(self) -> Handlers:
        defaults = self._app.defaults
        return Handlers(
            self._tasks,
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
            self._backend = shared or open_backend(self._app)
            if shared is None:
                stack.push_async_callback(self._backend.close)
            hints = Hints(self._app.hub, self._app.clock, self._backend.hint_transport())
            hints.start()
            stack.push_async_callback(hints.stop)
            self._transactions = self._backend.transactions()
            self._handlers.terms = TransactionTerms(
                app=self._app,
                backend=self._backend,
                transactions=self._transactions,
                io_loop=asyncio.get_running_loop(),
                trace=self._handlers.trace,
            )
            if self._targets:
                await stack.enter_async_context(self._serving())
            self._worker = self._make_worker(hints)
            self._worker.on_drain = self._asked_to_drain
            self._worker.on_idle = self._tell_idle
            await self._worker.start()
            await stack.enter_async_context(self._handlers.watched_loop(self._app))
            self._there = stack.pop_all()

    def _make_worker(self, hints: Hints) -> Worker:
        return Worker(
            self._app,
            self._backend,
            hints,
            self._handlers,
            concurrency=self._concurrency,
            queues=self._queues,
            run_ids=self._run_ids,
            tasks=self._tasks,
            starter=self._starter,
        )

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Tasks of the catalogue, too, from the first claim on."""
        serving = Serving(self._app, self._backend, self._targets)
        await serving.run_once()
        self._tasks = self._handlers.tasks = serving.tasks
        serving.start()
        try:
            yield
        finally:
            await serving.stop()

    async def _stop(self, drain: timedelta) -> None:
        async with self._there:
            await self._worker.stop(drain)
