"""One scheduler process, from its start until it is asked to stop."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import Protocol

from perdure.engine.observability.metrics_server import MeasuredApp, MetricsAddress, MetricsServer
from perdure.engine.process.signals import on_stop_signal
from perdure.engine.runtime.runtime import RuntimeProvider
from perdure.engine.runtime.startup import open_unless_stopped
from perdure.engine.schedules.scheduler import Scheduler
from perdure.telemetry import table


class SchedulingApp(RuntimeProvider, MeasuredApp, Protocol):
    def scheduler(self) -> Scheduler: ...


async def run_scheduler(
    app: SchedulingApp, *, fail_fast: bool = False, metrics: MetricsAddress | None = None
) -> None:
    """It holds nothing: whatever it has not done, another one does. `fail_fast`: raise
    StorageUnavailable rather than wait for a storage that cannot be reached at the start.
    `metrics`: serve them there."""
    loop, wanted = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        loop.call_soon_threadsafe(wanted.set)

    on_stop_signal(stop)
    if not await open_unless_stopped(app, wanted, fail_fast=fail_fast):
        return
    async with AsyncExitStack() as stack:
        stack.push_async_exit(app)
        if metrics is not None:
            await stack.enter_async_context(MetricsServer(app, metrics))
        await stack.enter_async_context(app.scheduler())
        table.SCHEDULER_READY.say(pid=os.getpid())
        await wanted.wait()
    table.SCHEDULER_STOPPED.say(pid=os.getpid())
