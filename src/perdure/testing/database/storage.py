"""The kit's storage: a real adapter, between boundaries at which a worker may die."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from perdure.core.run.commit import Commit
from perdure.storage.contract.explanation import SuspectScope
from perdure.storage.contract.runs import Claimed, ClaimRequest, Outcome, Renewal, Renewed
from perdure.storage.sql.storage import Make, SqlStorage
from perdure.testing.database.databases import KitDatabase
from perdure.testing.database.inline import finish
from perdure.testing.database.transactions import InlineTransactions, KitTransactions
from perdure.testing.kit.boundaries import Boundaries, freeze_if_dead
from perdure.testing.virtual.time import process_here

T = TypeVar("T")

NO_RUN = f"run_{0:032x}"
"""An id that no run has."""


class KitStorage(SqlStorage):
    """Never waits, so it may be used on any loop, and on none."""

    loop_bound = False

    def __init__(
        self, database: KitDatabase, boundaries: Boundaries, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._database = database
        self._inner: SqlStorage = database.storage
        self._boundaries = boundaries
        self._loop = loop
        self._lock = threading.RLock()
        self.dialect = self._inner.dialect
        self.only: str | None = None
        """If set, the only run that may be claimed."""
        self.ration: int | None = None
        """If set, how many attempts may still begin."""
        self.look_again_at: datetime | None = None
        """When a claim may find more, as the last one was told: limits know more than runs."""
        self.cut_off: set[str] = set()
        """Runs whose renewals do not arrive."""

    async def migrate(self) -> int:
        return 1

    async def check_schema(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def transactions(self) -> KitTransactions:
        inner = cast(InlineTransactions, self._inner.transactions())
        return KitTransactions(inner, self._pass)

    async def claim(self, request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
        what = _events_of(outcomes) or "the claim"
        # Workers look more often than there is something to see: that is no boundary.
        is_boundary = bool(outcomes) or self._database.is_any_due()
        before = await self._pass(f"before {what}") if is_boundary else None
        request = self._rationed(await self._with_suspects(request))
        claimed = await super().claim(request, outcomes)
        if self.ration is None:
            self.look_again_at = claimed.next_claimable_at
        else:
            self.ration -= len(claimed.runs)
        happened = [f"the claim of {run.task}" for run in claimed.runs]
        happened += [_events_of(outcomes)] if outcomes else []
        await self._pass_after(before, " and ".join(happened))
        return claimed

    async def commit(
        self, batch: Sequence[Commit], *, telling: frozenset[str] = frozenset()
    ) -> list[Outcome]:
        before = await self._pass(f"before {_events_of(batch)}") if batch else None
        outcomes = await super().commit(batch, telling=telling)
        await self._pass_after(before, _events_of(batch))
        return outcomes

    async def renew(self, renewals: Sequence[Renewal]) -> Renewed:
        return await super().renew([item for item in renewals if item.run_id not in self.cut_off])

    async def _pass(self, label: str) -> Any:
        if process_here() is None:
            return None
        boundary = self._boundaries.reach(label)
        await freeze_if_dead(self._loop)
        return boundary

    async def _pass_after(self, before: Any, what: str) -> None:
        if before is not None and what:
            await self._pass(f"after {what}")
        elif before is not None:
            self._boundaries.forget(before)

    async def _with_suspects(self, request: ClaimRequest) -> ClaimRequest:
        """Claim a due suspect by its name, alone: a kit waits for no heartbeat."""
        if request.run_ids is not None or not request.tokens:
            return request
        found = await self.suspects(
            SuspectScope(
                environment=request.environment,
                tasks=request.tasks,
                versions=request.versions,
                queues=request.queues,
            )
        )
        if not found:
            return request
        start = min(request.start, 1)
        return replace(request, run_ids=(found[0],), tokens=request.tokens[:1], start=start)

    def _rationed(self, request: ClaimRequest) -> ClaimRequest:
        if self.only is not None:
            request = replace(request, run_ids=(self.only,))
        if self.ration is not None:
            run_ids = request.run_ids if self.ration > 0 else (NO_RUN,)
            most = max(self.ration, 1)
            tokens, start = request.tokens[:most], min(request.start, most)
            request = replace(request, run_ids=run_ids, tokens=tokens, start=start)
        return request

    async def _write(self, make: Make[T]) -> T:
        return await self._call(lambda: self._inner._write(make))

    async def _write_once(self, make: Make[T]) -> T:
        return await self._call(lambda: self._inner._write_once(make))

    async def _read(self, make: Make[T]) -> T:
        return await self._call(lambda: self._inner._read(make))

    async def _call(self, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await freeze_if_dead(self._loop)
        with self._lock:
            return finish(operation())


def _events_of(batch: Sequence[Commit]) -> str:
    """What a commit says, in one line."""
    said = [
        f"{', '.join(str(event.type) for event in commit.events)} of {commit.run.task}"
        for commit in batch
    ]
    return "the commit of " + " and ".join(said) if said else ""
