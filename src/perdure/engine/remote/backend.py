"""A worker's backend without a database: it asks a server, over the worker protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from perdure.core.decide.lease import MAX_LEASE_TTL
from perdure.core.run.commit import Commit
from perdure.core.run.run import Run
from perdure.engine.client.results import RunResult
from perdure.engine.execution.worker_backend import (
    Finished,
    Refused,
    ReportOutcome,
    ReturnedClaims,
    WorkClaimed,
)
from perdure.engine.observability.log_writer import SaidLog
from perdure.engine.protocol import attempts, triggers, workers
from perdure.engine.protocol.checks import check_message
from perdure.engine.protocol.chunks import MAX_REQUEST_BYTES, count_one, in_parts
from perdure.engine.protocol.fields import (
    MAX_LEASES,
    MAX_LOG_BATCHES,
    MAX_REPORTS,
    MAX_RESULTS,
)
from perdure.engine.protocol.values import heartbeat_of, log_message, report_of
from perdure.engine.remote.counts import RemoteFacts
from perdure.engine.remote.no_transactions import NO_TRANSACTION, NoTransactions
from perdure.engine.remote.server import Server
from perdure.engine.remote.wakeups import RemoteHints
from perdure.engine.runtime.runtime import Components
from perdure.engine.tasks.catalogue import Drain, TaskEntry, WorkerEntry
from perdure.errors import StorageRefused, TransactionError, WorkerNotFound
from perdure.storage import open_server
from perdure.storage.contract.explanation import SuspectScope
from perdure.storage.contract.runs import ClaimRequest, Clock, Renewal, Renewed
from perdure.storage.contract.transactions import Transactions
from perdure.storage.contract.wakeups import HintTransport


class RemoteBackend:
    """Implements `WorkerBackend` and `ResultSource` on a `Server`."""

    loop_bound = True
    needs_registration = True

    def __init__(self, components: Components, server: Server) -> None:
        self.local_clock: Clock | None = None
        self.server = server
        self._components = components
        self._facts = RemoteFacts(components.registry)
        self._entry: WorkerEntry | None = None
        """What the worker last said of itself."""
        self._suspects: Sequence[str] = ()

    async def now(self) -> datetime:
        return (await self.server.hello()).now

    def hint_transport(self) -> HintTransport | None:
        return (
            RemoteHints(self.server, self._components.ids.token())
            if self.server.wants_hints
            else None
        )

    def transactions(self) -> Transactions:
        return NoTransactions()

    async def was_stored(self, commit: Commit) -> bool:
        raise TransactionError(NO_TRANSACTION)

    async def close(self) -> None:
        self.server.close()

    # Attempts

    def prepare(self, item: Finished, now: datetime, commit_id: str) -> None:
        """Check the report as the server will."""
        check_message(report_of(item))

    async def judge_misfits(self, items: Sequence[Finished], now: datetime) -> None:
        """The server judges them."""

    async def claim(self, request: ClaimRequest, finished: Sequence[Finished]) -> WorkClaimed:
        parts = in_parts([report_of(item) for item in finished], _size, MAX_REPORTS)
        # A report that is too large for any request must not keep the claim from being made.
        last = parts.pop() if parts and sum(map(_size, parts[-1])) <= MAX_REQUEST_BYTES else []
        settled = [outcome for part in parts for outcome in await self._report(part)]
        asked = attempts.ClaimMessage(
            worker_id=request.worker_id,
            tokens=request.tokens,
            tasks=request.tasks,
            versions=dict(request.versions),
            queues=request.queues,
            run_ids=request.run_ids,
            lease_ttl=_lease_seconds(request.lease_ttl),
            reports=tuple(last),
        )
        answer = await self._claim(asked)
        outcomes = (*settled, *answer.outcomes)
        self._facts.claimed(answer.runs)
        self._facts.reported(finished, outcomes)
        return WorkClaimed(
            runs=answer.runs,
            outcomes=outcomes,
            now=answer.now,
            next_claimable_at=answer.next_claimable_at,
        )

    async def _claim(self, asked: attempts.ClaimMessage) -> attempts.ClaimAnswer:
        """A server forgets a worker that was silent for long: then register again."""
        try:
            return await self.server.ask(asked, attempts.ClaimAnswer)
        except WorkerNotFound:
            if self._entry is None:
                raise
            await self.heartbeat(self._entry)
            return await self.server.ask(asked, attempts.ClaimAnswer)

    async def report(self, finished: Sequence[Finished]) -> Sequence[ReportOutcome]:
        parts = in_parts([report_of(item) for item in finished], _size, MAX_REPORTS)
        outcomes = [outcome for part in parts for outcome in await self._report(part)]
        self._facts.reported(finished, outcomes)
        return outcomes

    async def _report(self, part: Sequence[attempts.Report]) -> Sequence[ReportOutcome]:
        """A request that no server takes, because it is too large, is refused by itself."""
        asked = attempts.ReportRequest(reports=tuple(part))
        try:
            answer = await self.server.ask(asked, attempts.ReportAnswer)
        except StorageRefused as refusal:
            if len(part) == 1:
                return [Refused(str(refusal))]
            return [outcome for it in part for outcome in await self._report([it])]
        return answer.outcomes

    async def refresh(self, items: Sequence[Finished]) -> set[str]:
        """The server decides with the stored run: sending the report again is enough."""
        return {item.run.id for item in items}

    # Leases

    async def renew(self, renewals: Sequence[Renewal]) -> Renewed:
        default, worker_id = self._components.defaults.lease_ttl, self._worker_id()
        answers = []
        for part in in_parts(renewals, count_one, MAX_LEASES) or [[]]:
            asked = attempts.RenewRequest(
                worker_id=worker_id,
                leases=tuple(attempts.HeldLease(run_id=r.run_id, token=r.token) for r in part),
                lease_ttl=_lease_seconds(default),
            )
            answers.append(await self.server.ask(asked, attempts.RenewAnswer))
        self._facts.renewed(sum(len(answer.renewed) for answer in answers))
        return Renewed(
            renewed={run_id: at for answer in answers for run_id, at in answer.renewed.items()},
            lost=frozenset(run_id for answer in answers for run_id in answer.lost),
            cancelling=frozenset(run_id for answer in answers for run_id in answer.cancelling),
            unknown=frozenset(run_id for answer in answers for run_id in answer.unknown),
            now=answers[-1].now,
        )

    async def record_heartbeats(self, held: Mapping[str, Run], now: datetime) -> dict[str, Run]:
        """The server has done it, with the renewal."""
        return {}

    async def return_claims(
        self, worker_id: str, tokens: frozenset[str], now: datetime
    ) -> ReturnedClaims:
        found: set[str] = set()
        given_back: set[str] = set()
        for part in in_parts(sorted(tokens), count_one, MAX_LEASES):
            asked = attempts.ReturnClaimsRequest(worker_id=worker_id, tokens=tuple(part))
            answer = await self.server.ask(asked, attempts.ReturnClaimsAnswer)
            found |= set(answer.found)
            given_back |= set(answer.given_back)
        return ReturnedClaims(found=frozenset(found), given_back=frozenset(given_back))

    # The registry, logs and the catalogue

    async def heartbeat(self, entry: WorkerEntry) -> Drain | None:
        self._entry = entry
        answer = await self.server.ask(heartbeat_of(entry), workers.HeartbeatAnswer)
        self._suspects = answer.suspects
        return answer.drain

    async def find_suspects(self, scope: SuspectScope) -> Sequence[str]:
        """Those that the answer to the last heartbeat named."""
        return self._suspects

    async def write_logs(self, said: Sequence[SaidLog]) -> None:
        for part in in_parts(list(map(log_message, said)), _size, MAX_LOG_BATCHES):
            asked = attempts.LogRequest(batches=tuple(part))
            await self.server.ask(asked, attempts.LogAnswer)

    async def known_tasks(self) -> list[TaskEntry]:
        answer = await self.server.ask(workers.TasksRequest(), workers.TasksAnswer)
        return list(answer.tasks)

    def _worker_id(self) -> str:
        assert self._entry is not None, "a worker registers before it renews"
        return self._entry.id

    # Results

    async def get(self, run_ids: Sequence[str]) -> dict[str, RunResult]:
        return await self._results(run_ids, ended_only=False)

    async def ended(self, run_ids: Sequence[str]) -> dict[str, RunResult]:
        return await self._results(run_ids, ended_only=True)

    async def _results(self, run_ids: Sequence[str], *, ended_only: bool) -> dict[str, RunResult]:
        found: dict[str, RunResult] = {}
        for part in in_parts(list(dict.fromkeys(run_ids)), count_one, MAX_RESULTS):
            while part:
                asked = triggers.ResultsRequest(run_ids=tuple(part), ended_only=ended_only)
                answer = await self.server.ask(asked, triggers.ResultsAnswer)
                found |= {run.id: run for run in answer.runs}
                part = part[part.index(answer.next_id) :] if answer.next_id else []
        return found


def open_remote_backend(components: Components, options: Mapping[str, Any]) -> RemoteBackend:
    """A connection for a worker, or for triggers and results, on its own loop. `options` as
    `open_server` takes them."""
    client = open_server(components.url, components.clock, **options)
    return RemoteBackend(components, Server(client, components.registry))


def _lease_seconds(ttl: timedelta) -> float:
    return min(ttl, MAX_LEASE_TTL).total_seconds()


def _size(message: msgspec.Struct) -> int:
    return len(msgspec.json.encode(message))
