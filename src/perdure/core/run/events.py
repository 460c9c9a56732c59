"""The facts of a run's life, one frozen value each. Past tense, complete in themselves."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from perdure.core.json_text import Instant
from perdure.core.run.failure import Failure
from perdure.core.run.lifecycle import EventType
from perdure.core.run.run import DEFAULT_ENVIRONMENT, Actor, Awaiting, Policy, Source
from perdure.core.run.skip import Evidence


class Delivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The wish to have a run picked up: where, from when on, and perhaps by whom until when."""

    run_id: str
    environment: str = DEFAULT_ENVIRONMENT
    queue: str
    available_at: Instant
    dispatch_expires_at: Instant | None = None
    trace_carrier: dict[str, str] | None = None


class Fact(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False
):
    """What every event says. `lease_expires_at` is the stored expiry of the lease held when the
    event was made, so that replay judges renewals that left no event of their own."""

    type: ClassVar[EventType]
    run_id: str
    environment: str = DEFAULT_ENVIRONMENT
    occurred_at: Instant
    actor: Actor
    meta: dict[str, Any] | None = None
    lease_expires_at: Instant | None = None


class RunCreated(Fact, frozen=True, kw_only=True, tag=EventType.CREATED.value):
    """Somebody asked for the task. The first event, and only the first."""

    task: str
    payload_json: msgspec.Raw = msgspec.field(name="payload")
    queue: str
    policy: Policy
    priority: int = 0
    run_at: Instant | None = None
    source: Source = Source()
    occurrence_key: str | None = None
    parent_id: str | None = None
    root_id: str | None = None
    continuation_of: str | None = None
    lineage_depth: int = 0
    batch_id: str | None = None
    concurrency_key: str | None = None
    idempotency_key: str | None = None
    singleton_key: str | None = None
    tags: dict[str, str] | None = None
    expires_at: Instant | None = None
    task_version: int | None = None
    debug: bool = False
    trace_carrier: dict[str, str] | None = None


class RunDeliveryRequested(Fact, frozen=True, kw_only=True, tag=EventType.DELIVERY_REQUESTED.value):
    """The run shall be picked up, now or later; an expired lease ends with this."""

    delivery: Delivery
    trace_carrier: dict[str, str] | None = None


class RunLeaseClaimed(Fact, frozen=True, kw_only=True, tag=EventType.LEASE_CLAIMED.value):
    """A worker owns the run. The commit of this event is the handoff."""

    token: str
    worker_id: str
    expires_at: Instant


class RunLeaseHeartbeat(Fact, frozen=True, kw_only=True, tag=EventType.LEASE_HEARTBEAT.value):
    """The owner is alive (recorded only where the policy asks for it)."""

    token: str
    worker_id: str
    expires_at: Instant


class RunLeaseReturned(Fact, frozen=True, kw_only=True, tag=EventType.LEASE_RETURNED.value):
    """The owner gave the claim back before any attempt began."""

    token: str
    worker_id: str
    run_at: Instant | None = None
    reason: str | None = None


class RunStarted(Fact, frozen=True, kw_only=True, tag=EventType.STARTED.value):
    """An attempt began, by a worker with this version of the task."""

    attempt: int
    task_version: int | None = None


class Completion(Fact, frozen=True, kw_only=True):
    """What the events that end an attempt share. No attempt: the claim never became one."""

    attempt: int | None = None
    execution_trace: dict[str, Any] | None = None
    output: dict[str, Any] | None = None


class RunSucceeded(Completion, frozen=True, kw_only=True, tag=EventType.SUCCEEDED.value):
    """The attempt returned: a value (which may be `null`), or nothing at all (`UNSET`)."""

    result_json: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="result", default=UNSET)


class RunFailed(Completion, frozen=True, kw_only=True, tag=EventType.FAILED.value):
    """The attempt failed, and that was the end."""

    failure: Failure
    reason: str | None = None


