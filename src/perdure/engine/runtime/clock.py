"""The only reader of time and chance."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

# The one that goes on while the machine sleeps, where there is one.
_NEVER_STEPS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clock and a random number generator, which may be seeded."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def elapsed(self) -> float:
        return time.clock_gettime(_NEVER_STEPS)

    def jitter(self) -> float:
        return self._random.uniform(-1.0, 1.0)

    async def sleep(self, delay: timedelta) -> None:
        await asyncio.sleep(delay.total_seconds())
