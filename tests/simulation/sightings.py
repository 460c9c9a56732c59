"""Which rare states one committed step shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.core.invariants import CommittedStep
from perdure.core.run import events as e
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import ActorType


def sighted(step: CommittedStep) -> Iterator[str]:
    """The coverage points of a step."""
    event, before = step.events[0], step.before
    by_system = event.actor.type is ActorType.SYSTEM
    match event:
        case e.RunRetryScheduled() | e.RunFailed() | e.RunDeadLettered():
            yield from _failure(event, by_system=by_system)
        case e.RunReleased(reason="shutdown") | e.RunLeaseReturned(reason="shutdown"):
            yield "handed over at shutdown"
        case e.RunCancelled() if before.lease is None:
            yield "cancelled before a claim"
        case e.RunCancelled():
            yield "cancelled by recovery" if by_system else "cancelled while running"
        case e.RunSucceeded() if before.status is Status.CANCELLATION_REQUESTED:
            yield "success despite a cancellation"
        case e.RunDeliveryRequested() if by_system and before.dispatch_expires_at is not None:
            yield "reservation lapsed"
        case e.RunDeliveryRequested() if before.lease is not None:
            yield "redelivered"
        case e.RunDeliveryRequested() if before.status is Status.WAITING:
            yield "waited and woken"
        case _ if type(event) in _PLAIN:
            yield _PLAIN[type(event)]


_PLAIN: dict[type[Any], str] = {
    e.RunReleased: "released",
    e.RunExpired: "expired",
    e.RunResumed: "paused and resumed",
}


def _failure(
    event: e.RunRetryScheduled | e.RunFailed | e.RunDeadLettered, *, by_system: bool
) -> Iterator[str]:
    if event.failure.kind is FailureKind.TIMEOUT:
        yield "timed out"
    if by_system:
        yield "crash recovered"
    if isinstance(event, e.RunDeadLettered):
        yield "dead-lettered"
    elif isinstance(event, e.RunFailed):
        yield "failed for good"
    elif not by_system:
        yield "retry after failure"
