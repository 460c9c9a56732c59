"""When to try again. Randomness is an argument: `jitter` lies in [-1, 1]."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import assert_never

import msgspec

from perdure.errors import InvalidInput

SECOND = timedelta(seconds=1)
LONGEST = timedelta(days=3650)
"""However long somebody asks to wait: instants must stay instants."""


class BackoffKind(StrEnum):
    """How the delay grows from one failure to the next."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    FIXED = "fixed"
    LIST = "list"


class Backoff(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The delay after the n-th failure, from 1: capped at `maximum`, spread by ± `spread`."""

    kind: BackoffKind = BackoffKind.EXPONENTIAL
    initial: timedelta = SECOND
    factor: float = 2.0
    maximum: timedelta = timedelta(hours=1)
    spread: float = 0.2
    delays: tuple[timedelta, ...] = ()


def check_backoff(backoff: Backoff) -> None:
    """Raises InvalidInput. At the door, not in the value: what was accepted stays readable."""
    if backoff.initial < timedelta(0) or backoff.maximum < timedelta(0):
        raise InvalidInput("backoff", "initial and maximum must not be negative")
    if not 1.0 <= backoff.factor <= 1000.0:
        raise InvalidInput("backoff.factor", f"must lie between 1 and 1000, not {backoff.factor}")
    if not 0.0 <= backoff.spread <= 1.0:
        raise InvalidInput("backoff.spread", f"must lie between 0 and 1, not {backoff.spread}")
    if backoff.kind is BackoffKind.LIST and not backoff.delays:
        raise InvalidInput("backoff.delays", "a list backoff needs at least one delay")
    if any(delay < timedelta(0) for delay in backoff.delays):
        raise InvalidInput("backoff.delays", "must not be negative")


def retry_delay(backoff: Backoff, failures: int, jitter: float = 0.0) -> timedelta:
    """How long to wait after `failures` failures (at least 1); never beyond `maximum` by more
    than the spread."""
    most = min(backoff.maximum, LONGEST).total_seconds()
    seconds = min(_raw_seconds(backoff, max(failures, 1)), most)
    return timedelta(seconds=seconds * (1.0 + backoff.spread * jitter))


def _raw_seconds(backoff: Backoff, failures: int) -> float:
    initial = backoff.initial.total_seconds()
    match backoff.kind:
        case BackoffKind.EXPONENTIAL:
            # Beyond 64 doublings every cap is passed; the bound keeps the power finite.
            return float(initial * backoff.factor ** min(failures - 1, 64))
        case BackoffKind.LINEAR:
            return initial * failures
        case BackoffKind.FIXED:
            return initial
        case BackoffKind.LIST:
            return backoff.delays[min(failures, len(backoff.delays)) - 1].total_seconds()
        case _:
            assert_never(backoff.kind)
