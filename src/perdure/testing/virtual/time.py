"""Virtual time: event loops whose clock jumps, and the processes that live on them.

Every handle belongs to a process, known by its context: a dead process's handles are never run
again, a paused one's wait. The simulator and the testing kit each add how they pick what runs.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from heapq import heappop
from random import Random  # noqa: TID251  # seeded: this is the only chance there is
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """What a node is between a start and its end. The tasks inside know it by their context."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.loop = loop
        self.is_dead = False
        self.is_paused = False
        self.parked: list[asyncio.Handle] = []
        self.at_death: list[Callable[[], None]] = []
        """What the operating system does for it: it closes connections."""
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)
        loop.processes.append(self)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(coroutine, context=self.context)

    def die(self) -> None:
        """Like SIGKILL: nothing of it runs again, no `finally` either."""
        self.is_dead = True
        while self.at_death:
            self.at_death.pop()()

    def pause(self) -> None:
        """Like SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.loop.take_back(self.parked)
        self.parked = []


def process_here() -> Process | None:
    """The process whose code runs now, if any does."""
    return _process.get()


class VirtualLoop(asyncio.BaseEventLoop):
    """`on_step` is called before each step, with its number."""

    _scheduled: list[asyncio.TimerHandle]
    _ready: Any  # a list or a deque

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._buried: list[asyncio.Handle] = []
        self._ending = False
        self.steps = 0
        self.jumps = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.processes: list[Process] = []
        self.on_step: Callable[[int], None] = lambda step: None

    def time(self) -> float:
        return self._now

    def create_task(  # type: ignore[override]  # narrower than typeshed's, which differ by version
        self, coro: Coroutine[Any, Any, T], **options: Any
    ) -> asyncio.Task[T]:
        task = super().create_task(coro, **options)
        self.tasks.append(task)
        return task

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

    def _run_all(self) -> None:
        while self._ready:
            handle = self._ready[0]
            del self._ready[0]
            if not handle.cancelled():
                handle._run()
        self.stop()

    def _take_due_timers(self) -> None:
        timers, ready = self._scheduled, self._ready
        while timers and timers[0].when() <= self._now:
            timer = heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]  # as the base class does
            ready.append(timer)

    def _drop_cancelled_timers(self) -> None:
        timers = self._scheduled
        while timers and timers[0].cancelled():
            heappop(timers)._scheduled = False  # type: ignore[attr-defined]  # as above

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


class VirtualClock:
    """A node's clock: virtual time, wrong by `skew`, which may change at any time. What it says
    has elapsed is never wrong by more than its drift."""

    def __init__(self, loop: VirtualLoop, chance: Random, skew: float = 0.0, drift: float = 0.0):
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
