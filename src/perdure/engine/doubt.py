"""Claims whose answer was lost: what they got is given back, since nobody has begun it.

By their tokens, because other claims may be under way. A claim whose connection broke may still
be at work in the server and land later, so its tokens stay in doubt until that cannot be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.core.commit import prepare_commit
from perdure.core.decide import decide_shutdown
from perdure.core.run import Run
from perdure.engine.service import Service
from perdure.engine.storage_time import StorageTime
from perdure.storage.protocol import Committed, Storage

if TYPE_CHECKING:
    from perdure.engine.app import App

LONGEST_CLAIM = timedelta(seconds=60)
"""Later than this no claim lands: twice what a server allows one statement."""


class Doubt(Service):
    """Looks at once for what is new, and every `poll` until it is too old to land."""

    def __init__(
        self,
        app: App,
        storage: Storage,
        worker_id: str,
        time: StorageTime,
        on_settled: Callable[[], None],
    ) -> None:
        super().__init__(app.clock)
        self._app = app
        self._storage = storage
        self._worker_id = worker_id
        self._time = time
        self._on_settled = on_settled
        self._since: dict[str, float] = {}
        self._unsettled: set[str] = set()
        self._added = asyncio.Event()

    def add(self, tokens: Iterable[str]) -> None:
        new = dict.fromkeys(tokens, self._clock.elapsed())
        self._since |= new
        self._unsettled |= new.keys()
        self._added.set()

    @property
    def is_unsettled(self) -> bool:
        """Whether there may be leases of ours that nobody has looked for."""
        return bool(self._unsettled)

    async def run_once(self) -> None:
        self._added.clear()
        if not self._since:
            return
        asked, landed_by = set(self._since), self._clock.elapsed() - LONGEST_CLAIM.total_seconds()
        leased = await self._storage.leases(self._worker_id)
        ours = {run.lease.token: run for run in leased if run.lease and run.lease.token in asked}
        given_back = await self._give_back(list(ours.values()))
        self._forget(given_back)
        self._forget(t for t in asked - ours.keys() if self._since[t] <= landed_by)
        self._unsettled -= asked - (ours.keys() - given_back)
        self._on_settled()

    async def rest(self) -> None:
        poll = self._app.defaults.poll.total_seconds() if self._since else None
        with suppress(TimeoutError):
            async with asyncio.timeout(poll):
                await self._added.wait()

    async def _give_back(self, runs: Sequence[Run]) -> set[str]:
        """The tokens of those that are. Somebody may have been faster: the next pass sees it."""
        tokens = [run.lease.token for run in runs if run.lease is not None]
        commits = [
            prepare_commit(
                run, decide_shutdown(run, token, self._time.now()), self._app.ids.commit_id()
            )
            for run, token in zip(runs, tokens, strict=True)
        ]
        outcomes = await self._storage.commit(commits)
        pairs = zip(tokens, outcomes, strict=True)
        return {token for token, outcome in pairs if isinstance(outcome, Committed)}

    def _forget(self, tokens: Iterable[str]) -> None:
        for token in list(tokens):
            self._since.pop(token, None)
