"""Forgetting runs that ended long ago: by retention, or as an operator says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from perdure.core.lifecycle import FAILURES, TERMINAL, Status
from perdure.engine.defaults import Defaults
from perdure.engine.door import Duration, choice, duration
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.engine.app import App

MOST = 1_000_000
"""More than so many are not counted."""


class Old(msgspec.Struct, frozen=True):
    """Runs that ended so, before then; how many, as far as it was counted."""

    status: Status
    before: datetime
    count: int


def retention_of(status: Status, defaults: Defaults) -> timedelta:
    """How long runs that ended so are kept."""
    return defaults.failure_retention if status in FAILURES else defaults.retention


class Pruning:
    """`app.pruning()`: what is old enough to go, in every environment. `older_than` counts from
    the end of a run; without it, as long as the configured retention says."""

    def __init__(
        self,
        app: App,
        *,
        older_than: Duration | None = None,
        statuses: Sequence[str] | None = None,
    ) -> None:
        self._app = app
        self._age = None if older_than is None else duration(older_than, "older_than")
        self._statuses = sorted(TERMINAL) if statuses is None else [_ended(it) for it in statuses]

    async def count(self) -> list[Old]:
        """What would go now."""
        storage = self._app.storage
        old = await self._old()
        counts = [await storage.prunable(it.status, it.before, most=MOST) for it in old]
        return [Old(it.status, it.before, n) for it, n in zip(old, counts, strict=True)]

    async def prune(self) -> AsyncIterator[Old]:
        """Forget it, history and all, batch by batch: what each batch was. Keys that are free
        anyway and old gaps of schedules go, too."""
        storage, batch = self._app.storage, self._app.defaults.maintenance_batch
        for it in await self._old():
            while count := await storage.prune(it.status, it.before, batch):
                yield Old(it.status, it.before, count)
        before = await storage.now() - self._app.defaults.retention
        while await storage.prune_spans(before, batch) == batch:
            pass
        while await storage.prune_keys(batch) == batch:
            pass

    async def _old(self) -> list[Old]:
        now, defaults = await self._app.storage.now(), self._app.defaults
        ages = [
            retention_of(it, defaults) if self._age is None else self._age for it in self._statuses
        ]
        return [Old(it, now - age, 0) for it, age in zip(self._statuses, ages, strict=True)]


def _ended(word: str) -> Status:
    status = choice(word, Status, "status")
    if status not in TERMINAL:
        ends = ", ".join(sorted(TERMINAL))
        raise InvalidInput("status", f"only what has ended is pruned: {ends}; not {word!r}")
    return status
