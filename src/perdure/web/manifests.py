"""Schedules in files, over HTTP: the same texts that `perdure schedules apply` reads."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta

from perdure.engine.keys import Scope
from perdure.engine.manifests.applying import Application
from perdure.engine.manifests.manifest import Manifest, gathered
from perdure.engine.reserved import refuse_reserved
from perdure.web.problems import Refusal, RequestRefused
from perdure.web.route import Call
from perdure.web.wishes import Asked, Label


class ManifestFile(Asked, frozen=True, kw_only=True):
    """`name` is what problems call it."""

    name: Label
    text: str


class ManifestBody(Asked, frozen=True, kw_only=True):
    """All files of a manifest. With `prune`, what only an earlier one had is deleted."""

    files: Annotated[list[ManifestFile], Meta(min_length=1, max_length=1000)]
    dry_run: bool = False
    prune: bool = False


async def apply_manifest(call: Call, body: ManifestBody) -> Application:
    texts = [(file.name, file.text) for file in body.files]
    manifest = await asyncio.to_thread(gathered, texts)
    _check(manifest, call)
    done = await call.app.manifests.apply(
        manifest, by=call.by, dry_run=body.dry_run, prune=body.prune
    )
    return done.shown(call.at.view)


def _check(manifest: Manifest, call: Call) -> None:
    """Commands and addresses would be executed by others."""
    for name in (it.task for it in manifest.schedules):
        refuse_reserved(name)
    for name in (it.name for it in manifest.tasks):
        refuse_reserved(name)
        if Scope.ADMIN not in call.caller.scopes:
            problem = f"the task {name!r:.80} has a target that others would execute"
            raise RequestRefused(Refusal.SCOPE_MISSING, f"{problem}; that needs the scope admin")
