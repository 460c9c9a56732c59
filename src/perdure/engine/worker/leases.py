"""The leases a worker holds, and their renewal: all of them in one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta

from perdure.core.decide.lease import MAX_LEASE_TTL
from perdure.core.run.run import Run
from perdure.engine.execution.worker_backend import WorkerBackend
from perdure.engine.runtime.outage_log import TROUBLE
from perdure.engine.runtime.runtime import Components
from perdure.engine.runtime.service import Service
from perdure.errors import LeaseLost
from perdure.storage.contract.runs import Renewal, Renewed
from perdure.telemetry import metrics, table

MAX_LOGGED_IDS = 20
MOMENT = 0.001
"""Seconds: what is left when two clocks do not quite agree."""


class Leases(Service):
    """Which runs are ours. Storage's answer to a renewal is the truth; no answer is no news:
    unknown is not lost, since nobody recovers leases while the storage is away.

    By token, not by run: a run may be ours again before its former lease is settled.
    """

    def __init__(
        self,
        components: Components,
        backend: WorkerBackend,
        on_lost: Callable[[str], None],
        on_cancel: Callable[[str], None],
        is_ending: Callable[[str], bool],
    ) -> None:
        """`is_ending`: whether the attempt with this token has ended, or is committing its
        transaction. A renewal may then find the lease gone because the outcome is stored."""
        super().__init__(components.clock)
        self.held: dict[str, Run] = {}
        self._components = components
        self._backend = backend
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self._is_ending = is_ending
        self._due = self._next_due([])
        self._due_earlier = asyncio.Event()
        self._lost = components.registry.counter(metrics.LEASES_LOST)

    def hold(self, runs: Iterable[Run]) -> None:
        new = {run.lease.token: run for run in runs if run.lease is not None}
        again = {run.id for run in new.values()}
        former = [token for token, run in self.held.items() if run.id in again]
        self.held |= new
        self._renew_by(self._next_due(new.values()))
        for token in former:
            if self._is_ending(token):
                self.drop(token)
            else:
                self.lose(token)

    def drop(self, token: str) -> None:
        self.held.pop(token, None)

    def lose(self, token: str) -> None:
        """Stop the attempt, and log and count the loss, unless that was done before."""
        run = self.held.pop(token, None)
        if run is not None:
            self._on_lost(token)
            self._lost.add()
            table.LEASE_LOST.say(run_id=run.id)

    def log_drain(self) -> None:
        """Log which runs a stop waits for, if any."""
        if not self.held:
            return
        run_ids = sorted(run.id for run in self.held.values())
        table.DRAINING.say(runs=len(run_ids), run_ids=run_ids[:MAX_LOGGED_IDS])

    def check(self, run_id: str, token: str) -> None:
        """Raises LeaseLost if the lease is not held any more."""
        if token not in self.held:
            raise LeaseLost(run_id)

    def renew_now(self) -> None:
        self._renew_by(self._clock.elapsed())

    async def run_once(self) -> None:
        await self.renew()

    async def rest(self) -> None:
        """Until the first of the leases is due, even if it is claimed meanwhile."""
        while (left := self._due - self._clock.elapsed()) > 0:
            self._due_earlier.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(left, MOMENT)):
                    await self._due_earlier.wait()

    @property
    def pause(self) -> timedelta:
        """A short lease cannot wait long for another try."""
        return min(TROUBLE, self._interval(self.held.values()) / 2)

    async def renew(self) -> None:
        self._due = self._next_due(self.held.values())
        if not self.held:
            return
        renewals = [Renewal(run.id, token, self._ttl(run)) for token, run in self.held.items()]
        answer = await self._backend.renew(renewals)
        self._act_on(answer, {renewal.run_id: renewal.token for renewal in renewals})
        recorded = await self._backend.record_heartbeats(self.held, answer.now)
        self.held |= {token: run for token, run in recorded.items() if token in self.held}

    def _act_on(self, answer: Renewed, asked: Mapping[str, str]) -> None:
        """`asked`: each run's token in the question. Only of that one does the answer speak. If the
        attempt is ending, the answer to its outcome says whether the lease was lost."""
        for run_id in sorted(answer.lost):
            if not self._is_ending(asked[run_id]):
                self.lose(asked[run_id])
        for run_id in sorted(answer.cancelling):
            self._on_cancel(asked[run_id])

    def _ttl(self, run: Run) -> timedelta:
        return min(run.policy.lease_ttl or self._components.defaults.lease_ttl, MAX_LEASE_TTL)

    def _renew_by(self, due: float) -> None:
        if due < self._due:
            self._due = due
            self._due_earlier.set()

    def _next_due(self, runs: Collection[Run]) -> float:
        return self._clock.elapsed() + self._interval(runs).total_seconds()

    def _interval(self, runs: Collection[Run]) -> timedelta:
        """Several times in the life of the shortest lease."""
        shortest = min(map(self._ttl, runs), default=self._components.defaults.lease_ttl)
        return (
            min(shortest, self._components.defaults.lease_ttl)
            / self._components.defaults.renewals_per_ttl
        )
