"""What exists only while an app at a server's address is open, all on one loop."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

from perdure.engine.app.session import Opened
from perdure.engine.client.results import Results
from perdure.engine.operators.catalogue import TaskCatalogue
from perdure.engine.protocol.values import schedule_message
from perdure.engine.protocol.workers import DeclareAnswer, DeclareRequest, QueueMessage
from perdure.engine.remote.backend import RemoteBackend, open_remote_backend
from perdure.engine.remote.server import Server
from perdure.engine.remote.trigger import RemoteClient
from perdure.engine.rest import audit, limits, runs, schedules, webhooks
from perdure.engine.rest.client import RestClient, connect
from perdure.engine.runtime.storage_time import StorageTime
from perdure.engine.runtime.wakeups import Hints
from perdure.engine.tasks.catalogue import entry_of
from perdure.errors import AccessRefused, StorageRefused
from perdure.storage import Storage
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.engine.app.app import App


class OpenedServer(Opened):
    """Operators use the HTTP API; triggers, results and workers use the worker protocol."""

    backend: RemoteBackend

    def __init__(self, app: App, rest: RestClient, backend: RemoteBackend, now: datetime) -> None:
        self.loop = asyncio._get_running_loop()
        self._url = app.url
        self.rest = rest
        self.backend = backend
        self.time = StorageTime(rest, app.clock, now)
        # Only an app with tasks waits for results: operators poll.
        self.hints = Hints(app.hub, app.clock, backend.hint_transport() if app.tasks else None)
        self.client = RemoteClient(app, backend.server)
        self.results = Results(backend, app.hub, app.clock, app.defaults.poll)
        self.runs = runs.RemoteRuns(app, rest)
        self.dead_letters = runs.RemoteDeadLetters(app, rest)
        self.workers = runs.RemoteWorkers(app, rest)
        self.queues = limits.RemoteQueues(app, rest)
        self.limits = limits.RemoteLimits(app, rest)
        self.catalogue = TaskCatalogue(app)
        self.schedules = schedules.RemoteSchedules(app, rest)
        self.webhooks = webhooks.RemoteWebhooks(app, rest)
        self.audit_log = audit.RemoteAuditPages(app, rest)

    @property
    def storage(self) -> Storage:
        problem = f"an app at {self._url} has no database of its own"
        advice = "use app.runs and its like, or open the app with the database's URL"
        raise StorageRefused(f"{problem}; {advice}")

    @classmethod
    async def open(cls, app: App) -> OpenedServer:
        """An app with tasks checks, too, whether both sides speak the same worker protocol."""
        rest, backend = connect(app), open_remote_backend(app)
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

    async def introduce(self, app: App) -> None:
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


async def check_server(app: App, server: Server) -> None:
    """Raise StorageRefused for a server of another version, AccessRefused for a key of another
    environment."""
    hello = await server.check()
    if hello.environment != app.environment:
        problem = f"the API key is one of environment {hello.environment!r}"
        advice = f"give App(environment={hello.environment!r}), or another key"
        raise AccessRefused(f"{problem}, and the app one of {app.environment!r}; {advice}")
