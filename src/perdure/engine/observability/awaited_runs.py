"""Which runs' results the handlers of a worker await: reported with its heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from perdure.core.run.run import is_run_id

MAX_AWAITS = 500
"""Awaiting runs that a worker names in its record."""
REPORT_DELAY_S = 1.0
"""Seconds from the beginning of a wait to the heartbeat that reports it, if it still lasts."""


class Awaits:
    """Of one worker. `put` is called from any thread, everything else on the I/O loop.

    `on_waiting` is called some time after handlers have begun to wait, once for all that still do.
    """

    def __init__(self, on_waiting: Callable[[], None]) -> None:
        self._on_waiting = on_waiting
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[str, tuple[str, ...]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def put(self, run_id: str, awaited: tuple[str, ...]) -> None:
        """Note the runs whose results the handler of `run_id` awaits now."""
        if not awaited:
            self._awaited.pop(run_id, None)
            return
        self._awaited[run_id] = awaited
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._report_soon)

    def among(self, held: Collection[str]) -> dict[str, str]:
        """Return one awaited run for each of the runs that this worker holds, and waits."""
        found: dict[str, str] = {}
        for run_id, awaited in tuple(self._awaited.items()):
            if run_id in held and is_run_id(awaited[0]) and len(found) < MAX_AWAITS:
                found[run_id] = awaited[0]
        return found

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _report_soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(REPORT_DELAY_S, self._report)

    def _report(self) -> None:
        self._timer = None
        if self._awaited:
            self._on_waiting()
