"""The shape of everything that runs on and on: start, `run_once` again and again, stop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from perdure.errors import PerdureError, StorageUnavailable
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.engine.app import App


class Service(ABC):
    """A loop over `run_once`. Any number of instances may run anywhere."""

    def __init__(self, app: App, interval: timedelta) -> None:
        self._app = app
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def run_once(self) -> None:
        """One bounded pass. What it does not finish, the next one does."""

    async def __aenter__(self) -> Self:
        await self._app.__aenter__()
        self._task = asyncio.create_task(self._loop())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._app.__aexit__()

    async def _loop(self) -> None:
        while True:
            try:
                await self.run_once()
            except StorageUnavailable as error:
                table.SERVICE_STORAGE_AWAY.say(error=str(error))
            except PerdureError:
                table.SERVICE_FAILED.say_with_error(service=type(self).__name__)
            await self._app.clock.sleep(self._interval * (1 + 0.1 * self._app.clock.jitter()))
