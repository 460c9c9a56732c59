"""What `perdure bench` does: runs of its own, in an environment of their own, and no trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec

from perdure.app.app import App
from perdure.core.decide import decide_cancel
from perdure.core.run.commit import prepare_commit
from perdure.core.run.run import Actor, ActorType
from perdure.engine.client.handle import RunHandle
from perdure.engine.definition.task import Task
from perdure.engine.process.open_lock import to_the_end
from perdure.engine.tasks.catalogue import TASK, WORKER

STEPS = 4
SAMPLES = 200
AT_A_TIME = 1000
BENCH = Actor(ActorType.OPERATOR, "bench")

Reached = Callable[[int], None]
"""Called with how many of the steps are done by now."""


class Spread(msgspec.Struct, frozen=True):
    """Milliseconds: half, 95 and 99 in a hundred were quicker."""

    p50: float
    p95: float
    p99: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    database: str
    runs: int
    concurrency: int
    triggered_per_second: float
    executed_per_second: float
    trigger_ms: Spread
    round_trip_ms: Spread


async def measure(like: App, runs: int, concurrency: int, reached: Reached) -> Measured:
    """On the database of `like`, which need not be open."""
    app = like.without_tasks(f"bench-{like.ids.token()}")
    bench = _Bench(app, runs, concurrency)
    async with app, _leaving_nothing(app):
        vitals = await app.storage.vitals()
        triggered = await bench.trigger_many()
        reached(1)
        trigger = await bench.each(bench.trigger_one)
        reached(2)
        executed = await bench.execute()
        reached(3)
        async with app.worker(concurrency=concurrency):
            round_trip = await bench.each(bench.round_trip)
        reached(STEPS)
    return Measured(
        database=vitals.database,
        runs=runs,
        concurrency=concurrency,
        triggered_per_second=triggered,
        executed_per_second=executed,
        trigger_ms=trigger,
        round_trip_ms=round_trip,
    )


class _Bench:
    def __init__(self, app: App, runs: int, concurrency: int) -> None:
        @app.task(name="bench", queue="bench")
        async def nothing() -> None:
            self._executed += 1
            if self._executed >= self._asked:
                self._done.set()

        self._task: Task[[], None] = nothing
        self._app = app
        self._runs = runs
        self._concurrency = concurrency
        self._asked = self._executed = 0
        self._done = asyncio.Event()

    async def trigger_many(self) -> float:
        """How many a second."""
        began = self._app.clock.elapsed()
        for first in range(0, self._runs, AT_A_TIME):
            count = min(AT_A_TIME, self._runs - first)
            made = await to_the_end(self._task.trigger_many([{}] * count))
            assert all(isinstance(run, RunHandle) for run in made), made
        self._asked += self._runs
        return self._runs / (self._app.clock.elapsed() - began)

    async def trigger_one(self) -> None:
        self._asked += 1
        await to_the_end(self._task.trigger())

    async def execute(self) -> float:
        """How many a second, from the worker's start until the last outcome is stored."""
        began = self._app.clock.elapsed()
        async with self._app.worker(concurrency=self._concurrency):
            await self._done.wait()
        return self._asked / (self._app.clock.elapsed() - began)

    async def round_trip(self) -> None:
        await (await to_the_end(self._task.trigger())).result()

    async def each(self, act: Callable[[], Awaitable[Any]]) -> Spread:
        times = []
        for _ in range(min(SAMPLES, self._runs)):
            began = self._app.clock.elapsed()
            await act()
            times.append(1000 * (self._app.clock.elapsed() - began))
        return _spread(sorted(times))


def _spread(times: list[float]) -> Spread:
    p50, p95, p99 = (times[min(len(times) * part // 100, len(times) - 1)] for part in (50, 95, 99))
    return Spread(p50, p95, p99)


@asynccontextmanager
async def _leaving_nothing(app: App) -> AsyncIterator[None]:
    """Remove every trace, also after an interruption.

    Each trigger runs to its end, or its runs could be stored after the last removal.
    """
    try:
        yield
    finally:
        while await _forgotten(app):
            pass
        late = await app.storage.now() + timedelta(minutes=1)
        for kind in (TASK, WORKER):
            await app.storage.forget(app.environment, kind, late)


async def _forgotten(app: App) -> int:
    """How many of a page could be: first those are ended that nobody is going to execute."""
    found = (await app.runs.list(limit=AT_A_TIME)).runs
    now, new_id = app.time(), app.ids.commit_id
    commits = [
        prepare_commit(run, decide_cancel(run, BENCH, now), new_id())
        for run in found
        if not run.is_terminal
    ]
    await app.storage.commit(commits)
    return await app.storage.forget_runs([run.id for run in found])
