"""How much an event may carry beside its run's payload and result.

Checked wherever a commit is prepared, so that neither a handler nor a worker elsewhere can store
a history that is too deep to be read, or too large to be shown.
"""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.decide.create import MAX_META
from perdure.core.json_text import DEFAULT_LIMIT, MAX_DEPTH, encode_value
from perdure.core.run.events import (
    Completion,
    Event,
    RunCancellationRequested,
    RunCancelled,
    RunDeadLettered,
    RunFailed,
    RunLeaseReturned,
    RunPaused,
    RunReleased,
    RunRescheduled,
    RunRetryScheduled,
    RunSkipped,
    RunSucceeded,
)
from perdure.core.run.failure import MAX_DETAILS, MAX_MESSAGE, Failure
from perdure.core.run.lifecycle import EventType
from perdure.errors import InvalidInput

MAX_OUTPUT_BYTES = DEFAULT_LIMIT
MAX_TRACE_BYTES = 64 * 1024
MAX_TEXT_CHARACTERS = MAX_MESSAGE + 100
"""Longer texts were cut to `MAX_MESSAGE`, with a note of how much is missing."""


CARRYING = frozenset(
    {
        EventType.SUCCEEDED,
        EventType.FAILED,
        EventType.DEAD_LETTERED,
        EventType.RETRY_SCHEDULED,
        EventType.RELEASED,
        EventType.CANCELLED,
        EventType.CANCELLATION_REQUESTED,
        EventType.LEASE_RETURNED,
        EventType.SKIPPED,
        EventType.PAUSED,
        EventType.RESCHEDULED,
    }
)
"""Events with more than `meta` to check. The meta of a new run is checked by `decide_create`."""

_encode = msgspec.json.Encoder().encode


def check_bounds(event: Event) -> None:
    """Raise InvalidInput for an event that carries too much, or something nested too deeply."""
    if event.meta is not None and event.type is not EventType.CREATED:
        encode_value(event.meta, field="meta", limit=MAX_META)
    match event:
        case RunSucceeded():
            _check_evidence(event)
        case RunFailed() | RunDeadLettered():
            _check_evidence(event)
            _check_failure(event.failure)
            _check_text(event.reason, "reason")
        case RunRetryScheduled():
            _check_evidence(event)
            _check_failure(event.failure)
        case RunReleased() | RunCancelled():
            _check_evidence(event)
            _check_text(event.reason, "reason")
        case (
            RunCancellationRequested()
            | RunLeaseReturned()
            | RunSkipped()
            | RunPaused()
            | RunRescheduled()
        ):
            _check_text(event.reason, "reason")
        case _:
            pass


def _check_evidence(event: Completion | RunCancelled) -> None:
    if event.output is not None:
        encode_value(event.output, field="output", limit=MAX_OUTPUT_BYTES)
    if event.execution_trace is not None and not _is_small(event.execution_trace):
        encode_value(event.execution_trace, field="execution_trace", limit=MAX_TRACE_BYTES)


def _is_small(trace: dict[str, Any]) -> bool:
    """Whether it is surely within its bounds, as nearly all are. A level takes two bytes."""
    try:
        return len(_encode(trace)) <= 2 * MAX_DEPTH
    except (RecursionError, TypeError):
        return False


def _check_failure(failure: Failure) -> None:
    for name in ("type", "message", "fingerprint", "traceback"):
        _check_text(getattr(failure, name), f"failure.{name}")
    if failure.details is not None:
        encode_value(failure.details, field="failure.details", limit=MAX_DETAILS)


def _check_text(text: str | None, field: str) -> None:
    if text is not None and len(text) > MAX_TEXT_CHARACTERS:
        problem = f"must have at most {MAX_TEXT_CHARACTERS} characters, not {len(text)}"
        raise InvalidInput(field, problem)
