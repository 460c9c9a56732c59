"""Notices that the handlers' loop is blocked, and which handler blocks it, while it lasts."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.engine.runtime.runtime import Components
from perdure.engine.runtime.service import Service
from perdure.telemetry import metrics, table
from perdure.telemetry.registry import Gauges

if TYPE_CHECKING:
    from perdure.engine.execution.loop_call import LoopCall, Performer

CHECK_INTERVAL = timedelta(seconds=1)
BLOCKED_AFTER_S = 2.0
"""Seconds without an answer after which a loop counts as blocked."""


class LoopWatch(Service):
    """Asks the handlers' loop for an answer once per second. It runs on the I/O loop, which no
    handler blocks. `blocked_by` names the handler and where it is, while the loop is blocked."""

    def __init__(
        self,
        components: Components,
        loop: asyncio.AbstractEventLoop,
        thread_id: int,
        performer: Performer,
    ) -> None:
        super().__init__(components.clock)
        self._loop = loop
        self._thread_id = thread_id
        self._performer = performer
        self._asked_at: float | None = None
        self._answered_lag_s = 0.0
        self.blocked_by = ""
        self._blocks = components.registry.counter(metrics.LOOP_BLOCKS)

    @property
    def lag_s(self) -> float:
        """Seconds that the loop takes to answer, or has not answered for."""
        asked_at = self._asked_at
        if asked_at is None:
            return self._answered_lag_s
        return max(self._answered_lag_s, self._clock.elapsed() - asked_at)

    async def run_once(self) -> None:
        if self._asked_at is None:
            self._ask()
        elif self._clock.elapsed() - self._asked_at >= BLOCKED_AFTER_S and not self.blocked_by:
            self._report(self._asked_at)

    async def rest(self) -> None:
        await self._clock.sleep(CHECK_INTERVAL)

    def gauges(self) -> Gauges:
        return {metrics.LOOP_LAG: {(): self.lag_s}}

    def _ask(self) -> None:
        self._asked_at = self._clock.elapsed()
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._answer, self._asked_at)

    def _answer(self, asked_at: float) -> None:
        """On the handlers' loop."""
        self._answered_lag_s = self._clock.elapsed() - asked_at
        self._asked_at = None
        if self.blocked_by:
            blocked_by, self.blocked_by = self.blocked_by, ""
            seconds = round(self._answered_lag_s, 1)
            table.LOOP_ANSWERS.say(blocked_by=blocked_by, seconds=seconds)

    def _report(self, asked_at: float) -> None:
        call = self._performer.current
        where = self._where(call)
        handler = "no handler" if call is None else f"{call.run.task} {call.run.id}"
        self.blocked_by = f"{handler} at {where}"
        self._blocks.add()
        table.LOOP_BLOCKED.say(
            task=None if call is None else call.run.task,
            run_id=None if call is None else call.run.id,
            where=where,
            blocked_by=self.blocked_by,
            seconds=round(self._clock.elapsed() - asked_at, 1),
        )

    def _where(self, call: LoopCall | None) -> str:
        """Return the line that is executed: of the handler's file if it is among the callers."""
        frame = innermost = sys._current_frames().get(self._thread_id)
        code = None if call is None else getattr(call.handler.function, "__code__", None)
        while frame is not None and code is not None:
            if frame.f_code.co_filename == code.co_filename:
                break
            frame = frame.f_back
        frame = frame or innermost
        if frame is None:
            return "an unknown line"
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
