"""Runs the services of an app in this process: all of them, or one pass of those that tick."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from perdure.engine.runtime.runtime import RuntimeProvider
from perdure.storage import is_remote

if TYPE_CHECKING:
    from perdure.engine.maintenance.maintenance import Maintenance
    from perdure.engine.observability.metrics import Metrics
    from perdure.engine.schedules.scheduler import Scheduler
    from perdure.engine.webhooks.sender import WebhookSender
    from perdure.engine.worker.host import WorkerHost


class ServicesApp(RuntimeProvider, Protocol):
    @property
    def url(self) -> str: ...

    @property
    def metrics(self) -> Metrics: ...

    def maintenance(self) -> Maintenance: ...

    def scheduler(self) -> Scheduler: ...

    def webhook_sender(self) -> WebhookSender: ...


@asynccontextmanager
async def running_services(app: ServicesApp, worker: WorkerHost) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        if not is_remote(app.url):
            await stack.enter_async_context(app.maintenance())
            await stack.enter_async_context(app.scheduler())
            await stack.enter_async_context(app.webhook_sender())
        await stack.enter_async_context(worker)
        yield


async def tick_services(app: ServicesApp, grace: timedelta | None) -> None:
    from perdure.engine.maintenance.maintenance import Maintenance
    from perdure.engine.schedules.scheduler import Scheduler

    await Scheduler(app, app.metrics).run_once()
    await Maintenance(app, app.metrics, grace=grace).tick()
