"""What exists only while an app is open, all on one loop: beside a database.

`perdure.engine.app.remote_session` has its counterpart for an app at a server's address.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from datetime import datetime
from typing import TYPE_CHECKING

from perdure.engine.client.results import Results, StoredResults
from perdure.engine.client.trigger import Client
from perdure.engine.operators.audit_pages import AuditPages
from perdure.engine.operators.catalogue import TaskCatalogue
from perdure.engine.operators.limits import Limits, Queues, declare_limits
from perdure.engine.operators.runs import DeadLetters, Runs
from perdure.engine.operators.workers import Workers
from perdure.engine.runtime.storage_time import StorageTime
from perdure.engine.runtime.wakeups import Hints
from perdure.engine.runtime.worker_backend import WorkerBackend
from perdure.engine.schedules.operators import Schedules
from perdure.engine.schedules.reconcile import reconcile_code
from perdure.engine.tasks import catalogue
from perdure.engine.webhooks.operators import Webhooks
from perdure.engine.worker.database_backend import DatabaseBackend
from perdure.errors import AppOnAnotherLoop
from perdure.storage import Storage

if TYPE_CHECKING:
    from perdure.engine.app.app import App
    from perdure.engine.remote.trigger import RemoteClient
    from perdure.engine.rest.client import RestClient


class Opened(ABC):
    """What every open app offers. `close` closes it."""

    loop: asyncio.AbstractEventLoop | None
    rest: RestClient | None
    backend: WorkerBackend
    time: StorageTime
    hints: Hints
    client: Client | RemoteClient
    results: Results
    runs: Runs
    dead_letters: DeadLetters
    workers: Workers
    queues: Queues
    limits: Limits
    catalogue: TaskCatalogue
    schedules: Schedules
    webhooks: Webhooks
    audit_log: AuditPages

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """Raise StorageRefused where there is no database."""

    @abstractmethod
    async def introduce(self, app: App) -> None:
        """Store what the app's code defines."""

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
            stack.push_async_callback(self.backend.close)
            if self.rest is not None:
                stack.callback(self.rest.close)
            stack.push_async_callback(self.time.close)
            stack.push_async_callback(self.hints.stop)
            stack.push_async_callback(self.results.close)


class OpenedDatabase(Opened):
    """An app beside its database."""

    client: Client

    def __init__(self, app: App, storage: Storage, now: datetime) -> None:
        self.loop = asyncio._get_running_loop()
        self._storage = storage
        self.rest = None
        self.backend = DatabaseBackend(app, storage)
        self.time = StorageTime(storage, app.clock, now)
        self.hints = Hints(app.hub, app.clock, storage.hint_transport())
        self.client = Client(app)
        self.results = Results(
            StoredResults(storage, app.environment), app.hub, app.clock, app.defaults.poll
        )
        self.runs = Runs(app)
        self.dead_letters = DeadLetters(app)
        self.workers = Workers(app)
        self.queues = Queues(app)
        self.limits = Limits(app)
        self.catalogue = TaskCatalogue(app)
        self.schedules = Schedules(app)
        self.webhooks = Webhooks(app)
        self.audit_log = AuditPages(app)

    @property
    def storage(self) -> Storage:
        return self._storage

    @classmethod
    async def open(cls, app: App) -> OpenedDatabase:
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
        if not (app.tasks or app.queue_settings):
            return
        entries = [catalogue.entry_of(task) for task in app.tasks.values()]
        await catalogue.publish_tasks(self.storage, app.environment, entries)
        await declare_limits(app)
        await reconcile_code(app)
