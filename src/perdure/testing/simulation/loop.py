"""A virtual-time event loop with a seeded schedule, and what belongs to its processes.

Time jumps to the next timer when nothing is ready. Of what is ready, chance picks one handle a
step. Every handle belongs to a process, known by its context: a dead process's handles are never
run again, a paused one's wait.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from heapq import heappop
from random import Random  # noqa: TID251  # seeded: this is the simulator's only chance
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """What a node is between a start and its end. The tasks inside know it by their context."""

    def __init__(self, loop: SimulationLoop, name: str) -> None:
        self.name = name
        self.loop = loop
        self.is_dead = False
        self.is_paused = False
        self.is_stopping = False
        self.is_forgetful = False
        """Whether its renewals do not reach the storage."""
        self.disturbed_until = -1.0
        """Until when something kept it from its work: a pause, or a storage call gone wrong."""
        self.parked: list[asyncio.Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)
        loop.processes.append(self)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(coroutine, context=self.context)

    def disturb(self, until: float) -> None:
        self.disturbed_until = max(self.disturbed_until, until)

    def die(self) -> None:
        """Like SIGKILL: nothing of it runs again, no `finally` either."""
        self.is_dead = True

    def pause(self) -> None:
        """Like SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.disturb(self.loop.time())
        self.loop.take_back(self.parked)
        self.parked = []


def current_process() -> Process:
    """The process whose code runs now."""
    process = _process.get()
    assert process is not None
    return process


class SimulationLoop(asyncio.BaseEventLoop):
    """Deterministic for a seed. `on_step` is called before each step, with its number."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, chance: Random, haste: float = 0.02) -> None:
        super().__init__()
        self._ready: list[asyncio.Handle] = []
        self._chance = chance
        self._haste = haste
        self._now = 0.0
        self._buried: list[asyncio.Handle] = []
        self._ending = False
        self.steps = 0
        self.jumps = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.processes: list[Process] = []
        self.on_step: Callable[[int], None] = lambda step: None
        self.errors: list[str] = []
        self.set_exception_handler(self._on_error)

    def time(self) -> float:
        return self._now

    def create_task(  # type: ignore[override]  # narrower than typeshed's, which differ by version
        self, coro: Coroutine[Any, Any, T], **options: Any
    ) -> asyncio.Task[T]:
        task = super().create_task(coro, **options)
        self.tasks.append(task)
        return task

    def run_in_executor(  # type: ignore[override]  # whatever the arguments
        self, *arguments: Any
    ) -> NoReturn:
        raise RuntimeError("no threads in a simulation")

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def end(self) -> None:
        """Cancel whatever is left, dead or alive, and close."""
        self._ending = True
        for process in self.processes:
            self._buried += process.parked
        for _ in range(50):
            self._ready.extend(self._buried)
            self._buried = []
            left = [task for task in self.tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self.run_forever()
        self._scheduled.clear()
        self._ready.clear()
        self.close()

    def _run_once(self) -> None:
        timers, ready = self._scheduled, self._ready
        if self._ending:
            self._run_all()
            return
        if not ready or (self._haste and self._chance.random() < self._haste):
            self._jump()
        while timers and timers[0].when() <= self._now:
            timer = heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]  # as the base class does
            ready.append(timer)
        if not ready:
            if not timers:
                self.stop()
            return
        index = int(self._chance.random() * len(ready))
        handle = ready[index]
        ready[index] = ready[-1]
        ready.pop()
        self._step(handle)

    def _run_all(self) -> None:
        while self._ready:
            handle = self._ready.pop(0)
            if not handle.cancelled():
                handle._run()
        self.stop()

    def _jump(self) -> None:
        timers = self._scheduled
        while timers and timers[0].cancelled():
            heappop(timers)._scheduled = False  # type: ignore[attr-defined]  # as above
        if timers and timers[0].when() > self._now:
            self._now = timers[0].when()
            self.jumps += 1

    def _step(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        self.steps += 1
        self.on_step(self.steps)
        process = handle._context.get(_process)  # type: ignore[attr-defined]  # in every handle
        if process is not None:
            if process.is_dead:
                self._buried.append(handle)
                return
            if process.is_paused:
                process.parked.append(handle)
                return
        handle._run()

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._ending:
            error = context.get("exception")
            self.errors.append(f"{context.get('message')}: {error!r}")

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class VirtualClock:
    """A node's clock: virtual time, wrong by `skew`, which may change at any time. What it says
    has elapsed is never wrong by more than its drift."""

    def __init__(self, loop: SimulationLoop, chance: Random, skew: float = 0.0, drift: float = 0.0):
        self._loop = loop
        self._chance = chance
        self._drift = drift
        self.skew = skew

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.elapsed() + self.skew)

    def elapsed(self) -> float:
        return self._loop.time() * (1.0 + self._drift)

    def jitter(self) -> float:
        return self._chance.uniform(-1.0, 1.0)

    async def sleep(self, delay: timedelta) -> None:
        await asyncio.sleep(delay.total_seconds())
