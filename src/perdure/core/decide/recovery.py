"""What maintenance may decide, once nobody holds a live lease. Idempotent; often empty."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from perdure.core.decide.event import Events, delivery, fact
from perdure.core.decide.lease import NO_EVIDENCE, POISON, failed
from perdure.core.run import events as e
from perdure.core.run.failure import CRASH, FailureKind, make_failure
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import SYSTEM, OnLeaseExpired, Run

ABANDONED = "Abandoned"
"""The failure of a run whose workers were lost too often."""

DIED_ALONE = make_failure(
    FailureKind.CRASH,
    type="WorkerDied",
    message="its worker died while it executed this run alone",
)
"""The failure of a run that is to blame for its worker's death."""


def decide_attention(run: Run, now: datetime, jitter: float = 0.0) -> Events:
    """Whatever is due about this run: a lost lease, a passed time to live, a stale dispatch."""
    return (
        decide_recovery(run, now, jitter) or decide_expiry(run, now) or _decide_redelivery(run, now)
    )


def decide_recovery(run: Run, now: datetime, jitter: float = 0.0) -> Events:
    """What becomes of a run whose lease has expired; nothing while the lease is live."""
    if run.lease is None or run.lease.expires_at > now:
        return []
    if run.status is Status.CANCELLATION_REQUESTED:
        return [fact(e.RunCancelled, run, SYSTEM, now)]
    if run.status is Status.CLAIMED:
        return _redeliver(run, now)
    match run.policy.on_lease_expired:
        case OnLeaseExpired.RETRY:
            return _after_death(run, now, jitter)
        case OnLeaseExpired.FAIL:
            attempt = run.lease.attempt
            return [fact(e.RunFailed, run, SYSTEM, now, attempt=attempt, failure=CRASH)]
        case OnLeaseExpired.REDELIVER:
            return _redeliver(run, now)
        case _:
            assert_never(run.policy.on_lease_expired)


def _after_death(run: Run, now: datetime, jitter: float) -> Events:
    """The worker may have died because of another run: a death is counted only if the run was
    executed alone. A task with a single attempt is not executed again."""
    if run.is_suspect:
        return failed(run, SYSTEM, now, DIED_ALONE, jitter, None, NO_EVIDENCE)
    if run.policy.tries == 1:
        return failed(run, SYSTEM, now, CRASH, jitter, None, NO_EVIDENCE)
    return [delivery(run, SYSTEM, now)]


def decide_expiry(run: Run, now: datetime) -> Events:
    """A run that nobody began in time."""
    if not run.has_expired(now):
        return []
    return [fact(e.RunExpired, run, SYSTEM, now)]


def _decide_redelivery(run: Run, now: datetime) -> Events:
    """A reservation that ran out frees its slot; the run is delivered anew, once it is due."""
    lapsed = run.dispatch_expires_at is not None and run.dispatch_expires_at <= now
    due = run.claimable_at is not None and run.claimable_at <= now
    if not (lapsed and due):
        return []
    return [delivery(run, SYSTEM, now)]


def _redeliver(run: Run, now: datetime) -> Events:
    """Back to the queue, uncounted; but a run that kills every worker is poison."""
    assert run.lease is not None
    if run.counters.abandons < run.policy.max_abandons:
        return [delivery(run, SYSTEM, now)]
    message = f"its lease expired {run.counters.abandons + 1} times"
    failure = make_failure(FailureKind.SYSTEM, type=ABANDONED, message=message)
    attempt = run.lease.attempt
    return [
        fact(e.RunDeadLettered, run, SYSTEM, now, attempt=attempt, failure=failure, reason=POISON)
    ]
