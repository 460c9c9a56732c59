"""Has suspects executed alone: in processes of their own, or here while nothing else is.

A suspect is a run that workers were executing when they died. Every heartbeat of a worker asks
for those that it could execute. With a `Starter`, each gets a process that executes this run only;
without one, the worker claims no other run until what it holds has ended, and then claims the
suspect by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from perdure.core.run import Run

DRAIN_TIMEOUT_S = 10.0
"""Seconds that a worker without a starter waits for its other runs to end. A suspect is then
executed beside those that are left: nearly alone."""
MAX_ALONE_S = 60.0
"""Seconds for which it claims nothing else while a suspect executes, which may wait for others."""


class Starter(Protocol):
    """Starts processes that execute one run each."""

    def start(self, run_ids: Sequence[str]) -> None:
        """Start a process for each of these runs that has none, while there is room."""
        ...

    async def stop(self) -> None:
        """Ask the processes to hand over, and wait for their ends."""
        ...


class Isolation:
    """What one worker knows of suspects. All on its I/O loop."""

    def __init__(self, elapsed: Callable[[], float], starter: Starter | None) -> None:
        self._elapsed = elapsed
        self._starter = starter
        self._suspects: list[str] = []
        self._drained_by = 0.0
        self._executing: str | None = None
        self._alone_until = 0.0

    def offer(self, run_ids: Sequence[str]) -> None:
        """Take note of the suspects that wait."""
        if self._starter is not None:
            self._starter.start(run_ids)
            return
        if run_ids and not self._suspects:
            self._drained_by = self._elapsed() + DRAIN_TIMEOUT_S
        self._suspects = [run_id for run_id in run_ids if run_id != self._executing]

    def take(self, *, is_busy: bool) -> str | None:
        """Return the suspect to claim now, by name: one, once nothing else executes here."""
        if not self._suspects or self._executing is not None:
            return None
        if is_busy and self._elapsed() < self._drained_by:
            return None
        self._executing = self._suspects.pop(0)
        self._alone_until = self._elapsed() + MAX_ALONE_S
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
