"""One attempt: decode the payload, call the handler, say how it ended.

Stopping climbs a ladder: the flag in the context and, for `async def`, `CancelledError`; after
`grace` an exception raised inside the thread; after `abandon_after` the owner gives up on the
thread, which keeps its slot until it really ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from enum import StrEnum
from typing import Any

import msgspec

from perdure.core.run import Run
from perdure.engine.context import Context, enter
from perdure.engine.options import Executor
from perdure.engine.outcome import (
    Ending,
    HandedOver,
    Returned,
    Stopped,
    ending_of,
    rejected,
    timed_out,
)
from perdure.engine.task import Task
from perdure.errors import InvalidInput


class StopReason(StrEnum):
    CANCELLED = "cancelled"
    LEASE_LOST = "lease_lost"
    SHUTDOWN = "shutdown"
    TIMEOUT = "timeout"


class AttemptStopped(BaseException):
    """Raised inside a handler's thread that did not stop when asked. Not an error to handle."""


class Ladder(msgspec.Struct, frozen=True):
    """How long to wait on each rung."""

    grace: timedelta
    abandon_after: timedelta


class Attempt:
    """Performs one attempt on the handlers' loop."""

    def __init__(
        self,
        run: Run,
        task: Task[..., Any],
        threads: ThreadPoolExecutor,
        ladder: Ladder,
        result_limit: int,
    ) -> None:
        self.run = run
        self.context = Context(run)
        self.is_stuck = False
        self._task = task
        self._threads = threads
        self._ladder = ladder
        self._result_limit = result_limit
        self._reason: StopReason | None = None
        self._asked = asyncio.Event()
        self._thread_id: int | None = None

    def stop(self, reason: StopReason) -> None:
        """Ask the attempt to end. The first reason is the one that counts."""
        if self._reason is None:
            self._reason = reason
            self.context.ask_to_stop()
            self._asked.set()

    @property
    def lost_its_lease(self) -> bool:
        return self._reason is StopReason.LEASE_LOST

    async def perform(self) -> Ending:
        """How it ended. Never raises."""
        try:
            arguments = self._task.signature.decode(self.run.payload_json)
        except InvalidInput as error:
            return rejected(error)
        if self._task.signature.context_name is not None:
            arguments[self._task.signature.context_name] = self.context
        if self._task.settings.executor is Executor.ASYNC:
            call = asyncio.create_task(self._on_loop(arguments))
        else:
            call = asyncio.create_task(self._in_thread(arguments))
        self._call = call
        return await self._supervise(call)

    def when_thread_ends(self, then: Callable[[], None]) -> None:
        """Call `then` once a handler that was given up has really ended."""
        self._call.add_done_callback(lambda _: then())

    async def _supervise(self, call: asyncio.Task[Ending]) -> Ending:
        timeout = self.run.policy.timeout
        asked = asyncio.create_task(self._asked.wait())
        limit = None if timeout is None else timeout.total_seconds()
        await asyncio.wait({call, asked}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            self.stop(StopReason.TIMEOUT)
            await self._climb(call)
        asked.cancel()
        ending = call.result() if call.done() else self._when_stopped()
        if self._reason is StopReason.TIMEOUT and timeout is not None:
            return timed_out(timeout)
        return ending

    async def _climb(self, call: asyncio.Task[Ending]) -> None:
        on_loop = self._task.settings.executor is Executor.ASYNC
        grace = self._ladder.grace.total_seconds()
        if on_loop:
            call.cancel()
        await asyncio.wait({call}, timeout=grace)
        if call.done():
            return
        if on_loop:
            call.cancel()
        else:
            self._interrupt_thread()
        rest = max(self._ladder.abandon_after.total_seconds() - grace, 0.0)
        await asyncio.wait({call}, timeout=rest)
        self.is_stuck = not call.done()

    async def _on_loop(self, arguments: dict[str, Any]) -> Ending:
        enter(self.context)
        try:
            return self._returned(await self._task.function(**arguments))
        except asyncio.CancelledError as error:
            return ending_of(error) if self._reason is None else self._when_stopped()
        except BaseException as error:  # noqa: BLE001  # an attempt's failure is data
            return ending_of(error)

    async def _in_thread(self, arguments: dict[str, Any]) -> Ending:
        loop = asyncio.get_running_loop()
        variables = contextvars.copy_context()
        return await loop.run_in_executor(
            self._threads, variables.run, self._call_in_thread, arguments
        )

    def _call_in_thread(self, arguments: dict[str, Any]) -> Ending:
        enter(self.context)
        self._thread_id = threading.get_ident()
        try:
            return self._returned(self._task.function(**arguments))
        except AttemptStopped:
            return self._when_stopped()
        except BaseException as error:  # noqa: BLE001  # an attempt's failure is data
            return ending_of(error)
        finally:
            self._thread_id = None

    def _returned(self, value: Any) -> Ending:
        try:
            return Returned(self._task.signature.encode_result(value, self._result_limit))
        except InvalidInput as error:
            return rejected(error)

    def _when_stopped(self) -> Ending:
        if self._reason is StopReason.SHUTDOWN:
            return HandedOver()
        return Stopped()

    def _interrupt_thread(self) -> None:
        """Best effort: a thread inside a C call only notices once it returns."""
        if self._thread_id is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread_id), ctypes.py_object(AttemptStopped)
            )
