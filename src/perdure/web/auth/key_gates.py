"""Gates at which each key has a few places; no key waits for another one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class KeyGates:
    """At most `limit` at once for each key; the others wait in order of arrival. How many may wait
    is bounded by the requests that a key may have under way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._gates: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        gate = self._gates.setdefault(key, asyncio.Semaphore(self._limit))
        self._users[key] += 1
        try:
            async with gate:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._gates[key]
