"""Forgetting runs that ended long ago: by retention, or as an operator says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from perdure.core.run.lifecycle import FAILURES, TERMINAL, Status
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.input import Duration, choice, duration
from perdure.engine.runtime.runtime import RuntimeProvider
from perdure.errors import InvalidInput

MOST = 1_000_000
"""More than so many are not counted."""


class Old(msgspec.Struct, frozen=True):
    """Runs that finished with `status` before `before`, and how many were counted. Of dead-lettered
    runs: those whose dead letter was closed before then, or has been open since before then."""

    status: Status
    before: datetime
    count: int = 0
    open_letters: bool = False


def old_runs(now: datetime, defaults: Defaults) -> list[Old]:
    """Return which runs the configured retention no longer keeps."""
    old = [Old(status, now - _retention_of(status, defaults)) for status in sorted(TERMINAL)]
    longest = defaults.open_dead_letter_retention
    if longest is not None:
        old.append(Old(Status.DEAD_LETTERED, now - longest, open_letters=True))
    return old


def _retention_of(status: Status, defaults: Defaults) -> timedelta:
    return defaults.failure_retention if status in FAILURES else defaults.retention


class Pruning:
    """`app.pruning()`: runs of every environment that are old enough to be deleted. `older_than`
    counts from the end of a run or from the closing of its dead letter, and replaces the configured
    retention. The run of an open dead letter is deleted only with `open_dead_letters`, or if
    `open_dead_letter_retention` is set."""

    def __init__(
        self,
        provider: RuntimeProvider,
        *,
        older_than: Duration | None = None,
        statuses: Sequence[str] | None = None,
        open_dead_letters: bool = False,
    ) -> None:
        if open_dead_letters and older_than is None:
            raise InvalidInput("open_dead_letters", "needs `older_than`")
        self._provider = provider
        self._open_dead_letters = open_dead_letters
        self._age = None if older_than is None else duration(older_than, "older_than")
        self._statuses = sorted(TERMINAL) if statuses is None else [_ended(it) for it in statuses]

    async def count(self) -> list[Old]:
        """What would go now."""
        storage = self._provider.runtime.storage
        old = await self._old()
        counts = [
            await storage.prunable(it.status, it.before, most=MOST, open_letters=it.open_letters)
            for it in old
        ]
        return [replace(it, count=n) for it, n in zip(old, counts, strict=True)]

    async def prune(self) -> AsyncIterator[Old]:
        """Forget it, history and all, batch by batch: what each batch was. Keys that are free
        anyway and old gaps of schedules go, too."""
        storage, defaults = self._provider.runtime.storage, self._provider.components.defaults
        batch = defaults.maintenance_batch
        for it in await self._old():
            while count := await storage.prune(
                it.status, it.before, batch, open_letters=it.open_letters
            ):
                yield replace(it, count=count)
        before = await storage.now() - defaults.retention
        while await storage.prune_spans(before, batch) == batch:
            pass
        while await storage.prune_keys(batch) == batch:
            pass

    async def _old(self) -> list[Old]:
        now = await self._provider.runtime.storage.now()
        if self._age is None:
            old = old_runs(now, self._provider.components.defaults)
            return [it for it in old if it.status in self._statuses]
        old = [Old(status, now - self._age) for status in self._statuses]
        if self._open_dead_letters and Status.DEAD_LETTERED in self._statuses:
            old.append(Old(Status.DEAD_LETTERED, now - self._age, open_letters=True))
        return old


def _ended(word: str) -> Status:
    status = choice(word, Status, "status")
    if status not in TERMINAL:
        ends = ", ".join(sorted(TERMINAL))
        raise InvalidInput("status", f"only what has ended is pruned: {ends}; not {word!r}")
    return status
