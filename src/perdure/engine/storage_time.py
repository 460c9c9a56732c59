"""What time it is in the storage, as far as this process knows."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta

from perdure.errors import StorageError
from perdure.storage.protocol import Clock, Storage

FRESH = 60.0
"""So many seconds an answer is good for: clocks drift apart slowly."""


class StorageTime:
    """The storage's last answer, and what has passed since by a clock that never steps. An
    estimate: it never judges a lease."""

    def __init__(self, clock: Clock, answer: datetime | None = None) -> None:
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None
        self.learn(clock.now() if answer is None else answer)

    def learn(self, answer: datetime) -> None:
        self._answer = answer
        self._answered = self._clock.elapsed()

    def now(self) -> datetime:
        return self._answer + timedelta(seconds=self._age())

    def keep_fresh(self, storage: Storage) -> None:
        """Ask again, beside whatever else goes on, if the last answer is old."""
        if self._age() > FRESH and self._asking is None:
            self._asking = asyncio.create_task(self._ask(storage))

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self, storage: Storage) -> None:
        with contextlib.suppress(StorageError):
            self.learn(await storage.now())
        self._asking = None

    def _age(self) -> float:
        return self._clock.elapsed() - self._answered
