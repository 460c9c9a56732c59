"""What operators, schedules and dispatchers may decide about a run they do not hold."""

from __future__ import annotations

from datetime import datetime, timedelta

from perdure.core.decide.create import check_priority
from perdure.core.decide.event import Events, delivery, fact, refuse_ended
from perdure.core.json_text import check_label, in_utc
from perdure.core.run import events as e
from perdure.core.run.backoff import LONGEST
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import SYSTEM, Actor, Run
from perdure.core.run.skip import Evidence
from perdure.errors import InvalidInput, NotAllowed

_HELD = "a worker holds it; cancel it, or wait until the attempt ends"
_WAITS = "it waits for something else than time; cancel it, or send what it waits for"


def decide_cancel(run: Run, actor: Actor, now: datetime, reason: str | None = None) -> Events:
    """End a run that nobody holds; ask the owner of one that somebody does. Once is enough."""
    if run.status is Status.CANCELLATION_REQUESTED or run.status is Status.CANCELLED:
        return []
    refuse_ended(run, "cancel")
    if run.is_leased:
        return [fact(e.RunCancellationRequested, run, actor, now, reason=reason)]
    return [fact(e.RunCancelled, run, actor, now, reason=reason)]


def decide_pause(run: Run, actor: Actor, now: datetime, reason: str | None = None) -> Events:
    """Hold a run back until it is resumed. Pausing twice changes nothing."""
    if run.status is Status.PAUSED:
        return []
    _refuse_busy(run, "pause")
    return [fact(e.RunPaused, run, actor, now, reason=reason)]


def decide_resume(run: Run, actor: Actor, now: datetime) -> Events:
    """Let a paused run go on."""
    if run.status is not Status.PAUSED:
        raise NotAllowed(run.id, "resume", run.status, "only paused runs are resumed")
    return [fact(e.RunResumed, run, actor, now)]


def decide_reschedule(
    run: Run,
    actor: Actor,
    now: datetime,
    *,
    run_at: datetime | None = None,
    priority: int | None = None,
    queue: str | None = None,
    reason: str | None = None,
) -> Events:
    """Another time, priority or queue for a run that nobody holds."""
    _refuse_busy(run, "reschedule")
    if run_at is None and priority is None and queue is None:
        raise InvalidInput("run_at", "give a new run_at, priority or queue")
    if run_at is not None:
        run_at = in_utc(run_at, "run_at")
    if priority is not None:
        check_priority(priority)
    if queue is not None:
        check_label(queue, "queue")
    changes = {"run_at": run_at, "priority": priority, "queue": queue}
    return [fact(e.RunRescheduled, run, actor, now, reason=reason, **changes)]


def decide_skip(
    run: Run, actor: Actor, now: datetime, reason: str, evidence: Evidence | None = None
) -> Events:
    """A schedule policy decides against an occurrence that has not begun."""
    if run.status not in (Status.QUEUED, Status.SCHEDULED) or run.counters.attempts:
        raise NotAllowed(run.id, "skip", run.status, "only runs that have not begun are skipped")
    return [fact(e.RunSkipped, run, actor, now, reason=reason, evidence=evidence)]


def decide_delivery(
    run: Run, actor: Actor, now: datetime, *, dispatch_expires_at: datetime | None = None
) -> Events:
    """Have a queued or due run picked up; with a time, reserve it for a push until then."""
    due = run.claimable_at is not None and run.claimable_at <= max(now, run.updated_at)
    if not due:
        raise NotAllowed(run.id, "deliver", run.status, "it is not due")
    return [delivery(run, actor, now, dispatch_expires_at=dispatch_expires_at)]


def decide_dispatch(run: Run, now: datetime, ttl: timedelta) -> Events:
    """Reserve a due run for a push that will claim it within `ttl`, or say that its time to live
    has passed. Never empty."""
    now = max(now, run.updated_at)
    if run.has_expired(now):
        return [fact(e.RunExpired, run, SYSTEM, now)]
    return decide_delivery(run, SYSTEM, now, dispatch_expires_at=now + min(ttl, LONGEST))


def decide_wake(run: Run, actor: Actor, now: datetime) -> Events:
    """What the run waited for is there. A run that does not wait any more is left alone."""
    refuse_ended(run, "wake")
    if run.status is not Status.WAITING:
        return []
    return [delivery(run, actor, now)]


def _refuse_busy(run: Run, action: str) -> None:
    refuse_ended(run, action)
    if run.is_leased:
        raise NotAllowed(run.id, action, run.status, _HELD)
    if run.status is Status.WAITING:
        raise NotAllowed(run.id, action, run.status, _WAITS)
