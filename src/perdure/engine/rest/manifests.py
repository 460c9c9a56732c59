"""`app.manifests` through the API of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.core.schedule import Schedule
from perdure.engine.manifests.apply import Application, Manifests
from perdure.engine.manifests.manifest import Manifest
from perdure.engine.rest.client import RestClient
from perdure.engine.runtime.input import OPERATOR, By

if TYPE_CHECKING:
    from perdure.engine.app.app import App


class RemoteManifests(Manifests):
    """`export` shows what the server shows: secrets in payloads are redacted."""

    def __init__(self, app: App, rest: RestClient) -> None:
        super().__init__(app)
        self._rest = rest

    async def apply(
        self, manifest: Manifest, *, by: By = OPERATOR, dry_run: bool = False, prune: bool = False
    ) -> Application:
        files = [{"name": name, "text": text} for name, text in manifest.texts]
        return await self._rest.send(
            Application, "POST", "schedules:apply", files=files, dry_run=dry_run, prune=prune
        )

    async def _named(self, names: Sequence[str]) -> list[Schedule]:
        return [await self._app.schedules.get(name) for name in names]


def make_manifests(app: App) -> Manifests:
    """Return the manifests of an open app, beside its database or at a server."""
    return Manifests(app) if app.rest is None else RemoteManifests(app, app.rest)
