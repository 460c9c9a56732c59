"""What exists only while an app is open, all on one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from datetime import datetime
from typing import TYPE_CHECKING

from perdure.engine import catalogue
from perdure.engine.client import Client
from perdure.engine.hints import Hints
from perdure.engine.limits import Limits, Queues, declare_limits
from perdure.engine.operators import DeadLetters, Runs
from perdure.engine.reconciling import reconcile_code
from perdure.engine.results import Results
from perdure.engine.schedules import Schedules
from perdure.engine.storage_time import StorageTime
from perdure.engine.webhooks.keeping import Webhooks
from perdure.engine.workers import Workers
from perdure.errors import AccessRefused, AppOnAnotherLoop
from perdure.storage import Storage, is_remote
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.engine.app import App
    from perdure.engine.remote.client import RestClient


class Opened:
    """Made by `open`; what it holds is closed by `close`."""

    def __init__(
        self, app: App, storage: Storage, now: datetime, rest: RestClient | None = None
    ) -> None:
        self.loop = asyncio._get_running_loop()
        self.storage = storage
        self.rest = rest
        self.time = StorageTime(storage if rest is None else rest, app.clock, now)
        # At a server, only an app with tasks waits for results: operators poll.
        has_hints = rest is None or bool(app.tasks)
        self.hints = Hints(app.hub, app.clock, storage.hint_transport() if has_hints else None)
        self.client = Client(app)
        self.results = Results(storage, app.hub, app.clock, app.defaults.poll)
        self.runs: Runs = Runs(app)
        self.dead_letters: DeadLetters = DeadLetters(app)
        self.workers: Workers = Workers(app)
        self.queues: Queues = Queues(app)
        self.limits: Limits = Limits(app)
        self.schedules: Schedules = Schedules(app)
        self.webhooks: Webhooks = Webhooks(app)
        if rest is not None:
            self._operate_remotely(app, rest)

    def _operate_remotely(self, app: App, rest: RestClient) -> None:
        from perdure.engine.remote import limits, runs, schedules, webhooks

        self.runs = runs.RemoteRuns(app, rest)
        self.dead_letters = runs.RemoteDeadLetters(app, rest)
        self.workers = runs.RemoteWorkers(app, rest)
        self.queues = limits.RemoteQueues(app, rest)
        self.limits = limits.RemoteLimits(app, rest)
        self.schedules = schedules.RemoteSchedules(app, rest)
        self.webhooks = webhooks.RemoteWebhooks(app, rest)

    @classmethod
    async def open(cls, app: App) -> Opened:
        if is_remote(app.url):
            return await cls._open_remotely(app)
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

    @classmethod
    async def _open_remotely(cls, app: App) -> Opened:
        """An app with tasks checks, too, whether both sides speak one worker protocol."""
        from perdure.engine.remote.client import connect

        rest, storage = connect(app), app.connect()
        try:
            if app.tasks:
                await storage.check_schema()
            opened = cls(app, storage, await rest.now(), rest)
        except BaseException:
            rest.close()
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
            if self.rest is not None:
                stack.callback(self.rest.close)
            stack.push_async_callback(self.time.close)
            stack.push_async_callback(self.hints.stop)
            stack.push_async_callback(self.results.close)


async def _as_far_as_allowed(what: str, saying: Awaitable[object]) -> None:
    try:
        await saying
    except AccessRefused as refusal:
        table.NOT_INTRODUCED.say(what=what, error=str(refusal))
