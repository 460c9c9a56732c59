"""What exists only while an app at a server's address is open, all on one loop."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from perdure.app.components import open_components
from perdure.app.connect import connect_rest, make_handles
from perdure.app.session import Opened
from perdure.engine.client.results import Results
from perdure.engine.operators.catalogue import TaskCatalogue
from perdure.engine.protocol.values import schedule_message
from perdure.engine.protocol.workers import DeclareAnswer, DeclareRequest, QueueMessage
from perdure.engine.remote.backend import RemoteBackend, open_remote_backend
from perdure.engine.remote.server import Server
from perdure.engine.remote.trigger import RemoteClient
from perdure.engine.rest import audit, limits, runs, schedules, webhooks
from perdure.engine.rest.client import RestClient
from perdure.engine.rest.health import RemoteAuditLog
from perdure.engine.rest.keys import RemoteKeys
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.runtime.storage_time import StorageTime
from perdure.engine.runtime.wakeups import Hints
from perdure.engine.tasks.catalogue import TaskEntry, entry_of
from perdure.errors import AccessRefused, StorageRefused
from perdure.storage import Storage
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.app.openable import OpenableApp
    from perdure.engine.client.handle import RunHandle
    from perdure.engine.inspection.overview import Overview
    from perdure.engine.operators.bulk_order import Action
    from perdure.engine.tasks.options import TriggerOptions


class OpenedServer(Opened):
    """Operators use the HTTP API; triggers, results and workers use the worker protocol."""

    rest: RestClient
    backend: RemoteBackend

    def __init__(
        self, app: OpenableApp, rest: RestClient, backend: RemoteBackend, now: datetime
    ) -> None:
        self.loop = asyncio._get_running_loop()
        self._url = app.url
        self.rest = rest
        self.backend = backend
        self.time = StorageTime(rest, app.clock, now)
        # Only an app with tasks waits for results: operators poll.
        self.hints = Hints(app.hub, app.clock, backend.hint_transport() if app.tasks else None)
        self.components = open_components(app.components, self.time, self.hints)
        self.client = RemoteClient(self.components, app.tracing, app.original, backend.server)
        self.results = Results(backend, app.hub, app.clock, app.defaults.poll)
        tasks, handles = ChainMap(app.tasks, app.aliases), make_handles(app)
        self.runs = remote_runs = runs.RemoteRuns(self.components, rest, handles)
        self.dead_letters = runs.RemoteDeadLetters(app.environment, rest, remote_runs)
        self.workers = runs.RemoteWorkers(rest)
        self.queues = limits.RemoteQueues(rest)
        self.limits = limits.RemoteLimits(rest)
        self.catalogue = TaskCatalogue(self.components, self.known_tasks, self.workers)
        self.schedules = schedules.RemoteSchedules(self.components, rest, tasks, handles)
        self.webhooks = webhooks.RemoteWebhooks(self.components, rest)
        self.keys = RemoteKeys(app.environment, rest)
        self.audit_entries = RemoteAuditLog(rest)
        self.audit_log = audit.RemoteAuditPages(rest)

    @property
    def runtime(self) -> Runtime:
        raise self._refusal()

    @property
    def storage(self) -> Storage:
        raise self._refusal()

    def _refusal(self) -> StorageRefused:
        problem = f"an app at {self._url} has no database of its own"
        advice = "use app.runs and its like, or open the app with the database's URL"
        return StorageRefused(f"{problem}; {advice}")

    @classmethod
    async def open(cls, app: OpenableApp) -> OpenedServer:
        """An app with tasks checks, too, whether both sides speak the same worker protocol."""
        rest, backend = connect_rest(app), open_remote_backend(app.components, app.storage_options)
        try:
            if app.tasks:
                await check_server(app, backend.server)
            opened = cls(app, rest, backend, await rest.now())
        except BaseException:
            rest.close()
            await backend.close()
            raise
        opened.hints.start()
        return opened

    async def known_tasks(self) -> list[TaskEntry]:
        return await self.rest.get_all(TaskEntry, "tasks")

    async def count_fitting(self, action: Action, words: Mapping[str, Any]) -> int:
        from perdure.engine.rest.orders import count_remotely

        return await count_remotely(self.components, self.rest, action, words)

    async def trigger_known(
        self, name: str, payload: Mapping[str, Any], options: TriggerOptions
    ) -> RunHandle[Any]:
        from perdure.engine.rest.orders import trigger_remotely

        return await trigger_remotely(self.rest, name, payload, options)

    async def overview(self) -> Overview:
        from perdure.engine.inspection.overview import Overview

        return await self.rest.get(Overview, "overview")

    async def introduce(self, app: OpenableApp) -> None:
        """Declare what the app's code defines. What the key does not allow is logged: another
        key has to declare it."""
        if not (app.tasks or app.queue_settings):
            return
        request = DeclareRequest(
            tasks=tuple(entry_of(task) for task in app.tasks.values()),
            queues=tuple(
                QueueMessage(name=name, values=it) for name, it in app.queue_settings.items()
            ),
            schedules=tuple(map(schedule_message, app.stated_schedules.values())),
        )
        try:
            answer = await self.backend.server.ask(request, DeclareAnswer)
        except AccessRefused as refusal:
            table.NOT_INTRODUCED.say(what="tasks", error=str(refusal))
            return
        for declined in answer.declined:
            what = f"task {declined.name}" if declined.what == "task" else declined.what
            table.NOT_INTRODUCED.say(what=what, error=declined.why)


async def check_server(app: OpenableApp, server: Server) -> None:
    """Raise StorageRefused for a server of another version, AccessRefused for a key of another
    environment."""
    hello = await server.check()
    if hello.environment != app.environment:
        problem = f"the API key is one of environment {hello.environment!r}"
        advice = f"give App(environment={hello.environment!r}), or another key"
        raise AccessRefused(f"{problem}, and the app one of {app.environment!r}; {advice}")
