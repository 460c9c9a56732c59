"""What time it is in the storage, as far as this process knows."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Protocol

from perdure.engine.runtime.outage_log import OutageLog
from perdure.storage.contract.runs import Clock

FRESH = 60.0
"""So many seconds an answer is good for: clocks drift apart slowly."""


class TimeSource(Protocol):
    """Where the time comes from that leases are judged by."""

    local_clock: Clock | None
    """This machine's clock, if that is the one."""

    async def now(self) -> datetime: ...


class StorageTime:
    """Where the storage reads this machine's clock, so do we. Else its last answer, and what has
    passed since by a clock that never steps: an estimate, which never judges a lease."""

    def __init__(self, source: TimeSource, clock: Clock, answer: datetime | None = None) -> None:
        self._source = source
        self._local = source.local_clock
        self._clock = clock
        self._answer = clock.now() if answer is None else answer
        self._answered = clock.elapsed()
        self._asking: asyncio.Task[bool] | None = None
        self._outages = OutageLog("StorageTime", clock)

    def learn(self, answer: datetime) -> None:
        self._answer = answer
        self._answered = self._clock.elapsed()

    def now(self) -> datetime:
        if self._local is not None:
            return self._local.now()
        return self._answer + timedelta(seconds=self._age())

    def keep_fresh(self) -> None:
        """Ask again, beside whatever else goes on, if the last answer is old."""
        if self._local is not None or self._age() <= FRESH:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._outages.went_well(self._ask()))

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        self.learn(await self._source.now())

    def _age(self) -> float:
        return self._clock.elapsed() - self._answered
