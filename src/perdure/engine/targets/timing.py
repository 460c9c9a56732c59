"""Where the time of an attempt went, step by step."""

from __future__ import annotations

import asyncio
from typing import Any


class Laps:
    """Written down as each ends, so that an attempt that is cut short shows how far it came."""

    def __init__(self, timings: dict[str, Any]) -> None:
        self._timings = timings
        self._time = asyncio.get_running_loop().time
        self._since = self._time()

    def end(self, name: str) -> None:
        now = self._time()
        self._timings[f"{name}_ms"] = round((now - self._since) * 1000, 3)
        self._since = now
