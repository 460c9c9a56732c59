"""What exists only while an app is open, all on one loop: beside a database.

`perdure.app.remote_session` has its counterpart for an app at a server's address.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from perdure.app.components import make_runtime
from perdure.app.connect import make_handles
from perdure.engine.client.results import Results, StoredResults
from perdure.engine.client.trigger import Client
from perdure.engine.execution.worker_backend import WorkerBackend
from perdure.engine.inspection.why import explain_run
from perdure.engine.operators.audit_pages import AuditPages
from perdure.engine.operators.catalogue import TaskCatalogue
from perdure.engine.operators.declared_limits import declare_limits
from perdure.engine.operators.keys import Keys
from perdure.engine.operators.limits import Limits, Queues
from perdure.engine.operators.runs import DeadLetters, Runs
from perdure.engine.operators.workers import Workers
from perdure.engine.runtime.runtime import OpenComponents, Runtime
from perdure.engine.runtime.storage_time import StorageTime
from perdure.engine.runtime.wakeups import Hints
from perdure.engine.schedules.operators import Schedules
from perdure.engine.schedules.reconcile import reconcile_code
from perdure.engine.tasks import catalogue
from perdure.engine.webhooks.operators import Webhooks
from perdure.engine.worker.database_backend import DatabaseBackend
from perdure.errors import AppOnAnotherLoop
from perdure.storage import Storage

if TYPE_CHECKING:
    from perdure.app.openable import OpenableApp
    from perdure.engine.client.handle import RunHandle
    from perdure.engine.inspection.overview import Overview
    from perdure.engine.operators.audit_log import AuditEntries
    from perdure.engine.operators.bulk_order import Action
    from perdure.engine.remote.trigger import RemoteClient
    from perdure.engine.rest.client import RestClient
    from perdure.engine.tasks.catalogue import TaskEntry
    from perdure.engine.tasks.options import TriggerOptions


class Opened(ABC):
    """What every open app offers. `close` closes it."""

    loop: asyncio.AbstractEventLoop | None
    components: OpenComponents
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
    keys: Keys
    audit_log: AuditPages
    audit_entries: AuditEntries
    """The sealed trail, to verify it."""

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """Raise StorageRefused where there is no database."""

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """Raise StorageRefused where there is no database."""

    @abstractmethod
    async def known_tasks(self) -> list[TaskEntry]:
        """Return the catalogue of the app's environment."""

    @abstractmethod
    async def count_fitting(self, action: Action, words: Mapping[str, Any]) -> int:
        """Return how many runs or dead letters a bulk order would be about."""

    @abstractmethod
    async def trigger_known(
        self, name: str, payload: Mapping[str, Any], options: TriggerOptions
    ) -> RunHandle[Any]:
        """Ask for a run of a task of the catalogue. Raise TaskNotFound and InvalidPayload."""

    @abstractmethod
    async def overview(self) -> Overview:
        """Return what is going on."""

    @abstractmethod
    async def introduce(self, app: OpenableApp) -> None:
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

    def __init__(self, app: OpenableApp, runtime: Runtime) -> None:
        self.loop = asyncio._get_running_loop()
        self.components = self._runtime = runtime
        storage = runtime.storage
        self.rest = None
        self.backend = DatabaseBackend(runtime, storage)
        self.time = runtime.storage_time
        self.hints = runtime.hints
        self.client = Client(runtime, app.tracing, app.original)
        self.results = Results(
            StoredResults(storage, app.environment), app.hub, app.clock, app.defaults.poll
        )
        tasks, handles = ChainMap(app.tasks, app.aliases), make_handles(app)
        self.runs = Runs(runtime, tasks, handles, partial(explain_run, runtime))
        self.dead_letters = DeadLetters(runtime, self.runs)
        self.workers = Workers(runtime)
        self.queues = Queues(runtime, app.queue_settings)
        self.limits = Limits(runtime, app.queue_settings)
        self.catalogue = TaskCatalogue(runtime, self.known_tasks, self.workers)
        self.schedules = Schedules(runtime, tasks, handles)
        self.webhooks = Webhooks(runtime)
        self.keys = Keys(runtime)
        self.audit_entries = storage
        self.audit_log = AuditPages(runtime)

    @property
    def storage(self) -> Storage:
        return self._runtime.storage

    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @classmethod
    async def open(cls, app: OpenableApp) -> OpenedDatabase:
        storage = app.connect()
        try:
            if app.url.startswith("sqlite"):
                await storage.migrate()
            else:
                await storage.check_schema()
            make_time = app.storage_time or StorageTime
            time = make_time(storage, app.clock, await storage.now())
            opened = cls(app, make_runtime(app.components, storage, time))
        except BaseException:
            await storage.close()
            raise
        opened.hints.start()
        return opened

    async def known_tasks(self) -> list[TaskEntry]:
        return await catalogue.known_tasks(self.storage, self._runtime.environment)

    async def count_fitting(self, action: Action, words: Mapping[str, Any]) -> int:
        from perdure.engine.operators.bulk import count_fitting

        return await count_fitting(self._runtime, action, words)

    async def trigger_known(
        self, name: str, payload: Mapping[str, Any], options: TriggerOptions
    ) -> RunHandle[Any]:
        from perdure.engine.client.known_task import trigger_known

        return await trigger_known(self._runtime, self.client, name, payload, options)

    async def overview(self) -> Overview:
        from perdure.engine.inspection.overview import overview

        return await overview(self._runtime, self.queues, self.workers)

    async def introduce(self, app: OpenableApp) -> None:
        if not (app.tasks or app.queue_settings):
            return
        entries = [catalogue.entry_of(task) for task in app.tasks.values()]
        await catalogue.publish_tasks(self.storage, app.environment, entries)
        await declare_limits(self._runtime, app)
        await reconcile_code(self._runtime, app)


class OpenApp(Protocol):
    @property
    def _open(self) -> Opened: ...


def session_of(app: OpenApp) -> Opened:
    """What an open app has, for callers above the engine. Raise AppNotOpen."""
    return app._open
