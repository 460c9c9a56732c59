"""Every schedule, read page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from perdure.core.schedule import Schedule
from perdure.engine.schedules.operators import Schedules
from perdure.engine.schedules.reconcile import PAGE


async def all_schedules(schedules: Schedules) -> AsyncIterator[Schedule]:
    """Every schedule, deleted ones too, in order of name."""
    after = ""
    while True:
        page = await schedules.list(limit=PAGE, after=after, deleted=True)
        for schedule in page:
            yield schedule
        if len(page) < PAGE:
            return
        after = page[-1].id
