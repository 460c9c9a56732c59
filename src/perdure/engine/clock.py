"""The only reader of time and chance."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta


class SystemClock:
    """The machine's clock and a random number generator, which may be seeded."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def jitter(self) -> float:
        return self._random.uniform(-1.0, 1.0)

    async def sleep(self, delay: timedelta) -> None:
        await asyncio.sleep(delay.total_seconds())
