"""The leases a worker holds, and their renewal: all of them in one statement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.core.run import Run
from perdure.errors import LeaseLost, StorageError
from perdure.storage.protocol import Renewal, Renewed, Storage

if TYPE_CHECKING:
    from perdure.engine.app import App

log = logging.getLogger("perdure.leases")


class Leases:
    """Which runs are ours. Storage's answer to a renewal is the truth; no answer is no news."""

    def __init__(
        self,
        app: App,
        storage: Storage,
        worker_id: str,
        on_lost: Callable[[str], None],
        on_cancel: Callable[[str], None],
    ) -> None:
        self.held: dict[str, Run] = {}
        self._app = app
        self._storage = storage
        self._worker_id = worker_id
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self._soon = asyncio.Event()

    def hold(self, runs: Iterable[Run]) -> None:
        self.held |= {run.id: run for run in runs}

    def drop(self, run_id: str) -> None:
        self.held.pop(run_id, None)

    def token_of(self, run_id: str) -> str:
        """Raises LeaseLost if the run is not held any more."""
        run = self.held.get(run_id)
        if run is None or run.lease is None:
            raise LeaseLost(run_id)
        return run.lease.token

    def renew_now(self) -> None:
        self._soon.set()

    async def renew_for_ever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval().total_seconds()):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._soon.clear()
            try:
                await self.renew()
            except StorageError as error:
                # Unknown is not lost: nobody recovers leases while the storage is away.
                log.warning("leases not renewed", extra={"error": str(error)})

    async def renew(self) -> None:
        if not self.held:
            return
        renewals = [
            Renewal(run.id, run.lease.token, self._ttl(run))
            for run in self.held.values()
            if run.lease is not None
        ]
        self._act_on(await self._storage.renew(renewals))

    def _act_on(self, answer: Renewed) -> None:
        for run_id in answer.lost:
            if run_id in self.held:
                self.drop(run_id)
                self._on_lost(run_id)
        for run_id in answer.cancelling:
            self._on_cancel(run_id)

    def _ttl(self, run: Run) -> timedelta:
        return run.policy.lease_ttl or self._app.defaults.lease_ttl

    def _interval(self) -> timedelta:
        """A third of the shortest lease held."""
        ttls = [self._ttl(run) for run in self.held.values()]
        shortest = min(ttls, default=self._app.defaults.lease_ttl)
        return min(shortest, self._app.defaults.lease_ttl) / self._app.defaults.renewals_per_ttl
