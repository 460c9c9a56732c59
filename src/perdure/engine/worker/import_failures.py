"""Tasks whose handlers a worker cannot import. It claims none of their runs for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from perdure.core.decide.ending import Unserved
from perdure.core.decide.lease import MAX_HANDOVER_DELAY
from perdure.core.run.failure import FailureKind
from perdure.engine.attempt.ending import MAX_LOGGED
from perdure.telemetry import table
from perdure.telemetry.redactor import Redactor


class ImportFailures:
    """Used on the I/O loop. A worker that claimed such runs again and again would take them from
    workers that can execute them."""

    def __init__(self, redactor: Redactor, on_retry: Callable[[], None]) -> None:
        self.problems: dict[str, str] = {}
        """By task."""
        self._redactor = redactor
        self._on_retry = on_retry

    def note(self, task: str, ending: Unserved) -> bool:
        """Set the task aside if its handler could not be imported. Return whether that is new."""
        is_new = ending.failure.kind is FailureKind.SYSTEM and task not in self.problems
        if is_new:
            self.problems[task] = self._redactor.text(ending.failure.message)[:MAX_LOGGED]
            table.HANDLER_NOT_IMPORTABLE.say(task=task, error=self.problems[task])
            delay = MAX_HANDOVER_DELAY.total_seconds()
            asyncio.get_running_loop().call_later(delay, self._retry, task)
        return is_new

    def importable(self, tasks: Iterable[str]) -> tuple[str, ...]:
        return tuple(task for task in tasks if task not in self.problems)

    def _retry(self, task: str) -> None:
        del self.problems[task]
        self._on_retry()
