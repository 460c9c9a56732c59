"""Claims whose answer was lost: what they got is given back, since nobody has begun it.

By their tokens, because other claims may be under way. A claim whose connection broke may still
be at work in the server and land later, so its tokens stay in doubt until that cannot be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta

from perdure.engine.execution.worker_backend import WorkerBackend
from perdure.engine.runtime.runtime import Components
from perdure.engine.runtime.service import Service
from perdure.engine.runtime.storage_time import StorageTime

LONGEST_CLAIM = timedelta(seconds=60)
"""Later than this no claim lands: twice what a server allows one statement."""


class Doubt(Service):
    """Looks at once for what is new, and every `poll` until it is too old to land."""

    def __init__(
        self,
        components: Components,
        backend: WorkerBackend,
        worker_id: str,
        time: StorageTime,
        on_settled: Callable[[], None],
    ) -> None:
        super().__init__(components.clock)
        self._components = components
        self._backend = backend
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
        answer = await self._backend.return_claims(
            self._worker_id, frozenset(asked), self._time.now()
        )
        self._forget(answer.given_back)
        self._forget(t for t in asked - answer.found if self._since[t] <= landed_by)
        # Another writer may have been faster at the others: the next pass shows it.
        self._unsettled -= asked - (answer.found - answer.given_back)
        self._on_settled()

    async def rest(self) -> None:
        poll = self._components.defaults.poll.total_seconds() if self._since else None
        with suppress(TimeoutError):
            async with asyncio.timeout(poll):
                await self._added.wait()

    def _forget(self, tokens: Iterable[str]) -> None:
        for token in list(tokens):
            self._since.pop(token, None)
