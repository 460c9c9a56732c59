"""The simulator's event loop: virtual time with a seeded schedule.

Time jumps to the next timer when nothing is ready. Of what is ready, chance picks one handle a
step.
"""

from __future__ import annotations

import asyncio
from random import Random  # seeded: this is the simulator's only chance
from typing import Any, NoReturn

from perdure.testing.virtual.time import (
    EPOCH,
    VirtualClock,
    VirtualLoop,
    process_here,
)
from perdure.testing.virtual.time import Process as VirtualProcess

__all__ = ["EPOCH", "Process", "SimulationLoop", "VirtualClock", "current_process"]


class Process(VirtualProcess):
    """A process that can be disturbed."""

    def __init__(self, loop: SimulationLoop, name: str) -> None:
        super().__init__(loop, name)
        self.is_stopping = False
        self.is_forgetful = False
        """Whether its renewals do not reach the storage."""
        self.disturbed_until = -1.0
        """Until when something kept it from its work: a pause, or a storage call gone wrong."""

    def disturb(self, until: float) -> None:
        self.disturbed_until = max(self.disturbed_until, until)

    def resume(self) -> None:
        self.disturb(self.loop.time())
        super().resume()


def current_process() -> Process:
    """The process whose code runs now."""
    process = process_here()
    assert isinstance(process, Process)
    return process


class SimulationLoop(VirtualLoop):
    """Deterministic for a seed."""

    def __init__(self, chance: Random, haste: float = 0.02) -> None:
        super().__init__()
        self._ready: list[asyncio.Handle] = []
        self._chance = chance
        self._haste = haste
        self.errors: list[str] = []
        self.set_exception_handler(self._on_error)

    def run_in_executor(  # type: ignore[override]  # whatever the arguments
        self, *arguments: Any
    ) -> NoReturn:
        raise RuntimeError("no threads in a simulation")

    def _run_once(self) -> None:
        timers, ready = self._scheduled, self._ready
        if self._ending:
            self._run_all()
            return
        if not ready or (self._haste and self._chance.random() < self._haste):
            self._jump()
        self._take_due_timers()
        if not ready:
            if not timers:
                self.stop()
            return
        index = int(self._chance.random() * len(ready))
        handle = ready[index]
        ready[index] = ready[-1]
        ready.pop()
        self._step(handle)

    def _jump(self) -> None:
        self._drop_cancelled_timers()
        timers = self._scheduled
        if timers and timers[0].when() > self._now:
            self._now = timers[0].when()
            self.jumps += 1

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._ending:
            error = context.get("exception")
            self.errors.append(f"{context.get('message')}: {error!r}")

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
