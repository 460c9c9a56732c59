"""Examines an app's database, or has its server do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.app.connect import open_rest
from perdure.engine.inspection.doctor import Examination, examine_database
from perdure.engine.rest.health import examine_remotely
from perdure.storage import is_remote

if TYPE_CHECKING:
    from perdure.app.openable import OpenableApp


async def examine(app: OpenableApp) -> Examination:
    """The app need not be open."""
    if is_remote(app.url):
        async with open_rest(app) as rest:
            return await examine_remotely(rest, app.clock)
    return await examine_database(app.components, app.open_storage())
