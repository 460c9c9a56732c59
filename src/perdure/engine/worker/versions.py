"""Which versions and payload schemas workers serve, and whether a run might fit another worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from perdure.core.decide.ending import Unserved
from perdure.core.run.run import Run
from perdure.engine.tasks.catalogue import WorkerEntry, known_workers
from perdure.storage.contract.storage import Storage

if TYPE_CHECKING:
    from perdure.engine.definition.task import Task
    from perdure.engine.execution.worker_backend import Finished

Tasks = Mapping[str, "Task[..., Any]"]


def versions_of(tasks: Tasks) -> dict[str, int]:
    """The version of each task that has one."""
    return {
        name: task.settings.version
        for name, task in tasks.items()
        if task.settings.version is not None
    }


def schemas_of(tasks: Tasks) -> dict[str, str]:
    """The digest of each task's payload schema."""
    return {name: task.schema_digest for name, task in tasks.items()}


def might_fit(run: Run, misfit: str, workers: Iterable[WorkerEntry], since: datetime) -> bool:
    """Return whether a live worker serves the run with a payload schema that has not refused its
    payload. `misfit` is the digest of the schema that refuses it now."""
    refused = {*run.misfits, misfit}
    return any(
        worker.is_live(since)
        and not worker.stopping
        and run.task in worker.tasks
        and (worker.queues is None or run.queue in worker.queues)
        and worker.versions.get(run.task, 0) >= run.required_version
        and worker.schemas.get(run.task) not in refused
        for worker in workers
    )


class LiveWorkers:
    """The workers of an environment at one moment, to judge misfits by."""

    def __init__(self, workers: Sequence[WorkerEntry], since: datetime) -> None:
        self._workers = workers
        self._since = since

    def judge(self, run: Run, ending: Unserved) -> Unserved:
        """The ending; final if the payload fits no live worker."""
        if ending.misfit is None:
            return ending
        is_final = not might_fit(run, ending.misfit, self._workers, self._since)
        return replace(ending, is_final=is_final)


async def load_live_workers(storage: Storage, environment: str, since: datetime) -> LiveWorkers:
    return LiveWorkers(await known_workers(storage, environment), since)


def judge_misfits(items: Iterable[Finished], workers: LiveWorkers) -> None:
    """Make the endings of those items final whose payload fits no live worker."""
    for item in items:
        if isinstance(item.ending, Unserved):
            item.ending = workers.judge(item.run, item.ending)
