"""Makes `app.manifests`, beside the app's database or at a server."""

from __future__ import annotations

from collections import ChainMap
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.engine.manifests.apply import Manifests
from perdure.engine.manifests.parse import StatedTask
from perdure.engine.rest.manifests import RemoteManifests
from perdure.engine.targets.target_task import target_task
from perdure.engine.tasks.catalogue import TaskEntry, entry_of

if TYPE_CHECKING:
    from perdure.app.openable import OpenableApp
    from perdure.app.session import Opened


def make_manifests(app: OpenableApp, opened: Opened) -> Manifests:
    tasks = ChainMap(app.tasks, app.aliases)
    if opened.rest is not None:
        return RemoteManifests(opened.components, opened.rest, opened.schedules, tasks)
    return Manifests(opened.runtime, opened.schedules, tasks, partial(make_entry, app))


def make_entry(app: OpenableApp, stated: StatedTask) -> TaskEntry:
    """As it goes into the catalogue. Raises InvalidInput."""
    task = target_task(app, stated.name, stated.target, stated.settings)  # type: ignore[arg-type]  # of these names
    entry = replace(entry_of(task), by_manifest=True)
    return entry if stated.policy is None else replace(entry, policy=stated.policy)
