"""Recovers expired leases, finalises cancellations, expires runs, opens gates, prunes, folds.

Any number may run; every write is compare-and-set. A database outage costs nobody's lease: see
`patience`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from perdure.core.decide import decide_attention
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.run import Run
from perdure.engine.maintenance.lease_recovery import Patience
from perdure.engine.maintenance.retention import old_runs
from perdure.engine.maintenance.tick_record import TickRecord
from perdure.engine.observability.metrics import Metrics
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.runtime import RuntimeProvider
from perdure.engine.runtime.service import AppService
from perdure.errors import StorageUnavailable
from perdure.storage.contract.runs import Committed
from perdure.telemetry import table

PRUNE_EVERY = 60
"""Retention is counted in days: one pass in so many is enough, while all of it can be done."""

PRUNE_BATCHES = 10
"""So many a pass: leases and gates must not wait for more. While there is more, passes follow each
other quickly: whoever works at some rate must forget at that rate, one retention later."""

FOLD_BATCH = 20
"""Histories that are folded in one transaction: it takes some milliseconds for each."""
FOLD_BATCHES = 50
"""Transactions of one pass."""

LONGEST_TICK = 3
"""So many times the grace a single tick stays; what it has not judged then, the next one does."""

LOOKS_A_LEASE = 4
"""So often it looks in the life of a lease, however short: else it could judge none in time."""


class Maintenance(AppService):
    """`grace`: how long the storage must have taken writes before expired leases are taken; by
    default the renewal interval. With none they are taken at once, as if nobody were alive."""

    def __init__(
        self, provider: RuntimeProvider, metrics: Metrics, *, grace: timedelta | None = None
    ) -> None:
        defaults = provider.components.defaults
        tick = min(defaults.maintenance_tick, defaults.lease_ttl / LOOKS_A_LEASE)
        super().__init__(provider, tick)
        self._metrics = metrics
        self._grace = defaults.renewal_interval if grace is None else grace
        self._patience = Patience(self._clock, defaults, tick=tick, grace=self._grace)
        self._is_waiting = False
        """Whether there were expired leases that could not be judged yet."""
        self._next_prune = 0
        self._passes = 0
        self._behind = 0
        """How many passes in a row have left something that is old enough."""
        self._took = timedelta(0)
        self._ticks = TickRecord(provider, metrics, "maintenance")

    async def run_once(self) -> None:
        try:
            now = await self._runtime.storage.now()
            await self._attend(now)
            await self._runtime.storage.open_gates(self._runtime.defaults.maintenance_batch)
            await self._metrics.keep_fresh(self._runtime.storage)
            if self._passes >= self._next_prune:
                await self._forget(now)
                self._patience.record_write()  # a long pass is no gap
            self._passes += 1
            await self._ticks.record(now)
        except StorageUnavailable:
            self._patience.record_failure()
            raise

    async def rest(self) -> None:
        """While there is more to forget: as long as the last part took, and less with each."""
        if not self._behind:
            return await super().rest()
        await self._clock.sleep(min(self._interval, self._took / self._behind))

    async def tick(self) -> None:
        """One pass; and if there are expired leases, as many as it takes to judge them."""
        longest = LONGEST_TICK * (self._grace + self._runtime.defaults.maintenance_tick)
        until = self._clock.elapsed() + longest.total_seconds()
        await self.run_once()
        while self._is_waiting and self._clock.elapsed() < until:
            await self.rest()
            await self.run_once()

    async def _attend(self, now: datetime) -> None:
        """Whatever asks for attention; leases only once we may judge them."""
        self._is_waiting = False
        while True:
            due = await self._runtime.storage.attention(self._runtime.defaults.maintenance_batch)
            self._patience.record_write()  # `attention` proves that the storage can write
            commits, failed = self._commits(await self._judged(due, now), now)
            if failed:
                await self._runtime.storage.put_off(failed)
            outcomes = await self._runtime.storage.commit(commits) if commits else []
            self._tell(commits)
            settled = sum(isinstance(outcome, Committed) for outcome in outcomes) + len(failed)
            if len(due) < self._runtime.defaults.maintenance_batch or not settled:
                return

    async def _judged(self, due: Sequence[Run], now: datetime) -> list[Run]:
        """Those that nobody holds, and those whose owner has given up."""
        held = [run for run in due if run.lease is not None]
        if not held:
            return list(due)
        started = await self._runtime.storage.started_at()
        spared = {run.id for run in held if not self._may_take(run, now, started)}
        self._is_waiting = self._is_waiting or bool(spared)
        return [run for run in due if run.id not in spared]

    def _may_take(self, run: Run, now: datetime, started: datetime | None) -> bool:
        """Return True also where the policy's durations overflow: the lease has expired."""
        try:
            return self._patience.may_take(run, now, started)
        except ArithmeticError:
            return True

    def _commits(self, due: Sequence[Run], now: datetime) -> tuple[list[Commit], list[str]]:
        """Return what follows for each run, and the ids of runs that cannot be decided about."""
        commits: list[Commit] = []
        failed: list[str] = []
        for run in due:
            try:
                commits += self._commit(run, now)
            except Exception:  # noqa: BLE001  # a bug, or a damaged run: it must not stop the others
                table.RUN_NOT_ATTENDED.log_hourly(run.id, run_id=run.id)
                failed.append(run.id)
        return commits, failed

    def _commit(self, run: Run, now: datetime) -> list[Commit]:
        events = decide_attention(run, now, self._clock.jitter())
        return [prepare_commit(run, events, self._runtime.ids.commit_id())] if events else []

    def _tell(self, commits: Sequence[Commit]) -> None:
        topics = {hints.done(commit.run.environment) for commit in commits}
        topics |= {hints.work(commit.run.environment, commit.run.queue) for commit in commits}
        self._runtime.hints.publish(topics)

    async def _forget(self, now: datetime) -> None:
        """Some of what is old enough; and fold long histories. The more there was, the sooner it
        looks again: a part now and then is felt less than all of it at once."""
        began = self._clock.elapsed()
        is_done = await self._prune(now)
        if await self._fold() and is_done:
            self._next_prune = self._passes + PRUNE_EVERY // (1 + self._behind)
            self._behind = 0
        else:
            self._behind += 1
        self._took = timedelta(seconds=self._clock.elapsed() - began)

    async def _prune(self, now: datetime) -> bool:
        """Whether nothing is left that is old enough."""
        storage, defaults = self._runtime.storage, self._runtime.defaults
        batch = defaults.maintenance_batch
        left = PRUNE_BATCHES
        for old in old_runs(now, defaults):
            while batch == await storage.prune(
                old.status, old.before, batch, open_letters=old.open_letters
            ):
                left -= 1
                if not left:
                    return False
        spans = await storage.prune_spans(now - defaults.retention, batch)
        return await storage.prune_keys(batch) < batch and spans < batch

    async def _fold(self) -> bool:
        """Store long histories in less space. Return whether none is left."""
        for _ in range(FOLD_BATCHES):
            if not await self._runtime.storage.fold_histories(FOLD_BATCH):
                return True
        return False
