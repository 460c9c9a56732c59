"""Schedules in files, over HTTP: the same texts that `perdure schedules apply` reads."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from perdure.engine.manifests.apply import Application
from perdure.engine.manifests.manifest import Manifest, gathered
from perdure.engine.protocol.scope import Scope
from perdure.engine.tasks.reserved_names import refuse_reserved
from perdure.errors import InvalidInput, InvalidManifest
from perdure.telemetry.redactor import Redactor
from perdure.web.models.requests import Asked, Label
from perdure.web.offload import json_size
from perdure.web.operations.operation import Call
from perdure.web.problems import Refusal, RequestRefused

MAX_ITEMS = 1000
"""Schedules and tasks of one request, and its files."""
MAX_CHARACTERS = 2 * 1024 * 1024
"""Of all files of one request."""
MAX_PROBLEMS = 100
"""Problems that an answer lists."""
MAX_PROBLEM_CHARS = 300


class ManifestFile(Asked, frozen=True, kw_only=True):
    """`name` is what problems call it."""

    name: Label
    text: str


class ManifestBody(Asked, frozen=True, kw_only=True):
    """All files of a manifest. With `prune`, what only an earlier one had is deleted."""

    files: Annotated[list[ManifestFile], Meta(min_length=1, max_length=MAX_ITEMS)]
    dry_run: bool = False
    prune: bool = False


async def apply_manifest(call: Call, body: ManifestBody) -> Application:
    texts = [(file.name, file.text) for file in body.files]
    size = _check_size(texts)
    try:
        manifest = await call.offload(size, gathered, texts, MAX_ITEMS)
        _check(manifest, call)
        done = await call.app.manifests.apply(
            manifest, by=call.by, dry_run=body.dry_run, prune=body.prune
        )
    except InvalidManifest as error:
        raise await call.offload(size, _shorten, error, call.app.redactor) from error
    return await call.offload(json_size(done), done.shown, call.at.view)


def _shorten(error: InvalidManifest, redactor: Redactor) -> InvalidManifest:
    """Return the error with its first problems, each without secrets and of a bounded length."""
    first = [redactor.shorten(it, MAX_PROBLEM_CHARS) for it in error.problems[:MAX_PROBLEMS]]
    more = len(error.problems) - len(first)
    return InvalidManifest([*first, f"{more} more problems are not listed"] if more else first)


def _check_size(texts: list[tuple[str, str]]) -> int:
    """The characters of all files. Raises InvalidInput if they are too many."""
    size = sum(len(text) for _, text in texts)
    if size > MAX_CHARACTERS:
        problem = f"have {size} characters, more than {MAX_CHARACTERS} in one request"
        raise InvalidInput("files", f"{problem}; divide the manifest, and apply each part")
    return size


def _check(manifest: Manifest, call: Call) -> None:
    """Commands and addresses would be executed by others."""
    for name in (it.task for it in manifest.schedules):
        refuse_reserved(name)
    for name in (it.name for it in manifest.tasks):
        refuse_reserved(name)
        if Scope.ADMIN not in call.caller.scopes:
            problem = f"the task {name!r:.80} has a target that others would execute"
            raise RequestRefused(Refusal.SCOPE_MISSING, f"{problem}; that needs the scope admin")
