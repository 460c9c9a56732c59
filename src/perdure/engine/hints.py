"""Wake-ups: "look now". Only ever hints; polling is the truth.

Inside a process a hint arrives at once. A transport, where the storage has one, carries it to
other processes, coalesced; what it loses, the next poll finds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta

from perdure.errors import PerdureError
from perdure.storage.protocol import Clock, HintTransport

log = logging.getLogger("perdure.hints")

Topics = frozenset[str]
OnTopics = Callable[[Topics | None], None]
"""Called with what may have changed; with None after a gap, when anything may have."""

COALESCE = timedelta(milliseconds=5)
RECONNECT = timedelta(seconds=1)


def work(environment: str, queue: str) -> str:
    return f"work:{environment}:{queue}"


def done(environment: str) -> str:
    return f"done:{environment}"


def cancel(worker_id: str) -> str:
    return f"cancel:{worker_id}"


class Hub:
    """One a process: whoever listens, on whatever loop."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[asyncio.AbstractEventLoop, OnTopics]] = {}

    def listen(self, on_topics: OnTopics) -> Callable[[], None]:
        """Be told, on the calling loop. Gives back how to stop that."""
        key = object()
        self._listeners[key] = (asyncio.get_running_loop(), on_topics)

        def stop() -> None:
            self._listeners.pop(key, None)

        return stop

    def tell(self, topics: Topics | None) -> None:
        here = _current_loop()
        for loop, on_topics in list(self._listeners.values()):
            if loop is here:
                on_topics(topics)
            else:
                with suppress(RuntimeError):  # that loop has just been closed
                    loop.call_soon_threadsafe(on_topics, topics)


class Hints:
    """One a loop: tells the hub at once, and other processes soon."""

    def __init__(self, hub: Hub, clock: Clock, transport: HintTransport | None) -> None:
        self.hub = hub
        self._clock = clock
        self._transport = transport
        self._pending: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Carry hints from and to other processes, until stopped."""
        if self._transport is not None:
            self._wanted = asyncio.Event()
            self._tasks = [
                asyncio.create_task(self._listen(self._transport)),
                asyncio.create_task(self._send(self._transport, self._wanted)),
            ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def publish(self, topics: Iterable[str]) -> None:
        """Never waits, never raises."""
        told = frozenset(topics)
        if told:
            self.hub.tell(told)
        if told and self._tasks:
            self._pending |= told
            self._wanted.set()

    async def _send(self, transport: HintTransport, wanted: asyncio.Event) -> None:
        while True:
            await wanted.wait()
            await self._clock.sleep(COALESCE)
            wanted.clear()
            topics, self._pending = frozenset(self._pending), set()
            try:
                await transport.notify(topics)
            except PerdureError as error:
                log.debug("hint lost", extra={"error": str(error)})

    async def _listen(self, transport: HintTransport) -> None:
        while True:
            try:
                await transport.listen(self.hub.tell)
            except PerdureError as error:
                log.info("no hints for now", extra={"error": str(error)})
            await self._clock.sleep(RECONNECT)


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
