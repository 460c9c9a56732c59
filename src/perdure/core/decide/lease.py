"""What the holder of a lease may decide: begin, renew, give back, and say how it ended.

Every function takes the token and raises LeaseLost if it is not the run's: a stale owner first
meets SequenceConflict, reloads, and learns here that it is not the owner any more.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET

from perdure.core.decide.event import Events, fact
from perdure.core.json_text import check_label, in_utc
from perdure.core.run import events as e
from perdure.core.run.backoff import LONGEST, retry_delay
from perdure.core.run.failure import Failure, FailureKind, make_failure
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import SYSTEM, WORKER, Actor, Awaiting, Lease, OnExhausted, Run
from perdure.errors import LeaseLost, NotAllowed

RETURNED_TOO_OFTEN = "returned_too_often"
EXHAUSTED = "exhausted"
NEVER_BEGAN = "never_began"
POISON = "poison"
PAYLOAD_MISFIT = "payload_misfit"
MAX_LEASE_TTL = timedelta(hours=1)
"""No lease lasts longer without a renewal: a dead worker's runs must come back."""

MAX_INTERRUPTIONS = 10
MIN_INTERRUPTION_DELAY = timedelta(milliseconds=500)
MAX_INTERRUPTION_DELAY = timedelta(seconds=30)
MIN_HANDOVER_DELAY = timedelta(seconds=5)
MAX_HANDOVER_DELAY = timedelta(seconds=30)


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One worker's offer for one run: its lease, whether to begin the attempt at once, and the
    version of the task that it would execute."""

    token: str
    worker_id: str
    lease_ttl: timedelta
    start: bool = False
    version: int | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an executor saw of an attempt; carried by the event that ends it."""

    execution_trace: dict[str, Any] | None = None
    output: dict[str, Any] | None = None


NO_EVIDENCE = Evidence()


def decide_claim(run: Run, claim: Claim, now: datetime) -> Events:
    """Hand a due run over, or say that its time to live has passed. Never empty."""
    if now < run.updated_at:
        now = run.updated_at
    if run.has_expired(now):
        return [fact(e.RunExpired, run, SYSTEM, now)]
    due = run.claimable_at
    if due is None or due > now:
        raise NotAllowed(run.id, "claim", run.status, "it is not due, or not free")
    is_versioned = run.task_version is not None or run.executed_version is not None
    if is_versioned and run.required_version > (claim.version or 0):
        problem = f"it needs version {run.required_version} of its task"
        raise NotAllowed(run.id, "claim", run.status, problem)
    ttl = claim.lease_ttl if run.policy.lease_ttl is None else run.policy.lease_ttl
    claimed = e.RunLeaseClaimed(
        run_id=run.id,
        environment=run.environment,
        occurred_at=now,
        actor=Actor(WORKER, claim.worker_id),
        token=claim.token,
        worker_id=claim.worker_id,
        expires_at=now + (ttl if ttl < MAX_LEASE_TTL else MAX_LEASE_TTL),
    )
    return [claimed, _started_with(claimed, run, claim.version)] if claim.start else [claimed]


def _started_with(claimed: e.RunLeaseClaimed, run: Run, version: int | None) -> e.RunStarted:
    """The attempt that begins in the very commit that claims its run."""
    return e.RunStarted(
        run_id=claimed.run_id,
        environment=claimed.environment,
        occurred_at=claimed.occurred_at,
        actor=claimed.actor,
        lease_expires_at=claimed.expires_at,
        attempt=run.counters.attempts + 1,
        task_version=version,
    )


def decide_start(run: Run, token: str, now: datetime, version: int | None = None) -> Events:
    """Begin the next attempt. A lease that has run out cannot begin one any more."""
    lease = _owned(run, token)
    if run.status is Status.CANCELLATION_REQUESTED and lease.attempt is None:
        return [fact(e.RunCancelled, run, _worker(lease), now)]
    _only_claimed(run, "start")
    if lease.expires_at <= max(now, run.updated_at):
        raise LeaseLost(run.id, "its lease expired before the attempt began")
    attempt = run.counters.attempts + 1
    return [fact(e.RunStarted, run, _worker(lease), now, attempt=attempt, task_version=version)]


def decide_renewal(run: Run, token: str, now: datetime, ttl: timedelta) -> Events:
    """A recorded heartbeat. Renewing an expired lease that nobody has taken is allowed."""
    lease = _owned(run, token)
    ttl = ttl if run.policy.lease_ttl is None else run.policy.lease_ttl
    expires_at = max(lease.expires_at, max(now, run.updated_at) + min(ttl, MAX_LEASE_TTL))
    return [
        fact(
            e.RunLeaseHeartbeat,
            run,
            _worker(lease),
            now,
            token=token,
            worker_id=lease.worker_id,
            expires_at=expires_at,
        )
    ]


