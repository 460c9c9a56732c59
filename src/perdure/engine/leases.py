"""The leases a worker holds, and their renewal: all of them in one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from perdure.core.commit import prepare_commit
from perdure.core.decide import decide_renewal
from perdure.core.run import Run
from perdure.errors import LeaseLost, StorageError
from perdure.storage.protocol import Committed, Renewal, Renewed, Storage
from perdure.telemetry import table

if TYPE_CHECKING:
    from perdure.engine.app import App

TROUBLE = timedelta(milliseconds=500)
"""Before asking again: whoever comes back last after an outage must still come within `grace`."""


class Leases:
    """Which runs are ours. Storage's answer to a renewal is the truth; no answer is no news.

    By token, not by run: a run may be ours again before its former lease is settled.
    """

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
        self._lost = app.metrics.registry.counter(table.LEASES_LOST)

    def hold(self, runs: Iterable[Run]) -> None:
        new = {run.lease.token: run for run in runs if run.lease is not None}
        again = {run.id for run in new.values()}
        former = [token for token, run in self.held.items() if run.id in again]
        for token in former:  # ended in storage, by us or by others; its handler may not know
            self.drop(token)
            self._on_lost(token)
        self.held |= new

    def drop(self, token: str) -> None:
        self.held.pop(token, None)

    def check(self, run_id: str, token: str) -> None:
        """Raises LeaseLost if the lease is not held any more."""
        if token not in self.held:
            raise LeaseLost(run_id)

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
                table.LEASES_NOT_RENEWED.say(error=str(error))
                self._soon.set()
                await self._app.clock.sleep(TROUBLE)

    async def renew(self) -> None:
        if not self.held:
            return
        renewals = [Renewal(run.id, token, self._ttl(run)) for token, run in self.held.items()]
        answer = await self._storage.renew(renewals)
        self._act_on(answer, {renewal.run_id: renewal.token for renewal in renewals})
        await self._record(answer.now)

    async def _record(self, now: datetime) -> None:
        """Heartbeats as events, for the runs whose policy asks for that."""
        recording = {t: run for t, run in self.held.items() if run.policy.record_heartbeats}
        commits = [
            prepare_commit(
                run, decide_renewal(run, token, now, self._ttl(run)), self._app.ids.commit_id()
            )
            for token, run in recording.items()
        ]
        outcomes = await self._storage.commit(commits)
        for token, commit, outcome in zip(recording, commits, outcomes, strict=True):
            # Whoever was faster wrote something that the next answer or the outcome will meet.
            if isinstance(outcome, Committed) and token in self.held:
                self.held[token] = commit.run

    def _act_on(self, answer: Renewed, asked: Mapping[str, str]) -> None:
        """`asked`: each run's token in the question. Only of that one does the answer speak."""
        for run_id in sorted(answer.lost):
            if asked[run_id] in self.held:
                table.LEASE_LOST.say(run_id=run_id)
                self._lost.add()
                self.drop(asked[run_id])
                self._on_lost(asked[run_id])
        for run_id in sorted(answer.cancelling):
            self._on_cancel(asked[run_id])

    def _ttl(self, run: Run) -> timedelta:
        return run.policy.lease_ttl or self._app.defaults.lease_ttl

    def _interval(self) -> timedelta:
        """A third of the shortest lease held."""
        ttls = [self._ttl(run) for run in self.held.values()]
        shortest = min(ttls, default=self._app.defaults.lease_ttl)
        return min(shortest, self._app.defaults.lease_ttl) / self._app.defaults.renewals_per_ttl
