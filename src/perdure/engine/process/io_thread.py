"""A loop on a thread of its own, so that no handler can hold up storage and renewals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class IoThread:
    """Started by making it; `call` runs a coroutine over there and awaits it here."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self.submit(coroutine))

    def post(self, function: Callable[[], None]) -> None:
        """Have it called over there, if there is still somebody."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function)

    def join(self) -> None:
        """End the loop and wait for its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def close(self) -> None:
        await asyncio.to_thread(self.join)


class SameLoop:
    """The same, without a thread: for simulators, and for one run executed here."""

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        return asyncio.ensure_future(coroutine)

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await coroutine

    def post(self, function: Callable[[], None]) -> None:
        function()

    async def close(self) -> None:
        pass
