"""`app.manifests` through the API of a server."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.schedule import Schedule
from perdure.engine.manifests.apply import Application, Entries, Manifests, Tasks
from perdure.engine.manifests.manifest import Manifest
from perdure.engine.rest.client import RestClient
from perdure.engine.runtime.input import OPERATOR, By
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import OpenComponents
from perdure.engine.schedules.operators import Schedules
from perdure.engine.tasks.catalogue import TaskEntry


@explain_methods
class RemoteManifests(Manifests):
    """`export` shows what the server shows: secrets in payloads are redacted."""

    def __init__(
        self, components: OpenComponents, rest: RestClient, schedules: Schedules, tasks: Tasks
    ) -> None:
        self._components = components
        self._rest = rest
        self._schedules = schedules
        self._tasks = tasks

    async def apply(
        self, manifest: Manifest, *, by: By = OPERATOR, dry_run: bool = False, prune: bool = False
    ) -> Application:
        files = [{"name": name, "text": text} for name, text in manifest.texts]
        return await self._rest.send(
            Application, "POST", "schedules:apply", files=files, dry_run=dry_run, prune=prune
        )

    async def _named(self, names: Sequence[str]) -> list[Schedule]:
        return [await self._schedules.get(name) for name in names]

    async def _known_tasks(self) -> Entries:
        return {it.name: it for it in await self._rest.get_all(TaskEntry, "tasks")}
