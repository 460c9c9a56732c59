"""The whole state machine, as data: statuses, event types and the arrows between them.

The reducer, the diagram in the docs and the tests all read `ARROWS`. An arrow once released
is never removed, because old histories must replay; a new meaning needs a new event type or
an upcaster in `codec`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Status(StrEnum):
    """Where a run is in its life."""

    __hash__ = str.__hash__  # Enum's own is a call of Python code, for every look-up

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    RETRYING = "retrying"
    RELEASED = "released"
    WAITING = "waiting"
    PAUSED = "paused"
    CANCELLATION_REQUESTED = "cancellation_requested"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


# Every run meets these. In Python 3.11 looking a member up takes longer than comparing with it.
QUEUED, CLAIMED, RUNNING = Status.QUEUED, Status.CLAIMED, Status.RUNNING
SUCCEEDED, DEAD_LETTERED = Status.SUCCEEDED, Status.DEAD_LETTERED

TERMINAL = frozenset(
    {
        Status.SUCCEEDED,
        Status.FAILED,
        Status.DEAD_LETTERED,
        Status.CANCELLED,
        Status.EXPIRED,
        Status.SKIPPED,
    }
)
ACTIVE = frozenset(Status) - TERMINAL
FAILURES = frozenset({Status.FAILED, Status.DEAD_LETTERED})
LEASED = frozenset({Status.CLAIMED, Status.RUNNING, Status.CANCELLATION_REQUESTED})
RUNNABLE = frozenset(
    {Status.QUEUED, Status.SCHEDULED, Status.RETRYING, Status.RELEASED, Status.WAITING}
)
"""A worker may claim such a run once it is due. A run with an expired lease is not among them:
maintenance recovers it first."""
DELIVERY_RECOVERY = frozenset({Status.CLAIMED, Status.RUNNING})
"""Maintenance recovers such a run once its lease has expired."""
CANCELLATION_FINALISATION = frozenset({Status.CANCELLATION_REQUESTED})
"""Maintenance cancels such a run once its lease has expired."""

MEANING: dict[Status, str] = {
    Status.SCHEDULED: "due at a later time",
    Status.QUEUED: "waiting for a worker",
    Status.CLAIMED: "a worker holds the lease, the attempt has not begun",
    Status.RUNNING: "the attempt is running",
    Status.RETRYING: "an attempt failed; due again at `run_at`",
    Status.RELEASED: "the handler gave the run back until `run_at`; no failure",
    Status.WAITING: "parked until a signal, a child or an approval, or until a deadline",
    Status.PAUSED: "held by an operator",
    Status.CANCELLATION_REQUESTED: "the owner has been asked to stop",
    Status.SUCCEEDED: "finished without error",
    Status.FAILED: "failed, and policy allowed no retry and no dead letter",
    Status.DEAD_LETTERED: "the retry budget is spent, or the run is poison; a dead letter is open",
    Status.CANCELLED: "ended on request",
    Status.EXPIRED: "its time to live passed before the first attempt began",
    Status.SKIPPED: "a schedule policy decided against it; the reason is recorded",
}


class EventType(StrEnum):
    """What can happen to a run."""

    __hash__ = str.__hash__

    CREATED = "run.created"
    DELIVERY_REQUESTED = "run.delivery_requested"
    LEASE_CLAIMED = "run.lease_claimed"
    LEASE_HEARTBEAT = "run.lease_heartbeat"
    LEASE_RETURNED = "run.lease_returned"
    STARTED = "run.started"
    SUCCEEDED = "run.succeeded"
    FAILED = "run.failed"
    DEAD_LETTERED = "run.dead_lettered"
    RETRY_SCHEDULED = "run.retry_scheduled"
    RELEASED = "run.released"
    CANCELLATION_REQUESTED = "run.cancellation_requested"
    CANCELLED = "run.cancelled"
    EXPIRED = "run.expired"
    SKIPPED = "run.skipped"
    PAUSED = "run.paused"
    RESUMED = "run.resumed"
    RESCHEDULED = "run.rescheduled"


class Guard(StrEnum):
    """The condition an arrow carries, in the words the docs print. `guards` judges them."""

    __hash__ = str.__hash__

    ALWAYS = "always"
    DELIVERY_FITS = "the delivery targets this run and its queue"
    DELIVERY_FITS_WHEN_DUE = "the delivery targets this run and its queue, and `run_at` is due"
    DELIVERY_FITS_LEASE_EXPIRED = "the delivery targets this run and its queue, lease expired"
    QUEUED_DUE = "`run_at`, or else `updated_at`, is due"
    DUE = "`run_at` is due"
    LEASE_EXPIRED = "the lease has expired"
    HOLDER = "same token and worker as the lease"
    NEXT_ATTEMPT = "the next attempt's number, and the lease is live"
    COMPLETES = "the number of the lease's attempt"
    NEVER_BEGAN = "no attempt, and failure kind `system` or `rejected`"
    TTL_PASSED = "no attempt has begun and `expires_at` has passed"
    NO_ATTEMPT = "no attempt has begun"


class Arrow(msgspec.Struct, frozen=True):
    """`event` may follow in status `source`, if `guard` holds, and leads to one of `targets`."""

    source: Status
    event: EventType
    guard: Guard
    targets: tuple[Status, ...]


_S, _E, _G = Status, EventType, Guard
_ENDS_LEASE = (_S.RUNNING, _S.CANCELLATION_REQUESTED)
_UNLEASED = (_S.QUEUED, _S.SCHEDULED, _S.RETRYING, _S.RELEASED)
_BY_TIME = (_S.QUEUED, _S.SCHEDULED)
_SAME: tuple[Status, ...] = ()

# event, guard, from, to; `_SAME` means that the status stays what it was.
_TABLE: tuple[tuple[EventType, Guard, tuple[Status, ...], tuple[Status, ...]], ...] = (
    (_E.DELIVERY_REQUESTED, _G.DELIVERY_FITS, (_S.QUEUED, _S.WAITING), _BY_TIME),
    (
        _E.DELIVERY_REQUESTED,
        _G.DELIVERY_FITS_WHEN_DUE,
        (_S.SCHEDULED, _S.RETRYING, _S.RELEASED),
        _BY_TIME,
    ),
    (_E.DELIVERY_REQUESTED, _G.DELIVERY_FITS_LEASE_EXPIRED, (_S.CLAIMED, _S.RUNNING), _BY_TIME),
    (_E.LEASE_CLAIMED, _G.QUEUED_DUE, (_S.QUEUED,), (_S.CLAIMED,)),
    (
        _E.LEASE_CLAIMED,
        _G.DUE,
        (_S.SCHEDULED, _S.RETRYING, _S.RELEASED, _S.WAITING),
        (_S.CLAIMED,),
    ),
    (_E.LEASE_CLAIMED, _G.LEASE_EXPIRED, (_S.CLAIMED, _S.RUNNING), (_S.CLAIMED,)),
    (_E.LEASE_HEARTBEAT, _G.HOLDER, (_S.CLAIMED, *_ENDS_LEASE), _SAME),
    (_E.LEASE_RETURNED, _G.HOLDER, (_S.CLAIMED,), _BY_TIME),
    (_E.STARTED, _G.NEXT_ATTEMPT, (_S.CLAIMED,), (_S.RUNNING,)),
    (_E.SUCCEEDED, _G.COMPLETES, _ENDS_LEASE, (_S.SUCCEEDED,)),
    (_E.FAILED, _G.COMPLETES, _ENDS_LEASE, (_S.FAILED,)),
    (_E.FAILED, _G.NEVER_BEGAN, (_S.CLAIMED,), (_S.FAILED,)),
    (_E.DEAD_LETTERED, _G.COMPLETES, _ENDS_LEASE, (_S.DEAD_LETTERED,)),
    (_E.DEAD_LETTERED, _G.NEVER_BEGAN, (_S.CLAIMED,), (_S.DEAD_LETTERED,)),
    (_E.RETRY_SCHEDULED, _G.COMPLETES, _ENDS_LEASE, (_S.RETRYING,)),
    (_E.RELEASED, _G.COMPLETES, _ENDS_LEASE, (_S.RELEASED, _S.WAITING)),
    (
        _E.CANCELLATION_REQUESTED,
        _G.ALWAYS,
        (_S.CLAIMED, _S.RUNNING),
        (_S.CANCELLATION_REQUESTED,),
    ),
    (
        _E.CANCELLED,
        _G.ALWAYS,
        (*_UNLEASED, _S.WAITING, _S.PAUSED, _S.CANCELLATION_REQUESTED),
        (_S.CANCELLED,),
    ),
    (_E.EXPIRED, _G.TTL_PASSED, (_S.QUEUED, _S.SCHEDULED, _S.PAUSED), (_S.EXPIRED,)),
    (_E.SKIPPED, _G.NO_ATTEMPT, (_S.QUEUED, _S.SCHEDULED), (_S.SKIPPED,)),
    (_E.PAUSED, _G.ALWAYS, _UNLEASED, (_S.PAUSED,)),
    (_E.RESUMED, _G.ALWAYS, (_S.PAUSED,), _BY_TIME),
    (_E.RESCHEDULED, _G.ALWAYS, (_S.PAUSED,), (_S.PAUSED,)),
    (_E.RESCHEDULED, _G.ALWAYS, (_S.QUEUED, _S.SCHEDULED), _BY_TIME),
    (_E.RESCHEDULED, _G.ALWAYS, (_S.RETRYING,), (_S.RETRYING, *_BY_TIME)),
    (_E.RESCHEDULED, _G.ALWAYS, (_S.RELEASED,), (_S.RELEASED, *_BY_TIME)),
)

ARROWS: dict[tuple[Status, EventType], Arrow] = {
    (source, event): Arrow(source, event, guard, targets or (source,))
    for event, guard, sources, targets in _TABLE
    for source in sources
}

assert len(ARROWS) == sum(len(row[2]) for row in _TABLE), "one arrow per status and event"
