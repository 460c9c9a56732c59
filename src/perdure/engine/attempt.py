"""One attempt, supervised from the I/O loop, so that no handler can hold up its watchdog.

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

from perdure.core.run import Run
from perdure.engine.calls import Call
from perdure.engine.context import Context
from perdure.engine.options import Executor
from perdure.engine.outcome import Ending, HandedOver, Raised, Settled, Stopped, crashed, timed_out
from perdure.engine.tracing import AttemptSpan
from perdure.telemetry import table
from perdure.telemetry.record import Record

MICROSECOND = timedelta(microseconds=1)
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


class Attempt:
    """`on_ended` is called once, with None if there is nothing to write; `on_freed` only after
    that, once a handler that had been given up has really ended."""

    def __init__(
        self,
        call: Call,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        ladder: Ladder,
        *,
        on_ended: Callable[[Attempt, Ending | Settled | None], None],
        on_freed: Callable[[Attempt], None],
        span: AttemptSpan | None = None,
    ) -> None:
        assert call.context.run.lease is not None
        self.run: Run = call.context.run
        self.token: str = call.context.run.lease.token
        """Whose it is: a run may be claimed again before a former attempt has ended."""
        self.is_stuck = False
        self.executor = executor
        self.span = span
        self._call = call
        self._loop = loop
        self._ladder = ladder
        self._on_ended = on_ended
        self._on_freed = on_freed
        self._reason: StopReason | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked_at = loop.time()
        call.on_over = self._over
        call.context.trace = self.trace
        if self.run.policy.timeout is not None or executor is Executor.PROCESS:
            call.on_began = self._began

    @property
    def context(self) -> Context:
        return self._call.context

    def begin(self) -> None:
        """Raises whatever keeps the handler from being called; then nothing has begun."""
        self._call.begin()
        if self.executor is Executor.PROCESS:
            self._after(START_LIMIT, self.stop, StopReason.NOT_STARTED)

    def stop(self, reason: StopReason) -> None:
        """Ask the attempt to end. The first reason is the one that counts."""
        if self._reason is not None:
            return
        self._reason = reason
        self.context.ask_to_stop()
        self._after(self._ladder.grace, self._press)
        self._call.ask()
        self._say(table.ASKED_TO_STOP)

    def give_up(self) -> None:
        """Say how it ended, although it has not."""
        if self.is_stuck:
            return
        self.is_stuck = True
        self._end_timer()
        self._call.give_up()
        self._on_ended(self, self._meaning(Stopped()))
        run = self.run
        table.HANDLER_STUCK.say(
            run_id=run.id, task=run.task, executor=self.executor, reason=self._reason
        )

    def trace(self) -> dict[str, Any]:
        """Where the time went, in milliseconds."""
        run, call = self.run, self._call
        began = call.began_at or self._asked_at
        ended = call.over_at or self._loop.time()
        assert run.lease is not None
        waited = run.lease.claimed_at - (run.run_at or run.created_at)
        return {
            "executor": self.executor._value_,
            "queue_wait_ms": max(waited // MICROSECOND, 0) / 1000,
            "start_ms": round(1000 * (began - self._asked_at), 3),
            **call.context.timings,
            "total_ms": round(1000 * (ended - began), 3),
        }

    def _began(self) -> None:
        if self._reason is not None:
            return
        self._end_timer()
        if self.run.policy.timeout is not None:
            self._after(self.run.policy.timeout, self.stop, StopReason.TIMEOUT)

    def _press(self) -> None:
        left = max(self._ladder.abandon_after - self._ladder.grace, timedelta(0))
        self._after(left, self.give_up)
        self._call.press()
        self._say(table.PRESSED_TO_STOP)

    def _over(self, ending: Ending | Settled) -> None:
        self._end_timer()
        if self.is_stuck:
            self._on_freed(self)
        else:
            self._on_ended(self, self._meaning(ending))
        self._let_go()

    def _let_go(self) -> None:
        """What leads back to here goes, and so all of it at once: left to the garbage collector,
        a busy worker would wade through ten thousands of ended attempts."""
        self._call.on_began, self._call.on_over, self.context.trace = None, _is_known, dict

    def _meaning(self, ending: Ending | Settled) -> Ending | Settled | None:
        """What is to be recorded, given why it was asked to stop, if it was."""
        if self._reason is None and not isinstance(ending, Settled):
            return ending
        match self._reason, ending:
            case _, Settled():
                return None if ending.run is None else ending
            case StopReason.LEASE_LOST, _:
                return None
            case StopReason.NOT_STARTED, _:
                limit = START_LIMIT.total_seconds()
                return crashed(f"the worker process was not ready within {limit:g} s")
            case StopReason.TIMEOUT, _:
                assert self.run.policy.timeout is not None
                return timed_out(self.run.policy.timeout)
            case StopReason.SHUTDOWN, Stopped():
                return HandedOver()
            case StopReason.SHUTDOWN, Raised(failure=failure, retry_after=None):
                # Whatever it raised because it was disturbed is not a failure of its own.
                return HandedOver() if failure.retryable else ending
            case _:
                return ending

    def _say(self, rung: Record) -> None:
        """A rung is a line in the run's log, not an event."""
        rung.say_on(self.context.log, reason=str(self._reason))

    def _after(self, delay: timedelta, then: Callable[..., None], *arguments: Any) -> None:
        self._end_timer()
        self._timer = self._loop.call_later(delay.total_seconds(), then, *arguments)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_known(ending: Ending | Settled) -> None:
    """It has been told already."""
