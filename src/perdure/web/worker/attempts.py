"""Claims, leases, reports and logs of workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from msgspec.structs import replace

from perdure.core.decide import decide_renewal
from perdure.core.decide.lease import MAX_LEASE_TTL
from perdure.core.json_text import encode_value
from perdure.core.run.commit import prepare_commit
from perdure.core.run.run import Run
from perdure.engine.observability.log_writer import LARGEST_FIELDS
from perdure.engine.protocol.attempts import (
    ClaimAnswer,
    ClaimMessage,
    HeldLease,
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
from perdure.engine.protocol.chunks import count_one, in_parts
from perdure.engine.protocol.values import log_batch
from perdure.engine.runtime import wakeups as hints
from perdure.engine.tasks.reserved_names import refuse_reserved
from perdure.engine.worker.database_backend import DatabaseBackend
from perdure.storage.contract.runs import ClaimRequest, Renewal, Renewed
from perdure.web.operations.operation import Call
from perdure.web.worker.registry import MAX_RUNS_READ

MAX_LINES_WRITTEN = 5000
"""Log lines that are written at once: other requests have their turn in between."""


async def claim(call: Call, body: ClaimMessage) -> ClaimAnswer:
    await call.at.registry.check(body.worker_id, call.caller.id)
    for task in body.tasks:
        refuse_reserved(task)  # the server itself carries out what operators order
    request = ClaimRequest(
        worker_id=body.worker_id,
        tokens=body.tokens,
        tasks=body.tasks,
        versions=body.versions,
        queues=body.queues,
        run_ids=body.run_ids,
        start=len(body.tokens),
        lease_ttl=timedelta(seconds=body.lease_ttl),
        environment=call.app.environment,
        commit_id=call.app.ids.commit_id(),
    )
    claimed, outcomes = await call.at.reporting.record_and_claim(call, body.reports, request)
    return ClaimAnswer(
        runs=claimed.runs,
        outcomes=tuple(outcomes),
        now=claimed.now,
        next_claimable_at=claimed.next_claimable_at,
    )


async def report(call: Call, body: ReportRequest) -> ReportAnswer:
    outcomes = await call.at.reporting.record(call, body.reports)
    return ReportAnswer(outcomes=tuple(outcomes), now=call.app.time())


async def renew(call: Call, body: RenewRequest) -> RenewAnswer:
    ttl = timedelta(seconds=body.lease_ttl)
    parts = in_parts(body.leases, count_one, MAX_RUNS_READ) or [[]]
    answers = []
    for part in parts:
        async with call.at.registry.turn(len(part)):
            answers.append(await _renew(call, part, ttl))
    return RenewAnswer(
        renewed={run_id: at for answer in answers for run_id, at in answer.renewed.items()},
        lost=_sorted(answer.lost for answer in answers),
        cancelling=_sorted(answer.cancelling for answer in answers),
        unknown=_sorted(answer.unknown for answer in answers),
        now=answers[-1].now,
    )


async def _renew(call: Call, leases: Sequence[HeldLease], default: timedelta) -> Renewed:
    """Renew what the caller's workers hold. The rest is lost to them."""
    own = await call.at.registry.own_runs((it.run_id for it in leases), call.caller.id)
    renewals = [
        Renewal(it.run_id, it.token, _ttl(own[it.run_id], default))
        for it in leases
        if it.run_id in own
    ]
    answer = await call.app.storage.renew(renewals)
    held = [own[it.run_id] for it in renewals if it.run_id in answer.renewed]
    await _record_heartbeats(call, held, default)
    strange = {lease.run_id for lease in leases} - own.keys()
    return replace(answer, lost=answer.lost | strange)


def _sorted(several: Iterable[frozenset[str]]) -> tuple[str, ...]:
    return tuple(sorted(run_id for run_ids in several for run_id in run_ids))


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
    backend = DatabaseBackend(call.app.components, call.app.storage)
    tokens = frozenset(body.tokens)
    answer = await backend.return_claims(body.worker_id, tokens, call.app.time())
    return ReturnClaimsAnswer(
        found=tuple(sorted(answer.found)), given_back=tuple(sorted(answer.given_back))
    )


async def log(call: Call, body: LogRequest) -> LogAnswer:
    await call.offload(call.body_size, _check_fields, body.batches)
    refused: list[str] = []
    for part in in_parts(body.batches, _lines, MAX_RUNS_READ, MAX_LINES_WRITTEN):
        async with call.at.registry.turn(len(part)):
            refused += await _write_logs(call, part)
    return LogAnswer(refused=tuple(refused))


async def _write_logs(call: Call, messages: Sequence[LogMessage]) -> list[str]:
    """Store what leases prove. Return the runs of the rest."""
    own = await call.at.registry.own_runs((it.run_id for it in messages), call.caller.id)
    now = call.app.time()
    batches, refused = [], []
    for message in messages:
        run = own.get(message.run_id)
        if run is None or run.lease is None or not _holds(run, message):
            refused.append(message.run_id)
        else:
            batches.append(log_batch(message, run.lease.claimed_at, now))
    if batches:
        await call.app.storage.write_logs(batches)
        call.app.hints.publish({hints.log(batch.run_id) for batch in batches})
    return refused


def _lines(message: LogMessage) -> int:
    return len(message.lines)


def _check_fields(messages: Sequence[LogMessage]) -> None:
    for message in messages:
        for line in message.lines:
            if line.fields:
                encode_value(line.fields, field="fields", limit=LARGEST_FIELDS)


def _holds(run: Run, message: LogMessage) -> bool:
    lease = run.lease
    return lease is not None and lease.token == message.token and lease.attempt == message.attempt


def _ttl(run: Run, default: timedelta) -> timedelta:
    return min(run.policy.lease_ttl or default, MAX_LEASE_TTL)
