"""Recovers expired leases, finalises cancellations, expires runs, opens gates, prunes.

Any number may run; every write is compare-and-set. A database outage costs nobody's lease:
recovery takes leases only where storage has answered without a gap for `grace`, and only `grace`
after the database itself was started. A node that has just started waits too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from perdure.core.commit import Commit, prepare_commit
from perdure.core.decide import decide_attention
from perdure.core.lifecycle import TERMINAL, Status
from perdure.core.run import Run
from perdure.engine import hints
from perdure.engine.service import Service
from perdure.errors import StorageUnavailable
from perdure.storage.protocol import Committed

if TYPE_CHECKING:
    from perdure.engine.app import App

PRUNE_EVERY = 60
"""Retention is counted in days: one pass in so many is enough."""

FAILURES = (Status.FAILED, Status.DEAD_LETTERED)


class Maintenance(Service):
    """`patient=False` recovers at once, for tests and for `tick`."""

    def __init__(self, app: App, *, patient: bool = True) -> None:
        super().__init__(app, app.defaults.maintenance_tick)
        self._patient = patient
        self._answers_since: datetime | None = None
        self._passes = 0
        self._answered_at: datetime | None = None

    async def run_once(self) -> None:
        try:
            now = await self._app.storage.now()
            self._note_answer(now)
            await self._attend(now)
            await self._app.storage.open_gates(self._app.defaults.maintenance_batch)
            await self._app.metrics.keep_fresh(self._app.storage)
            if self._passes % PRUNE_EVERY == 0:
                await self._prune(now)
            self._passes += 1
        except StorageUnavailable:
            self._answers_since = None
            raise

    def _note_answer(self, now: datetime) -> None:
        """A storage that kept us waiting was away, although our retries may have hidden it. A
        lease missed by one renewal must still outlive the longest wait that does not count."""
        longest = max(1.5 * self._app.defaults.renewal_interval, 2 * self._interval)
        if self._answered_at is not None and now - self._answered_at > longest:
            self._answers_since = None
        self._answered_at = now

    async def _attend(self, now: datetime) -> None:
        """Whatever asks for attention; leases only once we may judge them."""
        may_recover = await self._may_recover(now)
        while True:
            due = await self._app.storage.attention(self._app.defaults.maintenance_batch)
            commits = self._commits(due, now, may_recover)
            if not commits:
                return
            outcomes = await self._app.storage.commit(commits)
            self._tell(commits)
            settled = sum(isinstance(outcome, Committed) for outcome in outcomes)
            if len(due) < self._app.defaults.maintenance_batch or not settled:
                return

    def _commits(self, due: Sequence[Run], now: datetime, may_recover: bool) -> list[Commit]:
        commits = []
        for run in due:
            if run.lease is not None and not may_recover:
                continue
            events = decide_attention(run, now, self._app.clock.jitter())
            if events:
                commits.append(prepare_commit(run, events, self._app.ids.commit_id()))
        return commits

    async def _may_recover(self, now: datetime) -> bool:
        if not self._patient:
            return True
        if self._answers_since is None:
            self._answers_since = now
        grace = self._app.defaults.renewal_interval
        if now - self._answers_since < grace:
            return False
        started = await self._app.storage.started_at()
        return started is None or now - started >= grace

    def _tell(self, commits: Sequence[Commit]) -> None:
        topics = {hints.done(commit.run.environment) for commit in commits}
        topics |= {hints.work(commit.run.environment, commit.run.queue) for commit in commits}
        self._app.hints.publish(topics)

    async def _prune(self, now: datetime) -> None:
        defaults = self._app.defaults
        for status in sorted(TERMINAL):
            kept = defaults.failure_retention if status in FAILURES else defaults.retention
            await self._app.storage.prune(status, now - kept, defaults.maintenance_batch)
        await self._app.storage.prune_keys(defaults.maintenance_batch)
