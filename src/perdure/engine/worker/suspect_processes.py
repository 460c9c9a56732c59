"""Processes that execute one suspect each: the same worker command, for a run known by name.

What kills such a process kills no other run. Its death leaves an expired lease, as any worker's
does, and maintenance blames the run for it. The parent holds a pipe to each process's standard
input; its death, however it comes, closes them.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from perdure.telemetry import table

MAX_PROCESSES = 4
"""Suspects of one worker that execute at the same time, each in its process."""
STOP_MARGIN = timedelta(seconds=5)
"""What a process may take to end, beyond its drain."""
HEAD_START_S = 5.0
"""Seconds that a process of a pool leaves a suspect to the one before it."""


class SuspectProcesses:
    """Implements `Starter`. `command` is called with the id of a run as its last argument.
    `place`: that of this process in its pool."""

    def __init__(self, command: Sequence[str], drain: timedelta, place: int = 0) -> None:
        self.head_start_s = HEAD_START_S * place
        self._command = tuple(command)
        self._patience_s = (drain + STOP_MARGIN).total_seconds()
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._children: dict[str, Process] = {}
        self._is_stopping = False

    def start(self, run_id: str) -> bool:
        if len(self._lives) >= MAX_PROCESSES or self._is_stopping or run_id in self._lives:
            return False
        self._lives[run_id] = asyncio.create_task(self._live(run_id))
        return True

    async def stop(self) -> None:
        self._is_stopping = True
        for child in self._children.values():
            _terminate(child)
        if not self._lives:
            return
        _, late = await asyncio.wait(self._lives.values(), timeout=self._patience_s)
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.kill()
        if late:
            await asyncio.wait(late)

    async def _live(self, run_id: str) -> None:
        try:
            code = await self._execute(run_id)
            table.SUSPECT_ENDED.say(run_id=run_id, code=code)
        except OSError as error:
            table.SUSPECT_NOT_STARTED.say(run_id=run_id, error=str(error))
        finally:
            del self._lives[run_id]

    async def _execute(self, run_id: str) -> int:
        child = await asyncio.create_subprocess_exec(
            *self._command, run_id, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        self._children[run_id] = child
        table.SUSPECT_STARTED.say(run_id=run_id, pid=child.pid)
        if self._is_stopping:
            _terminate(child)
        try:
            return await child.wait()
        finally:
            del self._children[run_id]


def _terminate(child: Process) -> None:
    with suppress(ProcessLookupError):
        child.terminate()
