"""A worker's line in the registry, kept fresh. Nothing depends on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.engine.service import Service

if TYPE_CHECKING:
    from perdure.engine.app import App


class Heartbeat(Service):
    """Says every renewal interval what `beat` says."""

    def __init__(self, app: App, beat: Callable[[], Awaitable[None]]) -> None:
        super().__init__(app.clock)
        self._interval = app.defaults.renewal_interval
        self._beat = beat

    async def run_once(self) -> None:
        await self._beat()

    async def rest(self) -> None:
        await self._clock.sleep(self._interval)

    @property
    def pause(self) -> timedelta:
        return self._interval
