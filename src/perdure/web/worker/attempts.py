"""Claims, leases, reports and logs of workers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from perdure.core.commit import prepare_commit
from perdure.core.decide import decide_renewal
from perdure.core.decide.lease import MAX_LEASE_TTL
from perdure.core.run import Run
from perdure.core.values import encode_value
from perdure.engine import hints
from perdure.engine.database_backend import DatabaseBackend
from perdure.engine.protocol.attempts import (
    ClaimAnswer,
    ClaimMessage,
    LogAnswer,
    LogMessage,
    LogRequest,
    RenewAnswer,
    RenewRequest,
    ReportAnswer,
    ReportRequest,
    ReturnClaimsAnswer,
    ReturnClaimsRequest,
)
from perdure.engine.protocol.values import log_batch
from perdure.engine.reserved import refuse_reserved
from perdure.engine.run_logs import LARGEST_FIELDS
from perdure.storage.protocol import ClaimRequest, Renewal
from perdure.web.route import Call


async def claim(call: Call, body: ClaimMessage) -> ClaimAnswer:
    await call.at.registry.check(body.worker_id, call.caller.id)
    for task in body.tasks:
        refuse_reserved(task)  # the server itself carries out what operators order
    request = ClaimRequest(
        worker_id=body.worker_id,
        tokens=body.tokens,
        tasks=body.tasks,
        queues=body.queues,
        run_ids=body.run_ids,
        start=len(body.tokens),
        lease_ttl=timedelta(seconds=body.lease_ttl),
        environment=call.app.environment,
        commit_id=call.app.ids.commit_id(),
    )
    claimed, outcomes = await call.at.reporting.record_and_claim(body.reports, request)
    return ClaimAnswer(
        runs=claimed.runs,
        outcomes=tuple(outcomes),
        now=claimed.now,
        next_claimable_at=claimed.next_claimable_at,
    )


async def report(call: Call, body: ReportRequest) -> ReportAnswer:
    outcomes = await call.at.reporting.record(body.reports)
    return ReportAnswer(outcomes=tuple(outcomes), now=call.app.time())


async def renew(call: Call, body: RenewRequest) -> RenewAnswer:
    own = await _own_runs(call, (lease.run_id for lease in body.leases))
    default = timedelta(seconds=body.lease_ttl)
    renewals = [
        Renewal(it.run_id, it.token, _ttl(own[it.run_id], default))
        for it in body.leases
        if it.run_id in own
    ]
    answer = await call.app.storage.renew(renewals)
    held = [own[it.run_id] for it in renewals if it.run_id in answer.renewed]
    await _record_heartbeats(call, held, default)
    strange = {lease.run_id for lease in body.leases} - own.keys()
    return RenewAnswer(
        renewed=answer.renewed,
        lost=tuple(sorted(answer.lost | strange)),
        cancelling=tuple(sorted(answer.cancelling)),
        unknown=tuple(sorted(answer.unknown)),
        now=answer.now,
    )


async def _record_heartbeats(call: Call, runs: Iterable[Run], ttl: timedelta) -> None:
    """As events, for the runs whose policy asks for that. Another writer may be faster: then
    the next renewal records one."""
    now, commit_id = call.app.time(), call.app.ids.commit_id
    commits = [
        prepare_commit(run, decide_renewal(run, run.lease.token, now, ttl), commit_id())
        for run in runs
        if run.policy.record_heartbeats and run.lease is not None
    ]
    if commits:
        await call.app.storage.commit(commits)


async def return_claims(call: Call, body: ReturnClaimsRequest) -> ReturnClaimsAnswer:
    await call.at.registry.check(body.worker_id, call.caller.id)
    backend = DatabaseBackend(call.app, call.app.storage)
    tokens = frozenset(body.tokens)
    answer = await backend.return_claims(body.worker_id, tokens, call.app.time())
    return ReturnClaimsAnswer(
        found=tuple(sorted(answer.found)), given_back=tuple(sorted(answer.given_back))
    )


async def log(call: Call, body: LogRequest) -> LogAnswer:
    own = await _own_runs(call, (batch.run_id for batch in body.batches))
    now = call.app.time()
    batches, refused = [], []
    for message in body.batches:
        _check_fields(message)
        run = own.get(message.run_id)
        if run is None or not _holds(run, message):
            refused.append(message.run_id)
            continue
        assert run.lease is not None
        batches.append(log_batch(message, run.lease.claimed_at, now))
    if batches:
        await call.app.storage.write_logs(batches)
        call.app.hints.publish({hints.log(batch.run_id) for batch in batches})
    return LogAnswer(refused=tuple(refused))


def _check_fields(message: LogMessage) -> None:
    for line in message.lines:
        if line.fields:
            encode_value(line.fields, field="fields", limit=LARGEST_FIELDS)


def _holds(run: Run, message: LogMessage) -> bool:
    lease = run.lease
    return lease is not None and lease.token == message.token and lease.attempt == message.attempt


def _ttl(run: Run, default: timedelta) -> timedelta:
    return min(run.policy.lease_ttl or default, MAX_LEASE_TTL)


async def _own_runs(call: Call, run_ids: Iterable[str]) -> dict[str, Run]:
    """Those of the caller's environment."""
    found = await call.app.storage.get(list(dict.fromkeys(run_ids)))
    own = call.app.environment
    return {run_id: run for run_id, run in found.items() if run.environment == own}
