"""The run: what its events add up to. Values only; `reducer` makes them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from perdure.core.json_text import Instant, decode_value
from perdure.core.run.backoff import Backoff
from perdure.core.run.failure import Failure
from perdure.core.run.lifecycle import LEASED, QUEUED, RUNNABLE, TERMINAL, Status

PRIORITY_STEP = timedelta(hours=1)
"""One step of priority is worth this much waiting, so that nothing starves."""

DEFAULT_ENVIRONMENT = "default"


MAX_DEATHS_BESIDE_OTHERS = 2
"""Deaths of workers in a row after which a run that each of them executed is executed alone."""

_RUN_ID = re.compile(r"run_[0-9a-f]{32}")


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None


class ActorType(StrEnum):
    OPERATOR = "operator"
    SCHEDULE = "schedule"
    SYSTEM = "system"
    WORKER = "worker"
    CLIENT = "client"


WORKER = ActorType.WORKER
"""Has a name of its own for the same reason as `lifecycle.QUEUED`."""


class Actor(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Who caused an event."""

    type: ActorType
    id: str | None = None


SYSTEM = Actor(ActorType.SYSTEM)


class SourceType(StrEnum):
    TRIGGER = "trigger"
    SCHEDULE = "schedule"
    RERUN = "rerun"
    MANUAL_RETRY = "manual_retry"
    SPAWN = "spawn"
    RULE = "rule"
    CONTINUATION = "continuation"


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why the run exists. `again`: the run that it repeats had a retry or rerun before."""

    type: SourceType = SourceType.TRIGGER
    run_id: str | None = None
    schedule_id: str | None = None
    nominal_time: Instant | None = None
    reason: str | None = None
    rule_id: str | None = None
    again: bool = False


class OnLeaseExpired(StrEnum):
    RETRY = "retry"
    FAIL = "fail"
    REDELIVER = "redeliver"


class OnExhausted(StrEnum):
    DEAD_LETTER = "dead_letter"
    FAIL = "fail"


class Policy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The rules this run lives by: a snapshot, so that its history explains itself.

    The values here are what a stored policy means by what it leaves out, so they never change.
    What a task is given that says nothing is another matter, and may.
    """

    max_attempts: int = 3
    backoff: Backoff = Backoff()
    timeout: timedelta | None = None
    lease_ttl: timedelta | None = None
    on_lease_expired: OnLeaseExpired = OnLeaseExpired.RETRY
    on_exhausted: OnExhausted | None = None
    poison_threshold: int | None = None
    max_abandons: int = 10
    max_returns: int = 50
    record_heartbeats: bool = False
    idempotency_ttl: timedelta = timedelta(days=30)

    @property
    def tries(self) -> int:
        """`0` and `1` both mean one try."""
        return max(self.max_attempts, 1)

    @property
    def exhausted_to(self) -> OnExhausted:
        """A task that may be tried more than once leaves a dead letter, unless told otherwise."""
        if self.on_exhausted is not None:
            return self.on_exhausted
        return OnExhausted.DEAD_LETTER if self.tries > 1 else OnExhausted.FAIL


class Counters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    claims: int = 0
    attempts: int = 0
    failures: int = 0
    retries: int = 0
    releases: int = 0
    returns: int = 0
    abandons: int = 0


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One worker's right to write this run's outcome, until it expires or is given up."""

    token: str
    fence: int
    worker_id: str
    claimed_at: Instant
    renewed_at: Instant
    expires_at: Instant
    attempt: int | None = None
    version: int | None = None
    """The version of the task that executes the attempt."""

    def renewed_until(self, expires_at: datetime) -> Lease:
        """Return the lease with the expiry that renewals without an event have moved.

        The time of the last renewal is not stored: it is the expiry minus the lease's length.
        """
        if expires_at <= self.expires_at:
            return self
        length = self.expires_at - self.renewed_at
        return replace(self, renewed_at=expires_at - length, expires_at=expires_at)


class AwaitingKind(StrEnum):
    SIGNAL = "signal"
    CHILD = "child"
    APPROVAL = "approval"


class Awaiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a waiting run waits for."""

    kind: AwaitingKind
    key: str
    deadline: Instant | None = None


class Cancellation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: Instant
    actor: Actor
    reason: str | None = None


class Streak(msgspec.Struct, frozen=True, gc=False):
    """How often in a row the run failed in the same way."""

    fingerprint: str
    count: int


_CLAIMED_WHEN_DUE = RUNNABLE - {Status.QUEUED}
_MAY_EXPIRE = frozenset({Status.QUEUED, Status.SCHEDULED, Status.PAUSED})


