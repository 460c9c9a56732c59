"""A worker inside somebody's process: handlers on the caller's loop, all I/O on its own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from perdure.engine.attempt import Ladder
from perdure.engine.door import Duration, duration
from perdure.engine.handlers import Handlers
from perdure.engine.hints import Hints
from perdure.engine.io_thread import IoThread, SameLoop
from perdure.engine.transaction import TransactionTerms
from perdure.engine.worker import Worker
from perdure.storage.protocol import Storage

if TYPE_CHECKING:
    from perdure.engine.app import App


class WorkerHost:
    """`async with app.worker(concurrency=10, queues=["mail"]):`"""

    def __init__(
        self,
        app: App,
        concurrency: int,
        queues: Sequence[str] | None,
        *,
        drain: Duration | None = None,
        same_loop: bool = False,
        run_ids: Sequence[str] | None = None,
    ) -> None:
        self._app = app
        self._run_ids = run_ids
        self._concurrency = concurrency
        self._queues = queues
        self._drain = app.defaults.drain_deadline if drain is None else duration(drain, "drain")
        self._same_loop = same_loop
        self._stopping: Future[None] | None = None

    @property
    def id(self) -> str:
        return self._worker.id

    async def __aenter__(self) -> Self:
        await self._app.__aenter__()
        self._handlers = self._make_handlers()
        self._io = SameLoop() if self._same_loop else IoThread("perdure-io")
        await self._io.call(self._start())
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop(self._drain)

    def begin_stop(self) -> Future[None]:
        """Begin to stop, from any thread and even while a handler blocks the loop. Leaving the
        block, or `stop`, then waits for the end of it."""
        assert isinstance(self._io, IoThread), "on one loop there is no other thread to stop it"
        if self._stopping is None:
            self._stopping = self._io.submit(self._stop(self._drain))
        return self._stopping

    async def stop(self, drain: timedelta) -> None:
        if self._stopping is None:
            await self._io.call(self._stop(drain))
        else:
            await asyncio.wrap_future(self._stopping)
        await self._io.close()
        await self._handlers.close()
        await self._transactions.close()
        await self._app.__aexit__()

    def _make_handlers(self) -> Handlers:
        defaults = self._app.defaults
        return Handlers(
            self._app.tasks,
            ladder=Ladder(defaults.cancel_grace, defaults.abandon_after),
            result_limit=defaults.result_limit,
            tracing=self._app.tracing,
        )

    async def _start(self) -> None:
        self._storage, self._owned = self._storage_here()
        self._hints = Hints(self._app.hub, self._app.clock, self._storage.hint_transport())
        self._hints.start()
        self._transactions = self._storage.transactions()
        self._handlers.terms = TransactionTerms(
            app=self._app,
            storage=self._storage,
            transactions=self._transactions,
            io_loop=asyncio.get_running_loop(),
        )
        self._worker = Worker(
            self._app,
            self._storage,
            self._hints,
            self._handlers,
            concurrency=self._concurrency,
            queues=self._queues,
            run_ids=self._run_ids,
        )
        await self._worker.start()

    async def _stop(self, drain: timedelta) -> None:
        await self._worker.stop(drain)
        await self._hints.stop()
        if self._owned:
            await self._storage.close()

    def _storage_here(self) -> tuple[Storage, bool]:
        """A storage for the I/O loop: the app's own where that may be used from any loop."""
        if self._same_loop or not self._app.storage.loop_bound:
            return self._app.storage, False
        return self._app.connect(), True
