"""What a server has for each environment: an app of its own, and who serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from perdure.app.app import App
from perdure.engine.client.catalogue_client import Asking
from perdure.engine.operators.audit_log import AuditLog
from perdure.engine.operators.bulk import QUEUE, define_bulk
from perdure.engine.worker.host import WorkerHost
from perdure.storage.contract.runs import Clock
from perdure.web.models.views import View
from perdure.web.worker.registry import WorkerRegistry
from perdure.web.worker.reports import Reporting

T = TypeVar("T")

FRESH = 2.0
"""Seconds for which costly answers are told again."""
MOST_ANSWERS = 20
CATALOGUE_READERS = 2
"""Requests of the worker protocol, of one environment, that read the whole catalogue at once: it
may take hundreds of megabytes of memory."""
BULK_RUNS = 2
"""At once, in one environment."""


class Recent:
    """Costly answers, asked for once a moment however many want them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, question: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        now = self._clock.elapsed()
        self._answers = {q: a for q, a in self._answers.items() if now - a[0] < FRESH}
        if question not in self._answers or len(self._answers) > MOST_ANSWERS:
            self._answers[question] = (now, asyncio.create_task(ask()))
        answer: asyncio.Task[T] = self._answers[question][1]
        return await asyncio.shield(answer)


class InFlight:
    """Questions that are being asked: the same one at the same time is asked once."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, question: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        asking: asyncio.Task[T] | None = self._asked.get(question)
        if asking is None or asking.done():
            asking = self._asked[question] = asyncio.create_task(ask())
            asking.add_done_callback(_retrieve_error)
        return await asyncio.shield(asking)


def _retrieve_error(asking: asyncio.Task[Any]) -> None:
    """Each caller that awaits the answer gets its error; asyncio would log it if none is left."""
    if not asking.cancelled():
        asking.exception()


class Workplace:
    """One environment, opened."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.asking = Asking(app.runtime, app.tracing, app.original)
        self.audit_log = AuditLog(app.runtime)
        self.recent = Recent(app.clock)
        self.in_flight = InFlight()
        self.catalogue_turns = asyncio.Semaphore(CATALOGUE_READERS)
        self.view = View(app.redactor)
        self.registry = WorkerRegistry(app)
        self.reporting = Reporting(app, self.registry)


class Workplaces:
    """Opened when a key of theirs first comes along. None has anybody's tasks: a server that
    executed those would be a worker. What it executes are bulk orders."""

    def __init__(self, like: App) -> None:
        self._like = like
        self._stack = AsyncExitStack()
        self._known: dict[str, Workplace] = {}
        self._workers: list[WorkerHost] = []
        self._opening = asyncio.Lock()

    async def at(self, environment: str) -> Workplace:
        if environment not in self._known:
            async with self._opening:
                if environment not in self._known:
                    self._known[environment] = await self._open(environment)
        return self._known[environment]

    async def stop_workers(self) -> None:
        """Stop all at once. `close` then waits for none of them."""
        stopping = [asyncio.wrap_future(worker.begin_stop()) for worker in self._workers]
        await asyncio.gather(*map(asyncio.shield, stopping))

    async def close(self) -> None:
        await self._stack.aclose()

    async def _open(self, environment: str) -> Workplace:
        app = self._like.without_tasks(environment)
        define_bulk(app)
        await self._stack.enter_async_context(app)
        worker = app.worker(concurrency=BULK_RUNS, queues=[QUEUE])
        self._workers.append(await self._stack.enter_async_context(worker))
        return Workplace(app)
