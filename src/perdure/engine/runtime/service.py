"""The shape of everything that runs on and on: start, `run_once` again and again, stop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Self

from perdure.engine.runtime.outage_log import TROUBLE, OutageLog
from perdure.engine.runtime.runtime import Runtime, RuntimeProvider
from perdure.storage.contract.runs import Clock

TO_PASS = 1.0
"""So many seconds a pass has to end once its service is to stop."""


class Service(ABC):
    """A loop over `run_once`, on the loop where it was started. Nothing but `stop` ends it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._outages = OutageLog(type(self).__name__, clock)
        self._task: asyncio.Task[None] | None = None
        self._is_passing = self._is_stopping = False

    @abstractmethod
    async def run_once(self) -> None:
        """One bounded pass. What it does not finish, the next one does."""

    @abstractmethod
    async def rest(self) -> None:
        """Until it is time for the next pass."""

    @property
    def pause(self) -> timedelta:
        """How long to wait after trouble."""
        return TROUBLE

    def start(self) -> None:
        self._task = asyncio.create_task(self._run_for_ever())

    async def stop(self) -> None:
        """At once between two passes. One that is under way may end, but not for long: who is
        stopped in the middle of a statement costs its connection to the database."""
        if self._task is None:
            return
        self._is_stopping = True
        if self._is_passing:
            await asyncio.wait([self._task], timeout=TO_PASS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run_for_ever(self) -> None:
        self._is_stopping = False
        while not self._is_stopping:
            self._is_passing = True
            is_well = await self._outages.went_well(self.run_once())
            self._is_passing = False
            if self._is_stopping:
                return
            if is_well:
                await self.rest()
            else:
                await self._clock.sleep(self.pause * (1 + 0.1 * self._clock.jitter()))


class AppService(Service):
    """One that anybody may run, any number of times, anywhere: `async with app.maintenance():`."""

    def __init__(self, provider: RuntimeProvider, interval: timedelta) -> None:
        super().__init__(provider.components.clock)
        self._provider = provider
        self._interval = interval

    @property
    def _runtime(self) -> Runtime:
        return self._provider.runtime

    async def rest(self) -> None:
        await self._clock.sleep(self._interval * (1 + 0.1 * self._clock.jitter()))

    async def __aenter__(self) -> Self:
        await self._provider.__aenter__()
        self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self.stop()
        finally:
            await self._provider.__aexit__()
