"""Handles of runs that operators make, start again or look for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.engine.client.handle import HandleApp, RunHandle
from perdure.engine.tasks.task_definition import TaskDefinition


class Handles:
    """Makes them. `tasks` are those of the app's code, by every name that a run may have."""

    def __init__(self, app: HandleApp, tasks: Mapping[str, TaskDefinition]) -> None:
        self._app = app
        self._tasks = tasks

    def make(self, run_id: str, task: str | None = None, *, created: bool) -> RunHandle[Any]:
        """Return the handle of a run; results are decoded by the task if the app has its code."""
        known = None if task is None else self._tasks.get(task)
        return RunHandle(self._app, run_id, known.signature if known else None, created=created)
