"""Where a worker may be killed: the boundaries that code passes, in the order it passes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.testing.virtual.time import process_here


class WorkerKilled(BaseException):
    """Leaves a `def` handler, or a point, whose worker has just been killed. Let it pass."""


@dataclass(frozen=True)
class Boundary:
    """One place, the `number`th that was passed. `point`: the name the user gave it."""

    number: int
    label: str
    point: str | None = None

    def __str__(self) -> str:
        return f"{self.number}: {self.label}"


@dataclass
class Boundaries:
    """Counts, and kills where it was told to."""

    passed: list[Boundary] = field(default_factory=list)
    kill: Callable[[Boundary], bool] = lambda boundary: False
    on_kill: Callable[[Boundary], None] = lambda boundary: None
    _idle: set[int] = field(default_factory=set)

    @property
    def worth_a_crash(self) -> list[Boundary]:
        """All but those where nothing happened: a claim of nothing, say."""
        return self.since(0)

    def since(self, number: int) -> list[Boundary]:
        """Those of them after the `number`th."""
        return [item for item in self.passed[number:] if item.number not in self._idle]

    def reach(self, label: str, point: str | None = None) -> Boundary:
        """Pass a boundary; the process that does so may not survive it."""
        boundary = Boundary(len(self.passed) + 1, label, point)
        self.passed.append(boundary)
        if self.kill(boundary):
            process = process_here()
            assert process is not None
            process.die()
            self.on_kill(boundary)
        return boundary

    def forget(self, boundary: Boundary) -> None:
        """It was none: nothing came of it. Its number stays taken."""
        self._idle.add(boundary.number)


def stop_if_dead() -> None:
    """For code that cannot be frozen."""
    process = process_here()
    if process is not None and process.is_dead:
        raise WorkerKilled


async def freeze_if_dead(loop: asyncio.AbstractEventLoop) -> None:
    """Like SIGKILL: what awaits this never goes on, no `finally` either. Only on the loop whose
    dead processes are left alone; elsewhere somebody waits for an answer."""
    process = process_here()
    if process is not None and process.is_dead:
        if asyncio._get_running_loop() is loop:
            await loop.create_future()
        raise WorkerKilled
