"""Attempts, derived from events. Only `run.started` makes one; nothing about them is stored."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.run import events as e
from perdure.core.run.failure import Failure


class AttemptStatus(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRYING = "retrying"
    RELEASED = "released"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try at a run."""

    number: int
    worker_id: str
    claimed_at: datetime
    started_at: datetime
    finished_at: datetime | None = None
    status: AttemptStatus = AttemptStatus.RUNNING
    failure: Failure | None = None
    execution_trace: dict[str, Any] | None = None
    output: dict[str, Any] | None = None


_ENDINGS: dict[type[Any], AttemptStatus] = {
    e.RunSucceeded: AttemptStatus.SUCCEEDED,
    e.RunFailed: AttemptStatus.FAILED,
    e.RunDeadLettered: AttemptStatus.FAILED,
    e.RunRetryScheduled: AttemptStatus.RETRYING,
    e.RunReleased: AttemptStatus.RELEASED,
    e.RunCancelled: AttemptStatus.CANCELLED,
    # A new delivery or claim while an attempt is open means that its lease had expired.
    e.RunDeliveryRequested: AttemptStatus.ABANDONED,
    e.RunLeaseClaimed: AttemptStatus.ABANDONED,
}


def derive_attempts(events: Iterable[e.Event]) -> list[Attempt]:
    """Every attempt of a history, in order."""
    attempts: list[Attempt] = []
    claim: e.RunLeaseClaimed | None = None
    for event in events:
        if attempts and attempts[-1].status is AttemptStatus.RUNNING:
            attempts[-1] = _after(attempts[-1], event)
        if isinstance(event, e.RunLeaseClaimed):
            claim = event
        elif isinstance(event, e.RunStarted) and claim is not None:
            attempts.append(_started(claim, event))
    return attempts


def _started(claim: e.RunLeaseClaimed, event: e.RunStarted) -> Attempt:
    return Attempt(
        number=event.attempt,
        worker_id=claim.worker_id,
        claimed_at=claim.occurred_at,
        started_at=event.occurred_at,
    )


def _after(attempt: Attempt, event: e.Event) -> Attempt:
    status = _ENDINGS.get(type(event))
    if status is None:
        return attempt
    return replace(
        attempt,
        status=status,
        finished_at=event.occurred_at,
        failure=getattr(event, "failure", None),
        execution_trace=getattr(event, "execution_trace", None),
        output=getattr(event, "output", None),
    )
