"""What a task says about itself, and what one call of it may say differently."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from perdure.core.rates import Rate
from perdure.core.retry import Backoff, BackoffKind, check_backoff
from perdure.core.run import OnExhausted, OnLeaseExpired, Policy
from perdure.engine.defaults import DEFAULTS
from perdure.errors import InvalidInput

Duration = float | int | timedelta


def duration(value: Duration, field: str) -> timedelta:
    """Seconds or a timedelta, never negative."""
    if type(value) not in (int, float, timedelta):
        raise InvalidInput(field, f"must be seconds or a timedelta, not {value!r}")
    length = value if isinstance(value, timedelta) else timedelta(seconds=value)
    if length < timedelta(0):
        raise InvalidInput(field, f"must not be negative, but is {value!r}")
    return length


class Retry(msgspec.Struct, frozen=True):
    """How often and when to try again. Durations are seconds or timedeltas.

    Exponential from `initial` by `factor` up to `maximum`; or a list of `delays`, the last one
    repeated. `poison_threshold`: so many equal failures in a row make a dead letter at once.
    """

    max_attempts: int = DEFAULTS.max_attempts
    initial: Duration = 1.0
    maximum: Duration = 3600.0
    factor: float = 2.0
    jitter: float = 0.2
    kind: BackoffKind = BackoffKind.EXPONENTIAL
    delays: tuple[Duration, ...] = ()
    on_exhausted: OnExhausted | None = None
    poison_threshold: int | None = None

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 0:
            raise InvalidInput("max_attempts", f"must be 0 or more, not {self.max_attempts!r}")

    def backoff(self) -> Backoff:
        backoff = Backoff(
            kind=BackoffKind.LIST if self.delays else self.kind,
            initial=duration(self.initial, "retry.initial"),
            maximum=duration(self.maximum, "retry.maximum"),
            factor=self.factor,
            spread=self.jitter,
            delays=tuple(duration(delay, "retry.delays") for delay in self.delays),
        )
        check_backoff(backoff)
        return backoff


class Executor(StrEnum):
    """Where a handler runs: on the loop, in a thread, or in a process that can be killed."""

    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"


class TaskSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One task's definition, without its code."""

    name: str
    queue: str
    executor: Executor
    policy: Policy
    priority: int = 0
    ttl: timedelta | None = None
    version: int | None = None
    concurrency: int | None = None
    concurrency_per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None


def make_policy(
    retry: Retry,
    *,
    timeout: Duration | None,
    lease_ttl: Duration | None,
    on_lease_expired: OnLeaseExpired,
    record_heartbeats: bool = False,
) -> Policy:
    return Policy(
        max_attempts=retry.max_attempts,
        backoff=retry.backoff(),
        timeout=None if timeout is None else duration(timeout, "timeout"),
        lease_ttl=None if lease_ttl is None else duration(lease_ttl, "lease_ttl"),
        on_lease_expired=OnLeaseExpired(on_lease_expired),
        on_exhausted=retry.on_exhausted,
        poison_threshold=retry.poison_threshold,
        record_heartbeats=record_heartbeats,
    )


class TriggerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one trigger says differently from its task. None: as the task says."""

    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: Duration | None = None
    ttl: Duration | None = None
    idempotency_key: str | None = None
    idempotency_ttl: Duration | None = None
    singleton_key: str | None = None
    concurrency_key: str | None = None
    tags: dict[str, str] | None = None
    meta: dict[str, Any] | None = None
    debug: bool = False
    retry: Retry | None = None
    timeout: Duration | None = None
    parent_id: str | None = None
    root_id: str | None = None
    continuation_of: str | None = None

    def __post_init__(self) -> None:
        if self.run_at is not None and self.delay is not None:
            raise InvalidInput("delay", "give run_at or delay, not both")
        if self.run_at is not None and self.run_at.utcoffset() is None:
            raise InvalidInput("run_at", "must say its time zone, e.g. tzinfo=UTC")
