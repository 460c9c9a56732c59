"""How a process starts while its storage cannot be reached: it waits, or it ends.

`worker`, `server`, `scheduler` and `dev` all start through here.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from perdure.engine.runtime.runtime import RuntimeProvider
from perdure.errors import StorageUnavailable
from perdure.telemetry import table

FIRST_DELAY = timedelta(milliseconds=500)
MAX_DELAY = timedelta(seconds=10)


async def open_when_available(provider: RuntimeProvider, *, fail_fast: bool = False) -> None:
    """Open the app, as `async with app` does, once its storage can be reached.

    With `fail_fast`, raises StorageUnavailable instead of waiting.
    """
    clock = provider.components.clock
    delay, began = FIRST_DELAY, clock.elapsed()
    while True:
        try:
            await provider.__aenter__()
            break
        except StorageUnavailable as error:
            if fail_fast:
                raise
            if delay == FIRST_DELAY:
                table.STORAGE_AWAITED.say(error=str(error))
        await clock.sleep(delay * (1 + 0.2 * clock.jitter()))
        delay = min(2 * delay, MAX_DELAY)
    if delay != FIRST_DELAY:
        table.STORAGE_REACHED.say(seconds=round(clock.elapsed() - began, 1))


async def open_unless_stopped(
    provider: RuntimeProvider, stopping: asyncio.Event, *, fail_fast: bool
) -> bool:
    """The same; return False, with nothing open, if the process is asked to stop meanwhile."""
    opening = asyncio.create_task(open_when_available(provider, fail_fast=fail_fast))
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait([opening, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if opening.done():
        await opening
        return True
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    return False
