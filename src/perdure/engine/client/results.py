"""Waiting for runs to end: all waiters of a process share one batched read.

Of thousands, a few end between two looks: so whoever was found unfinished once is only asked for
among those that have ended since. And a look that takes long is not repeated at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from perdure.core.json_text import decode_value
from perdure.core.run.failure import Failure
from perdure.core.run.lifecycle import TERMINAL, Status
from perdure.core.run.run import Run
from perdure.engine.runtime.outage_log import TROUBLE, OutageLog
from perdure.engine.runtime.wakeups import Hub, Topics
from perdure.errors import AppNotOpen, RunNotFound
from perdure.storage.contract.runs import Clock
from perdure.storage.contract.storage import Storage

QUICK = timedelta(milliseconds=5)
LOOK_AT_ALL = timedelta(seconds=60)
"""How often to look whether all runs exist that somebody waits for: old ones are pruned."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run stands, for those who wait for its result."""

    id: str
    task: str
    status: Status
    result_json: msgspec.Raw | msgspec.UnsetType = msgspec.field(
        name="result", default=msgspec.UNSET
    )
    failure: Failure | None = None
    reason: str | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def result(self) -> object:
        return None if self.result_json is msgspec.UNSET else decode_value(self.result_json)


EndedRun = Run | RunResult


class ResultSource(Protocol):
    """Where results are read."""

    async def get(self, run_ids: Sequence[str]) -> Mapping[str, Run | RunResult]:
        """Return those of these runs that exist."""
        ...

    async def ended(self, run_ids: Sequence[str]) -> Mapping[str, Run | RunResult]:
        """Return those of these runs that have ended."""
        ...


class StoredResults:
    """The runs of one environment in a database, as `Results` reads them."""

    def __init__(self, storage: Storage, environment: str) -> None:
        self._storage = storage
        self._environment = environment

    async def get(self, run_ids: Sequence[str]) -> Mapping[str, Run]:
        return self._own(await self._storage.get(run_ids))

    async def ended(self, run_ids: Sequence[str]) -> Mapping[str, Run]:
        return self._own(await self._storage.ended(run_ids))

    def _own(self, found: Mapping[str, Run]) -> Mapping[str, Run]:
        own = self._environment
        return {run_id: run for run_id, run in found.items() if run.environment == own}


class Results:
    """Reads the awaited runs when a hint says so, and every `poll` anyway."""

    def __init__(self, source: ResultSource, hub: Hub, clock: Clock, poll: timedelta) -> None:
        self._source = source
        self._hub = hub
        self._clock = clock
        self._poll = poll
        self._outages = OutageLog("Results", clock)
        self._waiters: dict[str, list[asyncio.Future[EndedRun]]] = defaultdict(list)
        self._unfinished: set[str] = set()
        self._looked_at_all = clock.elapsed()
        self._look = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def ended(self, run_id: str) -> EndedRun:
        """The run, once it has ended. Raises RunNotFound, and AppNotOpen if the app is closed
        meanwhile."""
        future: asyncio.Future[EndedRun] = asyncio.get_running_loop().create_future()
        self._waiters[run_id].append(future)
        self._look.set()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        try:
            return await future
        finally:
            self._forget(run_id, future)

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        for future in [future for futures in self._waiters.values() for future in futures]:
            if not future.done():
                future.set_exception(AppNotOpen())

    async def _read(self) -> None:
        stop_listening = self._hub.listen(self._on_hint)
        try:
            while self._waiters:
                self._look.clear()
                began = self._clock.elapsed()
                if not await self._outages.went_well(self._look_once()):
                    await self._clock.sleep(TROUBLE)
                    continue
                await self._rest(timedelta(seconds=self._clock.elapsed() - began))
                if self._waiters:
                    await self._wait()
        finally:
            stop_listening()

    async def _look_once(self) -> None:
        if self._clock.elapsed() - self._looked_at_all >= LOOK_AT_ALL.total_seconds():
            self._looked_at_all = self._clock.elapsed()
            self._unfinished.clear()
        if new := [run_id for run_id in self._waiters if run_id not in self._unfinished]:
            self._settle(new, await self._source.get(new))
        if known := list(self._unfinished.difference(new)):
            ended = await self._source.ended(known)
            self._settle(list(ended), ended)

    async def _rest(self, took: timedelta) -> None:
        """So that at most half of the time is spent on looking."""
        if took > QUICK:
            await self._clock.sleep(took)

    def _on_hint(self, topics: Topics | None) -> None:
        if topics is None or any(topic.startswith("done:") for topic in topics):
            self._look.set()

    def _settle(self, asked: Sequence[str], found: Mapping[str, EndedRun]) -> None:
        """Only those we asked about: others have come meanwhile."""
        for run_id in asked:
            run = found.get(run_id)
            if run is not None and not run.is_terminal:
                if run_id in self._waiters:
                    self._unfinished.add(run_id)
                continue
            self._unfinished.discard(run_id)
            for future in self._waiters.pop(run_id, []):
                if future.done():
                    continue
                if run is None:
                    future.set_exception(RunNotFound(run_id))
                else:
                    future.set_result(run)

    def _forget(self, run_id: str, future: asyncio.Future[EndedRun]) -> None:
        """Whoever waited has an answer, or waits no longer."""
        futures = self._waiters.get(run_id, [])
        if future in futures:
            futures.remove(future)
        if not futures:
            self._waiters.pop(run_id, None)
            self._unfinished.discard(run_id)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._poll.total_seconds()):
                await self._look.wait()
        except TimeoutError:
            pass