class RunDeadLettered(Completion, frozen=True, kw_only=True, tag=EventType.DEAD_LETTERED.value):
    """The attempt failed, the budget is spent or the run is poison; an operator decides."""

    failure: Failure
    reason: str


class RunRetryScheduled(Completion, frozen=True, kw_only=True, tag=EventType.RETRY_SCHEDULED.value):
    """The attempt failed; another one is due at `retry_at`."""

    failure: Failure
    retry_at: Instant


INTERRUPTED = "storage_unavailable"
"""The reason of a release that the database has caused, not the handler."""
NOT_SERVED = "not_served"
"""The reason of a release by a worker whose code cannot execute the run."""

SHUTDOWN = "shutdown"
"""The reason of a release by a worker that stops."""
NOT_BY_HANDLER = frozenset({INTERRUPTED, NOT_SERVED, SHUTDOWN})
"""Reasons of releases that say nothing about how the handler would have ended."""


class RunReleased(Completion, frozen=True, kw_only=True, tag=EventType.RELEASED.value):
    """The handler gave the run back: until `resume_at`, or until what it is `awaiting`.

    With `failure`, the worker gave it back without calling the handler. `misfit` is the digest of
    the handler's payload schema if the payload does not fit it.
    """

    resume_at: Instant | None = None
    awaiting: Awaiting | None = None
    reason: str | None = None
    failure: Failure | None = None
    misfit: str | None = None


class RunCancellationRequested(
    Fact, frozen=True, kw_only=True, tag=EventType.CANCELLATION_REQUESTED.value
):
    """The owner was asked to stop."""

    reason: str | None = None


class RunCancelled(Fact, frozen=True, kw_only=True, tag=EventType.CANCELLED.value):
    """The run ended on request."""

    reason: str | None = None
    execution_trace: dict[str, Any] | None = None
    output: dict[str, Any] | None = None


class RunExpired(Fact, frozen=True, kw_only=True, tag=EventType.EXPIRED.value):
    """Its time to live passed before the first attempt began."""


class RunSkipped(Fact, frozen=True, kw_only=True, tag=EventType.SKIPPED.value):
    """A schedule policy decided against it. `evidence`: what that rested on at the time."""

    reason: str
    evidence: Evidence | None = None


class RunPaused(Fact, frozen=True, kw_only=True, tag=EventType.PAUSED.value):
    """An operator holds the run."""

    reason: str | None = None


class RunResumed(Fact, frozen=True, kw_only=True, tag=EventType.RESUMED.value):
    """The operator let it go on."""


class RunRescheduled(Fact, frozen=True, kw_only=True, tag=EventType.RESCHEDULED.value):
    """Another time, priority or queue; what is not given stays."""

    run_at: Instant | None = None
    priority: int | None = None
    queue: str | None = None
    reason: str | None = None


Event = (
    RunCreated
    | RunDeliveryRequested
    | RunLeaseClaimed
    | RunLeaseHeartbeat
    | RunLeaseReturned
    | RunStarted
    | RunSucceeded
    | RunFailed
    | RunDeadLettered
    | RunRetryScheduled
    | RunReleased
    | RunCancellationRequested
    | RunCancelled
    | RunExpired
    | RunSkipped
    | RunPaused
    | RunResumed
    | RunRescheduled
)

EVENT_CLASSES: dict[EventType, type[Event]] = {
    EventType(cls.__struct_config__.tag): cls for cls in Event.__args__
}
for _type, _class in EVENT_CLASSES.items():
    _class.type = _type


class RecordedEvent(msgspec.Struct, frozen=True):
    """An event where it stands in its run's history."""

    sequence: int
    event: Event

    @property
    def type(self) -> EventType:
        return self.event.type

    @property
    def occurred_at(self) -> datetime:
        return self.event.occurred_at

    @property
    def actor(self) -> Actor:
        return self.event.actor
