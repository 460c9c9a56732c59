"""Looking again and again: told by hints, and by the clock anyway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.app.app import App


async def looks(app: App, *, seldom: float | None = None) -> AsyncIterator[None]:
    """Now, and whenever something may have changed; at the latest after `seldom` seconds, by
    default the poll's interval."""
    import asyncio

    longest = app.defaults.poll.total_seconds() if seldom is None else seldom
    changed = asyncio.Event()
    stop = app.hub.listen(lambda topics: changed.set())
    try:
        while True:
            changed.clear()
            yield
            with suppress(TimeoutError):
                async with asyncio.timeout(longest):
                    await changed.wait()
    finally:
        stop()
