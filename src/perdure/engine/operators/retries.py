"""A run's retry or rerun, made once unless an operator insists.

The first retry or rerun of a run owns a key that names the original, so that two operators who
retry one run at the same time make one run.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from perdure.core.run.effects import DeadLetterStatus
from perdure.core.run.run import Run
from perdure.engine.client.handle import RunHandle
from perdure.engine.client.handles import Handles
from perdure.engine.operators.reruns import RerunRequest, Tasks, accept_rerun, prepare_rerun
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.runtime import Runtime
from perdure.errors import AlreadyRetried, NotAllowed, SequenceConflict


class Reruns:
    """Makes them in one app's environment. With `new_id`, asked for twice, the run is made once."""

    def __init__(self, runtime: Runtime, tasks: Tasks, handles: Handles) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._handles = handles

    async def rerun(self, run: Run, request: RerunRequest, new_id: str | None) -> RunHandle[Any]:
        try:
            return await self._make(run, request, new_id)
        except AlreadyRetried:
            return await self._make(run, replace(request, again=True), new_id)

    async def retry(
        self, run: Run, request: RerunRequest, new_id: str | None, *, again: bool
    ) -> RunHandle[Any]:
        """Raise AlreadyRetried if the run has a retry or rerun, unless `again`."""
        try:
            return await self._make(run, request, new_id)
        except SequenceConflict:
            raise await self._refused_retry(run) from None
        except AlreadyRetried:
            if not again:
                raise
        closes = await self._has_open_letter(run)
        return await self._make(run, replace(request, again=True, closes_letter=closes), new_id)

    async def _make(self, run: Run, request: RerunRequest, chosen_id: str | None) -> RunHandle[Any]:
        runtime, now = self._runtime, self._runtime.now()
        new_id = chosen_id or runtime.ids.run_id(now)
        commit = prepare_rerun(runtime, self._tasks, run, request, new_id, now)
        [outcome] = await runtime.storage.commit([commit])
        created = accept_rerun(run, outcome, chosen_id)
        runtime.hints.publish([hints.work(run.environment, run.queue)])
        return self._handles.make(new_id, run.task, created=created)

    async def _has_open_letter(self, run: Run) -> bool:
        letter = await self._runtime.storage.dead_letter(run.id)
        return letter is not None and letter.status is DeadLetterStatus.OPEN

    async def _refused_retry(self, run: Run) -> NotAllowed:
        """Return the error for a dead letter that was closed before, with actor and outcome."""
        letter = await self._runtime.storage.dead_letter(run.id)
        by = letter.closed_by.id if letter is not None and letter.closed_by is not None else None
        who = "" if by is None else f" by {by}"
        if letter is None or letter.replay_run_id is None:
            problem = f"its dead letter was discarded{who}; rerun it instead"
        else:
            problem = f"it was replayed{who} as {letter.replay_run_id}; look at that one"
        return NotAllowed(run.id, "retry", run.status, problem)
