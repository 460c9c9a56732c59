"""Has suspects executed alone: in processes of their own, or here while nothing else is.

A suspect is a run that workers were executing when they died. Every heartbeat of a worker asks
for those that it could execute. With a `Starter`, each gets a process that executes this run only;
without one, the worker claims no other run until what it holds has ended, and then claims the
suspect by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from perdure.core.run.run import Run

DRAIN_TIMEOUT_S = 10.0
"""Seconds that a worker without a starter waits for its other runs to end. A suspect is then
executed beside those that are left: nearly alone."""
MAX_ALONE_S = 60.0
"""Seconds for which it claims nothing else while a suspect executes, which may wait for others."""
FIRST_PAUSE_S = 10.0
MAX_PAUSE_S = 120.0
"""Seconds after which a suspect that is still due is tried again. Each try doubles them: its queue
or task may be full, or another worker may be about to claim it."""


class Starter(Protocol):
    """Starts processes that execute one run each."""

    head_start_s: float
    """Seconds for which other processes may start one for a suspect before this one does."""

    def start(self, run_id: str) -> bool:
        """Start a process for the run; return whether there was room for it."""
        ...

    async def stop(self) -> None:
        """Ask the processes to hand over, and wait for their ends."""
        ...


class _Pause(NamedTuple):
    """When a suspect is tried, if it is still due, and how long to wait after that try."""

    until: float
    next_s: float


class Isolation:
    """What one worker knows of suspects. All on its I/O loop."""

    def __init__(self, elapsed: Callable[[], float], starter: Starter | None) -> None:
        self._elapsed = elapsed
        self._starter = starter
        self._pauses: dict[str, _Pause] = {}
        self._suspects: list[str] = []
        self._drained_by = 0.0
        self._executing: str | None = None
        self._alone_until = 0.0

    def offer(self, run_ids: Sequence[str]) -> bool:
        """Take note of the suspects that are due; what is not due any more is forgotten. Return
        whether this may change what the worker claims."""
        now = self._elapsed()
        head_start = 0.0 if self._starter is None else self._starter.head_start_s
        first = _Pause(now + head_start, FIRST_PAUSE_S)
        self._pauses = {run_id: self._pauses.get(run_id, first) for run_id in run_ids}
        ready = [run_id for run_id in run_ids if self._pauses[run_id].until <= now]
        if self._starter is None:
            return self._await_turn(ready)
        for run_id in ready:
            if self._starter.start(run_id):
                self._pause(run_id)
        return False

    def _await_turn(self, ready: list[str]) -> bool:
        was_waiting = bool(self._suspects)
        if ready and not was_waiting:
            self._drained_by = self._elapsed() + DRAIN_TIMEOUT_S
        self._suspects = [run_id for run_id in ready if run_id != self._executing]
        return was_waiting or bool(ready) or self._executing is not None

    def _pause(self, run_id: str) -> None:
        pause_s = self._pauses[run_id].next_s if run_id in self._pauses else FIRST_PAUSE_S
        until = self._elapsed() + pause_s
        self._pauses[run_id] = _Pause(until, min(2 * pause_s, MAX_PAUSE_S))

    @property
    def is_waiting(self) -> bool:
        """Whether a suspect is to be claimed once nothing else executes here."""
        return bool(self._suspects)

    def take(self, *, is_busy: bool) -> str | None:
        """Return the suspect to claim now, by name: one, once nothing else executes here."""
        if not self._suspects or self._executing is not None:
            return None
        if is_busy and self._elapsed() < self._drained_by:
            return None
        self._executing = self._suspects.pop(0)
        self._alone_until = self._elapsed() + MAX_ALONE_S
        self._pause(self._executing)
        return self._executing

    def allows_others(self, held: Iterable[Run], *, is_claiming: bool) -> bool:
        """Return whether other runs may be claimed, beside those that are held."""
        suspect = self._executing
        if suspect is None:
            return not self._suspects
        if is_claiming or any(run.id == suspect for run in held):
            return self._elapsed() >= self._alone_until
        self._executing = None
        return not self._suspects

    async def stop(self) -> None:
        self._suspects.clear()
        if self._starter is not None:
            await self._starter.stop()
