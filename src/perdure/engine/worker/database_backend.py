"""A worker's backend beside a database: it decides with the runs that the worker holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from perdure.core.decide import decide_renewal, decide_shutdown
from perdure.core.decide.ending import decide_ending
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.events import RunDeadLettered
from perdure.core.run.run import Run
from perdure.engine.execution.worker_backend import (
    CONFLICT,
    Finished,
    Recorded,
    Refused,
    ReportOutcome,
    ReturnedClaims,
    WorkClaimed,
)
from perdure.engine.observability.log_writer import SaidLog
from perdure.engine.runtime.runtime import Components
from perdure.engine.tasks.catalogue import WORKER, Drain, TaskEntry, WorkerEntry, known_tasks
from perdure.engine.worker.record import WorkerRecord
from perdure.engine.worker.versions import judge_misfits, load_live_workers
from perdure.errors import SequenceConflict
from perdure.storage.contract.explanation import SuspectScope
from perdure.storage.contract.runs import (
    Claimed,
    ClaimRequest,
    Clock,
    Committed,
    Outcome,
    Renewal,
    Renewed,
)
from perdure.storage.contract.storage import Storage
from perdure.storage.contract.transactions import Transactions
from perdure.storage.contract.wakeups import HintTransport

FORGET_WORKERS_AFTER = timedelta(hours=1)
FORGET_WORKERS_EVERY_S = 60.0


class DatabaseBackend:
    """Implements `WorkerBackend` on a `Storage`."""

    needs_registration = False

    def __init__(self, components: Components, storage: Storage) -> None:
        self._components = components
        self._storage = storage
        self.loop_bound = storage.loop_bound
        self.local_clock: Clock | None = storage.local_clock
        self._records: dict[str, WorkerRecord] = {}
        self._forgot_at = float("-inf")

    @property
    def storage(self) -> Storage:
        return self._storage

    async def now(self) -> datetime:
        return await self._storage.now()

    def hint_transport(self) -> HintTransport | None:
        return self._storage.hint_transport()

    def transactions(self) -> Transactions:
        return self._storage.transactions()

    async def was_stored(self, commit: Commit) -> bool:
        return await self._storage.was_stored(commit)

    async def close(self) -> None:
        await self._storage.close()

    # Attempts

    def prepare(self, item: Finished, now: datetime, commit_id: str) -> None:
        jitter = self._components.clock.jitter
        events = decide_ending(item.run, item.token, item.ending, now, jitter, item.evidence)
        item.commit = prepare_commit(item.run, events, commit_id)

    async def judge_misfits(self, items: Sequence[Finished], now: datetime) -> None:
        since = now - self._components.defaults.lease_ttl
        live = await load_live_workers(self._storage, self._components.environment, since)
        judge_misfits(items, live)

    async def claim(self, request: ClaimRequest, finished: Sequence[Finished]) -> WorkClaimed:
        commits = _commits(finished)
        claimed: Claimed = await self._storage.claim(request, commits)
        return WorkClaimed(
            runs=claimed.runs,
            outcomes=tuple(map(outcome_of, commits, claimed.outcomes)),
            now=claimed.now,
            next_claimable_at=claimed.next_claimable_at,
        )

    async def report(self, finished: Sequence[Finished]) -> Sequence[ReportOutcome]:
        commits = _commits(finished)
        return list(map(outcome_of, commits, await self._storage.commit(commits)))

    async def refresh(self, items: Sequence[Finished]) -> set[str]:
        found = await self._storage.get([item.run.id for item in items])
        for item in items:
            item.run = found.get(item.run.id, item.run)
        return set(found)

    # Leases

    async def renew(self, renewals: Sequence[Renewal]) -> Renewed:
        return await self._storage.renew(renewals)

    async def record_heartbeats(self, held: Mapping[str, Run], now: datetime) -> dict[str, Run]:
        recording = {t: run for t, run in held.items() if run.policy.record_heartbeats}
        if not recording:
            return {}
        ttl, commit_id = self._components.defaults.lease_ttl, self._components.ids.commit_id
        commits = [
            prepare_commit(run, decide_renewal(run, token, now, ttl), commit_id())
            for token, run in recording.items()
        ]
        outcomes = await self._storage.commit(commits)
        # What another writer did first, the next answer or the outcome will show.
        return {
            token: commit.run
            for token, commit, outcome in zip(recording, commits, outcomes, strict=True)
            if isinstance(outcome, Committed)
        }

    async def return_claims(
        self, worker_id: str, tokens: frozenset[str], now: datetime
    ) -> ReturnedClaims:
        own = self._components.environment
        leased = [run for run in await self._storage.leases(worker_id) if run.environment == own]
        found = {run.lease.token: run for run in leased if run.lease and run.lease.token in tokens}
        commits = [
            prepare_commit(run, decide_shutdown(run, token, now), self._components.ids.commit_id())
            for token, run in found.items()
        ]
        outcomes = await self._storage.commit(commits)
        pairs = zip(found, outcomes, strict=True)
        given_back = {token for token, outcome in pairs if isinstance(outcome, Committed)}
        return ReturnedClaims(found=frozenset(found), given_back=frozenset(given_back))

    # The registry, logs and the catalogue

    async def heartbeat(self, entry: WorkerEntry) -> Drain | None:
        record = self._records.get(entry.id)
        if record is None:
            record = WorkerRecord(self._storage, self._components.environment, entry.id)
            self._records[entry.id] = record
        drain = await record.put(entry)
        if not entry.stopped:
            await self.forget_dead_workers()
        return drain

    async def forget_dead_workers(self) -> None:
        elapsed = self._components.clock.elapsed()
        if elapsed - self._forgot_at < FORGET_WORKERS_EVERY_S:
            return
        self._forgot_at = elapsed
        before = await self._storage.now() - FORGET_WORKERS_AFTER
        await self._storage.forget(self._components.environment, WORKER, before)

    async def find_suspects(self, scope: SuspectScope) -> Sequence[str]:
        return await self._storage.suspects(scope)

    async def write_logs(self, said: Sequence[SaidLog]) -> None:
        await self._storage.write_logs([it.batch for it in said])

    async def known_tasks(self) -> list[TaskEntry]:
        return await known_tasks(self._storage, self._components.environment)


def _commits(finished: Sequence[Finished]) -> list[Commit]:
    return [item.commit for item in finished if item.commit is not None]


def outcome_of(commit: Commit, outcome: Outcome) -> ReportOutcome:
    """What a commit's outcome means for the ending that it records."""
    if outcome.__class__ is Committed:
        run, event = commit.run, commit.events[-1]
        reason = event.reason if event.__class__ is RunDeadLettered else None
        return Recorded(event.type, run.updated_at, run.claimable_at, reason)
    if isinstance(outcome, SequenceConflict):
        return CONFLICT
    return Refused(str(outcome))
