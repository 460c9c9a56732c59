"""A worker's line in the registry, kept fresh. Nothing depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from perdure.engine.runtime.runtime import Components
from perdure.engine.runtime.service import Service


class Heartbeat(Service):
    """Says every renewal interval what `beat` says, or at once if asked to."""

    def __init__(self, components: Components, beat: Callable[[], Awaitable[None]]) -> None:
        super().__init__(components.clock)
        self._interval = components.defaults.renewal_interval
        self._beat = beat
        self._soon = asyncio.Event()

    def beat_now(self) -> None:
        self._soon.set()

    async def run_once(self) -> None:
        self._soon.clear()
        await self._beat()

    async def rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._interval.total_seconds()):
                await self._soon.wait()

    @property
    def pause(self) -> timedelta:
        return self._interval
