"""Operators who meddle with runs, limits and queues; and a transport that reserves runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from random import Random  # seeded
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from perdure.core.limits.admission import LimitScope
from perdure.core.limits.rates import Rate
from perdure.errors import PerdureError
from perdure.storage.contract.reservation import ReserveRequest
from simulation.faults import LATEST
from simulation.workload import SETTINGS

if TYPE_CHECKING:
    from simulation.world import World

QUEUES = ("default", "busy", "fair")
TASKS = ("narrow", "keyed", "paced", "plain")
RATES = (None, Rate(1, per=0.5), Rate(4, per=2, burst=2))
PAUSE = timedelta(seconds=1)

Act = Callable[[], Awaitable[Any]]

ACTIONS: dict[str, tuple[str, ...]] = {
    "paused": ("resume", "resume", "cancel", "reschedule"),
    "waiting": ("wake", "wake", "cancel", "pause"),
    "dead_lettered": ("retry", "discard"),
    "succeeded": ("rerun", "cancel"),
    "running": ("cancel", "cancel", "pause"),
}
HELD_UP = ("paused", "waiting", "dead_lettered")


class Operator:
    """Does something to some run now and then."""

    def __init__(self, world: World, app: Any, chance: Random, pace: float) -> None:
        self._world = world
        self._app = app
        self._chance = chance
        self._pace = pace

    async def run(self) -> None:
        async with self._app:
            while not self._world.is_healed:
                await asyncio.sleep(self._chance.uniform(0.2, 2.0) * self._pace)
                runs = list(self._world.oracle.runs.values())
                if runs:
                    held_up = [run for run in runs if run.status in HELD_UP]
                    prefer = held_up and self._chance.random() < 0.5
                    run = self._chance.choice(held_up if prefer else runs)
                    fitting = ACTIONS.get(run.status, ("cancel", "cancel", "pause", "reschedule"))
                    await self._act(self._chance.choice(fitting), run.id)

    async def _act(self, action: str, run_id: str) -> None:
        runs = self._app.runs
        try:
            match action:
                case "cancel":
                    run = await runs.cancel(run_id)
                    self._world.cancel_acknowledged(run)
                case "reschedule":
                    await runs.reschedule(run_id, priority=self._chance.randint(0, 10))
                case "discard":
                    await self._app.dead_letters.discard(run_id)
                    self._world.notes.sometimes("dead letter closed")
                case "retry":
                    await runs.retry(run_id)
                    self._world.notes.sometimes("dead letter closed")
                case _:
                    await getattr(runs, action)(run_id)
        except PerdureError as error:
            self._world.notes.say("operator", f"{action} {run_id[-6:]}: {type(error).__name__}")
        else:
            self._world.notes.say("operator", f"{action} {run_id[-6:]}")


class Steerer:
    """Pauses queues, overrules limits, and takes it all back in the end: all must be able to
    run then."""

    def __init__(self, world: World, app: Any, chance: Random, pace: float) -> None:
        self._world = world
        self._app = app
        self._chance = chance
        self._pace = pace
        self._rated: set[str] = set()

    async def run(self) -> None:
        while not self._world.is_healed:
            await asyncio.sleep(self._chance.uniform(0.2, 1.5) * self._pace)
            await self._attempt(
                self._chance.choice((self._pause, self._resume, self._queue, self._task))
            )
        await asyncio.sleep(LATEST)  # what was said before may still be on its way
        for queue in QUEUES:
            await self._until_done(partial(self._give_back_queue, queue))
        for task in TASKS:
            await self._until_done(partial(self._reset_task, task))

    async def _attempt(self, act: Act) -> bool:
        try:
            await act()
        except PerdureError as error:
            self._world.notes.say("steerer", type(error).__name__)
            return False
        return True

    async def _until_done(self, act: Act) -> None:
        done = False
        while not done:
            await asyncio.sleep(0.1)
            done = await self._attempt(act)

    async def _pause(self) -> None:
        queue = self._chance.choice(QUEUES)
        await self._app.queues.pause(queue, "enough")
        self._world.oracle.flow.paused.add(queue)

    async def _resume(self) -> None:
        flow = self._world.oracle.flow
        await self._resume_queue(self._chance.choice(sorted(flow.paused) or QUEUES))

    async def _resume_queue(self, queue: str) -> None:
        flow = self._world.oracle.flow
        if queue in flow.paused:
            self._world.notes.sometimes("queue paused and resumed")
        flow.paused.discard(queue)
        await self._app.queues.resume(queue, by=UNSET)

    async def _give_back_queue(self, queue: str) -> None:
        await self._resume_queue(queue)
        self._expect(LimitScope.QUEUE, queue)
        self._rated.discard(queue)
        await self._app.queues.reset(queue, by=UNSET)

    async def _queue(self) -> None:
        fair = self._chance.random() < 0.5
        if self._rated and self._chance.random() < 0.7:
            await self._touch(self._chance.choice(sorted(self._rated)), fair)
            return
        queue = self._chance.choice(QUEUES)
        self._expect(LimitScope.QUEUE, queue)
        self._rated.discard(queue)
        if self._chance.random() < 0.3:
            await self._app.queues.reset(queue, by=UNSET)
            return
        most, rate = self._chance.choice((None, 1, 2)), self._chance.choice(RATES)
        await self._app.queues.set(queue, concurrency=most, rate=rate, fair=fair)
        self._expect(LimitScope.QUEUE, queue, max_leases=most, fair=fair, **_stored(rate))
        if rate is not None:
            self._rated.add(queue)

    async def _touch(self, queue: str, fair: bool) -> None:
        """Set something else than the rate, which must leave its tokens alone."""
        self._expect(LimitScope.QUEUE, queue)
        await self._app.queues.set(queue, fair=fair)

    async def _task(self) -> None:
        task = self._chance.choice(TASKS)
        if self._chance.random() < 0.3:
            await self._reset_task(task)
            return
        most, rate = self._chance.choice((None, 1, 2)), self._chance.choice(RATES)
        self._expect(LimitScope.TASK, task)
        self._expect(LimitScope.KEY, task)
        await self._app.limits.set(task, concurrency=most, rate_per_key=rate)
        self._expect(LimitScope.TASK, task, max_leases=most)
        self._expect(LimitScope.KEY, task, **_stored(rate))

    async def _reset_task(self, task: str) -> None:
        self._expect(LimitScope.TASK, task)
        self._expect(LimitScope.KEY, task)
        await self._app.limits.reset(task, by=UNSET)
        self._world.notes.sometimes("limit overruled and reset")

    def _expect(self, scope: LimitScope, name: str, **values: object) -> None:
        """What was acknowledged, until the next change is asked for."""
        known = self._world.oracle.flow.overruled
        for place in [place for place in known if place[:2] == (scope, name)]:
            del known[place]
        known |= {(scope, name, field): value for field, value in values.items()}


def _stored(rate: Rate | None) -> dict[str, object]:
    if rate is None:
        return {"rate_interval": None, "rate_burst": None}
    return {
        "rate_interval": rate.pace.interval // timedelta(microseconds=1),
        "rate_burst": rate.pace.burst,
    }


class Pusher:
    """A transport whose pushes never arrive: what it reserves comes back by itself."""

    def __init__(self, world: World, app: Any, chance: Random) -> None:
        self._world = world
        self._app = app
        self._chance = chance

    async def run(self) -> None:
        async with self._app:
            while not self._world.is_healed:
                await asyncio.sleep(self._chance.uniform(0.3, 1.5))
                wish = ReserveRequest(
                    queue=self._chance.choice(QUEUES),
                    tasks=tuple(SETTINGS),
                    places=self._chance.randint(1, 2),
                    ttl=PAUSE,
                    commit_id=self._app.ids.commit_id(),
                )
                try:
                    await self._app.storage.reserve(wish)
                except PerdureError as error:
                    self._world.notes.say("pusher", type(error).__name__)
