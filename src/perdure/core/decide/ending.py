"""How an attempt ended, as data; and the events that record it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import assert_never

import msgspec

from perdure.core.decide.lease import (
    Evidence,
    decide_failure,
    decide_interruption,
    decide_release,
    decide_shutdown,
    decide_stop,
    decide_success,
    decide_unserved,
)
from perdure.core.run.events import Event
from perdure.core.run.failure import Failure
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Awaiting, Run


class Returned(msgspec.Struct, frozen=True, tag=True, gc=False):
    result_json: msgspec.Raw


class Raised(msgspec.Struct, frozen=True, tag=True):
    failure: Failure
    retry_after: timedelta | None = None


class GaveBack(msgspec.Struct, frozen=True, tag=True):
    delay: timedelta | None = None
    until: datetime | None = None
    awaiting: Awaiting | None = None


class Interrupted(msgspec.Struct, frozen=True, tag=True):
    """The database went away, and the attempt's transaction is known not to be committed."""

    failure: Failure


class Unserved(msgspec.Struct, frozen=True, tag=True):
    """The worker's code cannot execute the run, so the handler was not called.

    `misfit` is the digest of the handler's payload schema if the payload does not fit it.
    `is_final`: it fits no live worker.
    """

    failure: Failure
    misfit: str | None = None
    is_final: bool = False


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """It was asked to stop, and did."""


class HandedOver(msgspec.Struct, frozen=True, tag=True):
    """The worker goes away."""


class Settled(msgspec.Struct, frozen=True):
    """Storage knows how the attempt ended: `run` succeeded together with its effects, and
    `topics` tells whom that concerns; or, without a run, it is not ours any more."""

    run: Run | None
    topics: frozenset[str] = frozenset()


Ending = Returned | Raised | GaveBack | Interrupted | Unserved | Stopped | HandedOver


def decide_ending(
    run: Run,
    token: str,
    ending: Ending,
    now: datetime,
    jitter: Callable[[], float],
    evidence: Evidence,
) -> Sequence[Event]:
    """The events that record `ending`. Raises LeaseLost if the run is not ours any more."""
    match ending:
        case Returned(result_json=result):
            return decide_success(run, token, now, result, evidence)
        case Raised(failure=failure, retry_after=delay):
            return decide_failure(
                run, token, now, failure, jitter=jitter(), retry_after=delay, evidence=evidence
            )
        case GaveBack(delay=delay, until=until, awaiting=awaiting):
            resume_at = until if delay is None else max(now, run.updated_at) + delay
            return decide_release(
                run, token, now, resume_at=resume_at, awaiting=awaiting, evidence=evidence
            )
        case Interrupted(failure=failure):
            return decide_interruption(run, token, now, failure, jitter=jitter(), evidence=evidence)
        case Unserved(failure=failure, misfit=misfit, is_final=is_final):
            return decide_unserved(
                run,
                token,
                now,
                failure,
                misfit=misfit,
                is_final=is_final,
                jitter=jitter(),
                evidence=evidence,
            )
        case Stopped() if run.status is Status.CANCELLATION_REQUESTED:
            return decide_stop(run, token, now, evidence=evidence)
        case Stopped() | HandedOver():
            return decide_shutdown(run, token, now)
        case _:
            assert_never(ending)
