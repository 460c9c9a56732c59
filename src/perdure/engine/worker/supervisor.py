"""Several worker processes and the parent that keeps them: one that dies is replaced.

    asked to stop ──▶ SIGTERM to each ──▶ all ended well: 0
    asked again, or not ended in time ──▶ SIGKILL to each ──▶ 1
    one was drained by an operator (exit code 3) ──▶ the others go on; the last one: 0
    one cannot start, now or ever (exit code 2) ──▶ the others are stopped ──▶ 2

The parent holds a pipe to each child's standard input; its death, however it comes, closes them.
"""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from perdure.engine.process.signals import AT_ONCE, on_stop_signal
from perdure.telemetry import table

Order = Callable[[], None]

CANNOT_START = 2
"""A child's exit code for what another start would not mend: no such app, no such schema."""

DRAINED = 3
"""A child's exit code after an operator asked it to end: nobody takes its place."""

FIRST_PAUSE = timedelta(milliseconds=200)
LONGEST_PAUSE = timedelta(seconds=30)
LIVED_WELL = timedelta(seconds=10)
MARGIN = timedelta(seconds=10)
"""What a child may take to end, beyond its drain."""


class WorkerPool:
    """Keeps `size` processes of `command` running until asked to stop. Each is given its place
    among them, counted from 0, as the last argument: what replaces a process gets its place."""

    def __init__(self, command: Sequence[str], size: int, drain: timedelta) -> None:
        self._command = command
        self._size = size
        self._patience = drain + MARGIN
        self._children: set[Process] = set()
        self._codes: list[int] = []

    async def run(self) -> int:
        """The exit code, once every child has ended."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._no_mercy: asyncio.TimerHandle | None = None
        on_stop_signal(self._soon(self._stop), self._soon(self._kill))
        await asyncio.gather(*(self._keep_one(place) for place in range(self._size)))
        if self._no_mercy is not None:
            self._no_mercy.cancel()
        if CANNOT_START in self._codes:
            return CANNOT_START
        # SIGTERM ends only a child that had not come so far as to handle it.
        return 0 if set(self._codes) <= {0, -signal.SIGTERM} else AT_ONCE

    def _soon(self, order: Order) -> Order:
        def soon() -> None:
            self._loop.call_soon_threadsafe(order)

        return soon

    async def _keep_one(self, place: int) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            born = self._loop.time()
            code = await self._one_life(place)
            if self._stopping.is_set() or code == CANNOT_START:
                self._codes.append(0 if code == DRAINED else code)
                self._stop()
                return
            if code == DRAINED:
                return
            table.PROCESS_DIED.say(code=code)
            if self._loop.time() - born > LIVED_WELL.total_seconds():
                pause = FIRST_PAUSE
            await self._rest(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _one_life(self, place: int) -> int:
        child = await asyncio.create_subprocess_exec(
            *self._command, str(place), stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        self._children.add(child)
        table.PROCESS_STARTED.say(pid=child.pid)
        if self._stopping.is_set():
            _send(child.terminate)
        try:
            return await child.wait()
        finally:
            self._children.discard(child)

    async def _rest(self, pause: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause.total_seconds()):
                await self._stopping.wait()

    def _stop(self) -> None:
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._no_mercy = self._loop.call_later(self._patience.total_seconds(), self._kill)
        for child in self._children:
            _send(child.terminate)

    def _kill(self) -> None:
        self._stopping.set()
        for child in self._children:
            table.PROCESS_KILLED.say(pid=child.pid)
            _send(child.kill)


def _send(order: Order) -> None:
    with suppress(ProcessLookupError):
        order()
