"""Waiting for runs to end: all waiters of a process share one batched read."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

from perdure.core.run import Run
from perdure.engine.hints import Hub, Topics
from perdure.errors import RunNotFound, StorageUnavailable
from perdure.storage.protocol import Clock, Storage

PAUSE_AFTER_TROUBLE = timedelta(seconds=1)


class Results:
    """Reads the awaited runs when a hint says so, and every `poll` anyway."""

    def __init__(self, storage: Storage, hub: Hub, clock: Clock, poll: timedelta) -> None:
        self._storage = storage
        self._hub = hub
        self._clock = clock
        self._poll = poll
        self._waiters: dict[str, list[asyncio.Future[Run]]] = defaultdict(list)
        self._look = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def ended(self, run_id: str) -> Run:
        """The run, once it has ended. Raises RunNotFound."""
        future: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._waiters[run_id].append(future)
        self._look.set()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        return await future

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        stop_listening = self._hub.listen(self._on_hint)
        try:
            while self._drop_cancelled():
                self._look.clear()
                asked = list(self._waiters)
                try:
                    found = await self._storage.get(asked)
                except StorageUnavailable:
                    await self._clock.sleep(PAUSE_AFTER_TROUBLE)
                    continue
                self._settle(asked, found)
                if self._waiters:
                    await self._wait()
        finally:
            stop_listening()

    def _on_hint(self, topics: Topics | None) -> None:
        if topics is None or any(topic.startswith("done:") for topic in topics):
            self._look.set()

    def _settle(self, asked: Sequence[str], found: dict[str, Run]) -> None:
        """Only those we asked about: others have come meanwhile."""
        for run_id in asked:
            run = found.get(run_id)
            if run is not None and not run.is_terminal:
                continue
            for future in self._waiters.pop(run_id):
                if future.done():
                    continue
                if run is None:
                    future.set_exception(RunNotFound(run_id))
                else:
                    future.set_result(run)

    def _drop_cancelled(self) -> bool:
        for run_id, futures in list(self._waiters.items()):
            if all(future.done() for future in futures):
                del self._waiters[run_id]
        return bool(self._waiters)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._poll.total_seconds()):
                await self._look.wait()
        except TimeoutError:
            pass