def decide_return(
    run: Run,
    token: str,
    now: datetime,
    *,
    run_at: datetime | None = None,
    reason: str | None = None,
) -> Events:
    """Give an unstarted claim back. A run that nobody ever wants to start ends at some point."""
    lease = _owned(run, token)
    run_at = None if run_at is None else in_utc(run_at, "run_at")
    if run.status is Status.CANCELLATION_REQUESTED and lease.attempt is None:
        return [fact(e.RunCancelled, run, _worker(lease), now)]
    _only_claimed(run, "return")
    if run.counters.returns >= run.policy.max_returns:
        message = f"returned {run.counters.returns + 1} times without an attempt"
        failure = make_failure(FailureKind.SYSTEM, type="ReturnedTooOften", message=message)
        return [
            fact(e.RunFailed, run, _worker(lease), now, failure=failure, reason=RETURNED_TOO_OFTEN)
        ]
    return [
        fact(
            e.RunLeaseReturned,
            run,
            _worker(lease),
            now,
            token=token,
            worker_id=lease.worker_id,
            run_at=run_at,
            reason=reason,
        )
    ]


def decide_success(
    run: Run,
    token: str,
    now: datetime,
    result_json: msgspec.Raw | msgspec.UnsetType = UNSET,
    evidence: Evidence = NO_EVIDENCE,
) -> Events:
    """The attempt returned. That stands, also if a cancellation was asked for meanwhile."""
    lease, last = _attempting(run, token), run.updated_at
    succeeded = e.RunSucceeded(
        run_id=run.id,
        environment=run.environment,
        occurred_at=now if now > last else last,
        actor=_worker(lease),
        lease_expires_at=lease.expires_at,
        attempt=lease.attempt,
        result_json=result_json,
        execution_trace=evidence.execution_trace,
        output=evidence.output,
    )
    return [succeeded]


def decide_failure(
    run: Run,
    token: str,
    now: datetime,
    failure: Failure,
    *,
    jitter: float = 0.0,
    retry_after: timedelta | None = None,
    evidence: Evidence = NO_EVIDENCE,
) -> Events:
    """The attempt failed, or the claim could not become one (kinds `system` and `rejected`)."""
    lease = _owned(run, token)
    if lease.attempt is None and run.status is Status.CANCELLATION_REQUESTED:
        return [fact(e.RunCancelled, run, _worker(lease), now)]
    if lease.attempt is None and failure.kind not in (FailureKind.SYSTEM, FailureKind.REJECTED):
        raise NotAllowed(run.id, "fail an attempt of", run.status, "no attempt has begun")
    return failed(run, _worker(lease), now, failure, jitter, retry_after, evidence)


def decide_release(
    run: Run,
    token: str,
    now: datetime,
    *,
    resume_at: datetime | None = None,
    awaiting: Awaiting | None = None,
    reason: str | None = None,
    evidence: Evidence = NO_EVIDENCE,
) -> Events:
    """The handler gives the run back for now. While cancelling, that is the end of it."""
    lease = _attempting(run, token)
    if run.status is Status.CANCELLATION_REQUESTED:
        return decide_stop(run, token, now, evidence=evidence)
    resume_at = None if resume_at is None else in_utc(resume_at, "resume_at")
    if awaiting is None and resume_at is None:
        resume_at = max(now, run.updated_at)
    if awaiting is not None:
        check_label(awaiting.key, "awaiting.key")
    return [
        fact(
            e.RunReleased,
            run,
            _worker(lease),
            now,
            attempt=lease.attempt,
            resume_at=resume_at,
            awaiting=awaiting,
            reason=reason,
            execution_trace=evidence.execution_trace,
            output=evidence.output,
        )
    ]


def decide_stop(run: Run, token: str, now: datetime, *, evidence: Evidence = NO_EVIDENCE) -> Events:
    """The owner stopped because it was asked to."""
    lease = _owned(run, token)
    if run.status is not Status.CANCELLATION_REQUESTED:
        raise NotAllowed(run.id, "stop", run.status, "nobody asked for a cancellation")
    return [
        fact(
            e.RunCancelled,
            run,
            _worker(lease),
            now,
            execution_trace=evidence.execution_trace,
            output=evidence.output,
        )
    ]


def decide_interruption(
    run: Run,
    token: str,
    now: datetime,
    failure: Failure,
    *,
    jitter: float = 0.0,
    evidence: Evidence = NO_EVIDENCE,
) -> Events:
    """The database went away before the attempt could commit. It is made again, uncounted.

    A handler may be the cause, e.g. with a statement that crashes its backend: after
    MAX_INTERRUPTIONS in a row the attempt counts as failed.
    """
    if run.interruptions >= MAX_INTERRUPTIONS:
        return decide_failure(run, token, now, failure, jitter=jitter, evidence=evidence)
    delay = min(MAX_INTERRUPTION_DELAY, MIN_INTERRUPTION_DELAY * 2**run.interruptions)
    resume_at = max(now, run.updated_at) + delay * (1 + 0.2 * jitter)
    return decide_release(
        run, token, now, resume_at=resume_at, reason=e.INTERRUPTED, evidence=evidence
    )


