"""Builders for tests: runs, events and policies with everything that does not matter filled in.

Every event happens at `T0` unless told otherwise, to the run `RUN_ID`; a lease lasts `LEASE`.
`a_run(status)` is made by the real reducer from a legal history.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from perdure.core.explain.why import SeenWorker
from perdure.core.run import events as e
from perdure.core.run.failure import Failure, FailureKind, make_failure
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.reducer import apply, project, replay
from perdure.core.run.run import (
    DEFAULT_ENVIRONMENT,
    SYSTEM,
    Actor,
    ActorType,
    Awaiting,
    AwaitingKind,
    Policy,
    Run,
)

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEASE = timedelta(seconds=60)
PAUSE = timedelta(seconds=30)
DELAY = timedelta(seconds=600)

TASK = "send_email"
QUEUE = "default"
TOKEN = "token-1"
WORKER_ID = "worker-1"
PAYLOAD = msgspec.Raw(b'{"to":"ada"}')
RESULT = msgspec.Raw(b'{"sent":true}')

CLIENT = Actor(ActorType.CLIENT, "api")
OPERATOR = Actor(ActorType.OPERATOR, "grace")
SCHEDULE = Actor(ActorType.SCHEDULE, "nightly")
WORKER = Actor(ActorType.WORKER, WORKER_ID)


def after(seconds: float) -> datetime:
    """The instant so many seconds after `T0`."""
    return T0 + timedelta(seconds=seconds)


def run_id(number: int) -> str:
    """A valid run id for each number."""
    return f"run_{number:032x}"


RUN_ID = run_id(1)


def a_policy(**fields: Any) -> Policy:
    return Policy(**fields)


def a_failure(message: str = "boom", kind: FailureKind = FailureKind.ERROR, **more: Any) -> Failure:
    return make_failure(kind, message=message, **({"type": "ValueError"} | more))


def awaiting(key: str = "paid", deadline: datetime | None = None) -> Awaiting:
    return Awaiting(kind=AwaitingKind.SIGNAL, key=key, deadline=deadline)


def created(at: datetime = T0, **fields: Any) -> e.RunCreated:
    defaults = {"task": TASK, "payload_json": PAYLOAD, "queue": QUEUE, "policy": a_policy()}
    return e.RunCreated(**_said(at, CLIENT, defaults | fields))


def delivery_requested(
    at: datetime = T0, *, delivery: dict[str, Any] | None = None, **fields: Any
) -> e.RunDeliveryRequested:
    """`delivery` overrides what the delivery says; it targets the event's run by default."""
    said = _said(at, SYSTEM, fields)
    target = {"run_id": said["run_id"], "environment": said["environment"], "queue": QUEUE}
    wish = e.Delivery(**(target | {"available_at": at} | (delivery or {})))
    return e.RunDeliveryRequested(delivery=wish, **said)


def lease_claimed(at: datetime = T0, **fields: Any) -> e.RunLeaseClaimed:
    return e.RunLeaseClaimed(**_said(at, WORKER, _lease(at) | fields))


def lease_heartbeat(at: datetime = T0, **fields: Any) -> e.RunLeaseHeartbeat:
    return e.RunLeaseHeartbeat(**_said(at, WORKER, _lease(at) | fields))


def lease_returned(at: datetime = T0, **fields: Any) -> e.RunLeaseReturned:
    defaults = {"token": TOKEN, "worker_id": WORKER_ID}
    return e.RunLeaseReturned(**_said(at, WORKER, defaults | fields))


def started(at: datetime = T0, **fields: Any) -> e.RunStarted:
    return e.RunStarted(**_said(at, WORKER, {"attempt": 1} | fields))


def succeeded(at: datetime = T0, **fields: Any) -> e.RunSucceeded:
    return e.RunSucceeded(**_said(at, WORKER, {"attempt": 1, "result_json": RESULT} | fields))


def failed(at: datetime = T0, **fields: Any) -> e.RunFailed:
    return e.RunFailed(**_said(at, WORKER, {"attempt": 1, "failure": a_failure()} | fields))


def dead_lettered(at: datetime = T0, **fields: Any) -> e.RunDeadLettered:
    defaults = {"attempt": 1, "failure": a_failure(), "reason": "exhausted"}
    return e.RunDeadLettered(**_said(at, WORKER, defaults | fields))


def retry_scheduled(at: datetime = T0, **fields: Any) -> e.RunRetryScheduled:
    defaults = {"attempt": 1, "failure": a_failure(), "retry_at": at + PAUSE}
    return e.RunRetryScheduled(**_said(at, WORKER, defaults | fields))


def released(at: datetime = T0, **fields: Any) -> e.RunReleased:
    return e.RunReleased(**_said(at, WORKER, {"attempt": 1, "resume_at": at + PAUSE} | fields))


def parked(at: datetime = T0, **fields: Any) -> e.RunReleased:
    """`run.released` that waits for a signal rather than for a time."""
    return released(at, **({"awaiting": awaiting(), "resume_at": None} | fields))


def cancellation_requested(at: datetime = T0, **fields: Any) -> e.RunCancellationRequested:
    return e.RunCancellationRequested(**_said(at, OPERATOR, fields))


