"""Ends a call that must end: its time is up, or somebody asked for it. On the I/O loop, so that no
handler can hold up its watchdog. Most calls need none.

Stopping climbs a ladder, one call method a rung::

    asked       the flag in the context; `async def`: CancelledError; process: SIGTERM
      │ grace
    pressed     `async def`: CancelledError once more; thread: an exception; process: SIGKILL
      │ until abandon_after
    given up    the owner says how it ended; the handler keeps its slot until it really does
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any

import msgspec

from perdure.core.decide.ending import Ending, HandedOver, Raised, Settled, Stopped
from perdure.engine.attempt.ending import crashed, timed_out
from perdure.engine.execution.call import Call
from perdure.engine.tasks.options import Executor
from perdure.telemetry import table
from perdure.telemetry.record import Record

START_LIMIT = timedelta(seconds=60)
"""How long a worker process may take until it calls the handler."""


class StopReason(StrEnum):
    CANCELLED = "cancelled"
    LEASE_LOST = "lease_lost"
    SHUTDOWN = "shutdown"
    TIMEOUT = "timeout"
    NOT_STARTED = "not_started"


class Ladder(msgspec.Struct, frozen=True):
    """How long to wait on each rung, counted from the first."""

    grace: timedelta
    abandon_after: timedelta


class Watchdog:
    """Of one call. `on_given_up` is called at most once, with what is to be recorded of it."""

    def __init__(
        self,
        call: Call,
        loop: asyncio.AbstractEventLoop,
        ladder: Ladder,
        on_given_up: Callable[[Call, Ending | Settled | None], None],
    ) -> None:
        self._call = call
        self._loop = loop
        self._ladder = ladder
        self._on_given_up = on_given_up
        self._reason: StopReason | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def when(self) -> float | None:
        """Of the loop's time: when it will do something."""
        return None if self._timer is None else self._timer.when()

    def limit(self) -> None:
        """Before the call begins: it may not take longer than its policy says."""
        self._call.on_began = self._began
        if self._call.executor is Executor.PROCESS:
            self._after(START_LIMIT, self.stop, StopReason.NOT_STARTED)

    def stop(self, reason: StopReason) -> None:
        """Ask the attempt to end. The first reason is the one that counts."""
        if self._reason is not None:
            return
        self._reason = reason
        self._call.context.ask_to_stop()
        self._after(self._ladder.grace, self._press)
        self._call.ask()
        self._say(table.ASKED_TO_STOP)

    def give_up(self) -> None:
        """Say how it ended, although it has not."""
        self._call.give_up()
        self._on_given_up(self._call, self.meaning(Stopped()))
        run = self._call.run
        table.HANDLER_STUCK.say(
            run_id=run.id, task=run.task, executor=self._call.executor, reason=self._reason
        )

    def rest(self) -> None:
        """There is nothing more to watch. What leads back to here goes, and so all of it at once:
        left to the garbage collector, a busy worker would wade through ten thousands of ended
        attempts."""
        self._end_timer()
        self._call.on_began = None

    def meaning(self, ending: Ending | Settled) -> Ending | Settled | None:
        """What is to be recorded, given why it was asked to stop, if it was."""
        match self._reason, ending:
            case (_, Settled()) | (None, _):
                return ending
            case StopReason.LEASE_LOST, _:
                return None
            case StopReason.NOT_STARTED, _:
                limit = START_LIMIT.total_seconds()
                return crashed(f"the worker process was not ready within {limit:g} s")
            case StopReason.TIMEOUT, _:
                assert self._call.run.policy.timeout is not None
                return timed_out(self._call.run.policy.timeout)
            case StopReason.SHUTDOWN, Stopped():
                return HandedOver()
            case StopReason.SHUTDOWN, Raised(failure=failure, retry_after=None):
                # Whatever it raised because it was disturbed is not a failure of its own.
                return HandedOver() if failure.retryable else ending
            case _:
                return ending

    def _began(self) -> None:
        if self._reason is not None:
            return
        self._end_timer()
        if self._call.run.policy.timeout is not None:
            self._after(self._call.run.policy.timeout, self.stop, StopReason.TIMEOUT)

    def _press(self) -> None:
        left = max(self._ladder.abandon_after - self._ladder.grace, timedelta(0))
        self._after(left, self.give_up)
        self._call.press()
        self._say(table.PRESSED_TO_STOP)

    def _say(self, rung: Record) -> None:
        """A rung is a line in the run's log, not an event."""
        rung.say_on(self._call.context.log, reason=str(self._reason))

    def _after(self, delay: timedelta, then: Callable[..., None], *arguments: Any) -> None:
        self._end_timer()
        self._timer = self._loop.call_later(delay.total_seconds(), then, *arguments)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
