"""What exists only while an app is open, all on one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from datetime import datetime
from typing import TYPE_CHECKING

from perdure.engine import catalogue
from perdure.engine.client import Client
from perdure.engine.database_backend import DatabaseBackend
from perdure.engine.hints import Hints
from perdure.engine.limits import Limits, Queues, declare_limits
from perdure.engine.operators import DeadLetters, Runs
from perdure.engine.reconciling import reconcile_code
from perdure.engine.results import Results
from perdure.engine.schedules import Schedules
from perdure.engine.storage_time import StorageTime
from perdure.engine.webhooks.keeping import Webhooks
from perdure.engine.worker_backend import WorkerBackend
from perdure.engine.workers import Workers
from perdure.errors import AccessRefused, AppOnAnotherLoop
from perdure.storage import Storage
from perdure.storage.orders import OrderTransport
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.engine.app import App


class Opened:
    """Made by `open`; what it holds is closed by `close`."""

    def __init__(self, app: App, storage: Storage, now: datetime) -> None:
        self.loop = asyncio._get_running_loop()
        self.storage = storage
        self.backend: WorkerBackend = DatabaseBackend(app, storage)
        self.time = StorageTime(storage, app.clock, now)
        self.hints = Hints(app.hub, app.clock, storage.hint_transport())
        self.client = Client(app)
        self.results = Results(storage, app.hub, app.clock, app.defaults.poll)
        self.runs: Runs = Runs(app)
        self.dead_letters: DeadLetters = DeadLetters(app)
        self.workers: Workers = Workers(app)
        self.queues: Queues = Queues(app)
        self.limits: Limits = Limits(app)
        self.schedules: Schedules = Schedules(app)
        self.webhooks: Webhooks = Webhooks(app)
        transport = storage.order_transport()
        if transport is not None:
            self._order_from_afar(app, transport)

    def _order_from_afar(self, app: App, transport: OrderTransport) -> None:
        from perdure.engine.orders import defining, parts

        self.runs = parts.RemoteRuns(app, transport)
        self.dead_letters = parts.RemoteDeadLetters(app, transport)
        self.workers = parts.RemoteWorkers(app, transport)
        self.queues = parts.RemoteQueues(app, transport)
        self.limits = parts.RemoteLimits(app, transport)
        self.schedules = parts.RemoteSchedules(app, transport)
        self.webhooks = defining.RemoteWebhooks(app, transport)

    @classmethod
    async def open(cls, app: App) -> Opened:
        storage = app.connect()
        try:
            if app.url.startswith("sqlite"):
                await storage.migrate()
            else:
                await storage.check_schema()
            opened = cls(app, storage, await storage.now())
        except BaseException:
            await storage.close()
            raise
        opened.hints.start()
        return opened

    async def introduce(self, app: App) -> None:
        """Tell the storage what the app knows. A worker may not say everything to a server: what
        its key does not allow, somebody else has to say. Who knows nothing asks for nothing."""
        if not (app.tasks or app.queue_settings):
            return
        entries = [catalogue.entry_of(task) for task in app.tasks.values()]
        published = catalogue.publish_tasks(self.storage, app.environment, entries)
        await _as_far_as_allowed("tasks", published)
        await _as_far_as_allowed("limits", declare_limits(app))
        await _as_far_as_allowed("schedules", reconcile_code(app))

    @property
    def is_abandoned(self) -> bool:
        """Whether its loop has ended without it."""
        return self.loop is not None and self.loop.is_closed()

    def check_loop(self) -> None:
        """Raises AppOnAnotherLoop."""
        here = asyncio._get_running_loop()
        if here is not self.loop and here is not None and self.loop is not None:
            raise AppOnAnotherLoop

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.storage.close)
            stack.push_async_callback(self.time.close)
            stack.push_async_callback(self.hints.stop)
            stack.push_async_callback(self.results.close)


async def _as_far_as_allowed(what: str, saying: Awaitable[object]) -> None:
    try:
        await saying
    except AccessRefused as refusal:
        table.NOT_INTRODUCED.say(what=what, error=str(refusal))