def cancelled(at: datetime = T0, **fields: Any) -> e.RunCancelled:
    return e.RunCancelled(**_said(at, OPERATOR, fields))


def expired(at: datetime = T0, **fields: Any) -> e.RunExpired:
    return e.RunExpired(**_said(at, SYSTEM, fields))


def skipped(at: datetime = T0, **fields: Any) -> e.RunSkipped:
    return e.RunSkipped(**_said(at, SCHEDULE, {"reason": "overlap"} | fields))


def paused(at: datetime = T0, **fields: Any) -> e.RunPaused:
    return e.RunPaused(**_said(at, OPERATOR, fields))


def resumed(at: datetime = T0, **fields: Any) -> e.RunResumed:
    return e.RunResumed(**_said(at, OPERATOR, fields))


def rescheduled(at: datetime = T0, **fields: Any) -> e.RunRescheduled:
    return e.RunRescheduled(**_said(at, OPERATOR, fields))


Builder = Callable[..., e.Event]

BUILDERS: dict[EventType, Builder] = {
    EventType.CREATED: created,
    EventType.DELIVERY_REQUESTED: delivery_requested,
    EventType.LEASE_CLAIMED: lease_claimed,
    EventType.LEASE_HEARTBEAT: lease_heartbeat,
    EventType.LEASE_RETURNED: lease_returned,
    EventType.STARTED: started,
    EventType.SUCCEEDED: succeeded,
    EventType.FAILED: failed,
    EventType.DEAD_LETTERED: dead_lettered,
    EventType.RETRY_SCHEDULED: retry_scheduled,
    EventType.RELEASED: released,
    EventType.CANCELLATION_REQUESTED: cancellation_requested,
    EventType.CANCELLED: cancelled,
    EventType.EXPIRED: expired,
    EventType.SKIPPED: skipped,
    EventType.PAUSED: paused,
    EventType.RESUMED: resumed,
    EventType.RESCHEDULED: rescheduled,
}

_PATHS: dict[Status, tuple[Builder, ...]] = {
    Status.SCHEDULED: (delivery_requested,),
    Status.QUEUED: (),
    Status.CLAIMED: (lease_claimed,),
    Status.RUNNING: (lease_claimed, started),
    Status.RETRYING: (lease_claimed, started, retry_scheduled),
    Status.RELEASED: (lease_claimed, started, released),
    Status.WAITING: (lease_claimed, started, parked),
    Status.PAUSED: (paused,),
    Status.CANCELLATION_REQUESTED: (lease_claimed, started, cancellation_requested),
    Status.SUCCEEDED: (lease_claimed, started, succeeded),
    Status.FAILED: (lease_claimed, started, failed),
    Status.DEAD_LETTERED: (lease_claimed, started, dead_lettered),
    Status.CANCELLED: (cancelled,),
    Status.EXPIRED: (expired,),
    Status.SKIPPED: (skipped,),
}


def history(status: Status = Status.QUEUED, **fields: Any) -> list[e.Event]:
    """A shortest legal history that ends in `status`; `fields` are those of its creation."""
    at = fields.get("at", T0)
    if status is Status.SCHEDULED:
        fields = {"run_at": at + DELAY} | fields
    if status is Status.EXPIRED:
        fields = {"expires_at": at + DELAY} | fields
    first = created(**fields)
    return [first, *(build(**_next_fields(first, build)) for build in _PATHS[status])]


def a_run(status: Status = Status.QUEUED, **fields: Any) -> Run:
    """A run in `status`; `fields` are those of its creation."""
    return replay(history(status, **fields))


def a_worker(name: str = WORKER_ID, **fields: Any) -> SeenWorker:
    """A live worker with one slot that serves every queue."""
    usual = {"is_live": True, "is_stopping": False, "running": 0, "concurrency": 1}
    return SeenWorker(**(usual | {"id": name, "queues": None, "tasks": (TASK,)} | fields))


def then(run: Run, *events: e.Event) -> Run:
    """The run after these events too."""
    return project(run, events, run.sequence)


def effect(run: Run, event: e.Event) -> dict[str, Any]:
    """What the event changes, besides sequence and time, which every event moves."""
    moved = apply(run, event)
    assert (moved.sequence, moved.updated_at) == (run.sequence + 1, event.occurred_at)
    changed = [n for n in run.__struct_fields__ if getattr(run, n) != getattr(moved, n)]
    return {n: getattr(moved, n) for n in changed if n not in ("sequence", "updated_at")}


def _next_fields(first: e.RunCreated, build: Builder) -> dict[str, Any]:
    same = {"run_id": first.run_id, "environment": first.environment, "at": first.occurred_at}
    if build is delivery_requested:
        return same | {"delivery": {"queue": first.queue, "available_at": first.run_at}}
    return same | ({"at": first.expires_at} if build is expired else {})


def _lease(at: datetime) -> dict[str, Any]:
    return {"token": TOKEN, "worker_id": WORKER_ID, "expires_at": at + LEASE}


def _said(at: datetime, actor: Actor, fields: dict[str, Any]) -> dict[str, Any]:
    said = {"run_id": RUN_ID, "environment": DEFAULT_ENVIRONMENT, "actor": actor}
    return said | {"occurred_at": at} | fields


def as_id(value: object) -> str:
    """As the id of a test: the same in every process that collects it."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