def decide_unserved(
    run: Run,
    token: str,
    now: datetime,
    failure: Failure,
    *,
    misfit: str | None = None,
    is_final: bool = False,
    jitter: float = 0.0,
    evidence: Evidence = NO_EVIDENCE,
) -> Events:
    """The worker's code cannot execute the run, so its handler was not called. Another worker
    gets it, uncounted; or, if the decision `is_final`, it becomes a dead letter.

    `misfit` is the digest of the worker's payload schema if the payload does not fit it.
    """
    lease = _attempting(run, token)
    if run.status is Status.CANCELLATION_REQUESTED:
        return decide_stop(run, token, now, evidence=evidence)
    ending: dict[str, Any] = {
        "attempt": lease.attempt,
        "failure": failure,
        "execution_trace": evidence.execution_trace,
        "output": evidence.output,
    }
    if is_final:
        dead = fact(e.RunDeadLettered, run, _worker(lease), now, reason=PAYLOAD_MISFIT, **ending)
        return [dead]
    delay = MIN_HANDOVER_DELAY + (MAX_HANDOVER_DELAY - MIN_HANDOVER_DELAY) * (1 + jitter) / 2
    resume_at = max(now, run.updated_at) + delay
    ending |= {"resume_at": resume_at, "reason": e.NOT_SERVED, "misfit": misfit}
    return [fact(e.RunReleased, run, _worker(lease), now, **ending)]


def decide_shutdown(run: Run, token: str, now: datetime) -> Events:
    """The worker goes away: what has not begun is returned, what has is released. Uncounted."""
    lease = _owned(run, token)
    if lease.attempt is None:
        return decide_return(run, token, now, reason=e.SHUTDOWN)
    return decide_release(run, token, now, reason=e.SHUTDOWN)


def failed(
    run: Run,
    actor: Actor,
    now: datetime,
    failure: Failure,
    jitter: float,
    retry_after: timedelta | None,
    evidence: Evidence,
) -> Events:
    """What follows a failure: another try, a dead letter, or the end. Budget counts failures."""
    assert run.lease is not None
    ending: dict[str, Any] = {
        "attempt": run.lease.attempt,
        "failure": failure,
        "execution_trace": evidence.execution_trace,
        "output": evidence.output,
    }
    failures = run.counters.failures + 1
    if run.status is Status.CANCELLATION_REQUESTED:
        return [fact(e.RunFailed, run, actor, now, **ending)]
    if _is_poison(run, failure):
        return [fact(e.RunDeadLettered, run, actor, now, reason=POISON, **ending)]
    if failure.retryable and failures < run.policy.tries and run.lease.attempt is not None:
        delay = retry_after
        if delay is None:
            delay = retry_delay(run.policy.backoff, failures, jitter)
        retry_at = max(now, run.updated_at) + min(delay, LONGEST)
        return [fact(e.RunRetryScheduled, run, actor, now, retry_at=retry_at, **ending)]
    if failure.retryable and run.policy.exhausted_to is OnExhausted.DEAD_LETTER:
        reason = _exhausted_by(run, failure)
        return [fact(e.RunDeadLettered, run, actor, now, reason=reason, **ending)]
    return [fact(e.RunFailed, run, actor, now, **ending)]


def _exhausted_by(run: Run, failure: Failure) -> str:
    """Return why the run becomes a dead letter, now that its budget is spent."""
    if run.is_suspect and failure.kind is FailureKind.CRASH:
        return POISON
    return NEVER_BEGAN if run.lease is None or run.lease.attempt is None else EXHAUSTED


def _is_poison(run: Run, failure: Failure) -> bool:
    threshold, streak = run.policy.poison_threshold, run.streak
    same = streak is not None and streak.fingerprint == failure.fingerprint
    count = streak.count + 1 if streak is not None and same else 1
    return threshold is not None and count >= threshold


def _owned(run: Run, token: str) -> Lease:
    if run.lease is None or run.lease.token != token:
        raise LeaseLost(run.id)
    return run.lease


def _attempting(run: Run, token: str) -> Lease:
    lease = _owned(run, token)
    if lease.attempt is None:
        raise NotAllowed(run.id, "end an attempt of", run.status, "no attempt has begun")
    return lease


def _only_claimed(run: Run, action: str) -> None:
    if run.status is not Status.CLAIMED:
        raise NotAllowed(run.id, action, run.status, "its attempt has begun")


def _worker(lease: Lease) -> Actor:
    return Actor(WORKER, lease.worker_id)
