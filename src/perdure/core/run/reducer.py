"""What happened: events fold into a run. Permission is `decide`'s business; here an event that
the lifecycle does not allow is a corruption, and is refused as such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from perdure.core.run import events as e
from perdure.core.run.failure import Failure, FailureKind
from perdure.core.run.guards import PREDICATES, Predicate
from perdure.core.run.lifecycle import (
    ARROWS,
    CLAIMED,
    RUNNING,
    SUCCEEDED,
    TERMINAL,
    EventType,
    Status,
)
from perdure.core.run.run import Cancellation, Counters, Lease, Run, Streak
from perdure.errors import InvariantViolation, PerdureError, SequenceConflict

MAX_SEQUENCE = 2**31 - 1

Effect = Callable[[Run, Any], Run]
_NO_RESERVATION: dict[str, Any] = {"dispatched_at": None, "dispatch_expires_at": None}


def project(run: Run | None, events: Sequence[e.Event], expected_sequence: int) -> Run:
    """The run after `events`, which follow `expected_sequence`.

    Raises SequenceConflict if the run is elsewhere, InvariantViolation for anything impossible.
    """
    here = 0 if run is None else run.sequence
    if expected_sequence != here or type(expected_sequence) is not int:
        raise _misplaced(run, events, expected_sequence)
    if not events:
        raise InvariantViolation(_name(run, events), "an append needs at least one event")
    if run is None:
        run, events = create(events[0]), events[1:]
    for event in events:
        run = apply(run, event)
    return run


def replay(events: Sequence[e.Event]) -> Run:
    """The run a whole history adds up to."""
    return project(None, events, 0)


def create(event: e.Event) -> Run:
    """The run right after its first event."""
    if not isinstance(event, e.RunCreated):
        raise InvariantViolation(event.run_id, f"{event.type} cannot be the first event")
    start = (event.queue, Status.QUEUED, 1, event.occurred_at)
    return made(event, (*start, event.priority, event.run_at, event.trace_carrier))


def made(event: e.RunCreated, state: tuple[Any, ...]) -> Run:
    """A run from what no later event changes, and from the rest (`STATE_FIELDS`)."""
    return Run(
        event.run_id,
        event.environment,
        event.task,
        event.payload_json,
        event.source,
        event.occurrence_key,
        event.parent_id,
        event.root_id or event.run_id,
        event.continuation_of,
        event.lineage_depth,
        event.batch_id,
        event.concurrency_key,
        event.idempotency_key,
        event.singleton_key,
        event.tags or {},
        event.meta or {},
        event.expires_at,
        event.run_at,
        event.policy,
        event.task_version,
        event.debug,
        event.actor,
        event.occurred_at,
        *state,
    )


def apply(run: Run, event: e.Event) -> Run:
    """The run after one more event. Raises InvariantViolation if it cannot follow."""
    kind, occurred_at = event.type, event.occurred_at
    if event.run_id != run.id or event.environment != run.environment:
        target = f"{event.run_id} in {event.environment}"
        raise InvariantViolation(run.id, f"{kind} targets run {target}")
    if occurred_at < run.updated_at:
        raise InvariantViolation(run.id, f"{kind} lies before the run's last event")
    step = _STEPS.get((run.status, kind))
    if step is None:
        raise InvariantViolation(run.id, _refusal(run, event))
    holds, effect = step
    if event.lease_expires_at is not None:
        run = _with_renewals(run, event.lease_expires_at)
    if not holds(run, event):
        guard = ARROWS[run.status, kind].guard
        raise InvariantViolation(run.id, f"{kind} while {run.status} needs: {guard}")
    return effect(run, event)


def _misplaced(run: Run | None, events: Sequence[e.Event], expected: int) -> PerdureError:
    if type(expected) is not int or not 0 <= expected <= MAX_SEQUENCE:
        return InvariantViolation(_name(run, events), f"{expected!r} is not a sequence")
    return SequenceConflict(_name(run, events), expected, None if run is None else run.sequence)


def _name(run: Run | None, events: Sequence[e.Event]) -> str:
    if run is not None:
        return run.id
    return events[0].run_id if events else "(new)"


def _refusal(run: Run, event: e.Event) -> str:
    state = "has ended" if run.status in TERMINAL else "does not allow it"
    return f"{event.type} cannot happen: the run is {run.status}, which {state}"


def _with_renewals(run: Run, carried: datetime) -> Run:
    """Renewals that left no event are known from the expiry a later event carries."""
    lease = run.lease
    if lease is None or carried <= lease.expires_at:
        return run
    return replace(run, lease=lease.renewed_until(carried))


def _by_time(run_at: datetime | None, now: datetime) -> Status:
    return Status.SCHEDULED if run_at is not None and run_at > now else Status.QUEUED


def _more(counters: Counters, name: str) -> Counters:
    return replace(counters, **{name: getattr(counters, name) + 1})


def _streak(run: Run, failure: Failure) -> Streak:
    same = run.streak is not None and run.streak.fingerprint == failure.fingerprint
    return Streak(failure.fingerprint, run.streak.count + 1 if same and run.streak else 1)


def _after(run: Run, event: e.Event, **changes: Any) -> Run:
    """For what is rare. `_lease_claimed`, `_started` and `_succeeded` happen to every run, and do
    without: gathering the changes takes longer than making them."""
    return replace(run, sequence=run.sequence + 1, updated_at=event.occurred_at, **changes)


def _ended(run: Run, event: e.Event, status: Status, **changes: Any) -> Run:
    end = {"status": status, "lease": None, "finished_at": event.occurred_at}
    return _after(run, event, **end, **_NO_RESERVATION, **changes)


def _delivery_requested(run: Run, event: e.RunDeliveryRequested) -> Run:
    delivery, counters = event.delivery, run.counters
    reserved = delivery.dispatch_expires_at is not None
    carriers = (delivery.trace_carrier, event.trace_carrier, run.trace_carrier)
    return _after(
        run,
        event,
        status=_by_time(delivery.available_at, event.occurred_at),
        run_at=delivery.available_at,
        lease=None,
        awaiting=None,
        dispatched_at=event.occurred_at if reserved else None,
        dispatch_expires_at=delivery.dispatch_expires_at,
        trace_carrier=next((c for c in carriers if c is not None), None),
        counters=counters if run.lease is None else _more(counters, "abandons"),
        deaths=run.deaths + 1 if run.status is RUNNING else run.deaths,
        executed_version=_executed_version(run),
    )


def _lease_claimed(run: Run, event: e.RunLeaseClaimed) -> Run:
    fence, now = run.counters.claims + 1, event.occurred_at
    return replace(
        run,
        sequence=run.sequence + 1,
        updated_at=now,
        status=CLAIMED,
        counters=replace(run.counters, claims=fence),
        lease=Lease(
            token=event.token,
            fence=fence,
            worker_id=event.worker_id,
            claimed_at=now,
            renewed_at=now,
            expires_at=event.expires_at,
        ),
        awaiting=None,
        dispatched_at=None,
        dispatch_expires_at=None,
    )


def _lease_heartbeat(run: Run, event: e.RunLeaseHeartbeat) -> Run:
    assert run.lease is not None
    renewed = replace(run.lease, renewed_at=event.occurred_at, expires_at=event.expires_at)
    return _after(run, event, lease=renewed)


def _lease_returned(run: Run, event: e.RunLeaseReturned) -> Run:
    return _after(
        run,
        event,
        status=_by_time(event.run_at, event.occurred_at),
        run_at=event.run_at or run.run_at,
        lease=None,
        counters=_more(run.counters, "returns"),
    )


def _started(run: Run, event: e.RunStarted) -> Run:
    assert run.lease is not None
    return replace(
        run,
        sequence=run.sequence + 1,
        updated_at=event.occurred_at,
        status=RUNNING,
        counters=replace(run.counters, attempts=event.attempt),
        lease=replace(run.lease, attempt=event.attempt, version=event.task_version),
        failure=None,
        started_at=event.occurred_at,
    )


def _succeeded(run: Run, event: e.RunSucceeded) -> Run:
    return replace(
        run,
        sequence=run.sequence + 1,
        updated_at=event.occurred_at,
        status=SUCCEEDED,
        lease=None,
        finished_at=event.occurred_at,
        result_json=event.result_json,
        failure=None,
        dispatched_at=None,
        dispatch_expires_at=None,
    )


def _failed(run: Run, event: e.RunFailed | e.RunDeadLettered) -> Run:
    dead = isinstance(event, e.RunDeadLettered)
    return _ended(
        run,
        event,
        Status.DEAD_LETTERED if dead else Status.FAILED,
        counters=_more(run.counters, "failures"),
        failure=event.failure,
        streak=_streak(run, event.failure),
        reason=event.reason,
    )


def _retry_scheduled(run: Run, event: e.RunRetryScheduled) -> Run:
    return _after(
        run,
        event,
        status=Status.RETRYING,
        counters=_more(_more(run.counters, "failures"), "retries"),
        failure=event.failure,
        streak=_streak(run, event.failure),
        run_at=event.retry_at,
        lease=None,
        interruptions=0,
        executed_version=_executed_version(run),
        deaths=run.deaths if event.failure.kind is FailureKind.CRASH else 0,
        **_NO_RESERVATION,
    )


def _released(run: Run, event: e.RunReleased) -> Run:
    if event.awaiting is None and event.resume_at is None:
        raise InvariantViolation(run.id, f"{event.type} says neither when nor what it waits for")
    awaiting, called = event.awaiting, event.failure is None
    return _after(
        run,
        event,
        status=Status.RELEASED if awaiting is None else Status.WAITING,
        counters=_more(run.counters, "releases"),
        run_at=event.resume_at if awaiting is None else awaiting.deadline,
        awaiting=awaiting,
        lease=None,
        interruptions=run.interruptions + 1 if event.reason == e.INTERRUPTED else 0,
        failure=event.failure,
        misfits=_misfits(run, event),
        executed_version=_executed_version(run) if called else run.executed_version,
        deaths=run.deaths if event.reason in e.NOT_BY_HANDLER else 0,
        **_NO_RESERVATION,
    )


def _misfits(run: Run, event: e.RunReleased) -> tuple[str, ...]:
    if event.misfit is None or event.misfit in run.misfits:
        return run.misfits
    return (*run.misfits, event.misfit)


def _executed_version(run: Run) -> int | None:
    """The newest version that has executed an attempt, the one that ends now included."""
    version = None if run.lease is None else run.lease.version
    if version is None or run.executed_version is None:
        return version or run.executed_version
    return max(version, run.executed_version)


def _cancellation_requested(run: Run, event: e.RunCancellationRequested) -> Run:
    asked = _cancellation(event)
    return _after(run, event, status=Status.CANCELLATION_REQUESTED, cancellation=asked)


def _cancelled(run: Run, event: e.RunCancelled) -> Run:
    cancellation = run.cancellation or _cancellation(event)
    return _ended(
        run,
        event,
        Status.CANCELLED,
        failure=None,
        awaiting=None,
        cancellation=cancellation,
        reason=event.reason or cancellation.reason,
    )


def _cancellation(event: e.RunCancellationRequested | e.RunCancelled) -> Cancellation:
    return Cancellation(at=event.occurred_at, actor=event.actor, reason=event.reason)


def _expired(run: Run, event: e.RunExpired) -> Run:
    return _ended(run, event, Status.EXPIRED)


def _skipped(run: Run, event: e.RunSkipped) -> Run:
    return _ended(run, event, Status.SKIPPED, reason=event.reason)


def _paused(run: Run, event: e.RunPaused) -> Run:
    return _after(run, event, status=Status.PAUSED, **_NO_RESERVATION)


def _resumed(run: Run, event: e.RunResumed) -> Run:
    return _after(run, event, status=_by_time(run.run_at, event.occurred_at))


def _rescheduled(run: Run, event: e.RunRescheduled) -> Run:
    changes = dict(_NO_RESERVATION)
    if event.priority is not None:
        changes["priority"] = event.priority
    if event.queue is not None:
        changes["queue"] = event.queue
    if event.run_at is not None:
        changes["run_at"] = event.run_at
        if run.status is not Status.PAUSED:
            changes["status"] = _by_time(event.run_at, event.occurred_at)
    return _after(run, event, **changes)


_EFFECTS: dict[EventType, Effect] = {
    EventType.DELIVERY_REQUESTED: _delivery_requested,
    EventType.LEASE_CLAIMED: _lease_claimed,
    EventType.LEASE_HEARTBEAT: _lease_heartbeat,
    EventType.LEASE_RETURNED: _lease_returned,
    EventType.STARTED: _started,
    EventType.SUCCEEDED: _succeeded,
    EventType.FAILED: _failed,
    EventType.DEAD_LETTERED: _failed,
    EventType.RETRY_SCHEDULED: _retry_scheduled,
    EventType.RELEASED: _released,
    EventType.CANCELLATION_REQUESTED: _cancellation_requested,
    EventType.CANCELLED: _cancelled,
    EventType.EXPIRED: _expired,
    EventType.SKIPPED: _skipped,
    EventType.PAUSED: _paused,
    EventType.RESUMED: _resumed,
    EventType.RESCHEDULED: _rescheduled,
}

_STEPS: dict[tuple[Status, EventType], tuple[Predicate, Effect]] = {
    key: (PREDICATES[arrow.guard], _EFFECTS[arrow.event]) for key, arrow in ARROWS.items()
}
"""What an arrow asks for and what it does, found in one look."""
