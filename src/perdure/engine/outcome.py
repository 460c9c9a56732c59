"""How an attempt ended, as data before it is an effect; and what that means for the run."""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import assert_never

import msgspec

from perdure.core.decide import (
    decide_failure,
    decide_release,
    decide_shutdown,
    decide_stop,
    decide_success,
)
from perdure.core.decide.lease import Evidence
from perdure.core.events import Event
from perdure.core.failure import Failure, FailureKind, make_failure
from perdure.core.lifecycle import Status
from perdure.core.run import Awaiting, Run
from perdure.engine.context import Fail, Released, RetryAfter
from perdure.errors import InvalidInput


class Returned(msgspec.Struct, frozen=True):
    result_json: msgspec.Raw


class Raised(msgspec.Struct, frozen=True):
    failure: Failure
    retry_after: timedelta | None = None


class GaveBack(msgspec.Struct, frozen=True):
    delay: timedelta | None = None
    until: datetime | None = None
    awaiting: Awaiting | None = None


class Stopped(msgspec.Struct, frozen=True):
    """It was asked to stop, and did."""


class HandedOver(msgspec.Struct, frozen=True):
    """The worker goes away."""


Ending = Returned | Raised | GaveBack | Stopped | HandedOver


def decide_ending(
    run: Run, token: str, ending: Ending, now: datetime, jitter: float, evidence: Evidence
) -> Sequence[Event]:
    """The events that record `ending`. Raises LeaseLost if the run is not ours any more."""
    match ending:
        case Returned(result_json=result):
            return decide_success(run, token, now, result, evidence)
        case Raised(failure=failure, retry_after=delay):
            return decide_failure(
                run, token, now, failure, jitter=jitter, retry_after=delay, evidence=evidence
            )
        case GaveBack(delay=delay, until=until, awaiting=awaiting):
            resume_at = until if delay is None else max(now, run.updated_at) + delay
            return decide_release(
                run, token, now, resume_at=resume_at, awaiting=awaiting, evidence=evidence
            )
        case Stopped() if run.status is Status.CANCELLATION_REQUESTED:
            return decide_stop(run, token, now, evidence=evidence)
        case Stopped() | HandedOver():
            return decide_shutdown(run, token, now)
        case _:
            assert_never(ending)


def ending_of(error: BaseException) -> Ending:
    """What an exception that left a handler means."""
    match error:
        case Released(delay=delay, until=until, awaiting=awaiting):
            return GaveBack(delay, until, awaiting)
        case RetryAfter(message=message, delay=delay):
            return Raised(_failure(error, message, retryable=True), delay)
        case Fail(message=message, retryable=retryable, details=details):
            return Raised(
                make_failure(
                    FailureKind.ERROR,
                    type=type(error).__name__,
                    message=message,
                    retryable=retryable,
                    details=details,
                    traceback=_traceback(error),
                )
            )
        case _:
            return Raised(_failure(error, str(error), retryable=True))


def timed_out(timeout: timedelta) -> Raised:
    message = f"the attempt took longer than its timeout of {timeout.total_seconds():g} s"
    return Raised(make_failure(FailureKind.TIMEOUT, type="Timeout", message=message))


def rejected(error: InvalidInput) -> Raised:
    """Arguments or results that do not fit: trying again would not help."""
    return Raised(
        make_failure(
            FailureKind.REJECTED,
            type=type(error).__name__,
            message=str(error),
            retryable=False,
        )
    )


def _failure(error: BaseException, message: str, *, retryable: bool) -> Failure:
    return make_failure(
        FailureKind.ERROR,
        type=type(error).__name__,
        message=message,
        retryable=retryable,
        traceback=_traceback(error),
    )


def _traceback(error: BaseException) -> str:
    return "".join(tracebacks.format_exception(error))
