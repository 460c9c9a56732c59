"""Coming in and going out: one at a time, on one loop, and to the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from perdure.errors import AppOnAnotherLoop

T = TypeVar("T")


class Door:
    """Whoever opens or closes goes through it, while others on the same loop wait."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Raises AppOnAnotherLoop if somebody on another loop is at the door."""
        self._arrive(asyncio.get_running_loop())
        try:
            async with self._lock:
                yield
        finally:
            with self._guard:
                self._waiting -= 1

    def _arrive(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            if self._waiting and self._loop is not loop:
                raise AppOnAnotherLoop
            if not self._waiting:
                self._loop, self._lock = loop, asyncio.Lock()
            self._waiting += 1


async def to_the_end(work: Coroutine[Any, Any, T], hurry: Callable[[], object] = lambda: None) -> T:
    """What must be done is done, however often we are cancelled meanwhile: whoever cancels is
    in a hurry, and is told afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            hurry()
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
