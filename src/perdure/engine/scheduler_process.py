"""One scheduler process, from its start until it is asked to stop."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from perdure.engine.stop_signal import on_stop_signal
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.engine.app import App


async def run_scheduler(app: App) -> None:
    """It holds nothing: whatever it has not done, another one does."""
    loop, wanted = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        loop.call_soon_threadsafe(wanted.set)

    on_stop_signal(stop)
    async with app.scheduler():
        table.SCHEDULER_READY.say(pid=os.getpid())
        await wanted.wait()
    table.SCHEDULER_STOPPED.say(pid=os.getpid())
