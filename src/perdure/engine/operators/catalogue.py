"""`app.catalogue`: the tasks that apps and workers have made known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime

import msgspec

from perdure.engine.operators.workers import Workers
from perdure.engine.runtime.input import find_similar, text
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import OpenComponents
from perdure.engine.tasks.catalogue import TaskEntry, WorkerEntry, by_name
from perdure.errors import TaskNotFound

ReadTasks = Callable[[], Awaitable[Sequence[TaskEntry]]]
"""Read the catalogue, beside the database or at a server."""

MAX_LISTED_WORKERS = 100
"""Workers that are listed for a task."""


class TaskWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A live worker that knows a task. `version` is that of its code; `schema` is the digest of
    the payloads that its code takes; `not_importable`: why it cannot import the handler now."""

    id: str
    host: str
    process_id: int
    version: int | None = None
    schema: str | None = None
    not_importable: str | None = None


class TaskDetails(TaskEntry, frozen=True, kw_only=True):
    """A task of the catalogue, and live workers that know it, 100 at most."""

    workers: tuple[TaskWorker, ...] = ()


@explain_methods
class TaskCatalogue:
    """Tasks of the app's environment, whether or not this app's code defines them."""

    def __init__(self, components: OpenComponents, read_tasks: ReadTasks, workers: Workers) -> None:
        self._components = components
        self._read_tasks = read_tasks
        self._workers = workers

    async def list(self) -> Sequence[TaskDetails]:
        """Every known task, by name."""
        entries = sorted(await self._read_tasks(), key=lambda entry: entry.name)
        return add_workers(entries, await self.live_workers())

    async def get(self, name: str) -> TaskDetails:
        """A task, also by a name that it had before. Raises TaskNotFound."""
        entries = by_name(await self._read_tasks())
        if text(name, "task") not in entries:
            raise TaskNotFound(name, find_similar(name, entries))
        return add_workers([entries[name]], await self.live_workers())[0]

    async def live_workers(self) -> Sequence[WorkerEntry]:
        """Return the workers that were heard of within the length of a lease."""
        workers = await self._workers.list()
        since: datetime = self._components.now() - self._components.defaults.lease_ttl
        return [worker for worker in workers if worker.is_live(since)]


def add_workers(entries: Sequence[TaskEntry], workers: Iterable[WorkerEntry]) -> list[TaskDetails]:
    """Return the entries, each with the first MAX_LISTED_WORKERS workers that know the task."""
    knowing: dict[str, list[WorkerEntry]] = {entry.name: [] for entry in entries}
    for worker in workers:
        for task in knowing.keys() & worker.tasks:
            if len(knowing[task]) < MAX_LISTED_WORKERS:
                knowing[task].append(worker)
    return [_details(entry, knowing[entry.name]) for entry in entries]


def _details(entry: TaskEntry, workers: Iterable[WorkerEntry]) -> TaskDetails:
    fields = {name: getattr(entry, name) for name in TaskEntry.__struct_fields__}
    return TaskDetails(**fields, workers=tuple(_worker(entry.name, it) for it in workers))


def _worker(task: str, worker: WorkerEntry) -> TaskWorker:
    return TaskWorker(
        id=worker.id,
        host=worker.host,
        process_id=worker.process_id,
        version=worker.versions.get(task),
        schema=worker.schemas.get(task),
        not_importable=worker.not_importable.get(task),
    )