class Run(msgspec.Struct, frozen=True, gc=False):
    """A run's projection. Made by the reducer only; equal to the replay of its events. No part of
    it leads back to it, so the garbage collector need not look."""

    # From `run.created`, never rewritten.
    id: str
    environment: str
    task: str
    payload_json: msgspec.Raw
    source: Source
    occurrence_key: str | None
    parent_id: str | None
    root_id: str
    continuation_of: str | None
    lineage_depth: int
    batch_id: str | None
    concurrency_key: str | None
    idempotency_key: str | None
    singleton_key: str | None
    tags: dict[str, str]
    meta: dict[str, Any]
    expires_at: Instant | None
    requested_at: Instant | None
    policy: Policy
    task_version: int | None
    debug: bool
    created_by: Actor
    created_at: Instant

    # Changed by the events that say so; `queue`, `priority`, `run_at` and `trace_carrier` start
    # from `run.created`.
    queue: str
    status: Status
    sequence: int
    updated_at: Instant
    priority: int = 0
    run_at: Instant | None = None
    trace_carrier: dict[str, str] | None = None
    counters: Counters = Counters()
    lease: Lease | None = None
    dispatched_at: Instant | None = None
    dispatch_expires_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    failure: Failure | None = None
    streak: Streak | None = None
    result_json: msgspec.Raw | msgspec.UnsetType = UNSET
    reason: str | None = None
    cancellation: Cancellation | None = None
    awaiting: Awaiting | None = None
    interruptions: int = 0
    """How many attempts in a row the database has interrupted. They are not counted."""
    executed_version: int | None = None
    """The newest version of the task that has executed an attempt."""
    misfits: tuple[str, ...] = ()
    """Digests of the payload schemas of workers that the payload did not fit."""
    deaths: int = 0
    """How many workers in a row have died while they executed it, beside other runs."""

    @property
    def payload(self) -> Any:
        return decode_value(self.payload_json)

    @property
    def result(self) -> Any:
        return None if self.result_json is UNSET else decode_value(self.result_json)

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_leased(self) -> bool:
        return self.status in LEASED

    @property
    def claimable_at(self) -> datetime | None:
        """From when a worker may claim it; none if it may not be claimed as it is."""
        if self.status is QUEUED:
            return self.run_at or self.updated_at
        return self.run_at if self.status in _CLAIMED_WHEN_DUE else None

    @property
    def is_suspect(self) -> bool:
        """Whether it is executed alone, since workers died while they executed it. If a worker
        dies that executes it alone, the run is to blame."""
        return self.deaths >= MAX_DEATHS_BESIDE_OTHERS

    @property
    def required_version(self) -> int:
        """The oldest version of the task that may execute the run: the newest that created it or
        has executed an attempt. 0: any."""
        return max(self.task_version or 0, self.executed_version or 0)

    @property
    def claim_rank(self) -> datetime | None:
        """The order within a queue: due time, less an hour for each step of priority."""
        due = self.claimable_at
        return None if due is None else due - self.priority * PRIORITY_STEP

    @property
    def attention_at(self) -> datetime | None:
        """When maintenance must look, unless somebody does something first."""
        if self.lease is not None:
            return self.lease.expires_at
        expires_at = self.expires_at if self.expires_at and self.may_expire else None
        if self.dispatch_expires_at is None or expires_at is None:
            return self.dispatch_expires_at or expires_at
        return min(self.dispatch_expires_at, expires_at)

    @property
    def may_expire(self) -> bool:
        """Time to live counts only until the first attempt begins."""
        return self.status in _MAY_EXPIRE and self.counters.attempts == 0

    def has_expired(self, now: datetime) -> bool:
        """Whether nobody began it in time."""
        return self.expires_at is not None and self.expires_at <= now and self.may_expire

    @property
    def schedule_id(self) -> str | None:
        return self.source.schedule_id

    @property
    def holds_room(self) -> bool:
        """Leased, or reserved for a push: it occupies a place of every limit it is under."""
        return self.lease is not None or self.dispatch_expires_at is not None

    @property
    def holds_schedule_slot(self) -> bool:
        """An occurrence is active from its first claim to its end, retries and waits included;
        one that is reserved is about to be."""
        if self.source.schedule_id is None or self.is_terminal:
            return False
        return self.counters.claims > 0 or self.dispatch_expires_at is not None


STATE_FIELDS = Run.__struct_fields__[Run.__struct_fields__.index("queue") :]
"""The fields later events may change: what storage keeps beside the history. `NULL` results are
kept as such, so that a run without a result differs from one that returned nothing."""
